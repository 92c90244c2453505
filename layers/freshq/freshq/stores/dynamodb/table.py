"""Describe, create and change the tables and indexes that a store needs."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.errors import StoreError, TableMissing, Throttled, Unreachable, quoted
from freshq.model.validation import first_problem, parsed_json, problem_of
from freshq.stores.base import Finding, Health
from freshq.stores.dynamodb import examining
from freshq.stores.dynamodb.batches import ACCESS_DENIED
from freshq.stores.dynamodb.calls import REFUSED_CODES, check_table_name, error_code, translated
from freshq.stores.dynamodb.examining import VIEW
from freshq.stores.dynamodb.schema import (
    ACTIVE,
    TTL_ATTRIBUTE,
    completed,
    described_table,
    table_definition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.schema import Item

# The default of the article's tool for a capacity that is not positive.
DEFAULT_CAPACITY_UNITS: Final = 5
TYPES: Final = {"str": "S", "num": "N", "bin": "B", "s": "S", "n": "N", "b": "B"}
AttributeName = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")]
UNITS: Final = ("ReadCapacityUnits", "WriteCapacityUnits")
logger = logging.getLogger(__name__)
# To fill an index DynamoDB reads the whole table; a large one takes hours.
WAIT_SECONDS: Final = 24 * 3600.0
POLL_SECONDS: Final = 2.0
# The status of a table whose description could not be read.
UNKNOWN: Final = "UNKNOWN"
# The errors while another change of the table is in progress, or after this very change was made: the
# ValidationException then says that the index exists.
BUSY_CODES: Final = ("ResourceInUseException", "LimitExceededException", "ValidationException")
# Default recovery period of point-in-time recovery.
RECOVERY_DAYS: Final = 35
# A network without access to STS must not delay the record.
SHORT_CALL: Final = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
# What other implementations answer to an operation that they do not have; some have only the HTTP status.
NOT_THERE: Final = ("UnknownOperationException", "UnknownOperation", "InvalidAction", "NotImplemented")
NOT_IMPLEMENTED: Final = 501
INDEX_ANEW: Final = "make this index as template.yaml declares it"
FOR_PRODUCTION: Final = "in production, deploy with Stage=prod"


class _TablePart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Billing(StrEnum):
    """How requests are billed."""

    ON_DEMAND = "on_demand"
    PROVISIONED = "provisioned"


class Key(_TablePart):
    """An attribute that is a key.

    Attributes:
        attribute_name: Its name.
        attribute_type: A word that begins with str, num or bin, or one of S, N and B.
    """

    attribute_name: AttributeName
    attribute_type: Annotated[str, Field(pattern=r"(?i)^(str.*|num.*|bin.*|[snb])$")] = "string"

    @property
    def letter(self) -> str:
        """The type as DynamoDB writes it."""
        word = self.attribute_type.lower()
        return TYPES[word if len(word) == 1 else word[:3]]


class Projection(_TablePart):
    """The attributes that an index holds besides keys.

    Attributes:
        type: Everything, keys only, or the named attributes.
        attributes: The names, with INCLUDE.
    """

    type: Literal["ALL", "KEYS_ONLY", "INCLUDE"] = "ALL"
    attributes: tuple[AttributeName, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _named_if_included(self) -> Self:
        if bool(self.attributes) is not (self.type == "INCLUDE"):
            raise ValueError("attributes go with type INCLUDE, and only with it")
        return self

    def definition(self) -> Item:
        """Return the projection as an argument of CreateTable."""
        attributes = {"NonKeyAttributes": list(self.attributes)} if self.attributes else {}
        return {"ProjectionType": self.type, **attributes}


class Index(_TablePart):
    """An index.

    Attributes:
        index_name: Its name.
        hash_key: Its partition key.
        sort_key: Its sort key.
        read_capacity: Read units, if billing is provisioned.
        write_capacity: Write units, if billing is provisioned.
        GSI: Whether it is global; a local index has the hash key of its table.
        projection: The attributes it holds.
    """

    index_name: Name
    hash_key: Key
    sort_key: Key | None = None
    read_capacity: int = 0
    write_capacity: int = 0
    GSI: bool = True
    projection: Projection = Projection()


class Table(_TablePart):
    """A table.

    Attributes:
        logical_name: Its name in a CloudFormation template.
        table_name: Its name.
        partition_key: Its hash key.
        sort_key: Its range key.
        read_capacity: Read units, if billing is provisioned.
        write_capacity: Write units, if billing is provisioned.
        billing: By default provisioned if a capacity is given, else on demand.
        indexes: Its indexes.
    """

    logical_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,255}$")]
    table_name: Name
    partition_key: Key
    sort_key: Key | None = None
    read_capacity: int | None = None
    write_capacity: int | None = None
    billing: Annotated[Billing, Field(strict=False)] | None = None
    indexes: tuple[Index, ...] = Field(default=(), strict=False)

    @property
    def on_demand(self) -> bool:
        """Whether billing is per request."""
        if self.billing is None:
            return self.read_capacity is None and self.write_capacity is None
        return self.billing is Billing.ON_DEMAND

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    def definition(self) -> Item:
        """Return the arguments of CreateTable."""
        types = {key.attribute_name: key.letter for key in _keys(self)}
        definition: Item = {
            "TableName": self.table_name,
            "BillingMode": "PAY_PER_REQUEST" if self.on_demand else "PROVISIONED",
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": letter} for name, letter in types.items()
            ],
            "KeySchema": key_schema(self.partition_key, self.sort_key),
            "SSESpecification": {"Enabled": True},
        }
        indexes = {
            "GlobalSecondaryIndexes": [
                _index(index) | self._throughput(index) for index in self.indexes if index.GSI
            ],
            "LocalSecondaryIndexes": [_index(index) for index in self.indexes if not index.GSI],
        }
        definition |= {member: given for member, given in indexes.items() if given}
        return definition | self._throughput(self)

    def _throughput(self, part: Table | Index) -> Item:
        """Return the capacity of the table or a global index; empty if billing is on demand."""
        if self.on_demand:
            return {}
        return {"ProvisionedThroughput": throughput(part.read_capacity, part.write_capacity)}


class Description(_TablePart):
    """The whole file.

    Attributes:
        version: Version of the file; not used.
        last_updated_date: Date of the file; not used.
        s3_code_bucket: Where the code of functions is; not used.
        tables: The tables.
        lambdas: Functions; not created.
    """

    version: str | int | float | None = None
    last_updated_date: str | None = None
    s3_code_bucket: str | None = None
    tables: tuple[Table, ...] = Field(strict=False)
    lambdas: tuple[dict[str, Any], ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        for name_field in ("table_name", "logical_name"):
            counts = Counter(getattr(table, name_field) for table in self.tables)
            for name, count in counts.items():
                if count > 1:
                    msg = f"tables: {name_field} {quoted(name)} is given {count} times"
                    raise ValueError(msg)
        return self


def read_description(path: Path) -> Description:
    """Read and check a file.

    Raises:
        ValueError: If the file cannot be read or is wrong; names the file and the path in it.
    """
    try:
        parsed = parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error
    try:
        return Description.model_validate(parsed)
    except ValidationError as error:
        msg = f"{path}: {first_problem(error, _model_at(error))}"
        raise ValueError(msg) from None


def key_schema(hash_key: Key, sort_key: Key | None) -> list[Item]:
    """Return a key schema as an argument of CreateTable."""
    schema = [{"AttributeName": hash_key.attribute_name, "KeyType": "HASH"}]
    if sort_key is not None:
        schema.append({"AttributeName": sort_key.attribute_name, "KeyType": "RANGE"})
    return schema


def throughput(read_units: int | None, write_units: int | None) -> Item:
    """Return capacities as an argument of CreateTable; the default replaces nonpositive ones."""
    given = {"ReadCapacityUnits": read_units, "WriteCapacityUnits": write_units}
    return {name: units if units and units > 0 else DEFAULT_CAPACITY_UNITS for name, units in given.items()}


def _index(index: Index) -> Item:
    return {
        "IndexName": index.index_name,
        "KeySchema": key_schema(index.hash_key, index.sort_key),
        "Projection": index.projection.definition(),
    }


def _keys(table: Table) -> Iterator[Key]:
    keys = [table.partition_key, table.sort_key]
    for index in table.indexes:
        keys += [index.hash_key, index.sort_key]
    yield from (key for key in keys if key is not None)


def _contradictions(table: Table) -> Iterator[str]:
    """Yield the contradictions that DynamoDB would reject."""
    types: dict[str, str] = {}
    for key in _keys(table):
        name = key.attribute_name
        if types.setdefault(name, key.letter) != key.letter:
            yield f"attribute {quoted(name)} is a key of type {types[name]} and of type {key.letter}"
    for name, count in Counter(index.index_name for index in table.indexes).items():
        if count > 1:
            yield f"indexes: {quoted(name)} is given {count} times"
    yield from _local_contradictions(table)


def _local_contradictions(table: Table) -> Iterator[str]:
    """Yield the local indexes that do not fit their table."""
    for place, index in enumerate(table.indexes):
        if index.GSI:
            continue
        if index.sort_key is None or table.sort_key is None:
            yield f"indexes.{place}: with GSI false, it and its table need a sort_key"
        if index.hash_key.attribute_name != table.partition_key.attribute_name:
            yield f"indexes.{place}.hash_key: with GSI false, it must be the hash key of the table"


def _model_at(error: ValidationError) -> type[BaseModel]:
    """Return the model that an unknown field was given to."""
    models: dict[object, type[BaseModel]] = {
        "tables": Table,
        "indexes": Index,
        "projection": Projection,
        "partition_key": Key,
        "hash_key": Key,
        "sort_key": Key,
    }
    places = problem_of(error).path[:-1]
    return next((models[place] for place in reversed(places) if place in models), Description)


@dataclass(frozen=True)
class TablePlan:
    """The changes to one table.

    Attributes:
        table: The table as described.
        create: Whether it does not exist.
        billing: The change of billing and capacity, if any.
        indexes: Global indexes to add.
        kept: Indexes that are not described; they are kept.
    """

    table: Table
    create: bool = False
    billing: Item | None = None
    indexes: tuple[Item, ...] = ()
    kept: tuple[str, ...] = field(default=())

    @property
    def steps(self) -> list[str]:
        """The changes in words; empty if there is none."""
        name = self.table.table_name
        if self.create:
            indexes = ", ".join(index.index_name for index in self.table.indexes) or "none"
            billing = "on demand" if self.table.on_demand else "provisioned"
            return [f"create table {name} ({billing}), indexes: {indexes}"]
        steps = [] if self.billing is None else [f"change billing or capacity of table {name}"]
        return steps + [f"add index {index['IndexName']} to table {name}" for index in self.indexes]


def plan_tables(client: DynamoDBClient, description: Description) -> list[TablePlan]:
    """Return the changes to each table, without making them.

    Raises:
        ValueError: If a table exists with other keys, or with an index that cannot be changed.
        StoreError: If DynamoDB did not answer.
    """
    return [_plan(client, table, f"tables.{place}") for place, table in enumerate(description.tables)]


def apply_plans(
    client: DynamoDBClient,
    plans: Iterable[TablePlan],
    *,
    on_status: Callable[[str, str], None] | None = None,
    poll_seconds: float = 1.0,
) -> None:
    """Apply plans, one change at a time; safe to repeat.

    Args:
        client: A low-level boto3 client.
        plans: The plans from `plan_tables`.
        on_status: Called at each poll with the awaited resource and its status.
        poll_seconds: Time between polls.

    Raises:
        StoreError: If DynamoDB did not answer or refused; changes made so far stay.
    """
    for planned in plans:
        name = planned.table.table_name
        changes = TableChanges(client, name, poll_seconds=poll_seconds, on_status=on_status)
        definition: Any = planned.table.definition()
        if planned.create:
            with translated(name):
                client.create_table(**definition)
            changes.wait()
            continue
        if planned.billing is not None:
            changes.update(planned.billing)
        for index in planned.indexes:
            changes.add_index(index, definition["AttributeDefinitions"])


def cloudformation_template(description: Description) -> Item:
    """Return a CloudFormation template of the tables. They outlive a deletion of the stack."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Resources": {
            table.logical_name: {
                "Type": "AWS::DynamoDB::Table",
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
                "Properties": _properties(table),
            }
            for table in description.tables
        },
    }


def _properties(table: Table) -> Item:
    definition = table.definition()
    definition["SSESpecification"] = {"SSEEnabled": True}
    return definition


def _plan(client: DynamoDBClient, table: Table, path: str) -> TablePlan:
    try:
        found = TableChanges(client, table.table_name).description()
    except TableMissing:
        return TablePlan(table, create=True)
    definition = table.definition()
    _check_keys(found, definition, path)
    _check_indexes(found, definition, path)
    present = index_names(found)
    wanted = definition.get("GlobalSecondaryIndexes", [])
    return TablePlan(
        table,
        billing=_billing_change(found, definition),
        indexes=tuple(index for index in wanted if index["IndexName"] not in present),
        kept=tuple(sorted(present - {index["IndexName"] for index in wanted})),
    )


def _check_keys(found: Item, definition: Item, path: str) -> None:
    types = attribute_types(found)
    if found["KeySchema"] != definition["KeySchema"]:
        msg = f"{path}: table {definition['TableName']!r} has other keys: {_shown(found['KeySchema'])}"
        raise ValueError(msg + "; keys cannot change")
    for name, letter in attribute_types(definition).items():
        if types.get(name, letter) != letter:
            msg = f"{path}: {name!r} of table {definition['TableName']!r} is of type {types[name]}"
            raise ValueError(msg + f", not {letter}; that cannot change")


def _check_indexes(found: Item, definition: Item, path: str) -> None:
    """Reject changes that need a new index."""
    for member in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        present = {index["IndexName"]: index for index in found.get(member) or []}
        for index in definition.get(member, []):
            known = present.get(index["IndexName"])
            where = f"{path}: index {index['IndexName']!r}"
            if known is None and member == "LocalSecondaryIndexes":
                raise ValueError(where + ": a local index can only be created with its table")
            if known is not None and _fixed(known) != _fixed(index):
                msg = f"{where}: has keys {_shown(known['KeySchema'])} and another projection or keys;"
                raise ValueError(msg + " delete it, or give the new one another name")


def _fixed(index: Item) -> tuple[Any, Any, list[str]]:
    projection = index["Projection"]
    return index["KeySchema"], projection["ProjectionType"], sorted(projection.get("NonKeyAttributes", []))


def serves(found: Item, wanted: Item) -> bool:
    """Return whether an index has the keys of the wanted one, and at least its other attributes.

    Other implementations of DynamoDB may not tell; then it counts as serving.
    """
    projection, needed = found.get("Projection") or {}, wanted["Projection"].get("NonKeyAttributes", [])
    has_all = projection.get("ProjectionType", "ALL") == "ALL"
    has_attributes = has_all or set(needed) <= set(projection.get("NonKeyAttributes") or [])
    return has_attributes and (found.get("KeySchema") or wanted["KeySchema"]) == wanted["KeySchema"]


def _shown(schema: Iterable[Item]) -> str:
    return ", ".join(f"{key['AttributeName']} ({key['KeyType']})" for key in schema)


def _billing_change(found: Item, definition: Item) -> Item | None:
    """Return the arguments of UpdateTable for billing and capacity; None if nothing differs."""
    if definition["BillingMode"] == "PAY_PER_REQUEST":
        return None if is_on_demand(found) else {"BillingMode": "PAY_PER_REQUEST"}
    change: Item = {}
    if _capacity_differs(found, found, definition):
        change = {
            "BillingMode": "PROVISIONED",
            "ProvisionedThroughput": definition["ProvisionedThroughput"],
        }
    if updates := _index_updates(found, definition):
        change["GlobalSecondaryIndexUpdates"] = updates
    return change or None


def _index_updates(found: Item, definition: Item) -> list[Item]:
    present = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or []}
    names = ("IndexName", "ProvisionedThroughput")
    return [
        {"Update": {name: index[name] for name in names}}
        for index in definition.get("GlobalSecondaryIndexes", [])
        if index["IndexName"] in present and _capacity_differs(found, present[index["IndexName"]], index)
    ]


def _capacity_differs(table: Item, found: Item, definition: Item) -> bool:
    """Return whether a part of a table, or the table itself, has another provisioned capacity."""
    return is_on_demand(table) or _units(found) != _units(definition)


def _units(part: Item) -> list[int]:
    return [part.get("ProvisionedThroughput", {}).get(name, 0) for name in UNITS]


class TableChanges:
    """Changes one table, waiting until it is ready for each change."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        on_status: Callable[[str, str], None] | None = None,
    ) -> None:
        """Prepare changes.

        Args:
            client: A low-level boto3 client.
            table: Name of the table.
            poll_seconds: Time between polls while a change is in progress.
            on_status: Called at each poll with the awaited resource and its status.

        Raises:
            ValueError: If DynamoDB allows no such table name.
        """
        check_table_name(table)
        self._client = client
        self._table = table
        self._poll_seconds = poll_seconds
        self._on_status = on_status or (lambda _what, _status: None)

    def description(self) -> Item:
        """Return the answer of DescribeTable.

        Raises:
            TableMissing: If the table does not exist.
        """
        with translated(self._table):
            return described_table(self._client, self._table)

    def wait(self) -> Item:
        """Return the description once the table and all its indexes can be used and changed.

        If DynamoDB fails to describe the table, ask again: the change goes on regardless.

        Raises:
            TableMissing: If the table does not exist.
            StoreError: If that takes longer than a day, or DynamoDB refuses the caller.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            description = self._answered_description()
            statuses = {self._table: UNKNOWN} if description is None else _statuses(description)
            for name, status in statuses.items():
                self._on_status(name, status)
            if description is not None and set(statuses.values()) == {ACTIVE}:
                return description
            if time.monotonic() > deadline:
                msg = f"table {self._table!r}: not ready after {WAIT_SECONDS / 3600:.0f} h: {statuses}"
                raise StoreError(msg)
            time.sleep(self._poll_seconds)

    def _answered_description(self) -> Item | None:
        """Return the answer of DescribeTable; None if there was none, but may be one later."""
        try:
            return self.description()
        except StoreError as error:
            if not _may_pass(error):
                raise
            logger.warning("still waiting: %s", error)
            return None

    def add_index(self, index: Item, definitions: Sequence[Item]) -> None:
        """Add a global secondary index unless it exists; return once it can be used.

        Args:
            index: As in CreateTable.
            definitions: Attribute definitions of its keys, possibly among others.
        """
        name = index["IndexName"]
        keys = {key["AttributeName"] for key in index["KeySchema"]}
        while name not in index_names(description := self.wait()):
            self._on_status(name, "requested")
            known = {entry["AttributeName"]: entry for entry in description["AttributeDefinitions"]}
            known |= {
                entry["AttributeName"]: entry for entry in definitions if entry["AttributeName"] in keys
            }
            change = {
                "AttributeDefinitions": list(known.values()),
                "GlobalSecondaryIndexUpdates": [{"Create": index}],
            }
            self._update(change, lambda: name in index_names(self.description()))
        self.wait()

    def update(self, change: Item) -> None:
        """Make another change of the table, and return once it is done."""
        self.wait()
        self._update(change, lambda: False)
        self.wait()

    def _update(self, change: Item, made_by_another: Callable[[], bool]) -> None:
        """Request a change. If another change is in progress, return so that the caller checks again."""
        try:
            with translated(self._table):
                self._client.update_table(TableName=self._table, **change)
        except TableMissing:
            raise
        except StoreError as error:
            code = error_code(error)
            busy = code in BUSY_CODES[:2] and self.description()["TableStatus"] != ACTIVE
            if not (busy or (code in BUSY_CODES and made_by_another())):
                raise


def _statuses(description: Item) -> dict[str, str]:
    """Return the status of a table and of each of its indexes."""
    return {description["TableName"]: description["TableStatus"]} | {
        index["IndexName"]: index["IndexStatus"] + (", filling" if index.get("Backfilling") else "")
        for index in description["GlobalSecondaryIndexes"]
    }


def _may_pass(error: StoreError) -> bool:
    """Return whether the same call may be answered later, because it was not refused."""
    if isinstance(error, Throttled):
        return True
    return isinstance(error, Unreachable) and error_code(error) not in REFUSED_CODES


def attribute_types(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of a table's key attributes, by name."""
    return {entry["AttributeName"]: entry["AttributeType"] for entry in description["AttributeDefinitions"]}


def index_names(description: Item) -> set[str]:
    """Return the names of a table's global secondary indexes."""
    return {index["IndexName"] for index in description.get("GlobalSecondaryIndexes", [])}


def is_on_demand(description: Item) -> bool:
    """Return whether a table is billed per request."""
    billing = description.get("BillingModeSummary", {})
    return bool(billing.get("BillingMode") == "PAY_PER_REQUEST")


def stream_arn(client: DynamoDBClient, table: str) -> str | None:
    """Return the ARN of the stream of a table; None if it has none.

    Raises:
        ValueError: If it has a stream without both images.
        StoreError: If DynamoDB did not answer, or the table does not exist.
    """
    description = TableChanges(client, table).description()
    stream = description.get("StreamSpecification", {})
    if not stream.get("StreamEnabled"):
        return None
    view = stream.get("StreamViewType", "of an unknown kind")
    if view != VIEW:
        msg = (
            f"stream: table {table!r} has one with the view {view}, which cannot change; "
            f"freshq needs {VIEW}: disable the stream once no program reads it, and attach again"
        )
        raise ValueError(msg)
    arn: str | None = description.get("LatestStreamArn")
    if arn is None:
        msg = f"table {table!r}: DynamoDB does not say the ARN of its stream; try again in a minute"
        raise StoreError(msg)
    return arn


def enable_stream(
    client: DynamoDBClient,
    table: str,
    *,
    on_status: Callable[[str, str], None] | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> str:
    """Enable the stream of a table unless it is enabled; return its ARN once the table can be used.

    Args:
        client: A low-level boto3 client.
        table: Name of the table.
        on_status: Called at each poll with the awaited resource and its status.
        poll_seconds: Time between polls.

    Raises:
        ValueError: If it has a stream without both images.
        StoreError: If DynamoDB did not answer.
    """
    if (arn := stream_arn(client, table)) is not None:
        return arn
    change = {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": VIEW}}
    TableChanges(client, table, on_status=on_status, poll_seconds=poll_seconds).update(change)
    if (arn := stream_arn(client, table)) is None:
        msg = f"table {table!r}: its stream is not enabled, although the change was accepted; attach again"
        raise StoreError(msg)
    return arn


def examine_table(client: DynamoDBClient, table: str) -> Iterator[Finding]:
    """Check one of freshq's own tables; change nothing.

    Args:
        client: A client, which may lack permission for some of the calls.
        table: Name of the table.

    Raises:
        ClientError: If the table cannot be described.
    """
    wanted = _own(table)
    found = yield from examine_shape(client, wanted)
    if found.get("KeySchema"):  # else it is being created or deleted
        yield examining.stream(found, table)
    yield from _asked("ttl", lambda: _ttl(client, table))
    yield from _asked("backups", lambda: _backups(client, table))
    if found.get("DeletionProtectionEnabled"):
        yield Finding(Health.OK, "deletion", "the table is protected")
    else:
        yield Finding(
            Health.WARNING, "deletion", "the table can be deleted", "in production, deploy with Stage=prod"
        )


def examine_shape(client: DynamoDBClient, wanted: examining.Wanted) -> Generator[Finding, None, Item]:
    """Compare key, indexes, capacity and rights of a table with the wanted ones; return its description.

    Raises:
        ClientError: If the table cannot be described, or does not answer.
    """
    answer: Item = dict(client.describe_table(TableName=wanted.table).get("Table") or {})
    unfit = list(examining.unfit(answer, wanted))
    yield from unfit
    if not any(each.health is Health.WRONG for each in unfit):
        states = sorted(set(_statuses(completed(answer, wanted.table)).values()))
        text = f"{wanted.table} and its indexes are {', '.join(states)}"
        usable = set(states) <= {ACTIVE, "UPDATING"}
        yield Finding(Health.OK if usable else Health.WARNING, "table", text, "" if usable else "wait")
    yield from examining.narrow_indexes(answer, wanted)
    yield from examining.rights(client, answer, wanted)
    return {name: value for name, value in answer.items() if value is not None}


def _own(table: str) -> examining.Wanted:
    """Return the shape of a table of freshq's own."""
    definition: Item = dict(table_definition(table))
    return examining.Wanted(
        table,
        definition["KeySchema"],
        definition["AttributeDefinitions"],
        definition["GlobalSecondaryIndexes"],
        INDEX_ANEW,
    )


def copies_of_table(client: DynamoDBClient, table: str) -> Iterator[Finding]:
    """Report where deleted items of a table still are, and until when.

    Args:
        client: A client, which may lack permission for some of the calls.
        table: Name of the table.
    """
    versions = "the last versions in the stream, payloads included"
    yield Finding(Health.WARNING, "stream", versions, "until they are a day old")
    yield from _asked("backups", lambda: _recoverable(client, table))
    yield from _asked("backups", lambda: _kept_backups(client, table))


def _recoverable(client: DynamoDBClient, table: str) -> Finding:
    recovery = _recovery(client, table)
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        return Finding(Health.OK, "backups", "no point-in-time recovery")
    days = recovery.get("RecoveryPeriodInDays", RECOVERY_DAYS)
    return Finding(Health.WARNING, "backups", "point-in-time recovery", f"until {days} days have passed")


def _recovery(client: DynamoDBClient, table: str) -> Mapping[str, Any]:
    answer: Any = client.describe_continuous_backups(TableName=table)
    found = answer.get("ContinuousBackupsDescription") or {}
    return found.get("PointInTimeRecoveryDescription") or {}


def _kept_backups(client: DynamoDBClient, table: str) -> Finding:
    backups = client.list_backups(TableName=table, BackupType="ALL").get("BackupSummaries")
    if not backups:
        return Finding(Health.OK, "backups", "no other backups, as far as DynamoDB lists them")
    return Finding(Health.WARNING, "backups", f"{len(backups)} backups", "until you delete them")


def identity(client: DynamoDBClient) -> str | None:
    """Return the ARN of a client's user; None if it is unknown, as at a local substitute of DynamoDB."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None and ".amazonaws.com" not in client.meta.endpoint_url:
        return None
    import boto3

    # Not the environment's: the client may have a profile. A client offers no public access to them.
    credentials = client._get_credentials()  # type: ignore[attr-defined]  # noqa: SLF001
    if credentials is None:
        return None
    try:
        keys = credentials.get_frozen_credentials()
        sts = boto3.client(
            "sts",
            client.meta.region_name,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token,
            config=SHORT_CALL,
        )
        return str(sts.get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError) as error:
        return f"unknown, because STS did not answer ({type(error).__name__})"


def _asked(subject: str, ask: Callable[[], Finding]) -> Iterator[Finding]:
    """Yield an answer, or a note that asking is not permitted."""
    try:
        yield ask()
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if (
            error.response["Error"].get("Code") not in (*ACCESS_DENIED, *NOT_THERE)
            and status != NOT_IMPLEMENTED
        ):
            raise
        denied = error.response["Error"].get("Message", "access denied")
        yield Finding(Health.UNKNOWN, subject, denied, "allow it to those who run this command")


def _ttl(client: DynamoDBClient, table: str) -> Finding:
    found = client.describe_time_to_live(TableName=table).get("TimeToLiveDescription") or {}
    remedy = f"enable TTL on the attribute {TTL_ATTRIBUTE}"
    if found.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        return Finding(Health.WRONG, "ttl", "ended tasks are never deleted", remedy)
    attribute = found.get("AttributeName") or TTL_ATTRIBUTE
    if attribute != TTL_ATTRIBUTE:
        text = f"TTL is on the attribute {attribute}, so ended tasks are never deleted"
        return Finding(Health.WRONG, "ttl", text, f"disable it, then {remedy}")
    return Finding(Health.OK, "ttl", f"items end at {TTL_ATTRIBUTE}")


def _backups(client: DynamoDBClient, table: str) -> Finding:
    if _recovery(client, table).get("PointInTimeRecoveryStatus") == "ENABLED":
        return Finding(Health.OK, "backups", "point-in-time recovery is on")
    text = "there is no point-in-time recovery"
    return Finding(Health.WARNING, "backups", text, FOR_PRODUCTION)
