"""The runs of a worker: their phases and ends, and the runs that have not ended."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from freshq.errors import FreshqError, LeaseLost
from freshq.model.forks import fulfil
from freshq.model.task import RunHandle, TaskStatus, changed, give_handle, keep_run
from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from freshq.model.answers import Claim
    from freshq.model.lifecycle import Settlement
    from freshq.model.task import Progress, Task

T = TypeVar("T")
# Shortest time between two writes of the progress of a run, apart from renewals of its lease.
PROGRESS_SECONDS: Final = 5.0


class Phase(IntEnum):
    """The state of a run between its claim and its end.

    RUNNING: Its function runs, or is about to, under a lease.
    SETTLING: Its function has returned, or has not begun, and its settlement is on its way.
    FREED: The same after a success, once its slot may take another task.
    UNSETTLED: The store has not answered its settlement.
    RUNNING_ONCE: Its function runs, or is about to, after its task was completed; there is no lease.
    RETURNED: That function has returned.
    """

    RUNNING = auto()
    SETTLING = auto()
    FREED = auto()
    UNSETTLED = auto()
    RUNNING_ONCE = auto()
    RETURNED = auto()


NEXT_PHASES: Final = {
    Phase.RUNNING: {Phase.SETTLING},
    Phase.SETTLING: {Phase.SETTLING, Phase.FREED, Phase.UNSETTLED, Phase.RUNNING_ONCE},
    Phase.FREED: {Phase.UNSETTLED},
    Phase.UNSETTLED: {Phase.UNSETTLED, Phase.RUNNING_ONCE},
    Phase.RUNNING_ONCE: {Phase.RETURNED},
    Phase.RETURNED: set[Phase](),
}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        settlement: How to settle its claim.
        outcome: The outcome for the worker once the settlement is stored.
        error: Why it did not succeed; None if it did.
        downstream_ok: False if the downstream pushed back; None if the run gives no indication.
        retry_after_seconds: How long the downstream takes no requests, if it said so.
    """

    settlement: Settlement
    outcome: Outcome
    error: str | None
    downstream_ok: bool | None
    retry_after_seconds: float | None = None

    def outcome_for(self, answer: Task | FreshqError) -> Outcome:
        """Return the outcome, given the queue's answer to the settlement.

        Raises:
            FreshqError: If it is unknown whether it was stored.
        """
        if isinstance(answer, LeaseLost):
            return Outcome.CANCELLED if answer.status == TaskStatus.CANCELLED else Outcome.LEASE_LOST
        if isinstance(answer, FreshqError):
            raise answer
        if answer.status is TaskStatus.CANCELLED:
            return Outcome.CANCELLED  # a task that was put meanwhile takes its place
        # After its last attempt, or because the store had no room for its result or error.
        may_die = self.outcome in (Outcome.RETRIED, Outcome.SUCCEEDED)
        return Outcome.FAILED if may_die and answer.status is TaskStatus.FAILURE else self.outcome


@dataclass(eq=False, slots=True)
class TaskRun:
    """One run of a task.

    Attributes:
        claim: The claim, with the lease as last extended.
        started_at: When the run started, in seconds by the queue's clock; infinite while it waits for its
            batch.
        handle: Shared by the function that runs the task and the worker.
        stored: The last report that the store has.
        stored_at: When it was last written, by the queue's clock.
        phase: Its state between its claim and its end.
        ended: How it ended, or the error that ended it; None until then.
        coroutine: The future of the coroutine that runs the task; None if a thread runs it.
        began: When its function began, or, until then, when it began to wait for a slot, by the monotonic
            clock.
        has_slot: Whether it occupies a slot of the executor.
        is_released: Whether the worker released its task while it ran, and has counted it as given back; its
            end no longer counts.
        batch: The call that it shares with other tasks; None if its function takes one task.
        patience: How long it waits for a slot, as a multiple of the usual time.
    """

    patience: ClassVar[int] = 1
    claim: Claim
    started_at: float
    handle: RunHandle = field(default_factory=RunHandle)
    stored: Progress | None = None
    stored_at: float = -inf
    phase: Phase = Phase.RUNNING
    ended: Outcome | BaseException | None = None
    coroutine: Future[Any] | None = None
    began: float = 0.0
    has_slot: bool = False
    is_released: bool = False
    batch: BatchRun | None = None

    def __post_init__(self) -> None:
        """Let the function that runs the task report on it."""
        give_handle(self.claim.task, self.handle)

    def enter(self, phase: Phase) -> None:
        """Go on to a phase.

        Raises:
            RuntimeError: If that phase cannot follow the current one.
        """
        if phase not in NEXT_PHASES[self.phase]:
            msg = f"a run cannot go from {self.phase.name} to {phase.name}"
            raise RuntimeError(msg)
        self.phase = phase

    def extended(self, claim: Claim) -> None:
        """Continue with a claim whose lease is longer."""
        keep_run(claim.task, self.claim.task)
        self.claim = claim

    def await_coroutine(self, coroutine: Future[Any]) -> None:
        """Note the coroutine that runs the task; cancel it if the run was cancelled while it was started."""
        self.coroutine = coroutine
        if self.handle.why_cancelled is not None:
            coroutine.cancel()

    def cancel(self, why: str) -> None:
        """Ask the run to stop: its function sees `task.cancelled`, and a coroutine is cancelled.

        The coroutine of a batch is cancelled once all its runs are.
        """
        self.handle.why_cancelled = why
        coroutine = self.coroutine if self.batch is None else self.batch.unwanted_coroutine
        if coroutine is not None:
            coroutine.cancel()

    def lose(self, lost: LeaseLost) -> None:
        """Note that the claim no longer holds the task, and ask its function to stop.

        If no function runs under the lease, the run's own settlement may have ended the lease; its answer
        will tell.
        """
        if self.phase is Phase.RUNNING:
            self.handle.lost = lost
            self.cancel(f"its task is {lost.status or 'deleted'} now")

    @property
    def runs(self) -> bool:
        """Whether its function runs or is about to."""
        return self.phase in (Phase.RUNNING, Phase.RUNNING_ONCE)

    @property
    def is_complete(self) -> bool:
        """Whether its task was completed before its function began."""
        return self.phase in (Phase.RUNNING_ONCE, Phase.RETURNED)

    @property
    def is_held(self) -> bool:
        """Whether it has a lease, as far as it knows."""
        return not self.is_complete and self.handle.lost is None

    def has_news(self, now: float) -> bool:
        """Return whether there is a report to store, and the last one was stored long enough ago."""
        reported = self.handle.reported
        return reported is not None and reported != self.stored and now - self.stored_at >= PROGRESS_SECONDS

    def claim_to_settle(self) -> Claim:
        """Return the claim with the last report, which its settlement stores."""
        reported = self.handle.reported
        if reported is None:
            return self.claim
        claimed = self.claim.task
        task = changed(claimed, progress_fraction=reported.fraction, progress_step=reported.step)
        keep_run(task, claimed)
        return replace(self.claim, task=task)


@dataclass(eq=False, slots=True)
class BatchRun:
    """One call of a handler for several tasks. It takes one slot, from its first task on.

    Attributes:
        runs: The runs of the tasks, all of one kind.
        opened_at: When the first task came, by the monotonic clock.
        problem: Why the handler cannot be called; None if it can.
        coroutine: The future of the coroutine of the call; None if a thread makes it.
        began: As in `TaskRun`.
        has_slot: As in `TaskRun`.
        started: The runs whose tasks the function gets; the others were put back.
        ended: How many of the runs the claim loop has counted as ended.
        patience: As in `TaskRun`; more, because more would be claimed in vain.
    """

    patience: ClassVar[int] = 5
    runs: list[TaskRun]
    opened_at: float
    problem: BaseException | None = None
    coroutine: Future[Any] | None = None
    began: float = 0.0
    has_slot: bool = False
    started: list[TaskRun] = field(default_factory=list)
    ended: int = 0

    def await_coroutine(self, coroutine: Future[Any]) -> None:
        """Note the coroutine of the call; cancel it if all runs were cancelled while it was started."""
        self.coroutine = coroutine
        if self.unwanted_coroutine is not None:
            coroutine.cancel()

    @property
    def unwanted_coroutine(self) -> Future[Any] | None:
        """Its coroutine if all its runs were cancelled; None if it has none, or some were not."""
        is_wanted = any(run.handle.why_cancelled is None for run in self.started)
        return None if is_wanted else self.coroutine


def runs_of(calls: Iterable[TaskRun | BatchRun]) -> list[TaskRun]:
    """Return the runs of calls."""
    return [run for call in calls for run in ([call] if isinstance(call, TaskRun) else call.runs)]


def ended_calls(runs: Iterable[TaskRun]) -> Iterator[TaskRun | BatchRun]:
    """Count runs as ended, and yield the calls whose runs have all ended."""
    for run in runs:
        if run.batch is None:
            yield run
            continue
        run.batch.ended += 1
        if run.batch.ended == len(run.batch.runs):
            yield run.batch


class TaskRuns:
    """The runs that have not ended. Thread-safe: the claim loop, lease renewal and the executor share it."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """Begin without runs.

        Args:
            on_end: Called when slots are freed and when a run ends, from any thread.
        """
        self._on_end = on_end
        self._lock = threading.Lock()
        # Oldest first.
        self._running: dict[TaskRun, None] = {}
        self._overrunning: dict[TaskRun, None] = {}
        self._ended: list[TaskRun] = []
        self._succeeded: list[TaskRun] = []

    @property
    def running(self) -> list[TaskRun]:
        """The runs within their time limit, and returned runs, until they are settled."""
        with self._lock:
            return list(self._running)

    @property
    def overrunning(self) -> list[TaskRun]:
        """The runs past their time limit whose functions have not returned."""
        with self._lock:
            return list(self._overrunning)

    def occupied(self, slots: int) -> int:
        """Return the number of occupied slots; the runs of a batch share one.

        A run that has succeeded frees its slot before it is settled, so that another task can be claimed in
        the meantime: at most as many runs as there are slots, and no run whose settlement failed.

        Args:
            slots: Number of slots.
        """
        with self._lock:
            calls = {run.batch or run for run in self._running}
            held = {run.batch or run for run in self._running if run.phase is not Phase.FREED}
        return len(held) + max(0, len(calls) - len(held) - slots)

    def tasks(self, slots: int) -> int:
        """Return the number of tasks that run or wait here, as `occupied` counts slots."""
        with self._lock:
            freed = sum(run.phase is Phase.FREED for run in self._running)
            return len(self._running) - min(freed, slots)

    def settles(self, run: TaskRun, *, frees_slot: bool = False) -> None:
        """Note that a settlement of a run is on its way, and that its function does not run.

        Args:
            run: The run. It no longer counts as past its time limit: the worker waits until it is settled.
            frees_slot: Whether `free_succeeded` frees its slot before it is settled.
        """
        with self._lock:
            run.enter(Phase.RETURNED if run.is_complete else Phase.SETTLING)
            if run in self._overrunning:
                del self._overrunning[run]
                self._running[run] = None
            if frees_slot:
                self._succeeded.append(run)

    def free_succeeded(self) -> None:
        """Free the slots of all runs that have succeeded since the last call."""
        with self._lock:
            over, self._succeeded = self._succeeded, []
            for run in over:
                run.enter(Phase.FREED)
        if over:
            self._on_end()

    def begin(self, claim: Claim, now: float) -> TaskRun:
        """Return a new run."""
        run = TaskRun(claim, now)
        with self._lock:
            self._running[run] = None
        return run

    def end(self, run: TaskRun, ended: Outcome | BaseException) -> None:
        """Record how a run ended, or the error that ended it."""
        with self._lock:
            run.ended = ended
            self._ended.append(run)
        self._on_end()

    def abandon(self, run: TaskRun) -> bool:
        """Free the slot of a run past its time limit; return False if its function has just returned."""
        with self._lock:
            if not run.runs or run.ended is not None or run not in self._running:
                return False
            del self._running[run]
            self._overrunning[run] = None
            return True

    def take_ended(self) -> list[TaskRun]:
        """Remove the runs that ended, and return them."""
        with self._lock:
            ended, self._ended = self._ended, []
            for run in ended:
                self._running.pop(run, None)
                self._overrunning.pop(run, None)
        return ended


def in_thread(name: str, function: Callable[[], T], ended: Future[T] | None = None) -> Future[T]:
    """Call a function in a new daemon thread, which does not keep the process alive if it never returns."""
    future = Future() if ended is None else ended
    try:
        threading.Thread(target=partial(fulfil, future, function), name=name, daemon=True).start()
    except RuntimeError as error:  # the system has no thread left: tell the caller who waits for this one
        future.set_exception(error)
    return future
