"""The loop of a worker that holds its tasks in database transactions."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.answers import Claim
from freshq.model.outcomes import Busy, Reject, Retry, RunnerExit, error_text
from freshq.model.task import TaskStatus
from freshq.worker.log_fields import log_fields, task_logger
from freshq.worker.loop import WorkLoop
from freshq.worker.report import Outcome
from freshq.worker.runs import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.queue.base import BaseQueue
    from freshq.stores.transactions import HeldTask
    from freshq.worker.capacity import Capacity
    from freshq.worker.loop import EndRequest
    from freshq.worker.options import WorkerConfig
    from freshq.worker.runner import TransactionRunner

logger = task_logger(__name__)


@dataclass(eq=False, slots=True)
class _Turn:
    """A thread that looks for a task and runs it.

    Attributes:
        held: The task; None while the thread looks for one, and if it found none.
        counted: Whether the loop has counted its start.
        raised: What the runner raised.
        ended: How the run ended; None if there was no task.
    """

    held: HeldTask | None = None
    counted: bool = False
    raised: Exception | None = None
    ended: Future[Outcome | None] = field(default_factory=Future)

    @property
    def outage(self) -> StoreError | None:
        """Why the thread, which is over, could not look for a task; None if it could."""
        error = self.ended.exception()
        return error if isinstance(error, StoreError) else None


class TransactionLoop(WorkLoop):
    """Looks for a task and runs it in one thread, inside one transaction.

    While the queue has tasks, several threads look at a time; once one finds none, one thread looks every
    `poll_seconds`.
    """

    def __init__(
        self,
        queue: BaseQueue,
        runner: TransactionRunner,
        config: WorkerConfig,
        capacity: Capacity,
        end_request: EndRequest,
    ) -> None:
        """Start nothing yet; the arguments besides the runner are those of `WorkLoop`."""
        super().__init__(queue, config, capacity, end_request)
        self._runner = runner
        self._turns: list[_Turn] = []
        self._found_nothing = False
        self._look_at = 0.0
        self._outage: StoreError | None = None

    @override
    def _in_flight(self) -> int:
        return sum(turn.held is not None for turn in self._turns)

    @override
    def _unfinished(self) -> Iterable[str]:
        return (turn.held.task.task_id for turn in self._turns if turn.held is not None)

    @override
    def _start_what_fits(self) -> None:
        self._count_starts()
        outage, self._outage = self._outage, None
        if outage is not None:
            self._store_failed(outage)
        if self._pause.active or time.monotonic() < self._look_at:
            return
        looking = sum(turn.held is None for turn in self._turns)
        try:
            free = self._capacity.available(self._in_flight()) - looking
        except StoreError as error:
            self._store_failed(error)
            return
        for _ in range(min(free, 1 - looking) if self._found_nothing else free):
            turn = _Turn()
            self._turns.append(turn)
            in_thread("freshq-turn", partial(self._turn, turn), turn.ended)
            turn.ended.add_done_callback(lambda _ended: self._end_request.wake.set())

    def _count_starts(self) -> None:
        """Count what the threads found against the limits."""
        for turn in self._turns:
            if turn.held is not None and not turn.counted:
                turn.counted = True
                self.report.claimed += 1
                self._capacity.started()
                self._found_nothing = False

    @override
    def _is_busy(self) -> bool:
        return bool(self._turns)

    @override
    def _has_work(self) -> bool:
        return self._in_flight() > 0 or (self._is_busy() and not self._found_nothing)

    @override
    def _take_outcomes(self) -> Iterable[Outcome | BaseException]:
        self._count_starts()
        over = self._take_over()
        # Several failures at the same time are one.
        self._outage = next((turn.outage for turn in over if turn.outage), self._outage)
        results = [turn.ended.exception() or turn.ended.result() for turn in over if not turn.outage]
        self._note(results)
        return [outcome for outcome in results if outcome is not None]

    def _take_over(self) -> list[_Turn]:
        over = [turn for turn in self._turns if turn.ended.done()]
        self._turns = [turn for turn in self._turns if turn not in over]
        return over

    def _note(self, results: Sequence[Outcome | BaseException | None]) -> None:
        """Note that the store answered, and whether it had nothing."""
        if any(outcome is not Outcome.UNSETTLED for outcome in results):
            self._store_answered()
        if None in results:
            self._found_nothing = True
            self._look_at = time.monotonic() + self._config.poll_seconds

    def _turn(self, turn: _Turn) -> Outcome | None:
        """Look for a task, run it and settle it; return None if there is none.

        Raises:
            StoreError: If the store did not answer before there was a task.
        """
        error: str | None = None
        started = time.monotonic()
        try:
            with self._queue.transaction() as held:
                if held is None:
                    return None
                turn.held = held
                started = time.monotonic()
                self._run(turn, held)
        except Exception as problem:
            if turn.held is None:
                raise
            error = f"{type(problem).__name__}: {error_text(problem)}"
            if problem is not turn.raised:
                task = turn.held.task
                message = "task %s could not be settled: %s"
                logger.warning(message, task.task_id, error, extra=log_fields(task))
        if turn.raised is not None and error is None:
            error = error_text(turn.raised)
        outcome = _outcome(turn.held, turn.raised)
        if not isinstance(turn.raised, Reject):  # as under a lease, it says nothing about the downstream
            self._capacity.ended(downstream_ok=outcome is Outcome.SUCCEEDED)
        with self._observing():
            self._observer.settled(_claim_of(turn.held), outcome, time.monotonic() - started, error)
        return outcome

    def _run(self, turn: _Turn, held: HeldTask) -> None:
        """Call the runner; whatever it raises is an Exception afterwards, and ends only its attempt."""
        if self._draining.is_set():
            turn.raised = Busy("the worker ends")
            raise turn.raised
        self._end_request.wake.set()
        with self._observing():
            self._observer.claimed(_claim_of(held), self._queue.now() - held.task.created)
        try:
            held.result = self._runner(held.task, held.connection)
        except (Busy, Reject, Retry) as outcome:
            turn.raised = outcome
        except Exception as unexpected:
            logger.exception("the runner failed on task %s", held.task.task_id, extra=log_fields(held.task))
            turn.raised = unexpected
        except BaseException as exits:
            logger.exception("the runner failed on task %s", held.task.task_id, extra=log_fields(held.task))
            turn.raised = RunnerExit(f"{type(exits).__name__}: {error_text(exits)}")
        if turn.raised is not None:
            raise turn.raised


def _claim_of(held: HeldTask) -> Claim:
    """Return a held task as observers know it: without a lease."""
    return Claim(held.task, "", 0.0)


def _outcome(held: HeldTask, raised: Exception | None) -> Outcome:
    if held.settled is not None:
        return Outcome.SUCCEEDED
    if held.failed is None:
        return Outcome.UNSETTLED
    if held.failed.status is TaskStatus.FAILURE:
        return Outcome.FAILED
    return Outcome.RELEASED if isinstance(raised, Busy) else Outcome.RETRIED
