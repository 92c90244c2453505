"""A table in use, attached by the command and worked by a stack that `sam deploy` made beside it.

The stack's archive also reads the stream of a table of `MatchQueue`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from local.emulator import demonstration, deploy
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, MatchQueue, Queue, TaskStatus
from freshq.aws.pass_options import configure_stack
from freshq.cli.main import app
from tests.e2e.conftest import Deployment, delete, wait_until
from tests.e2e.test_archive import archived
from tests.support.readings import counts

pytestmark = pytest.mark.timeout(600)

TABLE: Final = "Shipments"
STACK: Final = "freshq-attached"
AGENTS: Final = "Agents"


def record(number: int, **attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a record as the application writes it; two of its attributes have names like freshq's own."""
    own = {"price": {"N": str(number)}, "ttl": {"N": "1"}, "taskStatus": {"S": "packed"}}
    return {"customer": {"S": "c-7"}, "number": {"N": str(number)}, **own, **attributes}


def in_use(client: DynamoDBClient) -> None:
    """Make the application's table, with records."""
    client.create_table(
        TableName=TABLE,
        KeySchema=[
            {"AttributeName": "customer", "KeyType": "HASH"},
            {"AttributeName": "number", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "customer", "AttributeType": "S"},
            {"AttributeName": "number", "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    for number in range(12):
        client.put_item(TableName=TABLE, Item=record(number))


def stream_of_agents(client: DynamoDBClient) -> str:
    """Make a table of agents that callers can be matched to; return the ARN of its stream."""
    MatchQueue.dynamodb(AGENTS, client).create_table()
    changed = client.update_table(
        TableName=AGENTS,
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    return changed["TableDescription"]["LatestStreamArn"]


@pytest.fixture
def attached(left_alone: Deployment, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Return an application on an attached table, on the emulator of the session."""
    emulator = left_alone.emulator
    in_use(left_alone.client("dynamodb"))
    for name, value in emulator.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["table", "attach", TABLE, "--key", "customer", "--stream"])
    stream = re.search(r"^Stream: (\S+)$", done.stdout, re.MULTILINE)
    assert stream is not None, done.output
    parameters: dict[str, str | int] = {
        "AttachTable": TABLE,
        "AttachKey": "customer",
        "AttachRangeKey": "number",
        "AttachStreamArn": stream[1],
        "Archive": "on",
        "MatchStreamArn": stream_of_agents(left_alone.client("dynamodb")),
        **demonstration(capacity=4, task_seconds=0.02),
    }
    outputs = deploy(emulator, template, parameters, stack=STACK)
    configure_stack(opened(left_alone.client("dynamodb")), concurrency=4, log_sample_ratio=1)
    yield Deployment(emulator, outputs, stack=STACK)
    delete([STACK], emulator)


def opened(client: DynamoDBClient) -> AttachedQueue:
    return Queue.dynamodb(TABLE, client, attach=True, key="customer")


def test_records_are_worked_and_archived_and_the_application_s_own_stay_its_own(attached: Deployment) -> None:
    client = attached.client("dynamodb")
    queue = opened(client)
    assert attached.outputs["QueueTableName"] == TABLE
    match_agents(client)

    # Puts by the application: some of its records, and one that it writes and puts in one step.
    queue.put_many([{"payload": None, "task_id": f"c-7/{number}"} for number in range(8)])
    client.put_item(TableName=TABLE, Item=record(20, reject={"BOOL": True}))
    queue.put(task_id="c-7/20")
    # Puts by the stack, among them a missing record and a delayed one.
    answer = attached.invoke("CreateTasks", {"tasks": [{"task_id": "c-7/8"}, {"task_id": "c-7/99"}]})
    assert (answer["created"], answer["refused"]) == (1, 1)
    queue.put(task_id="c-7/9", delay_seconds=1)
    client.update_item(
        TableName=TABLE,
        Key={"customer": {"S": "c-7"}, "number": {"N": "3"}},
        UpdateExpression="SET price = :price",
        ExpressionAttributeValues={":price": {"N": "1000"}},
    )

    wait_until(lambda: queue.stats().success >= 9)
    # In an account the schedule does this every minute.
    wait_until(lambda: attached.invoke("Sweep", {}) and queue.stats().success == 10)
    assert counts(queue.stats()) == {"success": 10, "failure": 1}
    assert {task.attempts for task in queue.list("SUCCESS", limit=20)} == {1}
    (dead,) = queue.list("FAILURE")
    assert (dead.task_id, dead.error) == ("c-7/20", "the payload asked to be rejected")

    items = client.query(
        TableName=TABLE,
        KeyConditionExpression="customer = :customer",
        ExpressionAttributeValues={":customer": {"S": "c-7"}},
    )["Items"]
    records = {int(item["number"]["N"]): item for item in items}
    prices = {number: item["price"]["N"] for number, item in records.items()}
    assert prices == {number: str(number) for number in (*range(12), 20)} | {3: "1000"}
    assert {item["taskStatus"]["S"] for item in records.values()} == {"packed"}
    untouched = {number for number, item in records.items() if "freshq_taskStatus" not in item}
    assert untouched == {10, 11}

    check_ledger(attached, queue)
    check_agents(attached, queue.name)


def lives_in(attached: Deployment, *queues: str) -> dict[str, list[str]]:
    """Return the states of each life in the archive, in order, by its id."""
    lives = defaultdict(list)
    for event in sorted(archived(attached), key=lambda event: event["sequence"]):
        if event["queue"] in queues:
            lives[event["task_id"]].append(event["status"])
    return lives


def match_agents(client: DynamoDBClient) -> None:
    """Let an agent wait, then a caller who fits nobody, and match the agent to another caller."""
    agents = MatchQueue.dynamodb(AGENTS, client)
    agents.register("ellen", attributes={"language": "Spanish"})
    agents.offer("ellen")
    assert agents.request({"language": "French"}, caller_id="ann") is None
    (match,) = agents.match({"language": "Spanish"})
    assert match.resource_id == "ellen"


def check_agents(attached: Deployment, tasks: str) -> None:
    """Check that the archive has the lives of agents and callers beside those of tasks, and nothing else."""
    queues = (AGENTS, f"{AGENTS}-callers")

    def lives() -> dict[str, list[str]]:
        """Return the lives by name: an id also has the time at which its stay began."""
        return {name.partition("#")[0]: states for name, states in lives_in(attached, *queues).items()}

    wait_until(lambda: lives() == {"ellen": ["PENDING", "TAKEN"], "ann": ["PENDING"]})
    assert {event["queue"] for event in archived(attached)} == {*queues, tasks}


def check_ledger(attached: Deployment, queue: AttachedQueue) -> None:
    """Check that the archive has every change of every record that was queued, and nothing else."""

    def states() -> dict[str, list[str]]:
        return lives_in(attached, queue.name)

    done = {f"c-7/{number}" for number in range(10)}
    wait_until(lambda: {name for name, life in states().items() if life[-1] == "SUCCESS"} == done)
    lives = states()
    assert lives.keys() == done | {"c-7/20"}
    # A record's first change is its put, and each state was reached once.
    for name in done - {"c-7/3", "c-7/9"}:
        assert lives[name] == ["PENDING", "TAKEN", "SUCCESS"], name
    assert set(lives["c-7/3"]) == {"PENDING", "TAKEN", "SUCCESS"}  # the application wrote to it, too
    assert lives["c-7/9"] == ["PENDING", "PENDING", "TAKEN", "SUCCESS"]  # promoted when it was due
    assert lives["c-7/20"] == ["PENDING", "TAKEN", "FAILURE"]
    ends = [life[-1] for life in lives.values()]
    stats = queue.stats()
    assert (stats.success, stats.failure) == (ends.count("SUCCESS"), ends.count("FAILURE"))
    assert "price" not in json.dumps(archived(attached))
    assert queue.get("c-7/11").status is TaskStatus.READY  # type: ignore[union-attr]  # it is there
