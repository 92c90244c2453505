"""The change stream of a table on DynamoDB Local."""

from collections.abc import Iterator
from typing import Any

import boto3
from types_boto3_dynamodb import DynamoDBClient


def enable_stream(client: DynamoDBClient, table: str) -> None:
    """Enable the stream of a table, with both images."""
    stream: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    client.update_table(TableName=table, StreamSpecification=stream)


def stream_records(client: DynamoDBClient, table: str) -> Iterator[dict[str, Any]]:
    """Yield the records of the stream of a table, with the ARN that Lambda adds to each."""
    # DynamoDB Local has other tables for other keys.
    session = boto3.Session(
        aws_access_key_id="local",
        aws_secret_access_key="local",
        region_name=client.meta.region_name,
    )
    streams: Any = session.client("dynamodbstreams", endpoint_url=client.meta.endpoint_url)
    arn = streams.list_streams(TableName=table)["Streams"][0]["StreamArn"]
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        where = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(**where)["ShardIterator"]
        while iterator:
            page = streams.get_records(ShardIterator=iterator)
            if not page["Records"]:
                break
            yield from (record | {"eventSourceARN": arn} for record in page["Records"])
            iterator = page.get("NextShardIterator")
