"""The worker: take what can be started now, run it, settle it, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.errors import LeaseLost, StoreError
from freshq.model.checks import checked_seconds
from freshq.policy.retry import Backoff
from freshq.queue.shared.limits import SharedRetries
from freshq.worker.capacity import Capacity
from freshq.worker.report import LoggingObserver, Observer, Outcome, RunReport
from freshq.worker.settle import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
    from freshq.queue.base import BaseQueue
    from freshq.worker.runner import Runner

    # Told to stop by a condition, or at a time in seconds since the epoch, or only by `Worker.stop`.
    Until: TypeAlias = Callable[[], bool] | float | None

__all__ = ["LoggingObserver", "Observer", "Outcome", "RunReport", "Worker"]

logger = logging.getLogger(__name__)

# Between tries of a settling call that the store did not carry out, while the lease lasts.
SETTLE_BACKOFF: Final = Backoff(base_seconds=0.2, cap_seconds=5.0)
# Between claims while the runner says that it is busy.
BUSY_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=10.0)
# Between tries of a claim that the store did not carry out, and how many in a row are borne.
CLAIM_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=5.0)
CLAIM_TRIES: Final = 4
# Threads of runs past their limit that a process bears: each keeps its memory, and what else it holds.
MOST_OVERRUNNING: Final = 32


@dataclass(frozen=True, slots=True)
class _InWork:
    """A task in work.

    Attributes:
        claim: The claim, as it was last extended.
        began: When its run was started, in seconds by the queue's clock.
    """

    claim: Claim
    began: float


class Worker:
    """Runs tasks in threads: never claims more than it can start, refills a slot as soon as it is free.

    A lease is extended while its task runs, so it may be shorter than the work; when the process dies,
    the leases run out and the sweep returns the tasks.

    A run past `max_run_seconds` is left to itself: its lease is extended no more, and its slot is free for
    another task. When the lease has run out the task waits again, its attempt counted, or is a dead letter
    after its last one. Python cannot end a thread: what hangs goes on until it returns, beside the next
    attempt, and then settles nothing, unless its lease still lasts. Give the runner's own calls timeouts;
    the limit is for what they miss. The threads keep no process from ending.
    """

    def __init__(
        self,
        queue: BaseQueue,
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
        max_run_seconds: float | None = None,
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
            max_run_seconds: Let the lease of a task go that runs for longer; looked at every `poll_seconds`.
                None: extend it for as long as the task runs.
            observer: Is told what happens; None for the log.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._queue = queue
        self._runner = runner
        self._capacity = Capacity(queue, concurrency, rate_per_second, limit, shared_bucket)
        self._retries = None if retry_budget is None else SharedRetries(queue.store, queue.name, retry_budget)
        self._poll_seconds = checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        for name, seconds in (("idle_exit_seconds", idle_exit_seconds), ("drain_seconds", drain_seconds)):
            if seconds is not None:
                checked_seconds(name, seconds)
        if max_run_seconds is not None:
            checked_seconds("max_run_seconds", max_run_seconds, above_zero=True)
        self._max_run_seconds = max_run_seconds
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

        Returns:
            What was done; it also returns when `MOST_OVERRUNNING` runs are past their limit and still go
            on, since their threads end only with the process.

        Raises:
            StoreError: If claims kept failing; tasks in work were waited for first.
        """
        run = _Run(self._queue, self._capacity, self._observer, self._retries, self._max_run_seconds)
        try:
            self._loop(run, self._condition(until))
        finally:
            try:
                self._drain(run)
            finally:
                self._capacity.leave()
                self._queue.close()
        return run.report

    def _condition(self, until: Until) -> Callable[[], bool]:
        if until is None:
            return self._stopping.is_set
        if callable(until):
            return lambda: self._stopping.is_set() or until()
        return lambda: self._stopping.is_set() or self._queue.now() >= until

    def _loop(self, run: _Run, ended: Callable[[], bool]) -> None:
        while not ended() and not run.overrun_by_too_many():
            for claim in run.claim():
                self._capacity.started()
                self._start(run, claim)
            if self._idle_exit_seconds is not None and run.idle_for(self._idle_exit_seconds):
                run.report.idle = True
                return
            self._wake.wait(self._capacity.pause_seconds(len(run.running), self._poll_seconds))
            self._wake.clear()
            run.collect()

    def _start(self, run: _Run, claim: Claim) -> None:
        work = _InWork(claim, self._queue.now())
        future = _in_a_thread(f"freshq-run-{claim.task.task_id}", lambda: run.work(claim, self._runner))
        run.running[future] = work
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
        run.report.unfinished = [work.claim.task.task_id for work in run.unfinished()]


class _Run:
    """State of one `Worker.run`."""

    def __init__(
        self,
        queue: BaseQueue,
        capacity: Capacity,
        observer: Observer,
        retries: SharedRetries | None,
        max_run_seconds: float | None,
    ) -> None:
        self.report = RunReport()
        self.running: dict[Future[Outcome], _InWork] = {}
        self._overrunning: dict[Future[Outcome], _InWork] = {}
        self._max_run_seconds = max_run_seconds
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

    def unfinished(self) -> list[_InWork]:
        """Return what still runs, past its limit or not."""
        return [*self.running.values(), *self._overrunning.values()]

    def overrun_by_too_many(self) -> bool:
        """Return whether more threads hang than a process should bear."""
        if len(self._overrunning) < MOST_OVERRUNNING:
            return False
        logger.error(
            "stopped: %d runs are past their limit of %s s and go on; end the process to be rid of them",
            len(self._overrunning),
            self._max_run_seconds,
        )
        return True

    def collect(self) -> None:
        """Count the runs that ended, let go of those past their limit, extend the leases of the others."""
        for runs in (self.running, self._overrunning):
            for future in [future for future in runs if future.done()]:
                del runs[future]
                self._last_work = time.monotonic()
                self._count(future.result())
        now = self._queue.now()
        for future, work in list(self.running.items()):
            if self._max_run_seconds is not None and now - work.began >= self._max_run_seconds:
                self._let_go(future, now)
            elif work.claim.lease_until - now < self._queue.lease_seconds / 2:
                self.running[future] = replace(work, claim=self._extended(work.claim))

    def _count(self, outcome: Outcome) -> None:
        self.report.outcomes[outcome] += 1
        if outcome is Outcome.RELEASED:
            self._busy += 1
            self._pause(BUSY_BACKOFF, self._busy)
        elif outcome is Outcome.SUCCEEDED:
            self._busy = 0

    def _let_go(self, future: Future[Outcome], now: float) -> None:
        """Leave a run to itself; its task comes back when the lease runs out."""
        work = self._overrunning[future] = self.running.pop(future)
        self.report.overran.append(work.claim.task.task_id)
        self._observer.overran(work.claim, now - work.began)

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
        verdict = verdict_of(self._queue, claim, runner, self._may_retry)
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


def _in_a_thread(name: str, function: Callable[[], Outcome]) -> Future[Outcome]:
    """Run a function in a thread of its own, which keeps no process from ending: it may never return."""
    future: Future[Outcome] = Future()

    def run() -> None:
        try:
            outcome = function()
        except BaseException as error:  # noqa: BLE001 - raised where the future is collected
            future.set_exception(error)
        else:
            future.set_result(outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
