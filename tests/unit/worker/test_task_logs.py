"""Log records name their task, but never its contents."""

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from freshq import Busy, Handlers, Queue, Reject, Retry, Task, Worker
from freshq.cli.process import JsonLines, ReportingHandler
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome, TaskLogFilter
from freshq.testing import FaultyStore, drain
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import Quiet, name_in_every_record, raising, work_off

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID = CONTEXT[3:35]
SECRET = "s3cr3t-payload"
of_application = logging.getLogger("application")


class Kept(logging.Handler):
    """Keeps the records, as a handler with the filter has them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(TaskLogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, logger: str) -> list[dict[str, Any]]:
        """Return the fields of a task in a logger's records."""
        names = ("task_id", "kind", "queue", "attempt", "trace_id")
        return [
            {name: getattr(record, name) for name in names}
            for record in self.records
            if record.name.startswith(logger)
        ]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Return the log at every level, whatever earlier tests have set."""
    handler, root = Kept(), logging.getLogger()
    loggers = [root, logging.getLogger("freshq")]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def fields(**values: object) -> dict[str, object]:
    return {"task_id": "a", "kind": "mail", "queue": "default", "attempt": 1, "trace_id": TRACE_ID} | values


def with_task(**options: Any) -> Queue:
    """Return a queue with a task that has `fields`."""
    queue = Queue.memory(**options)
    queue.put(SECRET, task_id="a", kind="mail", trace_context=CONTEXT)
    return queue


def test_what_a_runner_logs_has_its_task(kept: Kept) -> None:
    handlers = Handlers()

    @handlers.on("mail")
    def mail(_task: Task) -> None:
        of_application.info("sending")

    @handlers.on("chat")
    async def chat(_task: Task) -> None:
        of_application.info("writing")

    queue = with_task()
    queue.put(SECRET, task_id="b", kind="chat")
    of_application.info("before")
    work_off(queue, handlers, concurrency=1)
    of_application.info("after")
    nothing = dict.fromkeys(fields())
    found = kept.of("application")
    assert [found[0], found[-1]] == [nothing, nothing]
    told = [fields(), fields(task_id="b", kind="chat", trace_id=None)]
    assert sorted(found[1:-1], key=lambda one: one["task_id"]) == told


def test_what_the_worker_logs_of_a_task_has_it(kept: Kept) -> None:
    queue = with_task(max_attempts=1)

    work_off(queue, raising(OSError("no connection")))
    told = [record.getMessage() for record in kept.records if record.name.startswith("freshq.worker")]
    assert len(told) == 2  # claimed, and the outcome with the traceback
    assert kept.of("freshq.worker") == [fields()] * 2


def test_a_drain_in_a_test_tells_the_same(kept: Kept) -> None:
    queue = with_task()
    (fate,) = drain(queue, lambda _task: of_application.info("sending"))
    assert fate.outcome is Outcome.SUCCEEDED
    assert kept.of("application") == [fields()]


def test_two_runs_at_a_time_are_told_apart(kept: Kept) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def run(task: Task) -> None:
        both.wait()
        of_application.info("%s runs", task.task_id)

    queue = Queue.memory()
    queue.put_many([{"payload": SECRET, "task_id": task_id} for task_id in "ab"])
    work_off(queue, run, concurrency=2)
    told = [(record.getMessage(), record.task_id) for record in kept.records if record.name == "application"]  # type: ignore[attr-defined]  # the filter adds it
    assert sorted(told) == [("a runs", "a"), ("b runs", "b")]


def test_what_a_record_has_already_stays(kept: Kept) -> None:
    of_application.info("of another", extra={"task_id": "other", "kind": "own"})
    of_application.info("with a queue", extra={"queue": "own"})
    assert [(one["task_id"], one["kind"], one["queue"]) for one in kept.of("application")] == [
        ("other", "own", None),
        (None, None, "own"),
    ]


@pytest.mark.parametrize("name", ["task_id", "kind", "queue", "attempt", "trace_id"])
def test_what_the_application_gives_every_record_stays(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its record factory may use the same names; that must not end the worker."""
    queue = with_task(max_attempts=1)
    name_in_every_record(monkeypatch, name, "own")
    report = work_off(queue, raising(OSError("no connection")))
    assert report.outcomes[Outcome.FAILED] == 1
    assert kept.of("freshq.worker") == [fields(**{name: "own"})] * 2


def test_a_handler_without_the_filter_has_the_fields_too() -> None:
    seen = Kept()
    seen.filters.clear()
    logger = logging.getLogger("freshq.worker.report")
    logger.addHandler(seen)
    try:
        queue = with_task()
        work_off(queue, raising(Reject("cannot be done")))
    finally:
        logger.removeHandler(seen)
    assert seen.of("freshq.worker") == [fields()]
    assert not any("freshq" in name for name in vars(seen.records[0]))


def test_the_lines_of_the_command_have_it_too() -> None:
    lines = io.StringIO()
    handler = ReportingHandler(JsonLines(lines, 60))
    logger = logging.getLogger("freshq.worker.report")
    logger.addHandler(handler)
    try:
        queue = with_task()
        work_off(queue, raising(Reject("cannot be done")))
    finally:
        logger.removeHandler(handler)
    (line,) = map(json.loads, lines.getvalue().splitlines())
    assert {name: line[name] for name in fields()} == fields()
    assert line["message"].startswith("task a failed")


def ends_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    """Return level, text and whether there is a traceback, of the records above DEBUG."""
    records = [record for record in caplog.records if record.levelno > logging.DEBUG]
    return [(record.levelname, record.getMessage(), record.exc_info is not None) for record in records]


@pytest.mark.parametrize("way", [{}, {"at_most_once": True}, {"transaction": True}])
@pytest.mark.parametrize(
    ("error", "level", "told"),
    [
        (None, "INFO", "task a succeeded after "),
        (OSError("down"), "ERROR", "task a failed after .* s: OSError: down"),
        (SystemExit(3), "ERROR", "task a failed after .* SystemExit: 3"),
        (Reject("never"), "WARNING", "task a failed after .* s: never"),
    ],
)
def test_the_end_of_a_run_is_one_record(
    sqlite_url: str,
    caplog: pytest.LogCaptureFixture,
    way: dict[str, Any],
    error: BaseException | None,
    level: str,
    told: str,
) -> None:
    caplog.set_level(logging.DEBUG, "freshq.worker")

    def run(_task: Task, *_connection: object) -> None:
        if error is not None:
            raise error

    with Queue.sql(sqlite_url, max_attempts=1) as queue:
        queue.put(SECRET, task_id="a")
        work_off(queue, run, **way)
    ((found, text, has_traceback),) = ends_of(caplog)
    assert (found, has_traceback) == (level, level == "ERROR")
    assert re.match(told, text), text


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (OSError("down"), [("ERROR", "retried", True), ("ERROR", "failed", True)]),
        (Retry("later"), [("WARNING", "retried", False), ("WARNING", "failed", False)]),
    ],
)
def test_each_failed_attempt_is_one_record(
    caplog: pytest.LogCaptureFixture, error: Exception, ends: list[tuple[str, str, bool]]
) -> None:
    queue = with_task(max_attempts=2, backoff=Backoff(base_seconds=0.01, cap_seconds=0.01))
    work_off(queue, raising(error), idle_exit_seconds=0.5)
    found = [(level, text.split()[2], has_traceback) for level, text, has_traceback in ends_of(caplog)]
    assert found == ends


def test_a_run_whose_task_was_cancelled_or_lost_is_one_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "freshq.worker")
    queue = with_task()

    def run(task: Task) -> None:
        queue.cancel(task.task_id, force=True)
        raise OSError("down")

    work_off(queue, run)
    ((level, text, has_traceback),) = ends_of(caplog)
    assert (level, text.split()[2], has_traceback) == ("ERROR", "cancelled", True)


def test_an_observer_that_does_not_log_leaves_the_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work_off(with_task(max_attempts=1), raising(OSError("down")), observer=Quiet())
    ((level, text, has_traceback),) = ends_of(caplog)
    assert (level, text.split()[2], has_traceback) == ("ERROR", "failed", True)


def test_no_record_has_a_payload_or_a_result(kept: Kept) -> None:
    """Whatever happens to a task, at every level."""
    outcomes = [Busy(), Retry("later"), Reject("never"), OSError("down"), None]

    def run(_task: Task) -> str:
        outcome = outcomes.pop() if outcomes else None
        if outcome is not None:
            raise outcome
        return SECRET

    store = FaultyStore()
    queue = store.queue(max_attempts=2, backoff=Backoff(base_seconds=0.01, cap_seconds=0.01))
    queue.put_many([{"payload": {"of": SECRET}, "group": "g", "kind": "mail"} for _ in range(8)])
    store.fail_next()
    report = Worker(queue, run, concurrency=2, poll_seconds=0.01, idle_exit_seconds=0.3).run()
    assert report.outcomes[Outcome.SUCCEEDED] > 0
    assert report.outcomes[Outcome.FAILED] > 0
    assert len(kept.records) > 10
    shown = logging.Formatter("%(message)s")
    for record in kept.records:
        assert SECRET not in shown.format(record)
        own = {name: value for name, value in vars(record).items() if name != "exc_info"}
        assert SECRET not in repr(own)
