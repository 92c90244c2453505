"""The change stream of a table in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.stores.dynamodb.tables.changes import POLL_SECONDS, TableChanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from types_boto3_dynamodb import DynamoDBClient

# The archive needs the old image of a record that left the queue.
VIEW: Final = "NEW_AND_OLD_IMAGES"


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
    if stream["StreamViewType"] != VIEW:
        msg = (
            f"stream: that of table {table!r} has the view {stream['StreamViewType']}, which cannot change; "
            f"freshq needs {VIEW}: disable the stream once no program reads it, and attach again"
        )
        raise ValueError(msg)
    arn: str = description["LatestStreamArn"]
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
        on_status: Called at each poll with what is waited for, and its status.
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
