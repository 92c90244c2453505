"""The items of a table of resources and queues, and the conditions under which they change.

One table, keyed by pk and sk:

    pk resource#SHARD     sk ID                     a resource
    pk line#QUEUE         sk GROUP#MICROSECONDS#ID  its entry in a queue
    pk names              sk names                  which attribute names there are
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from freshq.matching.places import places_of
from freshq.matching.resource import Entry, Resource, ResourceStatus
from freshq.stores.dynamodb.items import milliseconds, seconds

if TYPE_CHECKING:
    from freshq.matching.places import Place
    from freshq.stores.dynamodb.names import Item

# A partition writes 1,000 units a second, and a resource costs 5 a cycle here: enough for 1,600 cycles.
RESOURCE_SHARDS: Final = 8
NAMES_KEY: Final[Item] = {"pk": {"S": "names"}, "sk": {"S": "names"}}


def resource_partition(shard: int) -> str:
    """Return the partition of the resources of a shard."""
    return f"resource#{shard}"


def resource_key(resource_id: str) -> Item:
    """Return the key of a resource."""
    shard = zlib.crc32(resource_id.encode()) % RESOURCE_SHARDS
    return {"pk": {"S": resource_partition(shard)}, "sk": {"S": resource_id}}


def line_partition(partition: str) -> str:
    """Return the hash key of a queue."""
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


def encode_resource(resource: Resource) -> Item:
    """Return the item of a resource."""
    item = resource_key(resource.resource_id) | _shared(resource)
    item["resourceStatus"] = {"S": resource.status.value}
    if resource.lease_until is not None:
        item["leaseUntil"] = milliseconds(resource.lease_until)
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
    )


def decode_resource(item: Item) -> Resource:
    """Return the resource that an item holds."""
    return _resource(item, ResourceStatus(item["resourceStatus"]["S"]))


def decode_entry(item: Item) -> Entry:
    """Return the entry that an item holds."""
    return Entry(item["sk"]["S"], _resource(item, ResourceStatus.QUEUED), item["lastName"]["S"])


def guard(before: Resource | None) -> Item:
    """Return the condition that a resource is what it was."""
    if before is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "resourceStatus = :status AND requestToken = :token",
        "ExpressionAttributeValues": {
            ":status": {"S": before.status.value},
            ":token": {"S": before.token},
        },
    }


def _entry_key(resource: Resource, place: Place) -> Item:
    key = place.sort_key(resource.since or 0.0, resource.resource_id)
    return {"pk": {"S": line_partition(place.partition)}, "sk": {"S": key}}


def _entry_keys(resource: Resource | None) -> list[Item]:
    if resource is None or resource.status is not ResourceStatus.QUEUED:
        return []
    return [_entry_key(resource, place) for place in places_of(resource.attributes)]


def actions_of(table: str, before: Resource | None, after: Resource | None, last_name: str) -> list[Item]:
    """Return the actions that replace a version of a resource; the first is that on the resource itself.

    Args:
        table: Name of the table.
        before: The version that is there; None if there is none.
        after: The next version; None to delete it.
        last_name: For the entries that `after` gets.
    """
    resource = after or before
    if resource is None:
        return []
    report: Item = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    own: dict[str, Any] = (
        {"Delete": {"Key": resource_key(resource.resource_id), **report, **guard(before)}}
        if after is None
        else {"Put": {"Item": encode_resource(after), **report, **guard(before)}}
    )
    actions: list[Item] = [own]
    for key in _entry_keys(before):
        # The token is that of this very stay in line: another one at the same time is another entry.
        stay = {
            "ConditionExpression": "requestToken = :token",
            "ExpressionAttributeValues": {":token": {"S": "" if before is None else before.token}},
        }
        actions.append({"Delete": {"TableName": table, "Key": key, **stay}})
    for key in _entry_keys(after):
        put = {"Item": _encode_entry(resource, key, last_name), **guard(None)}
        actions.append({"Put": {"TableName": table, **put}})
    return actions
