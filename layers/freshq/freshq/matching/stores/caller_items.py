"""The items of callers on a table of resources, and the conditions under which they change."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from freshq.matching.callers import Caller, CallerStatus
from freshq.matching.stores.items import changed_at, guard, same_token
from freshq.stores.dynamodb.values import milliseconds, seconds

if TYPE_CHECKING:
    from freshq.matching.stores.base import Change
    from freshq.stores.dynamodb.names import Item

CALLER_SHARDS: Final = 8
LINE_PARTITION: Final = "callers"
_CALLERS: Final = "caller#"


def is_caller(partition: str) -> bool:
    """Return whether the items of a partition are callers, and not their places in the line."""
    return partition.startswith(_CALLERS)


def caller_key(caller_id: str) -> Item:
    """Return the key of a caller."""
    shard = zlib.crc32(caller_id.encode()) % CALLER_SHARDS
    return {"pk": {"S": f"{_CALLERS}{shard}"}, "sk": {"S": caller_id}}


def _line_key(key: str) -> Item:
    return {"pk": {"S": LINE_PARTITION}, "sk": {"S": key}}


def asking_key(question: str, key: str) -> Item:
    """Return the key of the item which says that the caller with this key in the line asks a question."""
    return {"pk": {"S": asking_partition(question)}, "sk": {"S": key}}


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
        "criteria": {"S": ranks_text(caller)},
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
        ranks=ranks_of(item["criteria"]["S"]),
        since=seconds(item["since"]),
        resource_id=item["resourceId"]["S"] if "resourceId" in item else None,
        rank=int(item["rank"]["N"]) if "rank" in item else 0,
        criteria=json.loads(item["met"]["S"]) if "met" in item else None,
    )


def ranks_text(caller: Caller) -> str:
    """Return what a caller asks as a string to store."""
    return json.dumps(caller.ranks, ensure_ascii=False)


def ranks_of(text: str) -> Any:  # noqa: ANN401 - parsed JSON
    """Return what a caller asks."""
    return tuple(tuple(asks) for asks in json.loads(text))


def caller_actions(table: str, change: Change) -> list[Item]:
    """Return the actions that replace a version of a caller, and its entry in the line.

    A caller who leaves the line keeps the items of its questions for now: the resource that it is matched
    with may need all other actions of the transaction.
    """
    before, after = change.caller_before, change.caller_after
    caller = after or before
    if caller is None:
        return []
    condition = guard(None) if before is None else same_token(before.token)
    arguments: Item = {
        "TableName": table,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        **condition,
    }
    key = caller_key(caller.caller_id)
    own: dict[str, Any] = (
        {"Delete": {"Key": key, **arguments}}
        if after is None
        else {"Put": {"Item": key | encode_caller(after) | changed_at(change.at), **arguments}}
    )
    actions: list[Item] = [own]
    if before is not None and before.status is CallerStatus.WAITING:
        actions.append(
            {"Delete": {"TableName": table, "Key": _line_key(before.sort_key), **same_token(before.token)}}
        )
    joined = [] if after is None else _line_items(after)
    return actions + [{"Put": {"TableName": table, "Item": item, **guard(None)}} for item in joined]


def forgetting_actions(table: str, question: str, key: str) -> list[Item]:
    """Return the actions that delete the item of a question, unless a caller waits under its key.

    A query may see the items of a transaction one by one: a caller who just joined the line asks already, and
    is not read as waiting yet. That nobody has an entry under the key is checked by a deletion of none, as a
    check would need one more permission.
    """
    nobody = {"Key": _line_key(key), **guard(None)}
    asked = {"Key": asking_key(question, key)}
    return [{"Delete": {"TableName": table, **deleted}} for deleted in (nobody, asked)]


def _line_items(caller: Caller) -> list[Item]:
    """Return the entry of a caller in the line, and the items of its questions; none unless it waits."""
    if caller.status is not CallerStatus.WAITING:
        return []
    asked = [asking_key(question, caller.sort_key) for question in caller.questions]
    return [_line_key(caller.sort_key) | encode_caller(caller), *asked]
