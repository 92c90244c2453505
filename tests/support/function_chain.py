"""The functions in this process, joined as the template joins them, on DynamoDB Local and stubs of the rest.

An invocation runs in a thread with clients of its own. It can die: at a call of the SDK it stops permanently,
with all its threads, like a killed process. None of its threads continues to clean up.
"""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import boto3
import pytest
from botocore.config import Config
from local.faults import AFTER, BEFORE, Died
from local.servers import create_without_stream
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.aws import environment, http_events, observability
from freshq.aws.pass_options import configure_stack
from freshq.stores.dynamodb import calls
from tests.support.aws_stub import AwsStub
from tests.support.functions import Context, load_function
from tests.support.patience import PATIENCE_SECONDS
from tests.support.table_clock import Ahead

TRIGGER_TOPIC: Final = "arn:aws:sns:eu-west-1:123456789012:Trigger"
PROCESS_TASKS_TOPIC: Final = "arn:aws:sns:eu-west-1:123456789012:ProcessTasks"
LEASE_SECONDS: Final = 180.0
ENVIRONMENT: Final = {
    "FRESHQ_TRIGGER_TOPIC_ARN": TRIGGER_TOPIC,
    "FRESHQ_PROCESS_TASKS_TOPIC_ARN": PROCESS_TASKS_TOPIC,
    "FRESHQ_KILL_SWITCH_PARAMETER": "/freshq/switch",
    "FRESHQ_DELIVERY_STREAM": "Archive",
    "FRESHQ_RUNNER": "tests.support.function_chain:run",
}
OF_PASSES: Final[dict[str, Any]] = {
    "idle_exit_seconds": 0.05,
    "settle_seconds": 2,
    "concurrency": 1,
    "log_sample_ratio": 1,
}
# A thread of the stub that the machine stalls is no outage.
PATIENT: Final = Config(connect_timeout=PATIENCE_SECONDS, read_timeout=PATIENCE_SECONDS)
PASS_SECONDS: Final = 60.0
# The clock of the chain that there is.
CLOCKS: Final[list[Ahead]] = []
# Runs of each task: the effects that the world sees.
RUNS: Final[Counter[str]] = Counter()


def run(task: Any) -> str:
    """Run a task with an effect."""
    RUNS[task.task_id] += 1
    return "done"


def outlast_the_pass(task: Any) -> str:
    """Run a task for as long as a default pass, by the clock of its chain."""
    (clock,) = CLOCKS
    clock.seconds += PASS_SECONDS
    return run(task)


@dataclass(frozen=True)
class Seam:
    """The call at which an invocation dies.

    Attributes:
        moment: Before the call is sent, or after it was carried out.
        operation: Operation of the SDK.
        writes: Start of the id of the item that the call is about; None for any.
        number: The number of the call among these, from 1.
    """

    moment: str
    operation: str
    writes: str = ""
    number: int = 1

    def is_like(self, operation: str, body: Any) -> bool:
        """Return whether a call matches."""
        return operation == self.operation and f'"{self.writes}' in str(body)


@dataclass
class Invocation:
    """One invocation of a function, which may die."""

    seam: Seam | None = None
    died: threading.Event = field(default_factory=threading.Event)
    buried: threading.Event = field(default_factory=threading.Event)
    _passing: threading.local = field(default_factory=threading.local)
    _seen: int = 0

    def before(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        """Receive `before-call` of the SDK."""
        self._passing.body = params["body"]
        self._stop_if(BEFORE, model.name)

    def after(self, model: Any, **_: Any) -> None:
        """Receive `after-call` of the SDK."""
        self._stop_if(AFTER, model.name)

    def _stop_if(self, moment: str, operation: str) -> None:
        seam = self.seam
        if seam and seam.moment == moment and seam.is_like(operation, self._passing.body):
            self._seen += 1
            if self._seen == seam.number:
                self.died.set()
        if self.died.is_set():
            self.buried.wait()
            raise Died


@dataclass
class Chain:
    """The joined functions, and the time that they see.

    Attributes:
        stub: SNS, SSM and Firehose.
        queue: The queue, as a program outside sees it.
        client: A client of DynamoDB Local.
        table: The queue's table.
        patch: Changes the environment until the chain ends.
        ahead: Its clock.
    """

    stub: AwsStub
    queue: Queue
    client: DynamoDBClient
    table: str
    patch: pytest.MonkeyPatch
    ahead: Ahead
    _dead: list[tuple[Invocation, threading.Thread]] = field(default_factory=list)
    _delivered: int = 0

    def set(self, name: str, value: str) -> None:
        """Set a variable of the functions' environment, until the chain ends."""
        self.patch.setenv(name, value)

    def configure(self, **options: Any) -> None:
        """Store options with the queue, or of its worker passes."""
        configure_stack(self.queue, **options)

    def invoke(self, function: str, event: Any, context: Context | None = None) -> Any:
        """Invoke a function that has just been started."""
        with self._session_of(Invocation()):
            return load_function(function).handler(event, context or Context())

    def kill(self, function: str, event: Any, seam: Seam, context: Context | None = None) -> None:
        """Invoke a function, and kill it at a seam."""
        invocation = Invocation(seam)
        with self._session_of(invocation):
            handler = load_function(function).handler

            def invoke() -> None:
                with suppress(Died):
                    handler(event, context or Context())

            thread = threading.Thread(target=invoke, daemon=True)
            self._dead.append((invocation, thread))
            thread.start()
            assert invocation.died.wait(PATIENCE_SECONDS), "it did not come to the seam"

    @contextmanager
    def _session_of(self, invocation: Invocation) -> Iterator[None]:
        """Assign the clients made in this block to an invocation."""
        hooks = {f"{BEFORE}.*.*": invocation.before, f"{AFTER}.*.*": invocation.after}
        session = environment.session()
        for name, hook in hooks.items():
            session.register(name, cast("Any", hook))
        try:
            yield
        finally:
            for name, hook in hooks.items():
                session.unregister(name, cast("Any", hook))

    def inserted(self, *task_ids: str) -> dict[str, Any]:
        """Return the batch of the stream for tasks that were put."""
        images = [
            self.client.get_item(TableName=self.table, Key={"taskId": {"S": task_id}})["Item"]
            for task_id in task_ids
        ]
        return {
            "Records": [
                {
                    "eventID": str(image["taskId"]["S"]),
                    "eventName": "INSERT",
                    "eventSource": "aws:dynamodb",
                    "dynamodb": {
                        "ApproximateCreationDateTime": 1_767_225_601,
                        "Keys": {"taskId": image["taskId"]},
                        "NewImage": image,
                        "SequenceNumber": f"{number:021d}",
                    },
                }
                for number, image in enumerate(images, 1)
            ]
        }

    def rings(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the new rings: for each the function that gets it, and its event."""
        new, self._delivered = self.stub.published[self._delivered :], len(self.stub.published)
        to = {TRIGGER_TOPIC: "trigger", PROCESS_TASKS_TOPIC: "process_tasks"}
        return [(to[topic], ring_event(json.loads(message))) for topic, message in new]

    def ring_on(self) -> list[Any]:
        """Deliver rings until there are none; return the answers of the worker passes."""
        answers = []
        while rings := self.rings():
            for function, event in rings:
                answer = self.invoke(function, event)
                answers += [answer] if function == "process_tasks" else []
        return answers

    def sweep(self) -> Any:
        """Sweep, and deliver what it rings; return its answer."""
        answer = self.invoke("sweep", {})
        self.ring_on()
        return answer

    def bury(self) -> None:
        """End the threads of the dead."""
        for invocation, _thread in self._dead:
            invocation.buried.set()
        for _invocation, thread in self._dead:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def ring_event(ring: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a ring."""
    return {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(ring)}}]}


@contextmanager
def chain_on(dynamodb: DynamoDBClient) -> Iterator[Chain]:
    """Return the functions on a new table."""
    table = f"chain-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        stub = stack.enter_context(AwsStub())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        endpoints = {
            "AWS_ENDPOINT_URL": stub.endpoint_url,
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.meta.endpoint_url,
            "FRESHQ_TABLE": table,
        }
        for name, value in {**ENVIRONMENT, **endpoints}.items():
            patch.setenv(name, value)
        for module, name in (
            (calls, "CLIENT_CONFIG"),
            (http_events, "CALL_CONFIG"),
            (environment, "SMALL_CALL_CONFIG"),
            (environment, "DELIVERY_CONFIG"),
        ):
            patch.setattr(module, name, getattr(module, name).merge(PATIENT))
        # It has the present credentials, which are part of a table's address there.
        environment.session.cache_clear()
        stack.callback(environment.session.cache_clear)
        client: DynamoDBClient = boto3.session.Session().client("dynamodb")
        create_without_stream(client, table)
        ahead = Ahead()
        ahead.lead(patch)
        CLOCKS.append(ahead)
        stack.callback(CLOCKS.clear)
        patch.setattr(threading, "excepthook", _unless_dead(threading.excepthook))
        queue = Queue.dynamodb(table, client)
        configure_stack(queue, lease_seconds=LEASE_SECONDS, **OF_PASSES)
        chain = Chain(stub, queue, client, table, patch, ahead)
        RUNS.clear()
        try:
            yield chain
        finally:
            chain.bury()
            queue.close()
            client.close()
            observability.metrics.clear_metrics()


def _unless_dead(hook: Any) -> Any:
    def excepthook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Died:
            hook(arguments)

    return excepthook
