"""The archive on the emulator: the events of every task arrive in the bucket, and nothing else."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Deployment, wait_until
from tests.support.programs import python

pytestmark = pytest.mark.timeout(600)


def archived(application: Deployment) -> list[dict[str, Any]]:
    """Return the events in the bucket."""
    client = application.client("s3")
    bucket = application.outputs["ArchiveBucketName"]
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="events/")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    lines = [
        line for key in keys for line in client.get_object(Bucket=bucket, Key=key)["Body"].read().splitlines()
    ]
    return [json.loads(line) for line in lines]


def test_what_happens_to_tasks_is_archived(deployed: Callable[..., Deployment]) -> None:
    application = deployed(Archive="on", demo_task_seconds=0.01)
    application.put(*({"payload": "secret", "task_id": str(number)} for number in range(10)))
    application.put({"payload": {"reject": True}, "task_id": "bad"})
    wait_until(lambda: application.queue.stats().success == 10)

    def complete() -> bool:
        ends = [event for event in archived(application) if event["status"] in ("SUCCESS", "FAILURE")]
        return {event["task_id"] for event in ends} == {*map(str, range(10)), "bad"}

    wait_until(complete)
    events = archived(application)
    assert "secret" not in json.dumps(events)
    assert all(not event["task_id"].startswith("freshq#") for event in events)
    for task_id in "09":
        life = {event["status"] for event in events if event["task_id"] == task_id}
        assert life == {"PENDING", "TAKEN", "SUCCESS"}
    # The files are lost, and the stream still has their changes.
    client, bucket = application.client("s3"), application.outputs["ArchiveBucketName"]
    for entry in client.list_objects_v2(Bucket=bucket)["Contents"]:
        client.delete_object(Bucket=bucket, Key=entry["Key"])
    command = ("-m", "freshq", "archive", "replay-stream", "--stack", application.stack)
    python(*command, env=application.emulator.environment, cwd=sys.prefix)
    wait_until(complete)
    assert {event["event_id"] for event in archived(application)} == {event["event_id"] for event in events}
