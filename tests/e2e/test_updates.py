"""A stack that is updated parameter by parameter: each change reaches the functions, and work goes on."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from local.emulator import STACK, Emulator, template_values

from freshq import Queue, Task, TaskStatus
from freshq.errors import StoreError
from tests.e2e.conftest import Deployment, deploy_application, wait_until
from tests.e2e.package import Package

pytestmark = pytest.mark.timeout(900)

RUNNER: Final = """
import os


def run(task):
    return {"runner": "run", "bucket": os.environ.get("BUCKET")}


def other(task):
    return {"runner": "other", "bucket": os.environ.get("BUCKET")}
"""
ALARMS: Final = "arn:aws:sns:us-east-1:000000000000:alarms"
# Parameters, and the result of a task after they have changed.
STEPS: Final[list[tuple[dict[str, str], dict[str, Any]]]] = [
    ({"Runner": "quotes:run"}, {"runner": "run", "bucket": None}),
    ({"RunnerEnvironment": '{"BUCKET": "one"}'}, {"bucket": "one"}),
    ({"RunnerEnvironment": '{"BUCKET": "eno"}'}, {"bucket": "eno"}),
    ({"Runner": "quotes:other"}, {"runner": "other"}),
    ({"TimeoutSeconds": "300"}, {}),
    ({"Release": "2"}, {}),
    ({"Tracing": "off"}, {}),
    ({"SyntheticTask": "on"}, {}),
    ({"LogLevel": "DEBUG"}, {}),
    ({"MemorySize": "1024"}, {}),
    ({"BatchingWindowSeconds": "0", "ReservedConcurrency": "5"}, {}),
    ({"DeploymentType": "Canary10Percent5Minutes"}, {}),
    ({"Runtime": "python3.13"}, {}),
    ({"SnapStart": "on"}, {}),
    ({"QueueName": "quotes"}, {}),
    ({"Archive": "on"}, {}),
    ({"AlarmTopicArn": ALARMS}, {}),
    ({"VpcSubnetIds": "subnet-1,subnet-2", "VpcSecurityGroupIds": "sg-1"}, {}),
    ({"SnapStart": "off"}, {}),
]


@pytest.fixture
def application(package: Package, tmp_path: Path) -> Iterator[tuple[Deployment, Package]]:
    """Return the application with a runner of its own beside the default one, and its package."""
    extended = package.with_file("One worker pass", "quotes.py", RUNNER)
    with Emulator(tmp_path / "emulator.log") as emulator:
        extended.upload(emulator.connection)
        yield deploy_application(emulator, extended, demo_task_seconds=0.01), extended


def done(application: Deployment, queue_name: str, task_id: str) -> Task:
    """Put a task through the deployed version of CreateTasks, and return it when it is done."""
    table, client = application.outputs["QueueTableName"], application.client("dynamodb")
    queue = Queue.dynamodb(table, client, name=queue_name)

    def put() -> bool:
        try:
            application.put({"task_id": task_id, "payload": {}})
        except application.client("lambda").exceptions.ResourceConflictException:
            return False  # its snapshot is being made
        return True

    def ended() -> Task | None:
        try:
            task = queue.get(task_id)
        except StoreError:  # a busy emulator
            return None
        return task if task is not None and task.status is TaskStatus.SUCCESS else None

    wait_until(put)
    found: Task = wait_until(ended)
    return found


def versions(application: Deployment) -> dict[str, list[str]]:
    """Return the published versions of each function."""
    client = application.client("lambda")
    names = {name: value for name, value in application.outputs.items() if name.endswith("FunctionName")}
    return {
        name: [
            version["Version"]
            for version in client.list_versions_by_function(FunctionName=function)["Versions"]
            if version["Version"] != "$LATEST"
        ]
        for name, function in names.items()
    }


def is_next(results: Iterator[Any], expected: Any) -> bool:
    """Return whether the next result is the expected one."""
    return bool(next(results) == expected)


def test_each_parameter_alone_changes_what_runs(application: tuple[Deployment, Package]) -> None:
    deployed, package = application
    values, expected = template_values({}), {"served_seconds": 0.01}
    for number, (change, result) in enumerate(STEPS):
        values |= change
        expected = result if number == 0 else expected | result
        package.update(STACK, values, deployed.emulator.connection)
        ids = (f"task-{number}-{attempt}" for attempt in count())
        results = (done(deployed, values.get("QueueName", "default"), task_id).result for task_id in ids)
        # A pass of the version before may be under way, and take a task.
        wait_until(partial(is_next, results, expected))
        # A rollback needs none of the older ones.
        assert all(len(kept) == 1 for kept in versions(deployed).values()), change
    package.update(STACK, template_values({}), deployed.emulator.connection)
    assert "served_seconds" in json.dumps(done(deployed, "default", "task-back").result)
