"""`freshq archive replay-stream` archives again what the stream still has."""

import json
from typing import Any

import boto3
import pytest
from local.servers import REGION as LOCAL_REGION
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.commands import relay
from freshq.cli.main import app
from freshq.cli.stacks import Stack
from tests.unit.conftest import Application

OUTPUTS = {"QueueTableName": "QueueTable", "ArchiveDeliveryStreamName": "Archive"}


def archived() -> list[dict[str, Any]]:
    s3 = boto3.client("s3")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket="archive").get("Contents", [])]
    bodies = [s3.get_object(Bucket="archive", Key=key)["Body"].read() for key in keys]
    return [json.loads(line) for body in bodies for line in body.splitlines()]


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the outputs of the stack that the command finds."""
    outputs = dict(OUTPUTS)
    stack = Stack("app", "CREATE_COMPLETE", outputs, {})
    monkeypatch.setattr(Stack, "describe", lambda _name: stack)
    return outputs


def replay(*options: str) -> Any:
    return CliRunner().invoke(app, ["archive", "replay-stream", "--stack", "app", *options])


@pytest.mark.usefixtures("delivery_stream", "outputs")
def test_every_change_in_the_stream_is_archived_without_payloads(
    application: Application, account_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[Any] = []

    def note(_table: str, before: Any, after: Any) -> None:
        keys = {"taskId": (before or after)["taskId"]}
        change = {"Keys": keys, "SequenceNumber": str(len(records)), "ApproximateCreationDateTime": 1.0}
        images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image}
        records.append({"eventID": str(len(records)), "dynamodb": change | images})

    account_client._tables.seen = note
    monkeypatch.setattr(relay, "stream_pages", lambda *_: iter([records]))
    application.queue.put("secret", task_id="a")
    (held,) = application.queue.claim()
    application.queue.complete(held)
    done = replay("--json")
    assert done.exit_code == 0, done.stderr
    events = archived()
    assert [event["status"] for event in events] == ["PENDING", "TAKEN", "SUCCESS"]
    assert json.loads(done.stdout) == {"delivered": 3, "unreadable": 0}
    assert "secret" not in json.dumps(events)
    # A second time the same events arrive, by which the pipeline knows them.
    assert "3 changes sent" in replay().stdout
    assert len({event["event_id"] for event in archived()}) == 3


@pytest.mark.usefixtures("delivery_stream", "outputs", "application")
def test_a_record_that_cannot_be_read_is_named_and_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"eventID": "1", "dynamodb": {"SequenceNumber": "7", "NewImage": {"taskStatus": "PENDING"}}}
    monkeypatch.setattr(relay, "stream_pages", lambda *_: iter([[broken]]))
    done = replay()
    assert done.exit_code == 1
    assert "record could not be read: 7: record: " in done.stderr


@pytest.mark.usefixtures("delivery_stream", "application")
def test_what_the_archive_rejects_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]
) -> None:
    outputs["ArchiveDeliveryStreamName"] = "another"
    record = {"dynamodb": {"SequenceNumber": "7", "NewImage": {"taskStatus": "PENDING"}}}
    monkeypatch.setattr(relay, "stream_pages", lambda *_: iter([[record]]))
    done = replay()
    assert done.exit_code == 3
    assert "another" in done.stderr


def test_a_stack_without_an_archive_is_refused(outputs: dict[str, str]) -> None:
    del outputs["ArchiveDeliveryStreamName"]
    done = replay()
    assert done.exit_code == 1
    assert "'app' has no archive; deploy the present template with Archive=on" in done.stderr


def test_a_stream_is_read_to_the_end_and_by_pages(dynamodb_local: DynamoDBClient) -> None:
    with Queue.dynamodb("Replayed", dynamodb_local) as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(30)])
    keys: Any = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    session = boto3.Session(region_name=dynamodb_local.meta.region_name or LOCAL_REGION, **keys)
    streams: Any = session.client("dynamodbstreams", endpoint_url=dynamodb_local.meta.endpoint_url)
    arn = dynamodb_local.describe_table(TableName="Replayed")["Table"]["LatestStreamArn"]
    records = [record for page in relay.stream_pages(streams, arn) for record in page]
    tasks = [each for each in records if "taskStatus" in each["dynamodb"].get("NewImage", {})]
    assert len(tasks) == 30
    assert {each["eventSourceARN"] for each in records} == {arn}
