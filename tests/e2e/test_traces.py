"""X-Ray traces of the deployed functions: the emulator is the daemon to which they send."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
from local.emulator import Emulator

from freshq import TaskStatus
from tests.e2e.conftest import Deployment, deploy_application, wait_until
from tests.e2e.package import Package

pytestmark = pytest.mark.timeout(600)

# The runner copies a database, which fails on a connection that the SDK has patched.
RUNNER: Final = """
import sqlite3
import sys

from freshq import Reject, Retry


def run(task):
    with sqlite3.connect(":memory:") as one, sqlite3.connect(":memory:") as other:
        one.backup(other)
    if task.payload == "reject":
        raise Reject("no")
    if task.payload == "raise":
        raise ZeroDivisionError
    if task.payload == "retry" and task.attempts == 1:
        raise Retry("once more", delay_seconds=0.1)
    patcher = sys.modules.get("aws_xray_sdk.core.patcher")
    return {"patched": sorted(patcher._PATCHED_MODULES)}
"""
# The functions' own calls use it too, but for hosts in NO_PROXY. Nothing listens there.
PROXY: Final = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
# Payloads, and whether each attempt is a fault.
FAULTS: Final = {"fine": [False], "reject": [True], "raise": [True, True], "retry": [True, False]}
ENDED: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)


@pytest.fixture(scope="module")
def application(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return the application with the runner, on an emulator that is its X-Ray daemon."""
    extended = package.with_file("One worker pass", "quotes.py", RUNNER)
    with Emulator(tmp_path_factory.mktemp("traces") / "emulator.log") as emulator:
        extended.upload(emulator.connection)
        yield deploy_application(
            emulator, extended, Runner="quotes:run", RunnerEnvironment=json.dumps(PROXY), max_attempts=2
        )


def settled(application: Deployment, task_id: str, payload: object) -> Any:
    """Put a task, and return it when its last run has ended."""
    application.put({"task_id": task_id, "payload": payload})
    return wait_until(lambda: (task := application.queue.get(task_id)) and task.status in ENDED and task)


def runs(application: Deployment, task_id: str) -> dict[str, Any]:
    """Return the segments of the runs of a task, by their attempt."""
    found = [each for each in list(application.emulator.segments) if each["name"] == "## runner"]
    mine = [each for each in found if each["annotations"]["task_id"] == task_id]
    return {each["annotations"]["attempt"]: each for each in mine}


def all_runs(application: Deployment, task_id: str, number: int) -> dict[str, Any] | None:
    """Return the segments of the runs of a task if all have arrived."""
    return found if len(found := runs(application, task_id)) == number else None


def test_each_run_is_a_subsegment(application: Deployment) -> None:
    tasks = {payload: settled(application, f"task-{payload}", payload) for payload in FAULTS}
    assert tasks["fine"].result == tasks["retry"].result == {"patched": ["botocore"]}
    for payload, faults in FAULTS.items():
        segments = wait_until(partial(all_runs, application, f"task-{payload}", len(faults)))
        assert [*segments] == [str(attempt + 1) for attempt in range(len(faults))]
        assert [bool(segment.get("fault")) for segment in segments.values()] == faults
        for segment in segments.values():
            assert segment["type"] == "subsegment"
            assert segment["end_time"] >= segment["start_time"]


def test_a_run_is_in_the_trace_of_the_doorbell(application: Deployment) -> None:
    """Trigger begins a trace with the records of the stream, and publishes to a topic."""
    settled(application, "rung", "fine")

    def rung() -> list[dict[str, Any]]:
        segments = list(application.emulator.segments)
        traces = {each["trace_id"] for each in runs(application, "rung").values()}
        return [each for each in segments if each["trace_id"] in traces and "Publish" in str(each)]

    assert wait_until(rung)
