"""The logs of the functions, at every log level."""

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest

from freshq.aws import observability
from tests.support.function_chain import ring_event
from tests.support.functions import load_event
from tests.support.programs import python
from tests.support.readings import known
from tests.support.worker_threads import name_in_every_record, wait_until
from tests.template.test_template import source
from tests.unit.conftest import Application


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Return the log, of freshq and of the root logger; restore the levels."""
    written = io.StringIO()
    root = logging.getLogger()
    loggers = [root, logging.getLogger("freshq"), *map(logging.getLogger, observability.SDK_LOGGERS)]
    levels = [logger.level for logger in loggers]
    monkeypatch.setattr(observability.logger.registered_handler, "stream", written)
    of_runtime = logging.StreamHandler(written)
    # Powertools hides its own lines from the runtime's handler. Whether a client finds its credentials here
    # or found them before depends on the tests before.
    hidden = ("freshq", "moto", "botocore.credentials", "samcli")
    of_runtime.addFilter(lambda record: not record.name.startswith(hidden))
    root.addHandler(of_runtime)
    yield written
    root.removeHandler(of_runtime)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_the_runtimes_report_lines_are_logged() -> None:
    assert source()["Globals"]["Function"]["LoggingConfig"]["SystemLogLevel"] == "INFO"


def test_a_tail_call_too_many_logs_its_hop_and_the_limit(application: Application, log: io.StringIO) -> None:
    application.set("FRESHQ_DEMO_TASK_SECONDS", "0.1")
    application.configure(pass_seconds=0.2, max_hops=4)
    application.queue.put_many([{"payload": number} for number in range(30)])
    found: list[dict[str, Any]] = []

    def is_logged() -> bool:
        # On a busy machine, so short a pass may be over before its first claim.
        application.invoke("process_tasks", ring_event({"hop": 7, "reason": "tail_call"}))
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        found.extend(line for line in lines if line["message"].startswith("too many tail calls"))
        return bool(found)

    wait_until(is_logged)
    assert (found[0]["hop"], found[0]["max_hops"]) == (7, 4)


def test_one_id_goes_from_ring_to_ring_and_into_every_line(
    application: Application, log: io.StringIO
) -> None:
    application.configure(pass_seconds=0.2)
    application.set("FRESHQ_DEMO_TASK_SECONDS", "0.1")
    application.queue.put_many([{"payload": number} for number in range(30)])
    log.truncate(0)  # the put was no function's
    log.seek(0)
    application.invoke("trigger", load_event("trigger-insert"))
    (first,) = application.rings(application.process_tasks_topic_arn)
    wait_until(lambda: application.invoke("process_tasks", ring_event(first))["tail_call"])
    (second,) = application.rings(application.trigger_topic_arn)
    tail_call = load_event("trigger-tail_call")
    tail_call["Records"][0]["Sns"]["Message"] = json.dumps(second)
    application.invoke("trigger", tail_call)
    third = application.rings(application.process_tasks_topic_arn)[-1]
    assert [ring["hop"] for ring in (first, second, third)] == [0, 1, 1]
    assert len({ring["chain"] for ring in (first, second, third)}) == 1
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {line["message"] for line in lines} >= {"rang", "task claimed", "task settled", "pass ended"}
    assert {line["chain"] for line in lines} == {first["chain"]}
    application.invoke("sweep", {})
    assert json.loads(log.getvalue().splitlines()[-1])["chain"] != first["chain"]
    application.invoke("create_tasks", {"count": 1})
    assert "chain" not in json.loads(log.getvalue().splitlines()[-1])


@pytest.mark.parametrize(("level", "ratio", "logged"), [("INFO", 0, 0), ("INFO", 1, 6), ("DEBUG", 0, 6)])
def test_the_transitions_of_a_sample_are_logged_and_all_failures(
    application: Application,
    log: io.StringIO,
    level: str,
    ratio: float,
    logged: int,
) -> None:
    application.configure(log_sample_ratio=ratio)
    observability.set_log_levels(level)
    application.invoke("create_tasks", {"tasks": [{"payload": 1}, {"payload": 2}]})
    application.queue.put({"reject": True}, task_id="bad")
    application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    transitions = [line for line in lines if line["message"] in ("task put", "task claimed", "task settled")]
    ids = {line["task_id"] for line in transitions} - {"bad"}
    assert len([line for line in transitions if line["task_id"] in ids]) == logged
    failed = [line for line in transitions if line.get("outcome") == "failed"]
    assert [line["task_id"] for line in failed] == ["bad"]


def test_a_trace_context_passes_the_functions_and_is_in_the_lines(
    application: Application, log: io.StringIO
) -> None:
    """Put by CreateTasks, seen by the runner of ProcessTasks; lines without one have no such field."""
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    task = {"payload": 1, "task_id": "a", "kind": "quote", "trace_context": traceparent}
    application.invoke("create_tasks", {"tasks": [task, {"payload": 2, "task_id": "b"}]})
    application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    done = known(application.queue, "a")
    assert (done.status, done.trace_context) == ("SUCCESS", traceparent)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    told = {
        (line["task_id"], line["message"]): (line.get("kind"), line.get("trace_id"))
        for line in lines
        if line["message"] in ("task claimed", "task settled")
    }
    told_of = ("quote", "4bf92f3577b34da6a3ce929d0e0e4736")
    assert told == {
        ("a", "task claimed"): told_of,
        ("a", "task settled"): told_of,
        ("b", "task claimed"): (None, None),
        ("b", "task settled"): (None, None),
    }


@pytest.mark.parametrize("name", ["task_id", "outcome", "report"])
def test_what_a_record_factory_adds_ends_no_function_and_hides_no_field(
    application: Application, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A library of the runner may set one; `logging` refuses fields that the record has already."""
    name_in_every_record(monkeypatch, name, "of the runner")
    application.queue.put({"reject": True}, task_id="bad")
    answer = application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    assert (answer["claimed"], answer["failed"]) == (1, 1)
    lines = {line["message"]: line for line in map(json.loads, log.getvalue().splitlines())}
    settled, ended = lines["task settled"], lines["pass ended"]
    assert (settled["task_id"], settled["outcome"]) == ("bad", "failed")
    assert "of the runner" not in (settled["error"], settled["run_seconds"])
    assert ended["report"]["failed"] == 1
    assert lines["task claimed"]["attempt"] == 1


def test_the_sample_has_its_share_of_the_tasks() -> None:
    sampled = sum(observability.is_sampled(f"task-{number}", 0.1) for number in range(10_000))
    assert 900 < sampled < 1100


# With a handler of the root logger, as Lambda's runtime has it before it imports a function.
NAMES: Final = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(name)s", level="INFO")
from freshq.aws import observability
observability.logger.registered_handler.setStream(sys.stderr)
for name in sys.argv[1:]:
    logging.getLogger(name).warning("a line")
"""


def test_every_logger_of_a_runner_is_heard_whatever_its_name() -> None:
    names = ("shop", "freshq_runner", "shop.freshq_tasks", "notfreshq.worker", "freshq.worker.worker")
    environment = os.environ | {"POWERTOOLS_SERVICE_NAME": "freshq"}
    done = python("-c", NAMES, *names, env=environment)
    assert done.stdout.split() == list(names[:-1])
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == ["a line"]  # the library's
