"""The items of a table of resources, and the conditions under which they change.

One table, keyed by pk and sk:

    pk resource#SHARD     sk ID                     a resource
    pk line#PARTITION     sk GROUP#MICROSECONDS#ID  one of its entries
    pk names              sk names                  all attribute names
    pk combinations       sk COMBINATION            a full combination of values
    pk caller#SHARD       sk ID                     a caller
    pk callers            sk MICROSECONDS#ID        the entry of a waiting caller in the line
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Final

from freshq.matching.places import places_of
from freshq.matching.resource import Entry, Resource, ResourceStatus
from freshq.stores.dynamodb.values import milliseconds, seconds

if TYPE_CHECKING:
    from freshq.matching.places import Place
    from freshq.matching.stores.base import Change
    from freshq.stores.dynamodb.names import Item

# A partition of the table can write 1,000 units per second. A cycle of a resource writes 5 units here, so
# the shards allow 1,600 cycles per second.
RESOURCE_SHARDS: Final = 8
NAMES_KEY: Final[Item] = {"pk": {"S": "names"}, "sk": {"S": "names"}}


# When a version was written. The stream's own times are whole seconds.
CHANGED_AT: Final = "changedAt"
_RESOURCES: Final = "resource#"
COMBINATIONS_PARTITION: Final = "combinations"
# A range key has at most 1,024 bytes; the hash of a longer combination stands for its end.
MAX_COMBINATION_KEY_BYTES: Final = 1000
DIGEST_CHARS: Final = 64


def encode_combination(combination: str) -> Item:
    """Return the item of a full combination of values."""
    key = combination
    if len(key) > MAX_COMBINATION_KEY_BYTES:
        digest = hashlib.sha256(key.encode()).hexdigest()
        key = f"{key[: MAX_COMBINATION_KEY_BYTES - DIGEST_CHARS]}{digest}"
    # The resource without attributes has an empty combination, which cannot be a key.
    return {
        "pk": {"S": COMBINATIONS_PARTITION},
        "sk": {"S": f"#{key}"},
        "combination": {"S": combination},
    }


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
    return {"pk": {"S": resource_partition(_shard(resource_id))}, "sk": {"S": resource_id}}


def _shard(text: str) -> int:
    return zlib.crc32(text.encode()) % RESOURCE_SHARDS


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
    return item


def _encode_entry(resource: Resource, key: Item, last_name: str) -> Item:
    return key | _shared(resource) | {"lastName": {"S": last_name}}


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
    )


def decode_resource(item: Item) -> Resource:
    """Return the resource of an item."""
    return _resource(item, ResourceStatus(item["resourceStatus"]["S"]))


def decode_entry(item: Item) -> Entry:
    """Return the entry of an item."""
    return Entry(item["sk"]["S"], _resource(item, ResourceStatus.QUEUED), item["lastName"]["S"])


def guard(before: Resource | None) -> Item:
    """Return the condition that a resource is still as before."""
    if before is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "resourceStatus = :status AND requestToken = :token",
        "ExpressionAttributeValues": {
            ":status": {"S": before.status.value},
            ":token": {"S": before.token},
        },
    }


def same_token(token: str) -> Item:
    """Return the condition that an item still has a token."""
    return {
        "ConditionExpression": "requestToken = :token",
        "ExpressionAttributeValues": {":token": {"S": token}},
    }


def _entry_key(resource: Resource, place: Place) -> Item:
    key = place.sort_key(resource.since or 0.0, resource.resource_id)
    return {"pk": {"S": entry_partition(place.partition)}, "sk": {"S": key}}


def _entry_keys(resource: Resource | None) -> list[Item]:
    if resource is None or resource.status is not ResourceStatus.QUEUED:
        return []
    return [_entry_key(resource, place) for place in places_of(resource.attributes)]


def actions_of(table: str, change: Change) -> list[Item]:
    """Return the actions that replace a version of a resource; the first writes the resource itself."""
    before, after = change.before, change.after
    resource = after or before
    if resource is None:
        return []
    arguments: Item = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    own: dict[str, Any] = (
        {"Delete": {"Key": resource_key(resource.resource_id), **arguments, **guard(before)}}
        if after is None
        else {"Put": {"Item": encode_resource(after, change.at), **arguments, **guard(before)}}
    )
    actions: list[Item] = [own]
    for key in _entry_keys(before):
        # A resource that left and returned at the same time has other entries, with another token.
        same_entry = same_token("" if before is None else before.token)
        actions.append({"Delete": {"TableName": table, "Key": key, **same_entry}})
    for key in _entry_keys(after):
        put = {"Item": _encode_entry(resource, key, change.last_name), **guard(None)}
        actions.append({"Put": {"TableName": table, **put}})
    return actions
