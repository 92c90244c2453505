"""No task sees another task's context variables; each starts with the context of the worker's start."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal, getcontext, localcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import Handlers, Queue, Task, Worker
from freshq.testing import drain
from freshq.worker import Workers
from freshq.worker.runner import DelegatingRunner
from tests.support.programs import python
from tests.support.worker_threads import work_off

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def seen_and_set(task: Task) -> list[Any]:
    """Return what the task sees, and leave other values behind."""
    seen = [TENANT.get(), getcontext().prec, len(str(Decimal(1) / 3)) - 2]
    TENANT.set(f"tenant of {task.task_id}")
    getcontext().prec = 3 + task.payload
    getcontext().traps[decimal.Inexact] = False
    return seen


async def seen_and_set_later(task: Task) -> list[Any]:
    await asyncio.sleep(0)
    seen = seen_and_set(task)
    await asyncio.sleep(0)
    assert TENANT.get() == f"tenant of {task.task_id}"
    return seen


def handlers_of(function: Callable[..., Any]) -> Handlers:
    handlers = Handlers()
    handlers.on("a")(function)
    return handlers


def drained(queue: Queue, runner: Any) -> None:
    drain(queue, runner)


def worked(queue: Queue, runner: Any) -> None:
    work_off(queue, runner, concurrency=1)


def worked_in_a_group(queue: Queue, runner: Any) -> None:
    Workers(Worker(queue, runner, concurrency=1, poll_seconds=0.01, idle_exit_seconds=0.05)).run()


def served(queue: Queue, runner: Any) -> None:
    async def serve() -> None:
        worker = Worker(queue, runner, concurrency=1, poll_seconds=0.01)
        async with worker.serving():
            while queue.stats().success < 4:
                await asyncio.sleep(0.01)

    asyncio.run(serve())


RUNNERS: dict[str, Any] = {
    "plain": seen_and_set,
    "handler": handlers_of(seen_and_set),
    "coroutine": handlers_of(seen_and_set_later),
}


@pytest.fixture(autouse=True)
def own_values() -> Iterator[None]:
    token = TENANT.set("whoever started it")
    with localcontext() as context:
        context.prec = 11
        yield
    TENANT.reset(token)


@pytest.mark.parametrize("work", [drained, worked, worked_in_a_group, served])
@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_each_run_starts_with_the_context_of_the_start(work: Callable[..., None], runner: Any) -> None:
    queue = Queue.memory(order="fifo")
    queue.put_many([{"payload": number, "kind": "a"} for number in range(4)])
    work(queue, runner)
    assert [task.result for task in queue.list()] == [["whoever started it", 11, 11]] * 4
    assert (TENANT.get(), getcontext().prec) == ("whoever started it", 11)


def test_so_does_each_run_in_a_transaction(tmp_path: Path) -> None:
    def runner(task: Task, connection: sa.Connection) -> list[Any]:
        del connection
        return seen_and_set(task)

    with Queue.sql(f"sqlite:///{tmp_path}/tasks.db") as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(4)])
        Worker(
            queue, runner, transaction=True, concurrency=1, poll_seconds=0.01, idle_exit_seconds=0.05
        ).run()
        assert [task.result for task in queue.list()] == [["whoever started it", 11, 11]] * 4


def test_each_run_of_the_command_starts_with_the_context_of_the_module(tmp_path: Path) -> None:
    """A module that sets the precision when it is imported."""
    code = (
        "import decimal\ndecimal.getcontext().prec = 7\n"
        "def run(task):\n    seen = decimal.getcontext().prec\n    decimal.getcontext().prec = 3\n"
        "    return seen\n"
    )
    (tmp_path / "precise.py").write_text(code)
    url = f"sqlite:///{tmp_path}/tasks.db"
    with Queue.sql(url) as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(3)])
        python(
            "-m", "freshq", "work", "precise:run", "--queue", url, "--concurrency", "1",
            "--idle-exit-seconds", "0.1", cwd=tmp_path,
        )  # fmt: skip
        assert [task.result for task in queue.list()] == [7, 7, 7]


def test_a_runner_around_a_function_has_no_kinds_batches_or_coroutines() -> None:
    class Around(DelegatingRunner):
        def __call__(self, task: Task) -> Any:
            return [self._runner(task)]

    queue = Queue.memory()
    queue.put(1)
    (claim,) = queue.claim()
    around = Around(lambda task: task.payload)
    assert around(claim.task) == [1]
    assert (around.kinds, around.unknown_kind(claim.task), around.batch_rules) == (None, None, {})
    assert (around.has_coroutine(claim.task), around.start(claim.task)) == (False, None)
