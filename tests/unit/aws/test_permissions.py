"""The permissions: each call of the functions is allowed, and every allowed action is called.

Every call of every function is recorded at the client, under every option of the queue, on DynamoDB Local.
The emulated AWS in tests/e2e enforces the same policies, but not their conditions on keys.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast
from urllib.parse import quote

import boto3
import pytest
from local.servers import create_without_stream
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Busy, Queue, Reject, Retry
from freshq.aws import environment
from freshq.aws.environment import QueueSettings
from freshq.aws.pass_options import configure_stack
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule
from freshq.queue.base import BaseQueue
from freshq.stores.dynamodb import line_records, lines
from tests.support.attached import Shipments
from tests.support.aws_stub import AwsStub
from tests.support.functions import Context, load_event, load_function
from tests.support.http_events import event_of
from tests.support.permissions import (
    ATTACHED_KEY,
    ATTACHED_TABLE,
    DELIVERY_STREAM,
    KILL_SWITCH,
    REGION,
    TABLE,
    Request,
    allows,
    requests_of,
    role,
    table_arn,
    topic_arn,
)
from tests.support.worker_threads import wait_until

FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive", "HttpApi")
ENVIRONMENT: Final = {
    "FRESHQ_TABLE": TABLE,
    "FRESHQ_TRIGGER_TOPIC_ARN": topic_arn("TriggerTopic"),
    "FRESHQ_PROCESS_TASKS_TOPIC_ARN": topic_arn("ProcessTasksTopic"),
    "FRESHQ_KILL_SWITCH_PARAMETER": KILL_SWITCH,
    "FRESHQ_DELIVERY_STREAM": DELIVERY_STREAM,
    "FRESHQ_RUNNER": "tests.unit.aws.test_permissions:run",
}
PASSES: Final[dict[str, Any]] = {
    "idle_exit_seconds": 0.05,
    "pass_seconds": 1,
    "settle_seconds": 2,
    "lease_seconds": 30,
}
# All options that change the calls, a few at a time.
LIMITED: Final = {
    "limit_highest": 3,
    "limit_window_seconds": 0.05,
    "shared_rate_per_second": 50,
    "retry_fraction": 0.1,
    "worker_passes": 2,
}
FEW: Final = BacklogLimit(4, group_share=0.3)
CODEL: Final = CodelRule(0.001, 0.002)
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "fifo": {"order": "fifo", "codel": CODEL, "retention_seconds": 0},
    "adaptive": {"order": "adaptive", "backlog": FEW},
    "lifo": {"order": "lifo", "reserve": "p90", "shards": 3, "admission": AdmissionLimit(1.5)},
    "refusing": {"backlog": replace(FEW, when_full=WhenFull.REFUSE_NEWEST), "max_attempts": 1},
    "limited": LIMITED,
}
# Order, shards, max age and retention come from the attachment.
OF_ATTACHED: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "shedding": {"codel": CODEL, "backlog": FEW, "admission": AdmissionLimit(1.5)},
    "limited": LIMITED | {"reserve": "p90", "max_attempts": 1},
}
# Actions that the functions' code does not call, and their callers.
OF_LAMBDA: Final = {
    "ReadStream": "Lambda reads the stream with the function's role",
    "FindStream": "Lambda reads the stream with the function's role",
    "KeepFailures": "Lambda sends what failed with the function's role",
    "WriteLogs": "Lambda writes the log with the function's role",
    "Trace": "the X-Ray daemon sends traces with the function's role",
}


# The lease of the workers that die.
LEASE_SECONDS: Final = 0.01
PUSHED_BACK: Final[set[str]] = set()

# An action that needs a death at one moment: of a worker that has settled, and not yet deleted its record.
AFTER_A_DEATH: Final = {("Sweep", "dynamodb:DeleteItem")}


def run(task: Any) -> str:
    """End a task as its payload says; the downstream is busy once for each."""
    ends = {"reject": Reject("no"), "retry": Retry("later", delay_seconds=0.01), "busy": Busy("full")}
    end = ends.get(task.payload["end"] if isinstance(task.payload, dict) else str(task.payload))
    if end is None or task.task_id in PUSHED_BACK:
        return "done"
    PUSHED_BACK.add(task.task_id)
    raise end


@dataclass
class Work:
    """Makes work for a queue: tasks on a table of freshq's own, or records of an attached one.

    Attributes:
        records: The attached table; None for a table of freshq's own.
    """

    records: Shipments | None = None

    def task(self, payload: str, **options: Any) -> dict[str, Any]:
        """Return the arguments of a put, of a new record if the table is attached."""
        name = uuid.uuid4().hex
        if self.records is None:
            return {"payload": payload, "task_id": name, **options}
        name += "/1"
        item = self.records.key.attributes(name) | {"end": {"S": payload}}
        self.records.client.put_item(TableName=self.records.table, Item=item)
        return {"payload": None, "task_id": name, **options}

    def event(self, name: str) -> dict[str, Any]:
        """Return an example event of changes of tasks, or the same changes of records."""
        event = load_event(name)
        for record in event["Records"] if self.records else []:
            change, keys = record["dynamodb"], ATTACHED_KEY.attributes("c/1")
            images = {part: image for part, image in change.items() if part.endswith("Image")}
            for part, image in images.items():
                change[part] = {f"freshq_{name}": value for name, value in image.items()} | keys
            # A record is there before it is put.
            change |= {"Keys": keys, "OldImage": change.get("OldImage", keys)}
            record["eventName"] = "MODIFY"
        return event

    def put(self, queue: Queue | AttachedQueue, payload: str, **options: Any) -> None:
        queue.put(**self.task(payload, **options))

    def abandon(self, queue: Queue | AttachedQueue) -> None:
        """Let a worker die while it holds the only task of a group."""
        self.put(queue, "orphan", group=uuid.uuid4().hex, priority=9)
        queue.claim(3, lease_seconds=LEASE_SECONDS)
        self.put(queue, "due", group=uuid.uuid4().hex, delay_seconds=LEASE_SECONDS)
        expired = queue.admin.now() + LEASE_SECONDS
        while queue.admin.now() <= expired:
            time.sleep(LEASE_SECONDS)


Made = dict[str, set[Request]]


@dataclass
class Recorder:
    """Invokes functions, and keeps what IAM would check."""

    work: Work = field(default_factory=Work)
    made: Made = field(default_factory=lambda: {name: set() for name in FUNCTIONS})
    function: str = ""

    def record(self, event_name: str, params: dict[str, Any], **_: Any) -> None:
        """Receive `before-call` of the SDK."""
        _event, service, operation = event_name.split(".")
        self.made[self.function].update(requests_of(service, operation, params["body"]))

    def invoke(self, function: str, event: Any) -> Any:
        self.function = function
        folder = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in function)[1:]
        return load_function(folder).handler(event, Context(function_name=function))

    def live(self, queue: Queue | AttachedQueue) -> None:
        """Lead tasks to every possible fate."""
        payloads = ["work", "reject", "retry", "busy"]
        tasks = [
            self.work.task(payload, priority=number % 3, group=f"g{number % 2}")
            for number, payload in enumerate(payloads * 2)
        ]
        delayed = self.work.task("later", delay_seconds=0.01)
        self.invoke("CreateTasks", {"tasks": tasks[:1]})
        self.invoke("CreateTasks", {"tasks": [*tasks[1:], delayed, delayed]})
        self.call(queue)
        self.invoke("Trigger", self.work.event("trigger-insert"))
        self.invoke("ProcessTasks", load_event("process_tasks-doorbell"))
        self.work.put(queue, "stale", max_age_seconds=0.01)
        self.work.abandon(queue)
        self.invoke("Sweep", {})
        self.work.abandon(queue)
        # A pass does this in a separate thread, maybe before its first claim.
        self.function = "ProcessTasks"
        QueueSettings.load().queue().admin.recover()
        self.invoke("CreateTasks", {"tasks": [self.work.task("work") for _ in range(6)]})
        queue.redrive()
        self.invoke("ProcessTasks", load_event("process_tasks-doorbell"))
        self.invoke("Sweep", {})

    def call(self, queue: Queue | AttachedQueue) -> None:
        """Send every request of the HTTP interface, by the first process that sees these lines and groups."""
        others = {"priority": 4, "group": "http"}
        tasks = [self.work.task("work", **others) for _ in range(3)]
        held = self.work.task("work", priority=9)
        queue.put(**held)
        queue.claim(1)
        for method, path, body in (
            ("POST", "/v1/tasks", tasks[0]),
            ("POST", "/v1/batch", {"tasks": tasks[1:]}),
            ("POST", "/v1/tasks?duplicates=refuse", tasks[0]),
            ("POST", "/v1/tasks", tasks[0] | {"on_conflict": "update", "delay_seconds": 60}),
            ("GET", f"/v1/tasks?task_id={quote(tasks[0]['task_id'])}&wait_seconds=0.01", None),
            ("POST", "/v1/cancel", {"task_id": tasks[0]["task_id"]}),
            ("POST", "/v1/cancel", {"task_id": held["task_id"], "force": True}),
            ("GET", "/v1/stats", None),
        ):
            assert self.invoke("HttpApi", event_of(method, path, body))["statusCode"] < 500

    def leave_work_behind(self, queue: BaseQueue) -> None:
        """Have a worker pass of this queue, whose name is `left`, call its successor."""
        configure_stack(queue, **PASSES | {"pass_seconds": 0.05})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FRESHQ_QUEUE_NAME", "left")
            patch.setenv("FRESHQ_RUNNER", "freshq.aws.demo_runner:run")
            patch.setenv("FRESHQ_DEMO_TASK_SECONDS", "0.05")
            self.invoke("CreateTasks", {"tasks": [self.work.task("work") for _ in range(100)]})
            # On a busy machine, so short a pass may be over before its first claim.
            wait_until(lambda: self.invoke("ProcessTasks", load_event("process_tasks-doorbell"))["tail_call"])

    def all(self, options: dict[str, dict[str, Any]], queue_named: Callable[..., Any]) -> None:
        """Record the calls under each of some options, and the calls that are the same under all."""
        for name, of_option in options.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FRESHQ_QUEUE_NAME", name)
                configure_stack(queue_named(name), **PASSES | of_option)
                # The functions meet both limits. Here a put would be turned away once in a while, when a pass
                # on a slow machine leaves work behind.
                self.live(queue_named(name, admission=None, backlog=None, override=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FRESHQ_QUEUE_NAME", "new")  # no option was stored
            self.invoke("CreateTasks", {"tasks": [self.work.task("new")]})
            patch.setenv("FRESHQ_QUEUE_NAME", "new-by-http")
            self.invoke("HttpApi", event_of("POST", "/v1/tasks", self.work.task("new")))
        self.invoke("Trigger", load_event("trigger-tail_call"))
        self.invoke("Archive", self.work.event("archive-life"))
        self.leave_work_behind(queue_named("left"))


@pytest.fixture(scope="module")
def recording_client(dynamodb_local: DynamoDBClient) -> Iterator[DynamoDBClient]:
    """Return a client on DynamoDB Local; the functions' own clients also use it."""
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
        yield client
        client.close()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the calls of the functions' clients."""
    environment.session.cache_clear()
    environment.session().register("before-call.*.*", cast("Any", recorder.record))
    try:
        yield
    finally:
        environment.session.cache_clear()


@pytest.fixture(scope="module")
def made(recording_client: DynamoDBClient) -> dict[bool, Made]:
    """Return what each function asks for, under all options: on its own table, and on an attached one."""
    client, own = recording_client, Recorder()
    create_without_stream(client, TABLE)
    with recording(own), lines_close_at_once():
        own.all(OPTIONS, lambda name, **options: Queue.dynamodb(TABLE, client, name=name, **options))
    records = Shipments(client, ATTACHED_TABLE, ATTACHED_KEY)
    records.create_attached()
    attached, key = Recorder(Work(records)), ATTACHED_KEY.hash.name

    def opened(name: str, **options: Any) -> AttachedQueue:
        return Queue.dynamodb(ATTACHED_TABLE, client, attach=True, key=key, name=name, **options)

    with recording(attached), lines_close_at_once(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHQ_TABLE", ATTACHED_TABLE)
        patch.setenv("FRESHQ_ATTACH_KEY", key)
        attached.all(OF_ATTACHED, opened)
    return {False: own.made, True: attached.made}


@contextmanager
def lines_close_at_once() -> Iterator[None]:
    """Let a worker close a line as soon as it is empty, which otherwise needs a pass of two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (lines, line_records):
            patch.setattr(module, "QUIET_SECONDS", 0.0)
        yield


tables = pytest.mark.parametrize("attached", [False, True], ids=["own table", "attached table"])


@tables
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_all_that_its_function_calls(
    made: dict[bool, Made], function: str, *, attached: bool
) -> None:
    of_role = role(function, attached=attached)
    assert made[attached][function]
    assert [request for request in made[attached][function] if not allows(of_role, request)] == []


STATEMENTS: Final = [
    (function, attached, statement["Sid"])
    for function in FUNCTIONS
    for attached in (False, True)
    for statement in role(function, attached=attached)
]


@pytest.mark.parametrize(
    ("function", "attached", "sid"), [each for each in STATEMENTS if each[-1] not in OF_LAMBDA]
)
class TestNothingIsAllowedInVain:
    def test_without_a_statement_a_call_is_denied(
        self, made: dict[bool, Made], function: str, sid: str, *, attached: bool
    ) -> None:
        others = [each for each in role(function, attached=attached) if each["Sid"] != sid]
        assert any(not allows(others, request) for request in made[attached][function])

    def test_without_an_action_or_a_resource_of_it_a_call_is_denied(
        self, made: dict[bool, Made], function: str, sid: str, *, attached: bool
    ) -> None:
        for part in ("Action", "Resource"):
            for value, narrowed in without_one(role(function, attached=attached), sid, part):
                if (function, value) not in AFTER_A_DEATH:
                    assert any(not allows(narrowed, request) for request in made[attached][function]), value

    def test_without_a_prefix_of_its_keys_a_call_is_denied(
        self, made: dict[bool, Made], function: str, sid: str, *, attached: bool
    ) -> None:
        for narrowed in without_one_prefix(role(function, attached=attached), sid):
            assert any(not allows(narrowed, request) for request in made[attached][function]), narrowed


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
    """Yield the statements, each time without one of the key prefixes that a statement allows."""
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
        f"dynamodb:{operation}", table_arn(TABLE), frozenset({task_id}), frozenset({"taskId", *attributes})
    )


def on_record(operation: str, hash_key: str, *attributes: str) -> Request:
    named = frozenset({"customer", "number", *attributes})
    return Request(f"dynamodb:{operation}", table_arn(ATTACHED_TABLE), frozenset({hash_key}), named)


@pytest.mark.parametrize(
    ("function", "request_"),
    [
        *((function, on_item("DeleteItem", "task-1")) for function in FUNCTIONS),
        *((function, Request("dynamodb:Scan", table_arn(TABLE))) for function in FUNCTIONS),
        *((function, on_item("UpdateItem", "freshq#control#default", "paused")) for function in FUNCTIONS),
        *((function, on_item("PutItem", "freshq#control#default")) for function in FUNCTIONS),
        ("CreateTasks", on_item("PutItem", "freshq#pass#default#0")),
        ("HttpApi", on_item("PutItem", "freshq#pass#default#0")),
        ("HttpApi", on_item("UpdateItem", "freshq#lease#default#1")),
        ("HttpApi", Request("sns:Publish", topic_arn("ProcessTasksTopic"))),
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


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "request_",
    [
        *(
            on_record(operation, "customer-7", "freshq_taskStatus", "price")
            for operation in ("PutItem", "DeleteItem", "BatchWriteItem", "PartiQLInsert", "PartiQLUpdate")
        ),
        on_record("UpdateItem", "freshq#control#default", "freshq_paused"),
        on_record("UpdateItem", "freshq#lease#default#1"),
        on_record("PutItem", "freshq#attach"),
        Request("dynamodb:Scan", table_arn(ATTACHED_TABLE)),
        Request("dynamodb:UpdateTable", table_arn(ATTACHED_TABLE)),
        Request("dynamodb:GetItem", table_arn("Customers"), frozenset({"customer-7"})),
        Request("dynamodb:Query", f"{table_arn(ATTACHED_TABLE)}/index/by-day", frozenset({"monday"})),
    ],
    ids=lambda value: f"{value.action} {sorted(value.leading_keys)}",
)
def test_no_role_of_an_attached_stack_replaces_or_deletes_a_record(function: str, request_: Request) -> None:
    assert not allows(role(function, attached=True), request_)
