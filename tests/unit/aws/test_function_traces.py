"""X-Ray subsegments of the runs, as the daemon receives them; and the environment of a runner."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from local.emulator import TraceDaemon

from tests.support.functions import load_event
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known, within_seconds
from tests.unit.conftest import Application

TRACE = "1-5759e988-bd862e3fe1be46a994272793"
# The runner also copies a database, which fails on a connection that the SDK has patched.
PROGRAM = """
import sqlite3
from dataclasses import dataclass
from freshq import Queue, Worker, Reject
from freshq.aws.worker_pass import traced

@dataclass(frozen=True)
class Frozen(Exception):
    reason: str

class Unreadable(Exception):
    def __str__(self):
        raise SystemExit

HUGE = Reject("x" * 100_000)
ERRORS = {"bad": Reject("no"), "frozen": Frozen("ice"), "unreadable": Unreadable(), "huge": HUGE}

def run(task):
    with sqlite3.connect(":memory:") as one, sqlite3.connect(":memory:") as other:
        one.backup(other)
    if task.payload in ERRORS:
        raise ERRORS[task.payload]
    return {"secret": "s3cr3t"}

queue = Queue.memory(max_attempts=1)
for payload in ("good", *ERRORS):
    queue.put(payload, task_id=payload)
Worker(queue, traced(run), idle_exit_seconds=0.05).run()
"""


def test_each_run_is_a_subsegment_with_the_id_of_its_task(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(PATIENCE_SECONDS)
        environment = {
            **os.environ,
            "LAMBDA_TASK_ROOT": str(tmp_path),
            "_X_AMZN_TRACE_ID": f"Root={TRACE};Parent=53995c3f42cd8ad8;Sampled=1",
            "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
            "AWS_LAMBDA_FUNCTION_NAME": "worker",
        }
        environment.pop("POWERTOOLS_TRACE_DISABLED")
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)
        packets = [daemon.recv(65536).decode() for _run in range(5)]
    runs: dict[str, Any] = {}
    for packet in packets:
        header, segment = (json.loads(part) for part in packet.split("\n", maxsplit=1))
        assert header == {"format": "json", "version": 1}
        runs[segment["annotations"]["task_id"]] = segment
    assert runs.keys() == {"good", "bad", "frozen", "unreadable", "huge"}
    for segment in runs.values():
        assert (segment["name"], segment["type"], segment["trace_id"]) == ("## runner", "subsegment", TRACE)
        assert segment["parent_id"] == "53995c3f42cd8ad8"
        assert segment["annotations"]["attempt"] == "1"
        assert segment["end_time"] >= segment["start_time"]
    (cause,) = runs["bad"]["cause"]["exceptions"]
    assert (cause["type"], cause["message"]) == ("Reject", "no")
    assert [name for name, segment in runs.items() if not segment.get("fault")] == ["good"]
    assert "s3cr3t" not in "".join(packets)


# Two invocations of one trace, as by tail calls; then a daemon that cannot be reached.
HANDLER: Final = """
import os
import sys
from types import SimpleNamespace
from freshq.aws.traces import traced, traced_handler

context = SimpleNamespace(function_name="worker")
run = traced(lambda task: None)

@traced_handler
def handler(event, context):
    run(event)

for parent in sys.argv[1:]:
    os.environ["_X_AMZN_TRACE_ID"] = f"Root={os.environ['TRACE']};Parent={parent};Sampled=1"
    handler(SimpleNamespace(task_id=parent, attempts=1), context)
"""


def run_handler(daemon: str, folder: Path, *parents: str) -> str:
    """Handle an invocation of each parent in one process; return what it logs."""
    environment = {**os.environ, "LAMBDA_TASK_ROOT": str(folder), "AWS_XRAY_DAEMON_ADDRESS": daemon}
    environment |= {"AWS_LAMBDA_FUNCTION_NAME": "worker", "TRACE": TRACE}
    environment.pop("POWERTOOLS_TRACE_DISABLED")
    done = subprocess.run(
        [sys.executable, "-c", HANDLER, *parents],
        env=environment,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_invocations_of_one_trace_have_their_own_parents(tmp_path: Path) -> None:
    segments: list[dict[str, Any]] = []
    daemon = TraceDaemon(segments)
    try:
        parents = ["53995c3f42cd8ad8", "6a9e5c3f42cd8ad9"]
        assert run_handler(daemon.address, tmp_path, *parents) == ""
        assert within_seconds(PATIENCE_SECONDS, lambda: len(segments) == 2 * len(parents))
    finally:
        daemon.stop()
    runs, handlers = segments[0::2], segments[1::2]
    assert [(each["name"], each["parent_id"]) for each in handlers] == [
        ("## handler", each) for each in parents
    ]
    assert [(each["name"], each["parent_id"]) for each in runs] == [
        ("## runner", each["id"]) for each in handlers
    ]


def test_a_daemon_that_cannot_be_reached_is_logged_once(tmp_path: Path) -> None:
    parents = [f"53995c3f42cd8a{number}" for number in range(10, 15)]
    log = run_handler("240.0.0.1:0", tmp_path, *parents)  # the system refuses to send to port 0
    assert log.count("Failed to send entity to Daemon") == 1


def test_the_runner_has_its_environment(application: Application) -> None:
    application.set("MY_BUCKET", "")  # so that it is reset
    application.set("FRESHQ_RUNNER", "tests.unit.aws.test_function_traces:name_bucket")
    application.set("FRESHQ_RUNNER_ENVIRONMENT", '{"MY_BUCKET": "quotes"}')
    application.queue.put(1, task_id="a")
    application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    task = known(application.queue, "a")
    assert task.result == "quotes"


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
@pytest.mark.parametrize("value", ["{", '{"A": 1}', "[]"])
def test_a_wrong_environment_is_named(application: Application, value: str) -> None:
    application.set("FRESHQ_RUNNER_ENVIRONMENT", value)
    with pytest.raises(ValueError, match="FRESHQ_RUNNER_ENVIRONMENT"):
        application.invoke("process_tasks", load_event("process_tasks-doorbell"))


def name_bucket(task: Any) -> str:
    """Run a task that reads its environment."""
    del task
    return os.environ["MY_BUCKET"]
