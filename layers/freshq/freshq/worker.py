"""The worker: take what can be started now, run it, settle it, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from freshq.capacity import Capacity
from freshq.checks import checked_seconds
from freshq.errors import LeaseLost, StoreError
from freshq.outcomes import Busy, Reject, Retry
from freshq.policy.retry import Backoff
from freshq.shared.limits import SharedRetries
from freshq.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
    from freshq.policy.order import OrderSwitch
    from freshq.queue import Claim, Queue
    from freshq.runner import Runner

    # Told to stop by a condition, or at a time in seconds since the epoch, or only by `Worker.stop`.
    Until: TypeAlias = Callable[[], bool] | float | None

logger = logging.getLogger(__name__)

# Between tries of a settling call that the store did not carry out, while the lease lasts.
SETTLE_BACKOFF: Final = Backoff(base_seconds=0.2, cap_seconds=5.0)
# Between claims while the runner says that it is busy.
BUSY_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=10.0)
# Between tries of a claim that the store did not carry out, and how many in a row are borne.
CLAIM_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=5.0)
CLAIM_TRIES: Final = 4


class Outcome(StrEnum):
    """How one run of a task ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    RELEASED = "released"
    LEASE_LOST = "lease_lost"
    UNSETTLED = "unsettled"


@dataclass
class RunReport:
    """What a worker did.

    Attributes:
        claimed: Tasks taken.
        outcomes: How many runs ended in which way.
        unfinished: Ids of tasks that still ran when the time to wait for them was over; they stay
            taken until their lease runs out.
        idle: Whether it stopped because nothing was left to claim.
    """

    claimed: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    unfinished: list[str] = field(default_factory=list)
    idle: bool = False

    @property
    def progress(self) -> int:
        """Runs that brought a task nearer to its end."""
        ended = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)
        return sum(self.outcomes[outcome] for outcome in ended)


class Observer(Protocol):
    """Is told what a worker does, from several threads."""

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Take note that a task was claimed at this age."""

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Take note of how a run ended."""

    def switched(self, switch: OrderSwitch) -> None:
        """Take note that an adaptive order turned round."""


class LoggingObserver:
    """Writes what a worker does to the log."""

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Log a claim."""
        logger.debug("claimed %s at the age of %.3f s", claim.task.task_id, age_seconds)

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Log how a run ended; what did not succeed stands out."""
        level = logging.DEBUG if outcome is Outcome.SUCCEEDED else logging.WARNING
        logger.log(level, "task %s %s after %.3f s: %s", claim.task.task_id, outcome, run_seconds, error)

    def switched(self, switch: OrderSwitch) -> None:
        """Log a switch."""
        end = "newest" if switch.newest_first else "oldest"
        logger.info("order: %s first, the oldest task is %.3f s old", end, switch.oldest_age_seconds)


class Worker:
    """Runs tasks in threads: never claims more than it can start, refills a slot as soon as it is free.

    A lease is extended while its task runs, so it may be shorter than the work; when the process dies,
    the leases run out and the sweep returns the tasks.
    """

    def __init__(
        self,
        queue: Queue,
        runner: Runner,
        *,
        concurrency: int = 3,
        rate_per_second: float | None = None,
        limit: ConcurrencyLimit | None = None,
        shared_bucket: SharedBucket | None = None,
        retry_budget: RetryBudget | None = None,
        poll_seconds: float = 0.5,
        idle_exit_seconds: float | None = None,
        drain_seconds: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Prepare a worker; `run` starts it.

        Args:
            queue: Where the tasks come from.
            runner: Does the work: returns a result, or raises Retry, Reject or Busy.
            concurrency: Tasks in work at a time, at the most.
            rate_per_second: Tasks started a second, at the most; None for no limit.
            limit: Tasks in work at a time over all workers of the queue: fixed, or found out from
                what the downstream says; None for no limit.
            shared_bucket: Tasks started a second over all workers of the queue; None for no limit.
            retry_budget: Retries that all workers of the queue make, at the most; a task that may not
                be tried again is a dead letter. None for no limit.
            poll_seconds: Between looks at a queue that had too little.
            idle_exit_seconds: Stop when nothing was there to claim or in work for so long; None: never.
            drain_seconds: Wait so long for tasks in work after the end; None: until they are done.
            observer: Is told what happens; None for the log.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._queue = queue
        self._runner = runner
        self._capacity = Capacity(queue, concurrency, rate_per_second, limit, shared_bucket)
        self._concurrency = concurrency
        self._retries = None if retry_budget is None else SharedRetries(queue.store, queue.name, retry_budget)
        self._poll_seconds = checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        for name, seconds in (("idle_exit_seconds", idle_exit_seconds), ("drain_seconds", drain_seconds)):
            if seconds is not None:
                checked_seconds(name, seconds)
        self._idle_exit_seconds = idle_exit_seconds
        self._drain_seconds = drain_seconds
        self._observer = observer or LoggingObserver()
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Claim no more; `run` returns once the tasks in work are settled. Safe from a signal handler."""
        self._stopping.set()
        self._wake.set()

    def run(self, until: Until = None) -> RunReport:
        """Work until told to stop.

        Args:
            until: A condition, checked before each claim, or a time in seconds since the epoch by the
                queue's clock; None: until `stop`, or until idle for `idle_exit_seconds`.

        Raises:
            StoreError: If claims kept failing; tasks in work were waited for first.
        """
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="freshq-run")
        run = _Run(self._queue, self._capacity, self._observer, self._retries)
        try:
            self._loop(run, pool, self._condition(until))
        finally:
            try:
                self._drain(run)
            finally:
                pool.shutdown(wait=not run.running, cancel_futures=True)
                self._capacity.leave()
                self._queue.close()
        return run.report

    def _condition(self, until: Until) -> Callable[[], bool]:
        if until is None:
            return self._stopping.is_set
        if callable(until):
            return lambda: self._stopping.is_set() or until()
        return lambda: self._stopping.is_set() or self._queue.now() >= until

    def _loop(self, run: _Run, pool: ThreadPoolExecutor, ended: Callable[[], bool]) -> None:
        while not ended():
            for claim in run.claim():
                self._capacity.started()
                self._start(run, pool, claim)
            if self._idle_exit_seconds is not None and run.idle_for(self._idle_exit_seconds):
                run.report.idle = True
                return
            self._wake.wait(self._capacity.pause_seconds(len(run.running), self._poll_seconds))
            self._wake.clear()
            run.collect()

    def _start(self, run: _Run, pool: ThreadPoolExecutor, claim: Claim) -> None:
        future = pool.submit(run.work, claim, self._runner)
        run.running[future] = claim
        future.add_done_callback(lambda _future: self._wake.set())

    def _drain(self, run: _Run) -> None:
        """Wait for the tasks in work, keeping their leases, and say which did not end in time."""
        end = None if self._drain_seconds is None else time.monotonic() + self._drain_seconds
        run.collect()
        while run.running and (end is None or time.monotonic() < end):
            left = self._poll_seconds if end is None else min(self._poll_seconds, end - time.monotonic())
            self._wake.wait(max(0.0, left))
            self._wake.clear()
            run.collect()
        run.report.unfinished = [claim.task.task_id for claim in run.running.values()]


class _Run:
    """State of one `Worker.run`."""

    def __init__(
        self, queue: Queue, capacity: Capacity, observer: Observer, retries: SharedRetries | None
    ) -> None:
        self.report = RunReport()
        self.running: dict[Future[Outcome], Claim] = {}
        self._queue = queue
        self._capacity = capacity
        self._observer = observer
        self._retries = retries
        self._claim_failures = 0
        self._busy = 0
        self._claim_not_before = 0.0
        self._last_work = time.monotonic()

    def claim(self) -> list[Claim]:
        """Take what may be started now, unless a pause is on; bear a failing store for some tries."""
        if time.monotonic() < self._claim_not_before:
            return []
        try:
            limit = self._capacity.available(len(self.running))
            claims = self._queue.claim(limit) if limit > 0 else []
        except StoreError:
            self._claim_failures += 1
            if self._claim_failures >= CLAIM_TRIES:
                raise
            logger.warning("claim failed, try %d of %d", self._claim_failures, CLAIM_TRIES, exc_info=True)
            self._pause(CLAIM_BACKOFF, self._claim_failures)
            return []
        self._claim_failures = 0
        self.report.claimed += len(claims)
        for claim in claims:
            self._observer.claimed(claim, self._queue.now() - claim.task.created)
        for switch in self._queue.take_order_switches():
            self._observer.switched(switch)
        return claims

    def idle_for(self, seconds: float) -> bool:
        """Return whether nothing was there to do for so long; not to be able to look is not idleness."""
        now = time.monotonic()
        held_up = now < self._claim_not_before or self._claim_failures or self._capacity.awaits_token
        if self.running or held_up:
            self._last_work = now
            return False
        return now - self._last_work >= seconds

    def collect(self) -> None:
        """Count the runs that ended, and extend the leases of the others."""
        for future in [future for future in self.running if future.done()]:
            del self.running[future]
            self._last_work = time.monotonic()
            outcome = future.result()
            self.report.outcomes[outcome] += 1
            if outcome is Outcome.RELEASED:
                self._busy += 1
                self._pause(BUSY_BACKOFF, self._busy)
            elif outcome is Outcome.SUCCEEDED:
                self._busy = 0
        for future, claim in self.running.items():
            if claim.lease_until - self._queue.now() < self._queue.lease_seconds / 2:
                self.running[future] = self._extended(claim)

    def _extended(self, claim: Claim) -> Claim:
        try:
            return self._queue.extend(claim, self._queue.lease_seconds)
        except LeaseLost:
            return claim  # just settled, or lost: the run itself finds out and says so
        except StoreError:
            logger.warning("lease of task %s was not extended", claim.task.task_id, exc_info=True)
            return claim

    def _pause(self, backoff: Backoff, times: int) -> None:
        # Between half and all of the bound: a pause of nothing would be no pause.
        pause_seconds = backoff.delay_seconds(times, 0.5 + self._queue.uniform() / 2)
        self._claim_not_before = time.monotonic() + pause_seconds

    def work(self, claim: Claim, runner: Runner) -> Outcome:
        """Run one task and settle it."""
        if self._retries is not None and claim.task.attempts == 1:
            self._retries.first_attempt()
        started = time.monotonic()
        verdict = _verdict(self._queue, claim, runner, self._may_retry)
        run_seconds = time.monotonic() - started
        if verdict.downstream is not None:
            self._capacity.ended(well=verdict.downstream)
        outcome = self._settled(claim, verdict.settle)
        self._observer.settled(claim, outcome, run_seconds, verdict.error)
        return outcome

    def _may_retry(self) -> bool:
        return self._retries is None or self._retries.spend()

    def _settled(self, claim: Claim, settle: Callable[[], Outcome]) -> Outcome:
        """Settle, trying again while the lease lasts if the store does not answer."""
        tries = 0
        while True:
            try:
                return settle()
            except LeaseLost:
                return Outcome.LEASE_LOST
            except StoreError:
                tries += 1
                pause_seconds = SETTLE_BACKOFF.delay_seconds(tries, self._queue.uniform())
                if self._queue.now() + pause_seconds >= claim.lease_until:
                    logger.exception("task %s stays taken until its lease runs out", claim.task.task_id)
                    return Outcome.UNSETTLED
                time.sleep(pause_seconds)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a run came to.

    Attributes:
        settle: Settles the claim.
        error: What went wrong, if anything did.
        downstream: Whether what the task called did well; None if the run says nothing about it.
    """

    settle: Callable[[], Outcome]
    error: str | None
    downstream: bool | None


def _verdict(queue: Queue, claim: Claim, runner: Runner, may_retry: Callable[[], bool]) -> _Verdict:
    """Run a task, and say what came of it."""
    try:
        result = runner(claim.task)
    except Busy as busy:
        return _Verdict(lambda: _released(queue, claim), str(busy), downstream=False)
    except Reject as reject:
        error = str(reject)
        return _Verdict(lambda: _failed(queue, claim, error), error, downstream=None)
    except Retry as retry:
        error, delay_seconds = str(retry), retry.delay_seconds
    except Exception as unexpected:  # noqa: BLE001 - whatever the user's code raises is kept with its task
        error, delay_seconds = f"{type(unexpected).__name__}: {unexpected}", None
    else:
        return _Verdict(lambda: _completed(queue, claim, result), None, downstream=True)
    if not queue.is_last_attempt(claim) and not may_retry():
        error += "; not tried again: the retry budget is spent"
        return _Verdict(lambda: _failed(queue, claim, error), error, downstream=False)
    return _Verdict(lambda: _retried(queue, claim, error, delay_seconds), error, downstream=False)


def _completed(queue: Queue, claim: Claim, result: Any) -> Outcome:  # noqa: ANN401 - any JSON value
    try:
        queue.complete(claim, result)
    except ValueError as error:
        # The work is done, but its result cannot be kept, nor could that of another attempt.
        return _failed(queue, claim, str(error))
    return Outcome.SUCCEEDED


def _failed(queue: Queue, claim: Claim, error: str) -> Outcome:
    queue.fail(claim, error)
    return Outcome.FAILED


def _retried(queue: Queue, claim: Claim, error: str, delay_seconds: float | None) -> Outcome:
    task = queue.retry(claim, error, delay_seconds)
    return Outcome.FAILED if task.status is TaskStatus.FAILURE else Outcome.RETRIED


def _released(queue: Queue, claim: Claim) -> Outcome:
    queue.release(claim)
    return Outcome.RELEASED
