"""The permissions: each call that the functions make is allowed, and nothing is allowed that none makes.

Every call of every function is recorded at the client, under every option of the template, on DynamoDB Local.
The emulated AWS in tests/e2e enforces the same policies, but not their conditions on keys.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import boto3
import pytest

from freshq import Busy, Queue, Reject, Retry
from freshq.aws import clients
from freshq.aws.settings import QueueSettings
from tests.support.aws_stub import AwsStub
from tests.support.dynamodb_local import create_without_stream
from tests.support.functions import Context, load_event, load_function
from tests.support.permissions import (
    DELIVERY_STREAM,
    KILL_SWITCH,
    REGION,
    TABLE,
    TABLE_ARN,
    Request,
    allows,
    requests_of,
    role,
    topic_arn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_dynamodb import DynamoDBClient

FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive")
ENVIRONMENT: Final = {
    "FRESHQ_TABLE": TABLE,
    "FRESHQ_TRIGGER_TOPIC_ARN": topic_arn("TriggerTopic"),
    "FRESHQ_PROCESS_TASKS_TOPIC_ARN": topic_arn("ProcessTasksTopic"),
    "FRESHQ_KILL_SWITCH_PARAMETER": KILL_SWITCH,
    "FRESHQ_DELIVERY_STREAM": DELIVERY_STREAM,
    "FRESHQ_RUNNER": "tests.unit.test_permissions:run",
    "FRESHQ_IDLE_EXIT_SECONDS": "0.05",
    "FRESHQ_PASS_SECONDS": "2",
    "FRESHQ_SETTLE_SECONDS": "2",
    "FRESHQ_LEASE_SECONDS": "30",
}
# Every option that changes which calls are made, a few at a time.
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "defaults": {},
    "fifo": {"ORDER": "fifo", "CODEL_TARGET_SECONDS": "0.001", "RETENTION_SECONDS": "0"},
    "adaptive": {"ORDER": "adaptive", "MAX_BACKLOG": "4", "GROUP_SHARE": "0.3"},
    "priority": {"ORDER": "priority", "RESERVE": "p90", "SHARDS": "3", "DOOR_MULTIPLE": "1.5"},
    "refusing": {"MAX_BACKLOG": "4", "WHEN_FULL": "refuse-newest", "GROUP_SHARE": "0.3", "MAX_ATTEMPTS": "1"},
    "limited": {
        "LIMIT_HIGHEST": "3",
        "LIMIT_WINDOW_SECONDS": "0.05",
        "SHARED_RATE_PER_SECOND": "50",
        "RETRY_FRACTION": "0.1",
        "WORKER_PASSES": "2",
    },
}
# What the functions' own code does not call, and who does.
OF_LAMBDA: Final = {
    "ReadStream": "Lambda reads the stream with the function's role",
    "FindStream": "Lambda reads the stream with the function's role",
    "KeepFailures": "Lambda sends what failed with the function's role",
    "WriteLogs": "Lambda writes the log with the function's role",
    "Trace": "the X-Ray daemon sends traces with the function's role",
}


# Of the workers that die.
LEASE_SECONDS: Final = 0.01
PUSHED_BACK: Final[set[str]] = set()

# An action that needs a death at one moment: of a worker that has settled, and not yet deleted its record.
AFTER_A_DEATH: Final = {("Sweep", "dynamodb:DeleteItem")}


def run(task: Any) -> str:
    """End a task as its payload says; the downstream is busy once for each."""
    ends = {"reject": Reject("no"), "retry": Retry("later", delay_seconds=0.01), "busy": Busy("full")}
    end = ends.get(str(task.payload))
    if end is None or task.task_id in PUSHED_BACK:
        return "done"
    PUSHED_BACK.add(task.task_id)
    raise end


@dataclass
class Recorder:
    """Invokes functions, and keeps what IAM would check."""

    made: dict[str, set[Request]] = field(default_factory=lambda: {name: set() for name in FUNCTIONS})
    function: str = ""

    def record(self, event_name: str, params: dict[str, Any], **_: Any) -> None:
        """Receive `before-call` of the SDK."""
        _event, service, operation = event_name.split(".")
        self.made[self.function].update(requests_of(service, operation, params["body"]))

    def invoke(self, function: str, event: Any) -> Any:
        self.function = function
        folder = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in function)[1:]
        return load_function(folder).handler(event, Context(function_name=function))

    def live(self, queue: Queue) -> None:
        """Lead tasks through all that can become of them."""
        payloads = ["work", "reject", "retry", "busy"]
        tasks: list[dict[str, Any]] = [
            {"payload": payload, "priority": number % 3, "group": f"g{number % 2}"}
            for number, payload in enumerate(payloads * 2)
        ]
        delayed = {"payload": "later", "delay_seconds": 0.01, "task_id": f"{queue.name}-delayed"}
        self.invoke("CreateTasks", {"tasks": tasks[:1]})
        self.invoke("CreateTasks", {"tasks": [*tasks[1:], delayed, delayed]})
        self.invoke("Trigger", load_event("trigger-insert"))
        self.invoke("ProcessTasks", load_event("process_tasks-doorbell"))
        queue.put("stale", max_age_seconds=0.01)
        abandon(queue)
        self.invoke("Sweep", {})
        abandon(queue)
        # A pass does this in a thread of its own, maybe before its first claim.
        self.function = "ProcessTasks"
        QueueSettings.load().queue().recover()
        self.invoke("CreateTasks", {"count": 6})
        queue.redrive()
        self.invoke("ProcessTasks", load_event("process_tasks-doorbell"))
        self.invoke("Sweep", {})


def abandon(queue: Queue) -> None:
    """Have a worker die that holds the only task of a group."""
    queue.put("orphan", group=uuid.uuid4().hex, priority=9)
    queue.claim(3, lease_seconds=LEASE_SECONDS)
    queue.put("due", group=uuid.uuid4().hex, delay_seconds=LEASE_SECONDS)
    expired = queue.now() + LEASE_SECONDS
    while queue.now() <= expired:
        time.sleep(LEASE_SECONDS)


@pytest.fixture(scope="module")
def made(dynamodb_local: DynamoDBClient) -> Iterator[dict[str, set[Request]]]:
    """Return what each function asks for, under all options."""
    recorder = Recorder()
    with AwsStub() as stub, pytest.MonkeyPatch.context() as patch:
        variables = {
            **ENVIRONMENT,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": stub.endpoint_url,
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_local.meta.endpoint_url,
            "AWS_ACCESS_KEY_ID": "permissions",
        }
        for name, value in variables.items():
            patch.setenv(name, value)
        client: DynamoDBClient = boto3.session.Session().client("dynamodb")
        create_without_stream(client, TABLE)
        clients._session.cache_clear()
        clients._session().register("before-call.*.*", cast("Any", recorder.record))
        try:
            for name, options in OPTIONS.items():
                with pytest.MonkeyPatch.context() as of_option:
                    for option, value in {**options, "QUEUE_NAME": name}.items():
                        of_option.setenv(f"FRESHQ_{option}", value)
                    recorder.live(Queue.dynamodb(TABLE, client, name=name, lease_seconds=30))
            recorder.invoke("Trigger", load_event("trigger-tail_call"))
            recorder.invoke("Archive", load_event("archive-life"))
            leave_work_behind(recorder)
        finally:
            clients._session.cache_clear()
        yield recorder.made
        client.close()


def leave_work_behind(recorder: Recorder) -> None:
    """Have a worker pass call its successor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHQ_QUEUE_NAME", "left")
        patch.setenv("FRESHQ_PASS_SECONDS", "0.05")
        patch.setenv("FRESHQ_RUNNER", "freshq.aws.demo_runner:run")
        patch.setenv("FRESHQ_DEMO_TASK_SECONDS", "0.05")
        recorder.invoke("CreateTasks", {"count": 100})
        assert recorder.invoke("ProcessTasks", load_event("process_tasks-doorbell"))["tail_call"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_all_that_its_function_calls(made: dict[str, set[Request]], function: str) -> None:
    assert made[function]
    denied = [request for request in made[function] if not allows(role(function), request)]
    assert denied == []


STATEMENTS: Final = [(function, statement["Sid"]) for function in FUNCTIONS for statement in role(function)]


@pytest.mark.parametrize(("function", "sid"), [each for each in STATEMENTS if each[1] not in OF_LAMBDA])
class TestNothingIsAllowedInVain:
    def test_without_a_statement_a_call_is_denied(
        self, made: dict[str, set[Request]], function: str, sid: str
    ) -> None:
        others = [statement for statement in role(function) if statement["Sid"] != sid]
        assert any(not allows(others, request) for request in made[function])

    def test_without_an_action_or_a_resource_of_it_a_call_is_denied(
        self, made: dict[str, set[Request]], function: str, sid: str
    ) -> None:
        for part in ("Action", "Resource"):
            for value, narrowed in without_one(role(function), sid, part):
                if (function, value) not in AFTER_A_DEATH:
                    assert any(not allows(narrowed, request) for request in made[function]), value

    def test_without_a_prefix_of_its_keys_a_call_is_denied(
        self, made: dict[str, set[Request]], function: str, sid: str
    ) -> None:
        for narrowed in without_one_prefix(role(function), sid):
            assert any(not allows(narrowed, request) for request in made[function]), narrowed


def without_one(
    statements: list[dict[str, Any]], sid: str, part: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each action or resource of a statement that has several, and the statements without it."""
    (changed,) = (statement for statement in statements if statement["Sid"] == sid)
    others = [statement for statement in statements if statement["Sid"] != sid]
    values = changed[part] if isinstance(changed[part], list) else [changed[part]]
    if len(values) > 1:
        for value in values:
            yield value, [*others, changed | {part: [each for each in values if each != value]}]


def without_one_prefix(statements: list[dict[str, Any]], sid: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the statements without one of the prefixes of keys that a statement allows."""
    (changed,) = (statement for statement in statements if statement["Sid"] == sid)
    others = [statement for statement in statements if statement["Sid"] != sid]
    like = changed.get("Condition", {}).get("ForAllValues:StringLike", {})
    prefixes = like.get("dynamodb:LeadingKeys", [])
    for prefix in prefixes if isinstance(prefixes, list) else []:
        rest = [each for each in prefixes if each != prefix]
        condition = {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": rest}}
        yield [*others, changed | {"Condition": condition}]


def on_item(operation: str, task_id: str, *attributes: str) -> Request:
    return Request(
        f"dynamodb:{operation}", TABLE_ARN, frozenset({task_id}), frozenset({"taskId", *attributes})
    )


@pytest.mark.parametrize(
    ("function", "request_"),
    [
        *((function, on_item("DeleteItem", "task-1")) for function in FUNCTIONS),
        *((function, Request("dynamodb:Scan", TABLE_ARN)) for function in FUNCTIONS),
        *((function, on_item("UpdateItem", "freshq#control#default", "paused")) for function in FUNCTIONS),
        *((function, on_item("PutItem", "freshq#control#default")) for function in FUNCTIONS),
        ("CreateTasks", on_item("PutItem", "freshq#pass#default#0")),
        ("CreateTasks", on_item("UpdateItem", "freshq#lease#default#1")),
        ("ProcessTasks", on_item("PutItem", "task-1")),
        ("ProcessTasks", on_item("BatchWriteItem", "task-1")),
        ("Sweep", on_item("PutItem", "task-1")),
        ("Sweep", on_item("PutItem", "freshq#pass#default#0")),
        ("Trigger", on_item("GetItem", "task-1")),
        ("Trigger", on_item("BatchGetItem", "task-1")),
        ("Trigger", on_item("UpdateItem", "task-1")),
        ("Archive", on_item("GetItem", "task-1")),
        ("CreateTasks", Request("sns:Publish", topic_arn("ProcessTasksTopic"))),
        ("Trigger", Request("sns:Publish", topic_arn("TriggerTopic"))),
        ("ProcessTasks", Request("sns:Publish", topic_arn("ProcessTasksTopic"))),
    ],
    ids=lambda value: json.dumps(sorted(value.leading_keys)) if isinstance(value, Request) else str(value),
)
def test_what_docs_iam_says_is_denied_is(function: str, request_: Request) -> None:
    assert not allows(role(function), request_)
