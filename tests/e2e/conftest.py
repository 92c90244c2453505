"""The application on the embedded emulator, packaged and first deployed by `sam deploy`."""

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.config import Config
from local.emulator import (
    LIVE_ALIAS,
    PROJECT,
    STACK,
    Emulator,
    build,
    demonstration,
    deploy,
    tail,
    template_values,
)
from local.facts import Change, read_changes, versions_by_task

from freshq import Queue, Task
from freshq.aws.pass_options import configure_stack
from freshq.errors import FreshqError
from freshq.stores.dynamodb.calls import SDK_ERRORS
from freshq.stores.dynamodb.passes import PASS_PREFIX
from tests.e2e.package import Package
from tests.support.patience import PATIENCE_SECONDS


def wait_until(condition: Callable[[], Any], patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """Return the value of a condition as soon as it is true."""
    deadline = time.monotonic() + patience_seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {patience_seconds} s"
        time.sleep(0.2)
    return result


# The applications that the running test deployed.
DEPLOYED: Final[list["Deployment"]] = []
SLOTS_SHOWN: Final = 4
LINES_SHOWN: Final = 8


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the applications to the report of a test that failed."""
    report = yield
    if call.when == "call" and report.failed:
        given = [value for value in item.funcargs.values() if isinstance(value, Deployment)]
        report.sections += [(f"state of {each.stack}", each.state()) for each in DEPLOYED or given]
    return report


@dataclass
class Deployment:
    """The deployed application, with helpers for tests."""

    emulator: Emulator
    outputs: dict[str, str]
    stack: str = STACK
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: Any) -> Any:
        """Return a client of a service of the emulator; an invocation may take its time."""
        if service not in self.clients:
            patient = Config(read_timeout=150, retries={"total_max_attempts": 1})
            self.clients[service] = boto3.client(service, config=patient, **self.emulator.connection)
        return self.clients[service]

    @property
    def queue(self) -> Queue:
        """The application's queue, as a program outside sees it."""
        return Queue.dynamodb(self.outputs["QueueTableName"], self.client("dynamodb"))

    def invoke(self, function: str, event: Any) -> Any:
        """Invoke the deployed version of a function and return its answer."""
        name = self.outputs[f"{function}FunctionName"]
        response = self.client("lambda").invoke(
            FunctionName=name, Qualifier=LIVE_ALIAS, Payload=json.dumps(event)
        )
        answer = json.loads(response["Payload"].read())
        assert not response.get("FunctionError"), answer
        return answer

    def put(self, *tasks: dict[str, Any]) -> None:
        """Put tasks by invoking CreateTasks."""
        answer = self.invoke("CreateTasks", {"tasks": list(tasks)})
        assert answer["created"] == len(tasks), answer

    def raw_log(self, function: str) -> list[str]:
        """Return the lines of a function's log, which come when an invocation has ended."""
        pages = self.client("logs").get_paginator("filter_log_events")
        return [
            event["message"]
            for page in pages.paginate(logGroupName=self.outputs[f"{function}LogGroupName"])
            for event in page["events"]
        ]

    def log(self, function: str) -> list[dict[str, Any]]:
        """Return the structured lines of a function's log, without the metrics."""
        lines = [json.loads(message) for message in self.raw_log(function) if message.startswith("{")]
        return [line for line in lines if "message" in line]

    def state(self) -> str:
        """Return what explains a stall: the queue, its pass slots, processes and last lines of the logs."""
        try:
            return "\n".join(self._state())
        except (*SDK_ERRORS, FreshqError) as error:
            return f"the emulator does not answer: {error}; end of its log:\n{tail(self.emulator.log)}"

    def _state(self) -> Iterator[str]:
        yield f"{datetime.now(UTC):%H:%M:%S}: {self.queue.stats()}"
        client, table = self.client("dynamodb"), self.outputs["QueueTableName"]
        for slot in range(SLOTS_SHOWN):
            key = {"taskId": {"S": f"{PASS_PREFIX}{self.outputs['QueueName']}#{slot}"}}
            if item := client.get_item(TableName=table, Key=key).get("Item"):
                yield f"pass slot {slot}: {item}"
        url = self.outputs["FailedEventsQueueUrl"]
        failed = self.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        yield f"failed events: {failed['Attributes']['ApproximateNumberOfMessages']}"
        for function in ("CreateTasks", "Trigger", "ProcessTasks", "Sweep"):
            yield f"{function}: {len(self.processes(function))} processes; end of its log:"
            yield from self.raw_log(function)[-LINES_SHOWN:]
        yield f"end of the emulator's log:\n{tail(self.emulator.log)}"

    def changes(self) -> list[Change]:
        """Return all changes of the table, oldest first."""
        return list(read_changes(self.client("dynamodbstreams"), self.outputs["QueueTableName"]))

    def versions(self) -> dict[str, list[Task]]:
        """Return the versions of each task."""
        return versions_by_task(self.changes())

    def runs(self) -> Counter[str]:
        """Return how often each task was settled as done."""
        return Counter(
            task_id
            for task_id, versions in self.versions().items()
            for version in versions
            if version.status == "SUCCESS"
        )

    def processes(self, function: str) -> list[int]:
        """Return the processes that run a function, which are in the emulator's group."""
        name = f"AWS_LAMBDA_FUNCTION_NAME={self.outputs[f'{function}FunctionName']}".encode()
        return [pid for pid in group(self.emulator.pid) if name in _environment(pid)]


def group(leader: int) -> list[int]:
    """Return the processes of a group."""
    members: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == leader:
                    members.append(int(folder.name))
            except ProcessLookupError:
                continue  # it ended while the list was read
    return members


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended while the list was read


@pytest.fixture(scope="session")
def template() -> Path:
    """Return the application as `sam build` builds it for this interpreter."""
    return build(PROJECT / "build" / "local")


@pytest.fixture(scope="session")
def package(left_alone: Deployment) -> Package:
    """Return the application as `sam deploy` uploaded it."""
    package = Package.uploaded(STACK, left_alone.emulator.connection)
    package.add_template(left_alone.emulator.connection)
    return package


@pytest.fixture
def deployed(package: Package, left_alone: Deployment) -> Iterator[Callable[..., Deployment]]:
    """Return a way to deploy the application, with given parameters, to the emulator of the session."""
    emulator, stacks = left_alone.emulator, list[str]()

    def deploy_next(**parameters: Any) -> Deployment:
        stacks.append(f"freshq-{uuid.uuid4().hex[:8]}")
        return deploy_application(emulator, package, stacks[-1], **parameters)

    yield deploy_next
    DEPLOYED.clear()
    delete(stacks, emulator)


@pytest.fixture
def deployed_alone(package: Package, tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Return a way to deploy the application, with given parameters, to an emulator without other work."""
    with Emulator(tmp_path / "emulator.log") as emulator:
        package.upload(emulator.connection)
        yield partial(deploy_application, emulator, package)
        DEPLOYED.clear()


def deploy_application(
    emulator: Emulator,
    package: Package,
    stack: str = STACK,
    demo_capacity: int = 3,
    demo_task_seconds: float = 1.0,
    **given: Any,
) -> Deployment:
    """Deploy the application with some parameters, whose names have capitals, and some stored options."""
    parameters = {name: value for name, value in given.items() if name[0].isupper()}
    options = {name: value for name, value in given.items() if name not in parameters}
    parameters = demonstration(demo_capacity, demo_task_seconds) | parameters
    outputs = package.deploy(stack, template_values(parameters), emulator.connection)
    application = Deployment(emulator, outputs, stack)
    DEPLOYED.append(application)
    configure_stack(application.queue, log_sample_ratio=1, **options)
    return application


def delete(stacks: Sequence[str], emulator: Emulator) -> None:
    """Delete stacks, so that they do not slow down others."""
    client = boto3.client("cloudformation", **emulator.connection)
    for stack in stacks:
        client.delete_stack(StackName=stack)
    for stack in stacks:
        client.get_waiter("stack_delete_complete").wait(
            StackName=stack, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )


@pytest.fixture(scope="session")
def left_alone(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return an application with a delayed task, deployed early, for the schedule to find by itself."""
    with Emulator(tmp_path_factory.mktemp("left-alone") / "emulator.log") as emulator:
        application = Deployment(emulator, deploy(emulator, template))
        configure_stack(application.queue, max_age_seconds=900, log_sample_ratio=1)
        # No stream record rings for a task whose delay is over.
        application.put({"payload": 1, "delay_seconds": 0.5})
        yield application
