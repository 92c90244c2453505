"""The loop of a worker that holds its tasks under leases.

    Fetcher -> LeaseLoop -> Executor -> Performer -> Completer
     when       claims       threads     runs         settles

The loop is one thread. In each round it claims as many tasks as `ClaimRoom` has room for, and passes them to
the executor; tasks of batch handlers first wait in `WaitingRuns` for others to share their call. The loop
gives back tasks that get no slot in time. The threads of the executor run and settle the tasks, while
`LeaseRenewal` extends their leases.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.answers import Claims
from freshq.model.lifecycle import Settlement
from freshq.worker.background import LeaseRenewal
from freshq.worker.batches import WaitingRuns
from freshq.worker.loop import MIN_SECONDS, WorkLoop
from freshq.worker.performer import Performer
from freshq.worker.report import Outcome, task_logger
from freshq.worker.run import Phase, TaskRuns, ended_calls, runs_of
from freshq.worker.settle import Completer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.queue.base import BaseQueue
    from freshq.worker.executor import Executor
    from freshq.worker.limits import StartLimits
    from freshq.worker.loop import EndRequest
    from freshq.worker.options import WorkerConfig
    from freshq.worker.run import TaskRun

logger = task_logger(__name__)

# How long `stop_at_once` waits until finished runs are settled and the other tasks are given back.
GIVE_BACK_SECONDS: Final = 5.0
STOPPED: Final = "the worker was stopped immediately"
# If a wait takes this much longer than asked, this thread did not get the processor.
STALL_SECONDS: Final = 0.005


class ClaimRoom:
    """How many tasks a worker may claim: for its free slots, and for slots that are about to be free.

    A call takes one slot, and is one task or a batch.
    """

    def __init__(
        self,
        config: WorkerConfig,
        limits: StartLimits,
        runs: TaskRuns,
        waiting: WaitingRuns,
        executor: Executor,
    ) -> None:
        """Keep no counts: the arguments have them.

        Args:
            config: The options.
            limits: How many tasks may start.
            runs: The runs that have not ended.
            waiting: The tasks that wait for others of their batch.
            executor: Knows how long runs take.
        """
        self._config = config
        self._limits = limits
        self._runs = runs
        self._waiting = waiting
        self._executor = executor

    def held(self) -> int:
        """Return the number of calls that occupy a slot or wait for one."""
        return self._runs.occupied(self.slots())

    def slots(self) -> int:
        """Return the number of calls that may be held: as many as run, and those claimed ahead."""
        return self._config.concurrency + self._prefetched()

    def _prefetched(self) -> int:
        """Return the number of tasks, or with batches of calls, that may be claimed beyond the free slots."""
        if not self._config.may_prefetch:
            return 0
        return self._waiting.ending() if self._waiting.rules else self._executor.prefetched()

    def has_slot(self) -> bool:
        """Return whether another task could start if the limits allow it."""
        if self._waiting.rules:
            return self._of_batches(self.slots()) > 0
        return self.held() < self._config.concurrency

    def _of_batches(self, slots: int) -> int:
        """Return for how many tasks there is room if some share calls, and `slots` calls may be held."""
        return self._waiting.room(slots - self.held())

    def tasks(self, slots: int) -> int:
        """Return the number of tasks to claim, if that many calls may be held.

        Raises:
            StoreError: If the store did not answer a request for shared slots or tokens.
        """
        if self._waiting.rules:
            occupied = self._runs.tasks(self._config.concurrency)
            available = self._limits.available(occupied, self._of_batches(slots))
        else:
            available = self._limits.available(self.held()) + slots - self._config.concurrency
        return int(min(available, self._limits.breaker.room()))


class LeaseLoop(WorkLoop):
    """Claims tasks, and has each run in a thread of an executor while its lease is extended."""

    def __init__(
        self,
        queue: BaseQueue,
        runner: Any,
        config: WorkerConfig,
        limits: StartLimits,
        end_request: EndRequest,
        event_loop: asyncio.AbstractEventLoop | None,
        codec: Codec,
    ) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            runner: Runs the tasks.
            config: The options.
            limits: How many tasks may start.
            end_request: Asks the loop to end.
            event_loop: For the coroutines of the runner; None for its own loop.
            codec: Encodes the runner's results.
        """
        super().__init__(queue, config, limits, end_request)
        self._runs = TaskRuns(on_end=end_request.wake.set)
        self._waiting = WaitingRuns(queue, runner)
        self._completer = Completer(queue, self._runs, self._feedback, self._draining.is_set)
        common = (queue, runner, config, limits, end_request, event_loop, codec)
        performer = Performer(*common, self._runs, self._waiting, self._completer, self._feedback)
        self._executor = performer.executor
        self._room = ClaimRoom(config, limits, self._runs, self._waiting, self._executor)
        # The processes of isolated runs are ended instead.
        limit_seconds = None if config.isolate else config.max_run_seconds
        self._renewal = LeaseRenewal(queue, self._runs, config.poll_seconds, limit_seconds, self._overran)

    @override
    @contextmanager
    def _background(self) -> Iterator[None]:
        try:
            with self._renewal:
                yield
        finally:
            self._executor.close()

    @override
    def _check_background(self) -> None:
        self._renewal.check()
        self._wake_executor()
        super()._check_background()

    def _wake_executor(self) -> None:
        """Have claimed tasks run; the next check tries again if the system has no thread left.

        Raises:
            RuntimeError: If none of the tasks had a thread for `SHORTAGE_SECONDS`.
        """
        try:
            self._executor.wake()
        except RuntimeError as error:
            self._is_short(error, fatal=not self._executor.has_threads)

    @override
    def _in_flight(self) -> int:
        return min(self._config.concurrency, self._room.held())

    @override
    def _waits_for_tasks(self) -> bool:
        return not self._fetcher.is_due and self._room.has_slot()

    @override
    def _is_busy(self) -> bool:
        return bool(self._runs.running)

    @override
    def _overrunning(self) -> int:
        return len({run.batch or run for run in self._runs.overrunning})

    @override
    def _unfinished(self) -> Iterable[str]:
        runs = (*self._runs.running, *self._runs.overrunning)
        ids = (run.claim.task.task_id for run in runs)
        return (task_id for task_id in ids if task_id not in self.report.given_back)

    @override
    def _settles_late(self) -> bool:
        runs = [run for run in self._runs.running if run.phase is Phase.UNSETTLED]
        return any(run.claim.lease_until <= self._queue.admin.now() for run in runs)

    @override
    def _start_what_fits(self) -> None:
        with self._returning_if_not_started():
            self._executor.start(self._waiting.take_due())
            began = time.monotonic()
            slots = self._room.slots()  # fewer after the claim, if calls end meanwhile
            claims, limit = self._claim(slots)
            if claims:
                self._waiting.claimed(time.monotonic() - began)
            self._start(claims, slots)
        self._wake_executor()
        if len(claims) < limit:  # after the start, because it may read the store
            self._fetcher.found_few(len(claims), more=claims.more, room_in_seconds=claims.room_in_seconds)
            if claims.more or claims.room_in_seconds < inf:
                self._last_work = time.monotonic()  # it is not idle

    def _claim(self, slots: int) -> tuple[Claims, int]:
        """Claim the tasks that can start now, unless it backs off or nothing can have changed since.

        Args:
            slots: The number of calls that may be held.

        Returns:
            The claims, and how many there was room for; 0 if it did not claim.
        """
        if self._backoff.active or not self._fetcher.is_due or self._settles_late():
            return Claims(), 0
        limit = 0
        try:
            limit = self._room.tasks(slots)
            self._had_room = limit > 0
            self._fetcher.begin()
            claims = self._within_rate(self._queue.claim(limit)) if limit > 0 else Claims()
        except StoreError as error:
            self._store_failed(error)
            return Claims(), 0
        if self._abandoned:
            self._queue.settle_many([Settlement.release(claim) for claim in claims])
            return Claims(), 0
        self._store_answered()
        self.report.claimed += len(claims)
        self._feedback.claimed(claims)
        self._feedback.switched()
        return claims, limit

    def _within_rate(self, claims: Claims) -> Claims:
        """Release the claimed tasks whose costs the rate leaves no room for; return the others."""
        fit = self._limits.admit([claim.task for claim in claims])
        if releases := [Settlement.release(claim) for claim in claims[fit:]]:
            try:
                self._queue.settle_many(releases)
            except StoreError as error:  # the others run
                logger.warning("%d tasks stay TAKEN until their leases expire: %s", len(releases), error)
            del claims[fit:]
        return claims

    def _start(self, claims: Sequence[Claim], slots: int) -> None:
        """Pass claimed tasks to the executor, or let them wait for others of their batch."""
        now = self._queue.admin.now()
        runs = [self._runs.begin(claim, now) for claim in claims]
        for claim in claims:
            self._limits.started()
            self._breaker.probe(claim.token)
        calls = self._waiting.add(runs)
        if claims and (crowd := self._room.held()) > slots:
            # Something waits for a slot, so none is kept for a batch that fills.
            calls = [*self._waiting.take_all(), *calls]
            self._waiting.crowded(crowd)
        self._executor.start(calls)

    @contextmanager
    def _returning_if_not_started(self) -> Iterator[None]:
        """Give back the claimed tasks that the executor did not get if the block raises an error.

        Otherwise their leases would be extended forever, and the worker would wait for their ends.
        """
        try:
            yield
        except BaseException:
            self._waiting.take_all()
            running = [run for run in self._runs.running if run.phase is Phase.RUNNING]
            unstarted = [run for run in running if not (run.batch or run).began]
            self._completer.return_to_lines(unstarted, "the worker could not start it")
            raise

    @override
    def _wait(self, seconds: float) -> None:
        due_seconds = min(self._executor.patience_seconds(), self._waiting.left_seconds)
        seconds = min(seconds, max(MIN_SECONDS, due_seconds))
        began = time.monotonic()
        super()._wait(seconds)
        if time.monotonic() - began > seconds + STALL_SECONDS:
            self._executor.wait_again()
        self._give_back_waiting("no slot was free in time", at_once=False)

    @override
    def _take_outcomes(self) -> Iterable[Outcome | BaseException]:
        ended = self._runs.take_ended()
        if any(run.ended is Outcome.RELEASED for run in ended):
            self._give_back_waiting("the downstream is busy", at_once=True)
        self._executor.free(ended_calls(ended))
        return [run.ended for run in ended if run.ended is not None and not run.is_released]

    def _give_back_waiting(self, why: str, *, at_once: bool) -> None:
        """Release claimed tasks that have waited too long for a slot, or all that have not begun."""
        calls = self._executor.take_waiting(at_once=at_once)
        if at_once:
            calls += self._waiting.take_all()
        self._completer.return_to_lines(runs_of(calls), why)

    def _overran(self, run: TaskRun, run_seconds: float) -> None:
        """Free the slot of a run that exceeded its time limit; `LeaseRenewal` calls it in its thread."""
        self._feedback.timed_out(run)  # first, as the breaker decides whether the next task may start
        self._executor.free([run.batch or run])
        self._feedback.overran(run, run_seconds)  # last, as observers may be slow
        self._end_request.wake.set()

    @override
    def _drain(self) -> None:
        self._give_back_waiting("the worker ends", at_once=True)
        super()._drain()

    @override
    def _give_back(self) -> None:
        end = time.monotonic() + GIVE_BACK_SECONDS
        runs = [run for run in self._runs.running if self._may_give_back(run)]
        self._completer.give_back(runs, STOPPED, GIVE_BACK_SECONDS)
        for run in self._runs.running:
            run.cancel(STOPPED)
        self._wait_while(lambda: any(not run.runs for run in self._runs.running), end - time.monotonic())

    def _may_give_back(self, run: TaskRun) -> bool:
        """Return whether a task is not done: finished runs must be settled, or their tasks run twice."""
        if self._config.at_most_once:  # then it is settled first, and runs afterwards
            return not run.is_complete
        return run.phase is Phase.RUNNING
