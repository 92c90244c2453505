"""The loop of a worker that holds its tasks under leases."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import LeaseLost, StoreError
from freshq.worker.leases import LeaseRenewal
from freshq.worker.loop import WorkLoop
from freshq.worker.report import Outcome
from freshq.worker.runs import TaskRuns, in_thread
from freshq.worker.settle import (
    completed,
    ran_once,
    settle_until_lost,
    settlement_of,
    too_late_to_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue
    from freshq.worker.capacity import Capacity
    from freshq.worker.loop import EndRequest
    from freshq.worker.options import WorkerConfig
    from freshq.worker.runner import Runner
    from freshq.worker.runs import TaskRun
    from freshq.worker.settle import Settlement

logger = logging.getLogger(__name__)

# How long a worker that is to end at once waits for its leases to be given back.
GIVE_BACK_SECONDS: Final = 5.0


class LeasedLoop(WorkLoop):
    """Claims tasks, runs each in a thread while its lease is extended, and settles them."""

    def __init__(
        self,
        queue: BaseQueue,
        runner: Runner,
        config: WorkerConfig,
        capacity: Capacity,
        end_request: EndRequest,
    ) -> None:
        """Start nothing yet; the arguments besides the runner are those of `WorkLoop`."""
        super().__init__(queue, config, capacity, end_request)
        self._runner = runner
        self._runs = TaskRuns(on_end=end_request.wake.set)
        self._renewal = LeaseRenewal(
            queue, self._runs, config.poll_seconds, config.max_run_seconds, self._overran
        )

    @override
    def _background(self) -> AbstractContextManager[Any]:
        return self._renewal

    @override
    def _check_background(self) -> None:
        self._renewal.check()
        super()._check_background()

    @override
    def _in_flight(self) -> int:
        return len(self._runs.running)

    @override
    def _overrunning(self) -> int:
        return len(self._runs.overrunning)

    @override
    def _unfinished(self) -> Iterable[str]:
        runs = (*self._runs.running, *self._runs.overrunning)
        ids = (run.claim.task.task_id for run in runs)
        return (task_id for task_id in ids if task_id not in self.report.given_back)

    @override
    def _take_outcomes(self) -> Iterable[Outcome]:
        return (run.ended.result() for run in self._runs.take_ended())

    @override
    def _start_what_fits(self) -> None:
        for claim in self._claim():
            self._capacity.started()
            self._runs.start(claim, self._queue.now(), self._run_and_settle)

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
        self._store_answered()
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

    def _run_and_settle(self, run: TaskRun) -> Outcome:
        """Run one task and settle it, in the thread of the run."""
        started = time.monotonic()
        settlement = too_late_to_run(self._queue, run.claim)
        if settlement is None:
            if self._config.at_most_once:
                return self._acknowledge_and_run(run)
            settlement = self._ran(run)
        run_seconds = time.monotonic() - started
        if settlement.downstream_ok is not None:
            self._capacity.ended(downstream_ok=settlement.downstream_ok)
        outcome = self._settled(run, settlement.settle)
        self._observer.settled(run.claim, outcome, run_seconds, settlement.error)
        return outcome

    def _settled(self, run: TaskRun, settle: Callable[[], Outcome]) -> Outcome:
        return settle_until_lost(run, self._queue, settle, draining=self._draining.is_set)

    def _ran(self, run: TaskRun) -> Settlement:
        if run.claim.task.attempts == 1:
            self._capacity.first_attempt()
        return settlement_of(self._queue, run.claim, self._runner, self._capacity.may_retry)

    def _acknowledge_and_run(self, run: TaskRun) -> Outcome:
        """Complete a task, and run it only if that was stored."""
        claim = run.claim
        outcome = self._settled(run, lambda: completed(self._queue, claim))
        if outcome is not Outcome.SUCCEEDED:
            self._observer.settled(claim, outcome, 0.0, "it could not be acknowledged, so it was not run")
            return outcome
        run.acknowledged = True
        started = time.monotonic()
        ended = ran_once(claim, self._runner)
        self._capacity.ended(downstream_ok=ended.downstream_ok)
        outcome = Outcome.SUCCEEDED if ended.error is None else Outcome.FAILED
        self._observer.settled(claim, outcome, time.monotonic() - started, ended.error)
        return outcome

    def _overran(self, run: TaskRun, run_seconds: float) -> None:
        self.report.overran.append(run.claim.task.task_id)
        self._observer.overran(run.claim, run_seconds)
        self._end_request.wake.set()

    @override
    def _give_back(self) -> None:
        held = [run.claim for run in self._runs.running if not run.acknowledged]
        calls = [in_thread("freshq-give-back", partial(self._queue.release, claim)) for claim in held]
        done = wait(calls, GIVE_BACK_SECONDS).done
        for claim, call in zip(held, calls, strict=True):
            task_id = claim.task.task_id
            error = call.exception() if call in done else TimeoutError(f"{GIVE_BACK_SECONDS:g} s")
            if error is None:
                self.report.given_back.append(task_id)
            elif not isinstance(error, LeaseLost):  # it was settled meanwhile, or lost before
                logger.warning("task %s stays TAKEN until its lease expires: %s", task_id, error)
