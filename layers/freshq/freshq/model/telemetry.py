"""Report verbs and runs to an observer whose errors never reach the caller."""

from __future__ import annotations

import logging
import traceback
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from freshq.errors import FreshqError
    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task, Verb
    from freshq.policy.shedding import ShedReason

_NOTHING = nullcontext()
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PutSpan:
    """One put.

    Attributes:
        queue: Name of the queue.
        tasks: The tasks to write; telemetry may replace them by copies that carry a trace context.
        receipts: The answer, after the tasks are written.
    """

    queue: str
    tasks: Sequence[Task]
    receipts: Sequence[Receipt] = ()


@dataclass(slots=True)
class ClaimSpan:
    """One claim.

    Attributes:
        queue: Name of the queue.
        claims: The answer, after the store has given it.
    """

    queue: str
    claims: Sequence[Claim] = ()


@dataclass(slots=True)
class SettleSpan:
    """One settlement, of one claim or several.

    Attributes:
        queue: Name of the queue.
        ends: The claimed tasks, and how to settle each.
        answers: The task or the error of each, in the same order, after the store has answered.
    """

    queue: str
    ends: Sequence[tuple[Task, Verb]]
    answers: Sequence[Task | FreshqError] = ()


class RunScope:
    """One run of a task. It may end in another thread than it started in."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def trace_id(self) -> str | None:
        """The trace of the task; None without a trace."""
        return self.task.trace_id

    def current(self) -> AbstractContextManager[object]:
        """Return a block inside which code belongs to the run, and so do coroutines started there."""
        return _NOTHING

    def elsewhere(self) -> Callable[[], AbstractContextManager[object]] | None:
        """Return what makes the run current in another process; None if nothing is to be. It is pickled."""
        return None

    def end(self, error: BaseException | None) -> None:
        """End the run.

        Args:
            error: The exception of the runner; None if it returned.
        """


class Telemetry:
    """Records nothing. A subclass returns, for each verb, a block that the queue enters around its call.

    The span has the verb's arguments when the block begins, and its answer when the block ends without an
    exception; the store's errors are raised inside the block. Several threads call telemetry. Its own errors
    are logged once and change no answer, and a block cannot suppress an error of the store.
    """

    def put(self, span: PutSpan) -> AbstractContextManager[object]:
        """Return the block around a put."""
        del span
        return _NOTHING

    def claim(self, span: ClaimSpan) -> AbstractContextManager[object]:
        """Return the block around a claim."""
        del span
        return _NOTHING

    def settle(self, span: SettleSpan) -> AbstractContextManager[object]:
        """Return the block around a settlement."""
        del span
        return _NOTHING

    def run(self, task: Task) -> RunScope:
        """Return the scope of a run that begins."""
        return RunScope(task)

    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        """Receive how many tasks this process shed, or found to be stale."""

    def exhausted(self, tasks: Sequence[Task]) -> None:
        """Receive the tasks that this process made dead letters because their last leases had expired."""


class Observed(Protocol):
    """A queue that reports to telemetry."""

    def observe(self) -> None:
        """Report to `telemetries` from now on."""


_EVERYWHERE: Final[list[Telemetry]] = []
_OBSERVED: Final[WeakSet[Observed]] = WeakSet()


@contextmanager
def everywhere(telemetry: Telemetry) -> Iterator[None]:
    """Report the verbs of all queues of this process to this telemetry also, during the block."""
    _EVERYWHERE.append(telemetry)
    try:
        _observe_all()
        yield
    finally:
        _EVERYWHERE.remove(telemetry)
        _observe_all()


def _observe_all() -> None:
    for each in list(_OBSERVED):
        each.observe()


def observed(queue: Observed) -> None:
    """Make a queue look up its telemetry now, and again whenever `everywhere` begins or ends."""
    _OBSERVED.add(queue)
    queue.observe()


def telemetries(own: Telemetry) -> tuple[Telemetry, ...]:
    """Return a queue's own telemetry and that of `everywhere`, but only the first of each class."""
    found = {type(each): each for each in (*reversed(_EVERYWHERE), own)}
    return tuple(each for kind, each in reversed(found.items()) if kind is not Telemetry)


def observer_of(several: Sequence[Telemetry]) -> Telemetry | None:
    """Return telemetry that passes each call on to all of `several`, and only logs their errors.

    None if there are none.
    """
    each = [guarded(telemetry) for telemetry in several]
    return _Together(each) if len(each) > 1 else next(iter(each), None)


def guarded(telemetry: Telemetry) -> Telemetry:
    """Return telemetry that does the same, but only logs its own errors."""
    return telemetry if type(telemetry) is Telemetry else GuardedTelemetry(telemetry)


class TelemetryFailures:
    """Keeps failures of telemetry from changing the work, and logs the first of each kind."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    @contextmanager
    def caught(self, hook: str) -> Iterator[None]:
        """Log exceptions of a block instead of raising them; `hook` names the method called in it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - logged
            self.note(hook, error)

    @contextmanager
    def block(self, hook: str, begin: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Enter a block of telemetry; the work inside runs, and raises, as it would without.

        Args:
            hook: The method of telemetry, for the log.
            begin: Calls it.
        """
        leave: Callable[..., object] = _NOTHING.__exit__
        with self.caught(hook):
            entered = begin()
            entered.__enter__()
            leave = entered.__exit__
        try:
            yield
        except BaseException as error:
            try:
                leave(type(error), error, error.__traceback__)
            except Exception as raised:  # noqa: BLE001 - logged
                if raised is not error:
                    self.note(hook, raised)
            raise
        with self.caught(hook):
            leave(None, None, None)

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
    """Passes every call on to telemetry, and logs its errors."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._failures = TelemetryFailures()

    @override
    def put(self, span: PutSpan) -> AbstractContextManager[object]:
        return self._failures.block("put", lambda: self._telemetry.put(span))

    @override
    def claim(self, span: ClaimSpan) -> AbstractContextManager[object]:
        return self._failures.block("claim", lambda: self._telemetry.claim(span))

    @override
    def settle(self, span: SettleSpan) -> AbstractContextManager[object]:
        return self._failures.block("settle", lambda: self._telemetry.settle(span))

    @override
    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        with self._failures.caught("shed"):
            self._telemetry.shed(queue, reason, tasks)

    @override
    def exhausted(self, tasks: Sequence[Task]) -> None:
        with self._failures.caught("exhausted"):
            self._telemetry.exhausted(tasks)

    @override
    def run(self, task: Task) -> RunScope:
        try:
            return _GuardedScope(self._telemetry.run(task), task, self._failures)
        except Exception as error:  # noqa: BLE001 - logged
            self._failures.note("run", error)
            return RunScope(task)


class _Together(Telemetry):
    """Passes every verb on to several telemetries. Runs are reported only to the queue's own telemetry."""

    def __init__(self, each: Sequence[Telemetry]) -> None:
        self._each = each

    @override
    def put(self, span: PutSpan) -> AbstractContextManager[object]:
        return _in_all(telemetry.put(span) for telemetry in self._each)

    @override
    def claim(self, span: ClaimSpan) -> AbstractContextManager[object]:
        return _in_all(telemetry.claim(span) for telemetry in self._each)

    @override
    def settle(self, span: SettleSpan) -> AbstractContextManager[object]:
        return _in_all(telemetry.settle(span) for telemetry in self._each)

    @override
    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        for telemetry in self._each:
            telemetry.shed(queue, reason, tasks)

    @override
    def exhausted(self, tasks: Sequence[Task]) -> None:
        for telemetry in self._each:
            telemetry.exhausted(tasks)


@contextmanager
def _in_all(blocks: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        yield


class _GuardedScope(RunScope):
    """Passes on the outcome of a run."""

    def __init__(self, scope: RunScope, task: Task, failures: TelemetryFailures) -> None:
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
        return self._failures.block("current", self._scope.current)

    @override
    def elsewhere(self) -> Callable[[], AbstractContextManager[object]] | None:
        try:
            return self._scope.elsewhere()
        except Exception as error:  # noqa: BLE001 - logged
            self._failures.note("elsewhere", error)
            return None

    @override
    def end(self, error: BaseException | None) -> None:
        with self._failures.caught("end"):
            self._scope.end(error)
