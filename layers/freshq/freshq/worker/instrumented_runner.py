"""Wraps each run: the log names its task, and the queue's telemetry receives it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from freshq.model.guarded_telemetry import guarded
from freshq.worker.log_fields import RUNNING
from freshq.worker.runner import CoroutineRunner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

    from freshq.model.task import Task
    from freshq.model.telemetry import RunScope, Telemetry


def instrumented(runner: Callable[..., Any], telemetry: Telemetry) -> Callable[..., Any]:
    """Return a runner that does the same, and whose runs are known to the log and to telemetry.

    Args:
        runner: Takes a task, and perhaps a connection.
        telemetry: Receives each run; what it raises is only logged.
    """
    telemetry = guarded(telemetry)
    if isinstance(runner, CoroutineRunner):
        return InstrumentedCoroutines(runner, telemetry)
    return partial(_run, runner, telemetry)


def _run(runner: Callable[..., Any], telemetry: Telemetry, task: Task, *connection: object) -> Any:  # noqa: ANN401 - any value
    scope = telemetry.run(task)
    token = RUNNING.set(scope)
    try:
        with scope.current():
            result = runner(task, *connection)
    except BaseException as error:
        scope.end(error)
        raise
    finally:
        RUNNING.reset(token)
    scope.end(None)
    return result


class InstrumentedCoroutines(CoroutineRunner):
    """A `CoroutineRunner` whose runs are known to the log and to telemetry, in threads and in coroutines."""

    def __init__(self, runner: CoroutineRunner, telemetry: Telemetry) -> None:
        self.codec = runner.codec
        self._runner = runner
        self._telemetry = telemetry

    @override
    def __call__(self, task: Task) -> Any:
        return _run(self._runner, self._telemetry, task)

    @override
    def has_coroutine(self, task: Task) -> bool:
        return self._runner.has_coroutine(task)

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        if not self._runner.has_coroutine(task):
            return None
        scope = self._telemetry.run(task)
        token = RUNNING.set(scope)
        try:
            with scope.current():  # the coroutine begins with a copy of the context of this thread
                answer = self._runner.start(task, loop)
        except BaseException as error:
            scope.end(error)
            raise
        finally:
            RUNNING.reset(token)
        if answer is not None:
            answer.add_done_callback(partial(_end, scope))
        return answer


def _end(scope: RunScope, answer: Future[Any]) -> None:
    cancelled = answer.cancelled()
    scope.end(CancelledRun("the run was cancelled") if cancelled else answer.exception())


class CancelledRun(Exception):  # noqa: N818 - names what became of the run
    """A coroutine was cancelled: the lease of its task is lost, or the worker ends at once."""
