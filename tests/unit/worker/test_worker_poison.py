"""Tasks and runners that end their own attempt, and never the worker."""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from freshq import FreshqError, MatchQueue, Queue, Reject, Retry, Settlement, Task, TaskStatus, Worker
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome
from tests.support.worker_threads import Quiet, work_off

AT_ONCE = Backoff(1e-9, 1e-9)


class MuteError(Exception):
    """An exception without a readable text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class MuteReject(Reject):
    def __str__(self) -> str:
        raise SystemExit


class Broken(dict[str, int]):
    """A result that cannot be read."""

    def items(self) -> Any:
        raise KeyError("items")


class Interrupting(dict[str, int]):
    def items(self) -> Any:
        raise KeyboardInterrupt


def raising(make: Callable[[], BaseException]) -> Callable[[Task], Any]:
    def runner(task: Task) -> Any:
        if task.payload == "poison":
            raise make()
        return task.payload

    return runner


def returning(result: object) -> Callable[[Task], Any]:
    return lambda task: result if task.payload == "poison" else task.payload


def poisoned(runner: Callable[[Task], Any]) -> Task:
    """Run a poisoned task before a good one; return the poisoned task at its end."""
    queue = Queue.memory(max_attempts=2, backoff=AT_ONCE)
    queue.put("good", task_id="good")
    queue.put("poison", task_id="poison")
    report = work_off(queue, runner, concurrency=1, observer=Quiet())
    good, poison = queue.get("good"), queue.get("poison")
    assert good is not None
    assert poison is not None
    assert good.status is TaskStatus.SUCCESS
    assert report.outcomes[Outcome.SUCCEEDED] == report.outcomes[Outcome.FAILED] == 1
    assert poison.status is TaskStatus.FAILURE
    return poison


@pytest.fixture
def no_log() -> Iterator[None]:
    """Log nothing: pytest-xdist cannot send a log with half a character in it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_log")
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Retry("503", delay_seconds=0), "503"),
        (lambda: Retry(-1), "TypeError: reason: must be a string, got int"),  # type: ignore[arg-type]
        (lambda: Retry(delay_seconds=-1), "ValueError: delay_seconds: "),
        (lambda: Retry(delay_seconds=float("nan")), "ValueError: delay_seconds: "),
        (lambda: Retry(delay_seconds=float("inf")), "ValueError: delay_seconds: "),
        (lambda: Retry(delay_seconds=timedelta(1)), "ValueError: delay_seconds: "),  # type: ignore[arg-type]
        (lambda: Retry(delay_seconds="5"), "ValueError: delay_seconds: "),  # type: ignore[arg-type]
        (asyncio.CancelledError, "CancelledError: "),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt, "KeyboardInterrupt: "),
        (GeneratorExit, "GeneratorExit: "),
        (StopIteration, "StopIteration: "),
        (MuteError, "MuteError: its text cannot be read"),
        (lambda: ValueError("lone \ud800"), "ValueError: lone ?"),
        (lambda: ValueError("a\0b"), "ValueError: a\\0b"),
    ],
)
def test_whatever_a_runner_raises_ends_only_its_attempts(
    make: Callable[[], BaseException], error: str
) -> None:
    task = poisoned(raising(make))
    assert (task.error or "").startswith(error)
    assert task.attempts == 2


def test_a_reject_without_a_readable_text_is_a_dead_letter() -> None:
    task = poisoned(raising(lambda: MuteReject("never")))
    assert (task.error, task.attempts) == ("its text cannot be read", 1)


@pytest.mark.parametrize("delay_seconds", [float("nan"), "soon", -5])
def test_a_delay_that_was_changed_afterwards_is_a_failed_attempt(delay_seconds: Any) -> None:
    def changed() -> Retry:
        retry = Retry("later")
        retry.delay_seconds = delay_seconds
        return retry

    task = poisoned(raising(changed))
    assert (task.error or "").startswith("later; delay_seconds: must be a number of seconds")


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (Broken(a=1), "result: KeyError: 'items'"),
        (Interrupting(a=1), "result: KeyboardInterrupt: "),
        ({1, 2}, "result: not a JSON value"),
        (object(), "result: "),
        (float("nan"), "result: "),
        ("x" * 500_000, "result: "),
        ({"a": {"b": object()}}, "result: not a JSON value"),
    ],
)
def test_a_result_that_cannot_be_stored_is_a_dead_letter(result: object, error: str) -> None:
    task = poisoned(returning(result))
    assert (task.error or "").startswith(error)
    assert task.attempts == 1


def test_an_unexpected_exception_leaves_a_traceback_without_the_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = Queue.memory(max_attempts=1)
    queue.put({"card": "4111"}, task_id="a")

    def deep_inside() -> None:
        raise LookupError("no such customer")

    def runner(_task: Task) -> None:
        deep_inside()

    work_off(queue, runner)
    assert "task a failed after " in caplog.text
    assert "in deep_inside" in caplog.text
    assert "4111" not in caplog.text


def test_an_error_of_the_queue_itself_leaves_the_task_unsettled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue.memory()
    queue.put_many([{"payload": 1}, {"payload": 2}])
    settle_many, broken = queue.settle_many, [True]

    def break_once(settlements: list[Settlement]) -> list[Task | FreshqError]:
        if broken:
            raise AssertionError(broken.pop())
        return settle_many(settlements)

    monkeypatch.setattr(queue, "settle_many", break_once)
    report = work_off(queue, lambda _task: None, concurrency=1)
    assert report.outcomes[Outcome.UNSETTLED] == report.outcomes[Outcome.SUCCEEDED] == 1
    assert "cannot be settled" in caplog.text


async def is_async(task: Task) -> None:
    del task


class AsyncCall:
    async def __call__(self, task: Task) -> None:
        del task


class AsyncMethod:
    async def run(self, task: Task) -> None:
        del task


async def generates(task: Task) -> Any:
    yield task


@pytest.mark.parametrize(
    ("runner", "transaction", "message"),
    [
        (None, False, "must be a function that takes a task, got NoneType"),
        ("orders:run", False, "must be a function that takes a task, got str"),
        (is_async, False, "is an async function"),
        (functools.partial(is_async), False, "is an async function"),
        (AsyncCall(), False, "is an async function"),
        (AsyncMethod().run, False, "is an async function"),
        (generates, False, "is a generator"),
        (lambda: None, False, r"must take a task, .* are \(\) \(too many positional arguments\)"),
        (lambda task, connection: (task, connection), False, r"must take a task, but .*'connection'"),
        (None, True, "must be a function that takes a task and a connection, got NoneType"),
        (lambda task: task, True, r"must take a task and a connection, but its arguments are \(task\) "),
    ],
)
def test_a_runner_that_cannot_be_called_is_refused(
    tmp_path: Path, runner: Any, transaction: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^runner: {message}"):
        Worker(Queue.sql(f"sqlite:///{tmp_path}/tasks.db"), runner, transaction=transaction)


@pytest.mark.parametrize("given", ["sqlite:///tasks.db", None, MatchQueue.memory()])
def test_what_is_no_queue_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=f"^queue: .* got {type(given).__name__}$"):
        Worker(given, str)
