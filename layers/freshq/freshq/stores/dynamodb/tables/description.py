"""A file that describes tables and their indexes: checked, and as arguments of CreateTable.

The grammar is that of the queueing article's configuration, with billing and projections added.
"""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.errors import quoted
from freshq.model.validation import first_problem, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from freshq.stores.dynamodb.names import Item

# The default of the article's tool for a capacity that is not positive.
DEFAULT_CAPACITY_UNITS: Final = 5
TYPES: Final = {"str": "S", "num": "N", "bin": "B", "s": "S", "n": "N", "b": "B"}
AttributeName = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Billing(StrEnum):
    """How requests are billed."""

    ON_DEMAND = "on_demand"
    PROVISIONED = "provisioned"


class Key(_Part):
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


class Projection(_Part):
    """The attributes that an index holds besides keys.

    Attributes:
        type: Everything, keys only, or the attributes named.
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


class Index(_Part):
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


class Table(_Part):
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


class Lambda(_Part):
    """A function in the article's file. It is checked, but not created.

    Attributes:
        logical_name: Its name in a template.
        lambda_class: Class of its infrastructure.
        lambda_name: Its name.
        runtime: Its runtime.
        handler: Its entry point.
        local_jar: Its code.
        description: Its purpose.
        memory_megabytes: Its memory.
        timeout_seconds: Its time limit.
    """

    logical_name: str
    lambda_class: str | None = None
    lambda_name: str | None = None
    runtime: str | None = None
    handler: str | None = None
    local_jar: str | None = None
    description: str | None = None
    memory_megabytes: int | None = None
    timeout_seconds: int | None = None


class Description(_Part):
    """The whole file.

    Attributes:
        version: Version of the file; not used.
        last_updated_date: Date of the file; not used.
        s3_code_bucket: Where the code of functions is; not used.
        tables: The tables.
        lambdas: Functions; checked, but not created.
    """

    version: str | int | float | None = None
    last_updated_date: str | None = None
    s3_code_bucket: str | None = None
    tables: tuple[Table, ...] = Field(strict=False)
    lambdas: tuple[Lambda, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        for field in ("table_name", "logical_name"):
            counts = Counter(getattr(table, field) for table in self.tables)
            for name, count in counts.items():
                if count > 1:
                    msg = f"tables: {field} {quoted(name)} is given {count} times"
                    raise ValueError(msg)
        return self


def read_description(path: Path) -> Description:
    """Read and check a file.

    Raises:
        ValueError: If the file cannot be read or is wrong; names the file and the path in it.
    """
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
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
    """Return capacities as an argument of CreateTable, the default for those that are not positive."""
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
    """Yield what DynamoDB would reject."""
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
            yield f"indexes.{place}.hash_key: with GSI false, it must be that of the table"


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _value in pairs)
    for name, count in counts.items():
        if count > 1:
            msg = f"{quoted(name)} is given {count} times in one object"
            raise ValueError(msg)
    return dict(pairs)


def _model_at(error: ValidationError) -> type[BaseModel]:
    """Return the model that an unknown field was given to."""
    models: dict[object, type[BaseModel]] = {
        "tables": Table,
        "lambdas": Lambda,
        "indexes": Index,
        "projection": Projection,
        "partition_key": Key,
        "hash_key": Key,
        "sort_key": Key,
    }
    places = problem_of(error).path[:-1]
    return next((models[place] for place in reversed(places) if place in models), Description)
