"""The worker: claim what can start now, run it, settle it, until stopped."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.errors import StoreError
from freshq.worker.capacity import Capacity
from freshq.worker.leases import LeaseRenewal
from freshq.worker.options import parse_worker_options
from freshq.worker.pause import ClaimPause
from freshq.worker.report import Outcome, RunReport
from freshq.worker.runner import checked_runner
from freshq.worker.runs import TaskRuns
from freshq.worker.settle import settle_until_lost, settlement_of, too_late_to_run
from freshq.worker.upkeep import BackgroundUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue
    from freshq.worker.options import WorkerConfig, WorkerOptions
    from freshq.worker.runner import Runner
    from freshq.worker.runs import TaskRun
    from freshq.worker.settle import Settlement

    # A condition, a time in seconds since the epoch, or None: only `Worker.stop` ends the run.
    Until: TypeAlias = Callable[[], bool] | float | None

logger = logging.getLogger(__name__)

# Overrunning threads after which the worker stops: each keeps its memory and whatever else it holds.
MAX_OVERRUNNING: Final = 32


class Worker:
    """Runs tasks in threads. Claims no more than it can start, and refills a slot as soon as it is free.

    A lease is extended while its task runs, so it may be shorter than the work. If the process dies, the
    leases expire and the sweep returns the tasks.

    After `max_run_seconds` a run no longer has its lease extended, and its slot is free for another task.
    When the lease expires the task waits again with its attempt counted, or becomes a dead letter after its
    last one. Python cannot stop a thread: a run that hangs continues until it returns, in parallel with the
    next attempt, and cannot settle once its lease has expired. Set timeouts on the runner's own calls; the
    limit is for what they miss. The threads do not keep the process alive.

    An outage of the store does not end the worker, unless it lasts for `give_up_seconds`: it claims with
    backoff, and runs that ended settle when the store is back. Whatever a runner raises ends only the
    attempt; an unexpected exception is logged with its traceback, so keep secrets out of its text.
    """

    def __init__(self, queue: BaseQueue, runner: Runner, **options: Unpack[WorkerOptions]) -> None:
        """Prepare a worker; `run` starts it.

        Args:
            queue: The queue to claim from.
            runner: Does the work: returns a result, or raises Retry, Reject or Busy.
            **options: See `freshq.worker.options.WorkerConfig`.

        Raises:
            ValueError: If an option is wrong, or the runner is not callable or `async def`.
        """
        self._queue = queue
        self._runner = checked_runner(runner)
        self._config = parse_worker_options(options)
        self._capacity = Capacity(queue, self._config)
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Stop claiming; `run` returns once the running tasks are settled. Safe in a signal handler."""
        self._stopping.set()
        self._wake.set()

    def run(self, until: Until = None) -> RunReport:
        """Work until stopped.

        Args:
            until: A condition, checked before each claim, or a time in seconds since the epoch by the
                queue's clock; None: until `stop`, or until idle for `idle_exit_seconds`.

        Returns:
            What was done. It also returns when `MAX_OVERRUNNING` runs have exceeded `max_run_seconds` and
            are still running, since only the end of the process ends their threads.

        Raises:
            StoreError: If claims failed for `give_up_seconds`, after waiting for the running tasks.
        """
        run = _WorkerRun(self._queue, self._runner, self._config, self._capacity, self._wake)
        try:
            run.work(self._condition(until))
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


class _WorkerRun:
    """One call of `Worker.run`."""

    def __init__(
        self,
        queue: BaseQueue,
        runner: Runner,
        config: WorkerConfig,
        capacity: Capacity,
        wake: threading.Event,
    ) -> None:
        self.report = RunReport()
        self._queue = queue
        self._runner = runner
        self._config = config
        self._capacity = capacity
        self._wake = wake
        self._observer = config.observer_or_log()
        self._runs = TaskRuns(on_end=wake.set)
        self._pause = ClaimPause(queue.uniform)
        self._renewal = LeaseRenewal(
            queue, self._runs, config.poll_seconds, config.max_run_seconds, self._overran
        )
        self._upkeep = BackgroundUpkeep(queue)
        self._last_work = time.monotonic()
        self._draining = threading.Event()

    def work(self, ended: Callable[[], bool]) -> None:
        """Claim, run and settle tasks until the end; then wait for those still running."""
        with self._renewal, self._upkeep:
            try:
                self._serve(ended)
            finally:
                self._draining.set()
                self._drain()

    def _serve(self, ended: Callable[[], bool]) -> None:
        while not self._has_ended(ended) and not self._too_many_overrunning():
            for claim in self._claim():
                self._capacity.started()
                self._runs.start(claim, self._queue.now(), self._run_and_settle)
            if self._is_idle():
                self.report.idle = True
                return
            self._wait(self._capacity.pause_seconds(len(self._runs.running), self._config.poll_seconds))

    def _has_ended(self, ended: Callable[[], bool]) -> bool:
        """Return whether the run is to end; a condition that asks a store that is down is asked again."""
        try:
            return ended()
        except StoreError as error:
            if not self._pause.active:
                self._store_failed(error)
            return False

    def _claim(self) -> list[Claim]:
        """Claim what can start now, unless a pause is on."""
        if self._pause.active or self._settles_late():
            return []
        try:
            limit = self._capacity.available(len(self._runs.running))
            claims = self._queue.claim(limit) if limit > 0 else []
        except StoreError as error:
            self._store_failed(error)
            return []
        self._pause.claim_answered()
        self.report.claimed += len(claims)
        for claim in claims:
            self._observer.claimed(claim, self._queue.now() - claim.task.created)
        for switch in self._queue.take_order_switches():
            self._observer.switched(switch)
        return claims

    def _settles_late(self) -> bool:
        """Return whether a claim could take a task that is done here, but not settled since an outage."""
        runs = [run for run in self._runs.running if run.unsettled]
        return any(run.claim.lease_until <= self._queue.now() for run in runs)

    def _store_failed(self, error: StoreError) -> None:
        """Pause before the next claim; raise the error if the outage has lasted for `give_up_seconds`."""
        self._pause.claim_failed()
        give_up_seconds = self._config.give_up_seconds
        if give_up_seconds is not None and self._pause.outage_seconds >= give_up_seconds:
            raise error
        logger.warning(
            "claim %d failed, %.1f s without an answer, trying again: %s",
            self._pause.failed_claims,
            self._pause.outage_seconds,
            error,
            exc_info=error if self._pause.failed_claims == 1 else None,
        )

    def _run_and_settle(self, run: TaskRun) -> Outcome:
        """Run one task and settle it, in the thread of the run."""
        claim = run.claim
        started = time.monotonic()
        settlement = too_late_to_run(self._queue, claim) or self._ran(claim)
        run_seconds = time.monotonic() - started
        if settlement.downstream_ok is not None:
            self._capacity.ended(downstream_ok=settlement.downstream_ok)
        outcome = settle_until_lost(run, self._queue, settlement.settle, draining=self._draining.is_set)
        self._observer.settled(claim, outcome, run_seconds, settlement.error)
        return outcome

    def _ran(self, claim: Claim) -> Settlement:
        if claim.task.attempts == 1:
            self._capacity.first_attempt()
        return settlement_of(self._queue, claim, self._runner, self._capacity.may_retry)

    def _wait(self, seconds: float) -> None:
        """Wait until a run ends, a slot is freed or the time is over; count the runs that ended."""
        self._wake.wait(seconds)
        self._wake.clear()
        self._renewal.check()
        self._upkeep.check()
        self._count_ended()

    def _count_ended(self) -> None:
        for run in self._runs.take_ended():
            self._last_work = time.monotonic()
            outcome = run.ended.result()
            self.report.outcomes[outcome] += 1
            if outcome is Outcome.RELEASED:
                self._pause.run_was_busy()
            elif outcome is Outcome.SUCCEEDED:
                self._pause.run_succeeded()

    def _is_idle(self) -> bool:
        """Return whether there was nothing to claim or to run for `idle_exit_seconds`.

        A worker that could not look, because of the store or its rate, is not idle.
        """
        now = time.monotonic()
        held_up = self._pause.active or self._pause.failed_claims or self._capacity.awaits_token
        if self._runs.running or held_up:
            self._last_work = now
            return False
        limit_seconds = self._config.idle_exit_seconds
        return limit_seconds is not None and now - self._last_work >= limit_seconds

    def _drain(self) -> None:
        """Wait for the running tasks, and report those that did not end in time."""
        seconds = self._config.drain_seconds
        end = float("inf") if seconds is None else time.monotonic() + seconds
        self._count_ended()
        while self._runs.running and (left_seconds := end - time.monotonic()) > 0:
            self._wait(min(self._config.poll_seconds, left_seconds))
        unfinished = [*self._runs.running, *self._runs.overrunning]
        self.report.unfinished = [run.claim.task.task_id for run in unfinished]

    def _overran(self, run: TaskRun, run_seconds: float) -> None:
        self.report.overran.append(run.claim.task.task_id)
        self._observer.overran(run.claim, run_seconds)
        self._wake.set()

    def _too_many_overrunning(self) -> bool:
        """Return whether more threads hang than the process should tolerate."""
        overrunning = len(self._runs.overrunning)
        if overrunning < MAX_OVERRUNNING:
            return False
        logger.error(
            "stopped: %d runs exceeded %s s and are still running; restart the process",
            overrunning,
            self._config.max_run_seconds,
        )
        return True
