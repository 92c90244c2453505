"""The loop of a worker that holds its tasks in database transactions."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from freshq.errors import Overloaded, StoreError, is_shortage
from freshq.model.answers import Busy, Reject, Retry, RunnerExit, UnknownKind, busy_of, ends_chain, error_text
from freshq.model.task import RunHandle, TaskStatus, give_handle
from freshq.worker.loop import WorkLoop
from freshq.worker.report import Outcome, log_fields, task_logger
from freshq.worker.run import in_thread
from freshq.worker.settle import noted_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.model.codec import Codec
    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.stores.held import HeldTask
    from freshq.worker.limits import StartLimits
    from freshq.worker.loop import EndRequest
    from freshq.worker.options import WorkerConfig
    from freshq.worker.runner import TransactionRunner

# The database removes no row version that a transaction may still read, of any table.
LONG_TRANSACTION_SECONDS: Final = 60.0
logger = task_logger(__name__)


class _NotStarted(Busy):
    """The worker itself does not start a task, which says nothing about the downstream."""


# The most special first.
_RELEASED: Final = (
    (UnknownKind, Outcome.UNKNOWN_KIND),
    (_NotStarted, Outcome.GIVEN_BACK),
    (Busy, Outcome.RELEASED),
)


@dataclass(eq=False, slots=True)
class _TransactionThread:
    """A thread that holds the next task, if there is one, and runs it.

    Attributes:
        held: The task; None while the thread asks for a task, or if there was none.
        counted: Whether the loop has counted its start.
        began: When it began, by the monotonic clock.
        warned: Whether the log says that its transaction is long.
        raised: The exception of the runner.
        ended: How the run ended; None if there was no task.
    """

    held: HeldTask | None = None
    counted: bool = False
    began: float = field(default_factory=time.monotonic)
    warned: bool = False
    raised: Exception | None = None
    ended: Future[Outcome | None] = field(default_factory=Future)

    @property
    def outage(self) -> BaseException | None:
        """Why the thread, which has ended, could not ask for a task; None if it could."""
        error = self.ended.exception()
        return error if isinstance(error, StoreError) or is_shortage(error) else None


def warn_if_long(task: Task, seconds: float) -> bool:
    """Warn that a transaction has been open too long; return whether it has.

    Args:
        task: The task that it holds.
        seconds: How long it has been open.
    """
    if seconds < LONG_TRANSACTION_SECONDS:
        return False
    logger.warning(
        "task %s: its transaction has been open for %.0f s, and keeps the database from removing the old row "
        "versions of all tables; give long work a lease, without `transaction`",
        task.task_id,
        seconds,
        extra=log_fields(task),
    )
    return True


class TransactionLoop(WorkLoop):
    """Holds a task and runs it in one thread, inside one transaction.

    While the queue has tasks, several threads ask at a time; after one finds none, one thread asks when
    `Fetcher` says.
    """

    def __init__(
        self,
        queue: BaseQueue,
        runner: TransactionRunner,
        config: WorkerConfig,
        limits: StartLimits,
        end_request: EndRequest,
        codec: Codec,
    ) -> None:
        """Start nothing yet.

        Args:
            queue: The queue, and further arguments of `WorkLoop`.
            runner: Runs a task with the connection of its transaction.
            config: As in `WorkLoop`.
            limits: As in `WorkLoop`.
            end_request: As in `WorkLoop`.
            codec: Encodes results.
        """
        super().__init__(queue, config, limits, end_request)
        self._runner = runner
        self._codec = codec
        self._threads: list[_TransactionThread] = []
        self._found_nothing = False
        self._outage: BaseException | None = None

    @override
    def _in_flight(self) -> int:
        return sum(thread.held is not None for thread in self._threads)

    @override
    def _unfinished(self) -> Iterable[str]:
        return (thread.held.task.task_id for thread in self._threads if thread.held is not None)

    @override
    def _start_what_fits(self) -> None:
        self._count_starts()
        outage, self._outage = self._outage, None
        if isinstance(outage, StoreError):
            self._store_failed(outage)
        elif outage is not None:
            self._is_short(outage)
        if self._backoff.active or not self._fetcher.is_due:
            return
        asking = sum(thread.held is None for thread in self._threads)
        try:
            free = self._limits.available(self._in_flight()) - asking
            free = int(min(free, self._breaker.room() - asking))
            if asking == 0:
                self._fetcher.begin()
        except StoreError as error:
            self._store_failed(error)
            return
        for _ in range(min(free, 1 - asking) if self._found_nothing else free):
            thread = _TransactionThread()
            self._threads.append(thread)
            self._breaker.probe(thread)
            in_thread("freshq-transaction", partial(self._hold_and_run, thread), thread.ended)
            thread.ended.add_done_callback(lambda _ended: self._end_request.wake.set())

    def _count_starts(self) -> None:
        """Count the tasks that the threads found against the limits."""
        for thread in self._threads:
            if thread.held is not None and not thread.counted:
                thread.counted = True
                self.report.claimed += 1
                self._limits.started()
                self._limits.charge(thread.held.task)
                self._found_nothing = False
            if thread.held is not None and not thread.warned:
                thread.warned = warn_if_long(thread.held.task, time.monotonic() - thread.began)

    @override
    def _is_busy(self) -> bool:
        return bool(self._threads)

    @override
    def _has_work(self) -> bool:
        return self._in_flight() > 0 or (self._is_busy() and not self._found_nothing)

    @override
    def _take_outcomes(self) -> Iterable[Outcome | BaseException]:
        self._count_starts()
        over = self._take_over()
        # Simultaneous failures count as one.
        self._outage = next((thread.outage for thread in over if thread.outage), self._outage)
        results = [thread.ended.exception() or thread.ended.result() for thread in over if not thread.outage]
        self._note(results)
        if self._outage is None and Outcome.UNSETTLED in results:
            self._backoff.claim_failed()  # or the task would run again at once
        return [outcome for outcome in results if outcome is not None]

    def _take_over(self) -> list[_TransactionThread]:
        over = [thread for thread in self._threads if thread.ended.done()]
        self._threads = [thread for thread in self._threads if thread not in over]
        return over

    def _note(self, results: Sequence[Outcome | BaseException | None]) -> None:
        """Note that the store answered, and whether it had no task."""
        if any(outcome is not Outcome.UNSETTLED for outcome in results):
            self._store_answered()
        if None in results:
            self._found_nothing = True
            self._fetcher.found_few(len(results) - 1)

    def _hold_and_run(self, thread: _TransactionThread) -> Outcome | None:
        """Hold the next task, run it and settle it; return None if there is none.

        Raises:
            StoreError: If the store did not answer before there was a task.
        """
        error: str | None = None
        started = time.monotonic()
        try:
            with self._queue.transaction() as held:
                if held is None:
                    self._feedback.tell_breaker(thread, None, succeeded=None)
                    return None
                thread.held = held
                started = time.monotonic()
                self._run(thread, held)
        except Exception as problem:
            if thread.held is None:
                raise
            error = error_text(problem)
            if not ends_chain(problem, thread.held.task):
                error = f"{type(problem).__name__}: {error}"
            if problem is not thread.raised:
                task = thread.held.task
                message = "task %s could not be settled: %s"
                logger.warning(message, task.task_id, error, extra=log_fields(task))
        if thread.raised is not None and error is None:
            error = error_text(thread.raised)
        outcome = _outcome(thread.held, thread.raised)
        self._note_end(thread, thread.held.task, outcome)
        self._feedback.settled(thread.held.as_claim(), outcome, time.monotonic() - started, error)
        return outcome

    def _note_end(self, thread: _TransactionThread, task: Task, outcome: Outcome) -> None:
        """Tell the limits and the breaker how a run ended, as under a lease."""
        raised = thread.raised
        is_unrelated = isinstance(raised, Reject | UnknownKind | _NotStarted) or _is_late(raised, task)
        if not is_unrelated:  # to the downstream
            self._limits.ended(downstream_ok=outcome is Outcome.SUCCEEDED)
        if isinstance(raised, Busy) and raised.retry_after_seconds is not None:
            self._limits.slow_down(task, raised.retry_after_seconds)
        self._limits.note_units([task])
        succeeded: bool | None = outcome is Outcome.SUCCEEDED
        if is_unrelated or isinstance(raised, Busy) or outcome is Outcome.UNSETTLED:
            succeeded = None
        self._feedback.tell_breaker(thread, task, succeeded=succeeded)

    def _run(self, thread: _TransactionThread, held: HeldTask) -> None:
        """Call the runner; its exceptions end only its attempt.

        Raises:
            Exception: The exception of the runner, as an `Exception`.
        """
        if self._draining.is_set() or not self._breaker.allows(thread):
            why = "ends" if self._draining.is_set() else "has slowed down, because its runs fail"
            thread.raised = _NotStarted(f"the worker {why}")
            raise thread.raised
        self._end_request.wake.set()
        self._feedback.claimed([held.as_claim()])
        give_handle(held.task, RunHandle(is_leased=False))
        held.codec = self._codec
        try:
            held.result = self._runner(held.task, held.connection)
        except (Busy, Reject, Retry) as outcome:
            thread.raised = outcome
        except Overloaded as refused:
            thread.raised = refused if ends_chain(refused, held.task) else _noted(held, refused)
        except BaseException as unexpected:  # noqa: BLE001 - logged, and raised below
            thread.raised = busy_of(unexpected, self._queue.admin.now()) or _noted(held, unexpected)
        if thread.raised is not None:
            raise thread.raised


def _noted(held: HeldTask, unexpected: BaseException) -> Exception:
    """Keep an exception for the log; return it, or an `Exception` that carries one that ends the thread."""
    text = noted_failure(held.task, unexpected)
    if isinstance(unexpected, Exception):
        return unexpected
    carrier = RunnerExit(text)
    carrier.__cause__ = unexpected
    return carrier


def _is_late(raised: Exception | None, task: Task) -> bool:
    return raised is not None and ends_chain(raised, task)


def _outcome(held: HeldTask, raised: Exception | None) -> Outcome:
    if held.settled is not None:
        return Outcome.SUCCEEDED
    if held.failed is None:
        return Outcome.UNSETTLED
    if held.failed.status is TaskStatus.FAILURE:
        return Outcome.FAILED
    if _is_late(raised, held.task):
        return Outcome.SHED
    return next((outcome for kind, outcome in _RELEASED if isinstance(raised, kind)), Outcome.RETRIED)
