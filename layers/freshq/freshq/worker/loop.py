"""The loop of a worker: one round after the other until it stops, and the backoff of its claims."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import StoreError, is_shortage
from freshq.policy.retry import Backoff, equal_jitter
from freshq.queue.core import core_of
from freshq.queue.polling import Fetcher
from freshq.queue.stopping import StopRequest, Wake
from freshq.worker.background import BackgroundUpkeep
from freshq.worker.feedback import RunFeedback
from freshq.worker.report import Outcome, RunReport, WorkerState, WorkerStatus
from freshq.worker.settle import OUTAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from freshq.queue.base import BaseQueue
    from freshq.worker.limits import StartLimits
    from freshq.worker.options import WorkerConfig

BUSY_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=10.0)
# A worker claims again at most this long after a store is back: one claim a second is little even for many
# processes, each at a time of its own.
CLAIM_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=1.0)
logger = logging.getLogger(__name__)
# Longest time between two rounds, each of which asks whether to end.
ROUND_SECONDS: Final = 0.5
MIN_SECONDS: Final = 0.001
# Minimum time between two looks of a worker that ends when it is idle.
LEAST_IDLE_SECONDS: Final = 0.05
# The worker ends with the error if the system has lacked a resource that it needs for this time.
SHORTAGE_SECONDS: Final = 60.0
# A shortage this long after the last one is another shortage.
SHORTAGE_GAP_SECONDS: Final = 10.0
# Number of overrunning threads at which the worker stops: each keeps its memory and other resources.
MAX_OVERRUNNING: Final = 32


class ClaimBackoff:
    """Backs off after failed claims, and after runs for which the downstream was busy.

    Attributes:
        failed_claims: Failed claims in a row.
    """

    def __init__(self, uniform: Callable[[], float]) -> None:
        """Begin without a wait.

        Args:
            uniform: Returns a random number from [0, 1).
        """
        self.failed_claims = 0
        self._busy_runs = 0
        self._failing_since = 0.0
        self._uniform = uniform
        self._until = 0.0

    @property
    def active(self) -> bool:
        """Whether it is too early to claim."""
        return time.monotonic() < self._until

    @property
    def left_seconds(self) -> float:
        """Time until the next claim; infinite if it need not wait."""
        left = self._until - time.monotonic()
        return left if left > 0 else inf

    @property
    def outage_seconds(self) -> float:
        """Time since the first of the failed claims; 0 if the last claim did not fail."""
        return time.monotonic() - self._failing_since if self.failed_claims else 0.0

    def claim_failed(self) -> None:
        """Back off because the store did not answer."""
        if not self.failed_claims:
            self._failing_since = time.monotonic()
        self.failed_claims += 1
        self._begin(CLAIM_BACKOFF, self.failed_claims)

    def claim_answered(self) -> None:
        """Forget the failed claims."""
        self.failed_claims = 0

    def run_was_busy(self) -> None:
        """Back off because the downstream has no capacity. Runs that say so together count as one."""
        if self.active and self._busy_runs:
            return
        self._busy_runs += 1
        self._begin(BUSY_BACKOFF, self._busy_runs)

    def run_succeeded(self) -> None:
        """Forget the busy runs."""
        self._busy_runs = 0

    def _begin(self, backoff: Backoff, times: int) -> None:
        self._until = time.monotonic() + backoff.delay_seconds(times, equal_jitter(self._uniform()))


@dataclass(slots=True)
class EndRequest(StopRequest):
    """A request to end a worker: to start nothing more, and wait for the running tasks.

    Attributes:
        at_once: Do not wait for them either.
        asked_at: When the shutdown began, by the monotonic clock; None until then.
        told: Tells the thread that waits for the loop.
        idle: Whether the worker has nothing to do, or has ended.
        peers: The requests of workers with which it ends: it is not idle before they are, because their tasks
            may put tasks for it.
    """

    at_once: bool = False
    asked_at: float | None = None
    told: Wake = field(default_factory=Wake)
    idle: bool = False
    peers: Sequence[EndRequest] = ()

    @override
    def make(self) -> None:
        """Ask the run to stop."""
        self.made = True
        self.begin()

    def begin(self) -> None:
        """Note that the shutdown begins, and tell both threads."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        self.wake.set()
        self.told.set()


def _idle_look_seconds(config: WorkerConfig) -> float:
    """Return the time after which a worker looks whether it is idle."""
    limit_seconds = config.idle_exit_seconds
    return inf if limit_seconds is None else max(limit_seconds, LEAST_IDLE_SECONDS)


class WorkLoop(ABC):
    """One call of `Worker.run`. Subclasses decide how tasks are held."""

    def __init__(
        self, queue: BaseQueue, config: WorkerConfig, limits: StartLimits, end_request: EndRequest
    ) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            config: The options.
            limits: How many tasks may start.
            end_request: Tells the loop when to end.
        """
        self.report = RunReport()
        self._queue = queue
        self._config = config
        self._limits = limits
        self._end_request = end_request
        self._feedback = RunFeedback(queue, config, limits, self.report)
        self._backoff = ClaimBackoff(core_of(queue).uniform)
        self._fetcher = Fetcher(core_of(queue), min(config.poll_seconds, _idle_look_seconds(config)))
        self._breaker = limits.breaker
        self._upkeep = BackgroundUpkeep(queue, self._settles_late, self._is_at_rest, self._breaker.share)
        self._last_work = self._turned_at = time.monotonic()
        # Whether the limits left room for a task at the last look.
        self._had_room = True
        self._draining = threading.Event()
        self._answered = False
        # Since when, and when last, the system lacked a resource, by the monotonic clock.
        self._short_since = self._short_at = -inf
        # Nobody waits for this loop any longer.
        self._abandoned = False

    def work(self, ended: Callable[[], bool]) -> None:
        """Run tasks until the end; then wait for those still running."""
        with self._background(), self._upkeep:
            try:
                with self._fetcher.signal.calling(self._end_request.wake.set):
                    self._serve(ended)
            finally:
                self._draining.set()
                self._end_request.begin()
                self._drain()
            self._feedback.raise_failure()

    def status(self) -> WorkerStatus:
        """Return the state of the loop. Any thread may call it."""
        return WorkerStatus(
            state=WorkerState.DRAINING if self._draining.is_set() else WorkerState.WORKING,
            running=self._in_flight(),
            claimed=self.report.claimed,
            outcomes=dict(self.report.outcomes),
            overran=len(self.report.overran),
            turned_seconds=time.monotonic() - self._turned_at,
            slowed=self._breaker.slows,
            store_answers=self._answered and not self._backoff.failed_claims and not self._upkeep.failing,
        )

    def abandon(self) -> None:
        """Report the tasks that still run; tasks that the loop still claims are given back."""
        self._abandoned = True
        self.report.unfinished = list(self._unfinished())

    @abstractmethod
    def _start_what_fits(self) -> None:
        """Take the tasks that can start now, and start them."""

    @abstractmethod
    def _in_flight(self) -> int:
        """Return the number of tasks that occupy a slot."""

    @abstractmethod
    def _take_outcomes(self) -> Iterable[Outcome | BaseException]:
        """Return the outcomes of the runs ended since the last call, or the errors that end the worker."""

    @abstractmethod
    def _unfinished(self) -> Iterable[str]:
        """Return the ids of the tasks that still run."""

    def _background(self) -> AbstractContextManager[Any]:
        """Return a block of background work that lasts until the worker has drained."""
        return nullcontext()

    def _check_background(self) -> None:
        """Raise the error of a background thread, if one failed."""
        self._upkeep.check()

    @abstractmethod
    def _is_busy(self) -> bool:
        """Return whether a drain has to wait."""

    def _has_work(self) -> bool:
        """Return whether the worker is not idle."""
        return self._is_busy()

    def _waits_for_tasks(self) -> bool:
        """Return whether a slot is free and the line had no task for it."""
        return not self._fetcher.is_due and self._in_flight() < self._config.concurrency

    def _is_at_rest(self) -> bool:
        """Return whether there is no task to run or to claim."""
        return not self._fetcher.is_due and not self._has_work()

    def _settles_late(self) -> bool:
        """Return whether others could take a task done here, but unsettled because of an outage."""
        return False

    def _overrunning(self) -> int:
        """Return the number of runs that are past their time limit and still run."""
        return 0

    def _give_back(self) -> None:
        """Return running tasks to their lines, for other workers to take."""
        return

    def _serve(self, ended: Callable[[], bool]) -> None:
        asked_at, looks, request = time.monotonic(), 0, self._end_request
        while not self._has_ended(ended) and not self._too_many_overrunning():
            round_at = time.monotonic()
            with self._surviving_shortage():
                self._start_what_fits()
            if looks != self._fetcher.looks:  # the look may have fallen due during the round
                asked_at, looks = round_at, self._fetcher.looks
            request.idle = self._is_idle(asked_at)
            if request.idle and all(peer.idle for peer in request.peers):
                self.report.idle = self._had_room
                return
            # For a free slot or token, for tasks, or for the store.
            waits = (self._config.poll_seconds, self._fetcher.left_seconds, self._backoff.left_seconds)
            seconds = min(ROUND_SECONDS, *waits)
            with self._fetcher.signal.waiting() if self._waits_for_tasks() else nullcontext():
                self._wait(self._limits.seconds_to_wait(self._in_flight(), max(MIN_SECONDS, seconds)))
            self._feedback.raise_failure()

    @contextmanager
    def _surviving_shortage(self) -> Iterator[None]:
        """Go on after an error of the block that says that the system lacks a resource."""
        try:
            yield
        except (OSError, RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            self._is_short(error)

    def _is_short(self, error: BaseException, *, fatal: bool = True) -> None:
        """Claim less while the system lacks a resource; log it once.

        Args:
            error: What it lacks.
            fatal: Whether the worker can do nothing without it.

        Raises:
            BaseException: The error, if it is fatal and has lasted for `SHORTAGE_SECONDS`.
        """
        now = time.monotonic()
        if now - self._short_at > SHORTAGE_GAP_SECONDS:
            self._short_since = now
            logger.warning("the system is short of a resource, trying again: %s", error, exc_info=error)
        self._short_at = now
        if fatal and now - self._short_since >= SHORTAGE_SECONDS:
            raise error
        if not self._backoff.active:
            self._backoff.claim_failed()

    def _has_ended(self, ended: Callable[[], bool]) -> bool:
        """Return whether the worker should end; False if the store is unavailable, and ask again later."""
        try:
            return ended()
        except StoreError as error:
            if not self._backoff.active:
                self._store_failed(error)
            return False

    def _store_answered(self) -> None:
        self._backoff.claim_answered()
        self._answered = True

    def _store_failed(self, error: StoreError) -> None:
        """Back off before the next claim.

        Raises:
            StoreError: The error, if the outage has lasted for `give_up_seconds`. Immediately if the store
                never answered, and the error is not an outage: a missing table, for example, is a mistake.
        """
        if not self._answered and not isinstance(error, OUTAGES):
            raise error
        self._backoff.claim_failed()
        give_up_seconds = self._config.give_up_seconds
        if give_up_seconds is not None and self._backoff.outage_seconds >= give_up_seconds:
            raise error
        logger.warning(
            "claim %d failed, %.1f s without an answer, trying again: %s",
            self._backoff.failed_claims,
            self._backoff.outage_seconds,
            error,
            exc_info=error if self._backoff.failed_claims == 1 else None,
        )

    def _wait(self, seconds: float) -> None:
        """Wait until a run ends, a slot is freed or the time expires; count the runs that ended."""
        self._end_request.wake.wait(seconds)
        self._turned_at = time.monotonic()
        self._check_background()
        self._count_ended()

    def _count_ended(self) -> None:
        for outcome in self._take_outcomes():
            self._last_work = time.monotonic()
            self._fetcher.look_soon()
            if isinstance(outcome, BaseException):
                self._feedback.fail(outcome)
                continue
            self.report.outcomes[outcome] += 1
            if outcome is Outcome.RELEASED:
                self._backoff.run_was_busy()
            elif outcome is Outcome.SUCCEEDED:
                self._backoff.run_succeeded()

    def _is_idle(self, asked_at: float) -> bool:
        """Return whether there was nothing to claim or to run for `idle_exit_seconds`.

        A worker that could not claim, because of the store or its rate, is not idle. Neither is a worker
        whose last claim was slow or that stalled afterwards: tasks may have arrived in the meantime.

        Args:
            asked_at: When it last began to claim, by the monotonic clock.
        """
        waits_to_claim = self._backoff.active or not self._breaker.room()
        held_up = waits_to_claim or self._backoff.failed_claims or self._limits.awaits_token
        if self._has_work() or held_up:
            self._last_work = time.monotonic()
            return False
        limit_seconds = self._config.idle_exit_seconds
        return limit_seconds is not None and asked_at - self._last_work >= limit_seconds

    def _drain(self) -> None:
        """Wait for the running tasks, and report tasks that did not end in time."""
        seconds, request = self._config.drain_seconds, self._end_request
        self._wait_while(lambda: self._is_busy() and not request.at_once, inf if seconds is None else seconds)
        if request.at_once:
            self._give_back()
        self.report.unfinished = list(self._unfinished())

    def _wait_while(self, waits: Callable[[], bool], seconds: float) -> None:
        """Count the runs that end while there is something to wait for, for at most `seconds`."""
        end = time.monotonic() + seconds
        self._count_ended()
        while waits() and (left_seconds := end - time.monotonic()) > 0:
            self._wait(min(self._config.poll_seconds, left_seconds))

    def _too_many_overrunning(self) -> bool:
        """Return whether more threads hang than the process should tolerate."""
        overrunning = self._overrunning()
        if overrunning < MAX_OVERRUNNING:
            return False
        logger.error(
            "stopped: %d runs exceeded %s s and are still running; restart the process",
            overrunning,
            self._config.max_run_seconds,
        )
        return True
