"""An exception that would end a process ends one attempt, in functions and in coroutines alike."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from freshq import Handlers, Queue, Reject, Retry, Task, Worker
from freshq.aws.observability import logger
from freshq.telemetry import Outcome, Telemetry
from freshq.testing import drain
from tests.support.worker_threads import work_off


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Exits(Unreadable):
    def __str__(self) -> str:
        raise SystemExit(9)


RAISED: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    lambda: BaseException("base"),
    Unreadable,
    Exits,
    StopAsyncIteration,
    lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]),
]


def attempts_of(
    make: Callable[[], BaseException], *, is_async: bool, work: Callable[..., Any]
) -> tuple[Any, ...]:
    handlers, queue = Handlers(), Queue.memory(max_attempts=1)

    def leave(task: Task) -> None:
        if task.payload == "leave":
            raise make()

    async def leave_later(task: Task) -> None:
        await asyncio.sleep(0)
        leave(task)

    handlers.on("a")(leave_later if is_async else leave)
    queue.put("leave", task_id="leaves", kind="a")
    queue.put("stay", task_id="stays", kind="a")
    work(queue, handlers)
    task, other = queue.get("leaves"), queue.get("stays")
    assert task is not None
    assert other is not None
    kept = task.attempt_log[0].traceback or ""
    return task.status, task.error, "in leave" in kept, "RunnerExit" in kept, other.status


@pytest.mark.parametrize("make", RAISED)
@pytest.mark.parametrize("work", [drain, work_off])
def test_a_coroutine_is_treated_as_a_function_is(
    make: Callable[[], BaseException], work: Callable[..., Any]
) -> None:
    of_function = attempts_of(make, is_async=False, work=work)
    assert of_function[0] == "FAILURE"
    assert of_function[3:] == (False, "SUCCESS")
    assert attempts_of(make, is_async=True, work=work) == of_function


@pytest.mark.parametrize("work", [drain, work_off])
@pytest.mark.parametrize("ending", [Retry, Reject])
def test_an_end_that_a_runner_raises_from_an_exception_keeps_its_traceback(
    ending: type[Exception], work: Callable[..., Any]
) -> None:
    queue = Queue.memory(max_attempts=1)

    def find(task: Task) -> None:
        try:
            dict[str, int]()["no price"]
        except KeyError as error:
            if task.payload == "from":
                raise ending("try later") from error
            raise ending("try later") from None

    queue.put("from", task_id="from")
    queue.put("alone", task_id="alone")
    work(queue, find)
    kept = {task.task_id: task.attempt_log[0] for task in queue.list()}
    assert {task_id: each.error for task_id, each in kept.items()} == dict.fromkeys(kept, "try later")
    assert (kept["from"].traceback or "").endswith("KeyError: 'no price'\n")
    assert kept["alone"].traceback is None


def test_an_exit_of_a_task_that_a_coroutine_started_ends_no_other_run() -> None:
    handlers, queue = Handlers(), Queue.memory(max_attempts=1)

    async def exits() -> None:
        raise SystemExit(3)

    @handlers.on("a")
    async def start(task: Task) -> str:
        if task.payload == "leave":
            await asyncio.create_task(exits())
        await asyncio.sleep(0)
        return "done"

    queue.put_many([{"payload": each, "kind": "a"} for each in ["leave", "stay", "stay"]])
    report = Worker(queue, handlers, concurrency=3, idle_exit_seconds=0.05, poll_seconds=0.01).run()
    assert (report.outcomes[Outcome.SUCCEEDED], report.outcomes[Outcome.FAILED]) == (2, 1)


def test_telemetry_gets_the_exception_itself() -> None:
    ended: list[BaseException | None] = []

    class Kept(Telemetry):
        def run(self, task: Task) -> Any:
            scope = super().run(task)
            scope.end = ended.append  # type: ignore[method-assign, assignment]  # of this run
            return scope

    handlers, queue = Handlers(), Queue.memory(max_attempts=1, telemetry=Kept())

    @handlers.on("a")
    async def leave(_task: Task) -> None:
        raise SystemExit(3)

    queue.put(1, kind="a")
    work_off(queue, handlers)
    assert [type(each) for each in ended] == [SystemExit]


@pytest.mark.parametrize("make", [Unreadable, Exits])
def test_the_functions_log_an_exception_whose_text_fails(
    make: Callable[[], BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise make()
    except Unreadable as error:
        record = logging.LogRecord(
            "freshq.functions", logging.ERROR, "f", 1, "failed", None, (type(error), error, None)
        )
    line = logger.registered_handler.format(record)
    assert json.loads(line)["message"] == "failed"
    assert "its text cannot be read" in line
    assert capsys.readouterr().err == ""
