"""Report verbs and runs to an observer whose errors never reach the caller."""

from __future__ import annotations

import logging
import traceback
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from freshq.errors import FreshqError
    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task, Verb

_NOTHING = nullcontext()
Answer = TypeVar("Answer", bound="Task | FreshqError")
logger = logging.getLogger(__name__)
T = TypeVar("T")


class RunScope:
    """One run of a task."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def trace_id(self) -> str | None:
        """The trace that it belongs to; None if it has none."""
        return self.task.trace_id

    def current(self) -> AbstractContextManager[object]:
        """Return a block inside which code belongs to the run, and so do coroutines started there."""
        return _NOTHING

    def end(self, error: BaseException | None) -> None:
        """End the run.

        Args:
            error: What the runner raised; None if it returned.
        """


class Telemetry:
    """Runs each verb and records nothing. A subclass records it, and must not change the answer.

    Several threads call it. An error of its own is logged once, and does not change the answer either.
    """

    def put(
        self, queue: str, tasks: Sequence[Task], write: Callable[[Sequence[Task]], list[Receipt]]
    ) -> list[Receipt]:
        """Return what the write of new tasks returns.

        Args:
            queue: Name of the queue.
            tasks: The tasks.
            write: Writes them; a subclass may give it the tasks with a trace context.
        """
        del queue
        return write(tasks)

    def claim(self, queue: str, take: Callable[[], list[Claim]]) -> list[Claim]:
        """Return what a claim returns."""
        del queue
        return take()

    def settle(
        self, queue: str, ends: Sequence[tuple[Task, Verb]], write: Callable[[], list[Answer]]
    ) -> list[Answer]:
        """Return what the write of settlements returns.

        Args:
            queue: Name of the queue.
            ends: The claimed tasks, and how each is settled.
            write: Settles them; returns for each, in order, its task or an error.
        """
        del queue, ends
        return write()

    def run(self, task: Task) -> RunScope:
        """Return the scope of a run that begins."""
        return RunScope(task)


def guarded(telemetry: Telemetry) -> Telemetry:
    """Return telemetry that does the same and raises nothing but what the store raises."""
    return telemetry if type(telemetry) is Telemetry else GuardedTelemetry(telemetry)


class TelemetryFailures:
    """Keeps failures of telemetry from changing the work, and logs the first of each kind."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    @contextmanager
    def caught(self, hook: str) -> Iterator[None]:
        """Return a block whose exceptions are only logged; `hook` is what is called in it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - logged
            self.note(hook, error)

    def note(self, hook: str, error: Exception) -> None:
        """Log the first failure of a hook, without its text, which may have a payload."""
        if hook in self._logged:
            return
        self._logged.add(hook)
        last = traceback.extract_tb(error.__traceback__)[-1]
        logger.error(
            "telemetry: %s raised %s in %s, line %s; work continues without it, and this is logged once",
            hook,
            type(error).__name__,
            last.filename,
            last.lineno,
        )


class GuardedTelemetry(Telemetry):
    """Passes every call on. The store is called once, and its answer counts, whatever telemetry does."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._failures = TelemetryFailures()

    @override
    def put(
        self, queue: str, tasks: Sequence[Task], write: Callable[[Sequence[Task]], list[Receipt]]
    ) -> list[Receipt]:
        return self._answer(
            "put", lambda once: self._telemetry.put(queue, tasks, once), write, lambda: write(tasks)
        )

    @override
    def claim(self, queue: str, take: Callable[[], list[Claim]]) -> list[Claim]:
        return self._answer("claim", lambda once: self._telemetry.claim(queue, once), take, take)

    @override
    def settle(
        self, queue: str, ends: Sequence[tuple[Task, Verb]], write: Callable[[], list[Answer]]
    ) -> list[Answer]:
        return self._answer("settle", lambda once: self._telemetry.settle(queue, ends, once), write, write)

    def _answer(
        self,
        hook: str,
        tell: Callable[[Callable[..., T]], object],
        call: Callable[..., T],
        call_alone: Callable[[], T],
    ) -> T:
        """Return the answer of the store.

        Args:
            hook: What tells telemetry, for the log.
            tell: Gives telemetry the call of the store.
            call: Calls the store.
            call_alone: Calls it if telemetry did not.
        """
        answer: Future[T] = Future()

        def once(*arguments: Any) -> T:
            if not answer.done():
                try:
                    answer.set_result(call(*arguments))
                except BaseException as error:  # noqa: BLE001 - raised by the next line
                    answer.set_exception(error)
            return answer.result()

        try:
            tell(once)
        except Exception as error:  # noqa: BLE001 - logged, or raised below
            if not answer.done() or answer.exception() is not error:
                self._failures.note(hook, error)
        return answer.result() if answer.done() else call_alone()

    @override
    def run(self, task: Task) -> RunScope:
        try:
            return _GuardedScope(task, self._telemetry.run(task), self._failures)
        except Exception as error:  # noqa: BLE001 - logged
            self._failures.note("run", error)
            return RunScope(task)


class _GuardedScope(RunScope):
    """Passes on what becomes of a run."""

    def __init__(self, task: Task, scope: RunScope, failures: TelemetryFailures) -> None:
        super().__init__(task)
        self._scope = scope
        self._failures = failures

    @property
    @override
    def trace_id(self) -> str | None:
        try:
            return self._scope.trace_id
        except Exception as error:  # noqa: BLE001 - logged
            self._failures.note("trace_id", error)
            return super().trace_id

    @override
    def current(self) -> AbstractContextManager[object]:
        return _GuardedBlock(self._scope, self._failures)

    @override
    def end(self, error: BaseException | None) -> None:
        with self._failures.caught("end"):
            self._scope.end(error)


class _GuardedBlock(AbstractContextManager[object]):
    """The block of a run, if telemetry can begin it; what is raised inside always leaves it."""

    def __init__(self, scope: RunScope, failures: TelemetryFailures) -> None:
        self._scope = scope
        self._failures = failures
        self._entered: AbstractContextManager[object] | None = None

    @override
    def __enter__(self) -> object:
        with self._failures.caught("current"):
            block = self._scope.current()
            block.__enter__()
            self._entered = block
        return self

    @override
    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._entered is not None:
            with self._failures.caught("current"):
                self._entered.__exit__(error_class, error, at)
