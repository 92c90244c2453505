"""X-Ray subsegments of the runs, as the daemon receives them; and the environment of a runner."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.functions import load_event
from tests.support.readings import known
from tests.unit.conftest import Application

TRACE = "1-5759e988-bd862e3fe1be46a994272793"
# The runner also copies a database, which fails on a connection that the SDK has patched.
PROGRAM = """
import sqlite3
from freshq import Queue, Worker, Reject
from freshq.aws.worker_pass import traced

def run(task):
    with sqlite3.connect(":memory:") as one, sqlite3.connect(":memory:") as other:
        one.backup(other)
    if task.payload == "bad":
        raise Reject("no")
    return {"secret": "s3cr3t"}

queue = Queue.memory()
queue.put("good", task_id="good")
queue.put("bad", task_id="bad")
Worker(queue, traced(run), idle_exit_seconds=0.05).run()
"""


def test_each_run_is_a_subsegment_with_the_id_of_its_task(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(20)
        environment = {
            **os.environ,
            "LAMBDA_TASK_ROOT": str(tmp_path),
            "_X_AMZN_TRACE_ID": f"Root={TRACE};Parent=53995c3f42cd8ad8;Sampled=1",
            "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
            "AWS_LAMBDA_FUNCTION_NAME": "worker",
        }
        environment.pop("POWERTOOLS_TRACE_DISABLED")
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)
        packets = [daemon.recv(65536).decode() for _run in range(2)]
    runs: dict[str, Any] = {}
    for packet in packets:
        header, segment = (json.loads(part) for part in packet.split("\n", maxsplit=1))
        assert header == {"format": "json", "version": 1}
        runs[segment["annotations"]["task_id"]] = segment
    assert runs.keys() == {"good", "bad"}
    for segment in runs.values():
        assert (segment["name"], segment["type"], segment["trace_id"]) == ("## runner", "subsegment", TRACE)
        assert segment["parent_id"] == "53995c3f42cd8ad8"
        assert segment["annotations"]["attempt"] == "1"
        assert segment["end_time"] >= segment["start_time"]
    assert runs["bad"]["fault"] is True
    assert "fault" not in runs["good"]
    assert "s3cr3t" not in "".join(packets)


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
