"""Attached tables as a source: their changes, archived and pulled, give the ledger that the queue has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from freshq.aws.landing import landed_event
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq_pipeline.cluster.pull import pull
from tests.conftest import REGION
from tests.pipeline.conftest import table
from tests.support.attached import Shipments
from tests.support.streams import enable_stream, stream_records

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_dynamodb import DynamoDBClient

    from tests.pipeline.conftest import Pipeline

KEY = TableKey(KeyPart("customer"), KeyPart("number", "N"))
NAMES = tuple(f"c{number % 2}/{number}" for number in range(8))


@pytest.fixture
def orders(dynamodb_local: DynamoDBClient) -> Shipments:
    """Return an attached table with a range key, a change stream and some records."""
    orders = Shipments(dynamodb_local, key=KEY)
    orders.create_attached()
    enable_stream(dynamodb_local, orders.table)
    orders.add(*NAMES)
    return orders


def test_the_ledger_of_an_attached_table_is_what_its_queue_counts(
    orders: Shipments, pipeline: Pipeline, tmp_path: Path
) -> None:
    queue = orders.queue()
    for name in NAMES:
        queue.enqueue(name)
        orders.clock.advance(1)
    queue.cancel(NAMES[0])
    one, two, three, _four = queue.claim(limit=4)
    orders.clock.advance(1)
    queue.complete(one)
    queue.fail(two, "no")
    queue.retry(three, delay_seconds=0)
    orders.change(NAMES[5], price={"N": "1"})  # the application's own change is of no task
    stats = queue.stats()
    queue.close()

    records = stream_records(orders.client, orders.table)
    landed = [event for record in records if (event := landed_event(record, "customer"))]
    with mock_aws():
        s3 = boto3.client("s3")
        location: Any = {"LocationConstraint": REGION}
        s3.create_bucket(Bucket="landed", CreateBucketConfiguration=location)
        lines = "".join(f"{json.dumps(event)}\n" for event in landed)
        s3.put_object(Bucket="landed", Key="events/2026/11/22/10/a", Body=lines.encode())
        assert pull("landed", tmp_path / "events", s3).copied == 1
    summary = pipeline(tmp_path / "events", tmp_path / "out")
    (total,) = [row for row in table(summary, "ledger", "queue, day") if row["day"] is None]
    expected = {
        "created": len(NAMES), "pending": stats.pending + stats.delayed, "difference": 0, "violations": 0,
        **{name: getattr(stats, name) for name in ("taken", "success", "failure", "cancelled", "shed")},
    }  # fmt: skip
    assert {name: total[name] for name in expected} == expected
    assert (stats.success, stats.failure, stats.cancelled, stats.taken) == (1, 1, 1, 1)
    assert {row["task_id"] for row in table(summary, "tasks", "task_id")} == set(NAMES)
