"""Store resources and callers in a DynamoDB table."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import zlib
from contextlib import suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError
from typing_extensions import override

from freshq.errors import FreshqError, StoreError, Throttled
from freshq.matching.places import places_of
from freshq.matching.resource import (
    Caller,
    CallerStatus,
    Entry,
    Resource,
    ResourceStatus,
    parsed_ranks,
)
from freshq.matching.stores.base import Changed, MatchStore, StoredValues
from freshq.model.codec import WORKER_SEPARATOR
from freshq.model.lifecycle import new_token
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.dynamodb.calls import (
    LOST_REPLIES,
    ConditionFailed,
    OwnConnections,
    check_table_name,
    default_client,
    translated,
)
from freshq.stores.dynamodb.clock import server_clock
from freshq.stores.dynamodb.items import condition, milliseconds, seconds
from freshq.stores.dynamodb.schema import WAITER_CONFIG, described_table, existing_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef

    from freshq.matching.places import Place
    from freshq.matching.stores.base import Change, Span
    from freshq.stores.dynamodb.schema import Item

# Of resources and of callers. A partition of the table can write 1,000 units per second. A cycle of a
# resource writes 5 units here, so the shards allow 1,600 cycles per second.
SHARDS: Final = 8
# When a version was written. The stream's own times are whole seconds.
CHANGED_AT: Final = "changedAt"
# In an entry: its resource has data.
HAS_DATA: Final = "hasData"
_RESOURCES: Final = "resource#"
COMBINATIONS_PARTITION: Final = "combinations"
# A range key has at most 1,024 bytes; the hash of a longer combination stands for its end.
MAX_COMBINATION_KEY_BYTES: Final = 1000
DIGEST_CHARS: Final = 64
LINE_PARTITION: Final = "callers"
_CALLERS: Final = "caller#"
T = TypeVar("T")
logger = logging.getLogger(__name__)
KEYS: Final = (("pk", "HASH"), ("sk", "RANGE"))
# A transaction in progress ends within milliseconds, throttling of a partition within seconds.
RETRY: Final = CallRetry(max_tries=12, backoff=Backoff(base_seconds=0.01, cap_seconds=1.0))
CANCELLED_CODE: Final = "TransactionCanceledException"
CONDITION_FAILED: Final = "ConditionalCheckFailed"
# Another write of one of the items, or an earlier attempt of this one, is in progress.
CONFLICT_CODES: Final = frozenset(
    {"TransactionConflictException", "TransactionInProgressException", "ReplicatedWriteConflictException"}
)
BUSY_REASONS: Final = frozenset(
    {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
)


def _key(partition: str, sort_key: str) -> Item:
    return {"pk": {"S": partition}, "sk": {"S": sort_key}}


NAMES_KEY: Final = _key("names", "names")
OPTIONS_KEY: Final = _key("options", "options")


def encode_combination(combination: str) -> Item:
    """Return the item of a full combination of values."""
    key = combination
    if len(key) > MAX_COMBINATION_KEY_BYTES:
        digest = hashlib.sha256(key.encode()).hexdigest()
        key = f"{key[: MAX_COMBINATION_KEY_BYTES - DIGEST_CHARS]}{digest}"
    # The resource without attributes has an empty combination, which cannot be a key.
    return _key(COMBINATIONS_PARTITION, f"#{key}") | {"combination": {"S": combination}}


def resource_partition(shard: int) -> str:
    """Return the hash key of the resources of a shard."""
    return f"{_RESOURCES}{shard}"


def changed_at(at: float) -> Item:
    """Return the attribute that says when a version was written."""
    return {CHANGED_AT: milliseconds(at)}


def is_resource(partition: str) -> bool:
    """Return whether the items of a partition are resources, and not their entries."""
    return partition.startswith(_RESOURCES)


def resource_key(resource_id: str) -> Item:
    """Return the key of a resource."""
    return _key(resource_partition(_shard(resource_id)), resource_id)


def _shard(text: str) -> int:
    return zlib.crc32(text.encode()) % SHARDS


def entry_partition(partition: str) -> str:
    """Return the hash key of the entries of a partition."""
    return f"line#{partition}"


def _shared(resource: Resource) -> Item:
    item: Item = {
        "resourceId": {"S": resource.resource_id},
        "attributes": {"M": {name: {"SS": list(values)} for name, values in resource.attributes.items()}},
        "requestToken": {"S": resource.token},
    }
    if resource.since is not None:
        item["since"] = milliseconds(resource.since)
    return item


def encode_resource(resource: Resource, at: float) -> Item:
    """Return the item of a resource.

    Args:
        resource: The resource.
        at: When this version is written, in seconds since the epoch.
    """
    item = resource_key(resource.resource_id) | _shared(resource)
    item |= {"resourceStatus": {"S": resource.status.value}} | changed_at(at)
    if resource.lease_until is not None:
        item["leaseUntil"] = milliseconds(resource.lease_until)
    if resource.caller_id is not None:
        item["callerId"] = {"S": resource.caller_id}
    if resource.data_json is not None:
        item["data"] = {"S": resource.data_json}
    return item


def _encode_entry(resource: Resource, key: Item, last_name: str) -> Item:
    item = key | _shared(resource) | {"lastName": {"S": last_name}}
    # A resource may have 97 entries: its data is only in its own item.
    return item if resource.data_json is None else item | {HAS_DATA: {"BOOL": True}}


def _resource(item: Item, status: ResourceStatus) -> Resource:
    return Resource(
        resource_id=item["resourceId"]["S"],
        attributes={
            name: tuple(sorted(values["SS"])) for name, values in sorted(item["attributes"]["M"].items())
        },
        status=status,
        token=item["requestToken"]["S"],
        since=seconds(item["since"]) if "since" in item else None,
        lease_until=seconds(item["leaseUntil"]) if "leaseUntil" in item else None,
        caller_id=item["callerId"]["S"] if "callerId" in item else None,
        data_json=item["data"]["S"] if "data" in item else None,
    )


def decode_resource(item: Item) -> Resource:
    """Return the resource of an item."""
    return _resource(item, ResourceStatus(item["resourceStatus"]["S"]))


def decode_entry(item: Item) -> Entry:
    """Return the entry of an item."""
    resource = _resource(item, ResourceStatus.QUEUED)
    return Entry(item["sk"]["S"], resource, item["lastName"]["S"], lacks_data=HAS_DATA in item)


def guard(before: Resource | None) -> Item:
    """Return the condition that a resource is still as before."""
    if before is None:
        return condition("attribute_not_exists(pk)")
    same = {"status": {"S": before.status.value}, "token": {"S": before.token}}
    lease = "attribute_not_exists(leaseUntil)"
    if before.lease_until is not None:
        same["lease"] = milliseconds(before.lease_until)
        lease = "leaseUntil = :lease"
    return condition(f"resourceStatus = :status AND requestToken = :token AND {lease}", **same)


def same_token(token: str) -> Item:
    """Return the condition that an item still has a token."""
    return condition("requestToken = :token", token={"S": token})


def _entry_key(resource: Resource, place: Place) -> Item:
    key = place.sort_key(resource.since or 0.0, resource.resource_id)
    return _key(entry_partition(place.partition), key)


def _entry_keys(resource: Resource | None) -> list[Item]:
    if resource is None or resource.status is not ResourceStatus.QUEUED:
        return []
    return [_entry_key(resource, place) for place in places_of(resource.attributes)]


def _own_action(table: str, key: Item, item: Item | None, unchanged: Item) -> Item:
    """Return the action that writes the next version of a resource or a caller; None: that deletes it."""
    arguments = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **unchanged}
    return {"Delete": {"Key": key, **arguments}} if item is None else {"Put": {"Item": item, **arguments}}


def actions_of(table: str, change: Change) -> list[Item]:
    """Return the actions that replace a version of a resource; the first writes the resource itself."""
    before, after = change.before, change.after
    resource = after or before
    if resource is None:
        return []
    item = None if after is None else encode_resource(after, change.at)
    actions = [_own_action(table, resource_key(resource.resource_id), item, guard(before))]
    for key in _entry_keys(before):
        # A resource that left and returned at the same time has different entries, with another token.
        same_entry = same_token("" if before is None else before.token)
        actions.append({"Delete": {"TableName": table, "Key": key, **same_entry}})
    for key in _entry_keys(after):
        put = {"Item": _encode_entry(resource, key, change.last_name), **guard(None)}
        actions.append({"Put": {"TableName": table, **put}})
    return actions


def is_caller(partition: str) -> bool:
    """Return whether the items of a partition are callers, and not their places in the line."""
    return partition.startswith(_CALLERS)


def caller_key(caller_id: str) -> Item:
    """Return the key of a caller."""
    return _key(f"{_CALLERS}{_shard(caller_id)}", caller_id)


def asking_key(question: str, key: str) -> Item:
    """Return the key of the item which says that the caller with this key in the line asks a question."""
    return _key(asking_partition(question), key)


def asking_partition(question: str) -> str:
    """Return the hash key of the callers who ask a question."""
    return f"asks#{question}"


def encode_caller(caller: Caller) -> Item:
    """Return the attributes of a caller, without a key."""
    item: Item = {
        "callerId": {"S": caller.caller_id},
        "callerStatus": {"S": caller.status.value},
        "requestToken": {"S": caller.token},
        "since": milliseconds(caller.since),
        "criteria": {"S": caller.ranks_json},
    }
    if caller.resource_id is not None:
        item["resourceId"] = {"S": caller.resource_id}
        item["rank"] = {"N": str(caller.rank)}
        item["met"] = {"S": json.dumps(caller.criteria)}
    return item


def decode_caller(item: Item) -> Caller:
    """Return the caller of an item."""
    return Caller(
        caller_id=item["callerId"]["S"],
        status=CallerStatus(item["callerStatus"]["S"]),
        token=item["requestToken"]["S"],
        ranks=parsed_ranks(item["criteria"]["S"]),
        since=seconds(item["since"]),
        resource_id=item["resourceId"]["S"] if "resourceId" in item else None,
        rank=int(item["rank"]["N"]) if "rank" in item else 0,
        criteria=json.loads(item["met"]["S"]) if "met" in item else None,
    )


def caller_actions(table: str, change: Change) -> list[Item]:
    """Return the actions that replace a version of a caller, and its entry in the line.

    A caller who leaves the line keeps the items of its questions for now: the matched resource may need all
    other actions of the transaction.
    """
    before, after = change.caller_before, change.caller_after
    caller = after or before
    if caller is None:
        return []
    unchanged = guard(None) if before is None else same_token(before.token)
    key = caller_key(caller.caller_id)
    item = None if after is None else key | encode_caller(after) | changed_at(change.at)
    actions = [_own_action(table, key, item, unchanged)]
    if before is not None and before.status is CallerStatus.WAITING:
        place = {"TableName": table, "Key": _key(LINE_PARTITION, before.sort_key)}
        actions.append({"Delete": place | same_token(before.token)})
    joined = [] if after is None else _line_items(after)
    return actions + [{"Put": {"TableName": table, "Item": item, **guard(None)}} for item in joined]


def forgetting_actions(table: str, question: str, key: str) -> list[Item]:
    """Return the actions that delete the item of a question, unless a caller waits under its key.

    A query may see the items of a transaction one at a time: a caller who has just joined the line already
    asks, but is not yet read as waiting. Deleting a nonexistent item checks that nobody has an entry under
    the key; a condition check would need one more permission.
    """
    nobody = {"Key": _key(LINE_PARTITION, key), **guard(None)}
    asked = {"Key": asking_key(question, key)}
    return [{"Delete": {"TableName": table, **deleted}} for deleted in (nobody, asked)]


def _line_items(caller: Caller) -> list[Item]:
    """Return the entry of a caller in the line, and the items of its questions; none unless it waits."""
    if caller.status is not CallerStatus.WAITING:
        return []
    asked = [asking_key(question, caller.sort_key) for question in caller.questions]
    return [_key(LINE_PARTITION, caller.sort_key) | encode_caller(caller), *asked]


def partition_query(
    partition: str, bounds: tuple[str, str] | None = None, *, start_after: str | None = None
) -> Item:
    """Return the arguments of a query of a partition.

    Args:
        partition: Its hash key.
        bounds: The least and the greatest range key; None for the whole partition.
        start_after: The range key after which to start; None to begin.
    """
    values: Item = {":pk": {"S": partition}}
    key = "pk = :pk"
    if bounds is not None:
        key += " AND sk BETWEEN :low AND :high"
        values |= {":low": {"S": bounds[0]}, ":high": {"S": bounds[1]}}
    arguments: Item = {"KeyConditionExpression": key, "ExpressionAttributeValues": values}
    if start_after is not None:
        arguments["ExclusiveStartKey"] = _key(partition, start_after)
    return arguments


def match_table_definition(table: str) -> CreateTableInputTypeDef:
    """Return the arguments of CreateTable.

    Args:
        table: Name of the table.
    """
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        "SSESpecification": {"Enabled": True},
    }


def cancellation(reasons: Sequence[Mapping[str, Any]], what: str) -> FreshqError:
    """Return the error of a cancelled transaction.

    Args:
        reasons: The cancellation reasons, one for each action.
        what: The table, and what was tried.

    Returns:
        ConditionFailed if a condition did not hold, with the item of the first action if that failed;
        Throttled if the same transaction may succeed later; StoreError if it can never succeed.
    """
    codes = {reason.get("Code", "None") for reason in reasons} - {"None"}
    if not codes or codes - BUSY_REASONS - {CONDITION_FAILED}:
        return StoreError(f"{what}: cannot commit: {_reasons_text(reasons)}")
    if CONDITION_FAILED in codes:
        return ConditionFailed(reasons[0].get("Item"))
    return Throttled(f"{what}: transaction cancelled: {_reasons_text(reasons)}")


class TransactionCalls:
    """Sends transactions on one table, and other calls that may conflict with one."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client = client
        self._table = table

    def write(self, actions: Sequence[Item], token: str) -> None:
        """Carry out all actions or none.

        Args:
            actions: Arguments of TransactWriteItems; the first one asks for its item if its condition
                fails.
            token: At most 36 characters. A transaction that is sent twice with the same token is executed
                once.

        Raises:
            ConditionFailed: If a condition did not hold, with the item of the first action if its condition
                failed.
            Throttled: If it still conflicted with other writes, or was throttled, at the last retry.
            StoreError: If it can never succeed, or there was no answer.
        """
        self.retried(lambda: self._write(actions, token))

    def _write(self, actions: Sequence[Any], token: str) -> None:
        try:
            self._client.transact_write_items(TransactItems=actions, ClientRequestToken=token)
        except ClientError as error:
            if error.response["Error"]["Code"] != CANCELLED_CODE:
                raise
            response: Item = dict(error.response)
            reasons = response.get("CancellationReasons") or [{"Code": str(error)}]
            raise cancellation(reasons, f"table {self._table!r}") from error

    def retried(self, send: Callable[[], T]) -> T:
        """Send a call that is safe to repeat: again after a conflict or throttling, once after a lost reply.

        Raises:
            Throttled: If it still conflicted or was throttled at the last try.
            StoreError: If it failed for another reason, or there was no answer.
        """

        def send_once() -> T:
            with translated(self._table):
                try:
                    try:
                        return send()
                    except LOST_REPLIES:
                        return send()
                except ClientError as error:
                    if error.response["Error"]["Code"] not in CONFLICT_CODES:
                        raise
                    msg = f"table {self._table!r}: in conflict with another transaction ({error})"
                    raise Throttled(msg) from error

        return RETRY.run(send_once, Throttled, sleep=sleep, uniform=random.random)


def _reasons_text(reasons: Sequence[Mapping[str, Any]]) -> str:
    """Return the actions that failed, each with its reason."""
    return "; ".join(
        f"action {number}: {reason['Code']}" + (f" ({reason['Message']})" if reason.get("Message") else "")
        for number, reason in enumerate(reasons, start=1)
        if reason.get("Code", "None") != "None"
    )


class DynamoDBMatchStore(MatchStore):
    """Resources and their entries as items. Every change of both is one transaction."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.

        Raises:
            ValueError: If it is not the name of a table.
        """
        check_table_name(table)
        with translated(table):
            self._client = client or default_client()
        self._table = table
        self._connections = OwnConnections(self._client)
        self._transactions = TransactionCalls(self._client, table)
        # Names are never deleted: names that this process added need not be added again.
        self._added: frozenset[str] = frozenset()
        self._added_combinations: frozenset[str] = frozenset()
        self._clock = server_clock(self._client, partial(self._get, NAMES_KEY))

    def __repr__(self) -> str:
        return f"dynamodb://{self._table}"

    @override
    def clock(self) -> float:
        return self._clock()

    @override
    def create_table(self) -> None:
        with translated(self._table):
            self._check_keys(existing_table(self._client, match_table_definition(self._table)))

    def _check_keys(self, found: Any) -> None:
        """Raise StoreError if the description of the table has other keys."""
        if {(key["AttributeName"], key["KeyType"]) for key in found["KeySchema"]} != set(KEYS):
            msg = f"table {self._table!r}: has other keys than pk and sk; choose another name"
            raise StoreError(msg)

    @override
    def delete_table(self) -> None:
        waiter = self._client.get_waiter("table_not_exists")
        with translated(self._table), suppress(self._client.exceptions.ResourceNotFoundException):
            self._check_keys(described_table(self._client, self._table))
            self._check_items()
            self._client.delete_table(TableName=self._table)
            waiter.wait(TableName=self._table, WaiterConfig=WAITER_CONFIG)

    def _check_items(self) -> None:
        """Check that the table has items of resources, or none: many tables have keys of these names."""
        if self._get(NAMES_KEY) is not None:
            return
        found = self._client.scan(TableName=self._table, Limit=2).get("Items", [])
        if any(item["pk"] != OPTIONS_KEY["pk"] for item in found):
            msg = f"table {self._table!r}: has other items than resources; nothing was deleted"
            raise StoreError(msg)

    @override
    def read_options(self) -> StoredValues | None:
        item = self._get(OPTIONS_KEY)
        return None if item is None else StoredValues(json.loads(item["values"]["S"]), item["version"]["S"])

    @override
    def write_options(self, values: Mapping[str, Any], version: str | None) -> bool:
        token = new_token()
        item = OPTIONS_KEY | {"values": {"S": json.dumps(dict(values))}, "version": {"S": token}}
        unchanged = condition("attribute_not_exists(pk) OR version = :new", new={"S": token})
        if version is not None:
            # An earlier attempt may have been written while its reply was lost.
            both = {"old": {"S": version}, "new": {"S": token}}
            unchanged = condition("version IN (:old, :new)", **both)
        put = partial(self._client.put_item, TableName=self._table, Item=item, **unchanged)
        try:
            self._transactions.retried(put)
        except ConditionFailed:
            return False
        return True

    @override
    def add_names(self, names: Collection[str]) -> None:
        if not (new := set(names) - self._added):
            return
        values: Item = {":names": {"SS": sorted(new)}}
        self._transactions.retried(
            lambda: self._client.update_item(
                TableName=self._table,
                Key=NAMES_KEY,
                UpdateExpression="ADD attributeNames :names",
                ExpressionAttributeValues=values,
            )
        )
        self._added |= new

    @override
    def add_combinations(self, combinations: Collection[str]) -> None:
        for combination in sorted(set(combinations) - self._added_combinations):
            item = encode_combination(combination)
            self._transactions.retried(partial(self._client.put_item, TableName=self._table, Item=item))
            self._added_combinations |= {combination}

    @override
    def combinations(self) -> Iterator[str]:
        items = self._query(partition_query(COMBINATIONS_PARTITION))
        yield from (item["combination"]["S"] for item in items)

    @override
    def count(self, place: Place, names: int, at_most: int | None) -> int:
        arguments = partition_query(entry_partition(place.partition), place.bounds)
        arguments["ExpressionAttributeValues"][":names"] = {"N": str(names)}
        arguments |= {"FilterExpression": "size(attributes) = :names", "Select": "COUNT"}
        found = 0
        for page in self._pages(arguments, at_most):
            found += page["Count"]
            if at_most is not None and found >= at_most:
                return at_most
        return found

    @override
    def last_name(self) -> str:
        item = self._get(NAMES_KEY)
        return max(item["attributeNames"]["SS"], default="") if item is not None else ""

    @override
    def get(self, resource_id: str) -> Resource | None:
        item = self._get(resource_key(resource_id))
        return None if item is None else decode_resource(item)

    def _get(self, key: Item) -> Item | None:
        response = self._transactions.retried(
            lambda: self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        )
        return dict(response["Item"]) if "Item" in response else None

    @override
    def commit(self, change: Change) -> None:
        actions = actions_of(self._table, change) + caller_actions(self._table, change)
        try:
            if len(actions) == 1:  # without entries: half the price of a transaction
                self._write_one(actions[0])
            else:
                next_version = change.after or change.caller_after
                token = next_version.token if next_version else new_token()
                # A request token has at most 36 characters.
                self._transactions.write(actions, token.rpartition(WORKER_SEPARATOR)[2])
        except ConditionFailed as failed:
            if not _made(failed.item, change):
                raise Changed from None
        self._forget_questions(change.caller_before)

    def _forget_questions(self, before: Caller | None) -> None:
        """Delete the items of the questions of a caller who no longer waits."""
        if before is None or before.status is not CallerStatus.WAITING:
            return
        try:
            for question in before.questions:
                self._forget_question(question, before.sort_key)
        except StoreError:
            # The change is committed. A later reader of a leftover question deletes it.
            logger.warning("caller %r: questions are left in the table", before.caller_id, exc_info=True)

    def _forget_question(self, question: str, key: str) -> None:
        self._transactions.retried(
            lambda: self._client.delete_item(TableName=self._table, Key=asking_key(question, key))
        )

    @override
    def forget_line_key(self, question: str, key: str) -> None:
        with suppress(ConditionFailed):
            self._transactions.write(forgetting_actions(self._table, question, key), new_token())

    @override
    def caller(self, caller_id: str) -> Caller | None:
        item = self._get(caller_key(caller_id))
        return None if item is None else decode_caller(item)

    @override
    def waiting_callers(self, limit: int, start_after: str | None) -> list[Caller]:
        return [decode_caller(item) for item in self._items(LINE_PARTITION, limit, start_after)]

    @override
    def line_keys(self, question: str, limit: int, start_after: str | None) -> list[str]:
        items = self._items(asking_partition(question), limit, start_after)
        return [item["sk"]["S"] for item in items]

    def _items(self, partition: str, limit: int, start_after: str | None) -> Iterator[Item]:
        """Yield up to `limit` items of a partition in order, after a key."""
        return self._query(partition_query(partition, start_after=start_after), limit)

    def _write_one(self, action: Any) -> None:
        if "Put" in action:
            self._transactions.retried(lambda: self._client.put_item(**action["Put"]))
        else:
            self._transactions.retried(lambda: self._client.delete_item(**action["Delete"]))

    @override
    def page(self, span: Span) -> list[Entry]:
        arguments = partition_query(
            entry_partition(span.partition), (span.low, span.high), start_after=span.start_after
        )
        arguments["ScanIndexForward"] = not span.newest_first
        return [decode_entry(item) for item in self._query(arguments, span.limit)]

    @override
    def resources(self) -> Iterator[Resource]:
        for shard in range(SHARDS):
            yield from map(decode_resource, self._query(partition_query(resource_partition(shard))))

    def _query(self, arguments: Item, limit: int | None = None) -> Iterator[Item]:
        """Yield the items of a strongly consistent query, page by page, up to a limit."""
        left = limit
        for page in self._pages(arguments, limit):
            items = page["Items"] if left is None else page["Items"][:left]
            yield from items
            left = None if left is None else left - len(items)
            if left == 0:
                return

    def _pages(self, arguments: Item, limit: int | None) -> Iterator[Item]:
        """Yield the pages of a strongly consistent query, each of at most `limit` items."""
        if limit is not None:
            arguments = arguments | {"Limit": limit}
        while True:
            page = self._transactions.retried(
                partial(self._client.query, TableName=self._table, ConsistentRead=True, **arguments)
            )
            yield dict(page)
            if "LastEvaluatedKey" not in page:
                return
            arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _made(item: Item | None, change: Change) -> bool:
    """Return whether an earlier attempt of this change wrote its first item, whose condition failed."""
    before, after = change.leading
    if after is None:
        return before is not None and item is None
    decode = decode_resource if isinstance(after, Resource) else decode_caller
    return item is not None and decode(item) == after
