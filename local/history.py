"""The history of every task, read from the table's change stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.stores.dynamodb.items import decode, is_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from freshq import Task

# An item or attribute value in the low-level client's form.
Image = dict[str, Any]

UNIT_BYTES: Final = 1024  # a write unit covers an item of up to 1 KB (DynamoDB, service pricing)
INDEXES: Final = (("pendingShard", "taskCreated"), ("dueShard", "dueAt"))


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an item: its images before and after; None if there is none."""

    old: Image | None
    new: Image | None

    def task_before(self) -> Task | None:
        """Return the task before the change; None if there was none, or the item is no task."""
        return decode(self.old) if self.old and is_task(self.old) else None

    def task_after(self) -> Task | None:
        """Return the task after the change; None if there is none, or the item is no task."""
        return decode(self.new) if self.new and is_task(self.new) else None

    def write_units(self) -> int:
        """Return its write units: for the item, and for each index that it entered, left or moved in."""
        item_bytes = max(_size_bytes(self.old), _size_bytes(self.new))
        units = -(-item_bytes // UNIT_BYTES)
        for partition, sort in INDEXES:
            before, after = _key(self.old, partition, sort), _key(self.new, partition, sort)
            if before != after:
                units += (before is not None) + (after is not None)
        return units


def _size_bytes(image: Image | None) -> int:
    return sum(len(name) + len(str(*value.values()).encode()) for name, value in (image or {}).items())


def _key(image: Image | None, partition: str, sort: str) -> tuple[str, str] | None:
    if image is None or partition not in image:
        return None
    return image[partition]["S"], image[sort]["N"]


def read_changes(client: DynamoDBStreamsClient, table: str) -> Iterator[Change]:
    """Yield all changes that are still in the stream of a table, oldest first."""
    for stream in client.list_streams(TableName=table)["Streams"]:
        description = client.describe_stream(StreamArn=stream["StreamArn"])["StreamDescription"]
        for shard in description["Shards"]:
            yield from _read_shard(client, stream["StreamArn"], shard["ShardId"])


def _read_shard(client: DynamoDBStreamsClient, stream_arn: str, shard_id: str) -> Iterator[Change]:
    iterator = client.get_shard_iterator(
        StreamArn=stream_arn, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while iterator:
        page = client.get_records(ShardIterator=iterator)
        if not page["Records"]:
            return
        for record in page["Records"]:
            images = record["dynamodb"]
            yield Change(_image(images.get("OldImage")), _image(images.get("NewImage")))
        iterator = page.get("NextShardIterator", "")


def _image(image: Any) -> Image | None:
    return dict(image) if image else None


def versions_by_task(changes: Iterable[Change]) -> dict[str, list[Task]]:
    """Return the versions of every task, oldest first."""
    versions: dict[str, list[Task]] = {}
    for change in changes:
        task = change.task_after()
        if task is not None:
            versions.setdefault(task.task_id, []).append(task)
    return versions
