"""The loop of a worker that holds its tasks under leases."""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import LeaseLost, StoreError
from freshq.model.answers import Claims
from freshq.model.lifecycle import Settlement
from freshq.queue.core import core_of
from freshq.worker.background import LeaseRenewal
from freshq.worker.batches import WaitingRuns, answers_of
from freshq.worker.executor import Executor, result_of
from freshq.worker.loop import MIN_SECONDS, WorkLoop
from freshq.worker.report import Outcome, log_fields, task_logger
from freshq.worker.run import BatchRun, Phase, TaskRuns, in_thread, runs_of
from freshq.worker.runner import CoroutineRunner
from freshq.worker.settle import (
    PendingSettlement,
    completed,
    ends_of_batch,
    given_back,
    ran_once,
    released,
    run_to_end,
    settle_together,
    settle_until_lost,
    too_late_to_run,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.queue.base import BaseQueue
    from freshq.worker.loop import EndRequest, StartLimits
    from freshq.worker.options import WorkerConfig
    from freshq.worker.run import TaskRun
    from freshq.worker.runner import Runner
    from freshq.worker.settle import RunEnd

logger = task_logger(__name__)

# How long `stop_at_once` waits until finished runs are settled and the other tasks are given back.
GIVE_BACK_SECONDS: Final = 5.0
TASK: Final = attrgetter("claim.task")
SECONDS: Final = itemgetter(0)
# If a wait takes this much longer than asked, this thread did not get the processor.
STALL_SECONDS: Final = 0.005


class LeaseLoop(WorkLoop):
    """Claims tasks, runs each in a thread of an executor while its lease is extended, and settles them."""

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
        self._event_loop = event_loop
        self._runner: Any = runner
        self._codec = codec
        self._runs = TaskRuns(on_end=end_request.wake.set)
        self._waiting = WaitingRuns(queue, runner)
        slots = config.concurrency if config.may_prefetch or self._waiting.rules else None
        self._executor = Executor(
            self._run, self._settle, self._runs.free_succeeded, slots, self._is_coroutine
        )
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
        return min(self._config.concurrency, self._held())

    def _held(self) -> int:
        """Return the number of slots that are occupied or that claimed tasks wait for."""
        return self._runs.occupied(self._slots())

    def _prefetched(self) -> int:
        """Return the number of tasks that may be claimed beyond the free slots; with batches, of calls."""
        if not self._config.may_prefetch:
            return 0
        return self._waiting.ending() if self._waiting.rules else self._executor.prefetched()

    def _slots(self) -> int:
        """Return the number of calls that may be held: as many as run, and those claimed ahead."""
        return self._config.concurrency + self._prefetched()

    def _room(self, slots: int) -> int:
        """Return the number of tasks that there is room for if tasks of some kinds share calls."""
        return self._waiting.room(slots - self._held())

    @override
    def _waits_for_tasks(self) -> bool:
        if not self._waiting.rules:
            return super()._waits_for_tasks()
        return not self._fetcher.is_due and self._room(self._slots()) > 0

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
    def _take_outcomes(self) -> Iterable[Outcome | BaseException]:
        ended = self._runs.take_ended()
        if any(run.ended is Outcome.RELEASED for run in ended):  # the downstream is busy
            self._give_back_waiting(at_once=True)
        self._executor.free(self._over(ended))
        return [run.ended for run in ended if run.ended is not None and not run.given_back]

    def _over(self, ended: Iterable[TaskRun]) -> Iterator[TaskRun | BatchRun]:
        """Yield the calls whose runs have all ended."""
        for run in ended:
            if run.batch is None:
                yield run
                continue
            run.batch.ended += 1
            if run.batch.ended == len(run.batch.runs):
                yield run.batch

    @override
    def _wait(self, seconds: float) -> None:
        due_seconds = min(self._executor.patience_seconds(), self._waiting.left_seconds)
        seconds = min(seconds, max(MIN_SECONDS, due_seconds))
        began = time.monotonic()
        super()._wait(seconds)
        if time.monotonic() - began > seconds + STALL_SECONDS:
            self._executor.wait_again()
        self._give_back_waiting(at_once=False)

    @override
    def _drain(self) -> None:
        self._give_back_waiting(at_once=True)
        super()._drain()

    def _give_back_waiting(self, *, at_once: bool) -> None:
        """Release claimed tasks that have waited too long for a slot, or all that have not begun."""
        calls = self._executor.take_waiting(at_once=at_once)
        if at_once:
            calls += self._waiting.take_all()
        self._return_to_lines(runs_of(calls), "no slot was free in time")

    def _return_to_lines(self, runs: Sequence[TaskRun], why: str) -> None:
        for run in runs:
            self._runs.settles(run)
        if runs:
            self._settle([self._pending(run, given_back(run.claim, why), 0.0) for run in runs])

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
            self._return_to_lines(unstarted, "the worker could not start it")
            raise

    def _pending(self, run: TaskRun, end: RunEnd, run_seconds: float) -> PendingSettlement:
        return PendingSettlement(run, end, partial(self._settled, run, run_seconds, end.error))

    @override
    def _start_what_fits(self) -> None:
        with self._returning_if_not_started():
            self._executor.start(self._waiting.take_due())
            began, slots = time.monotonic(), self._slots()  # fewer after the claim, if calls end meanwhile
            claims, limit = self._claim(slots)
            if claims:
                self._waiting.claimed(time.monotonic() - began)
            self._start(claims, slots)
        self._wake_executor()
        if len(claims) < limit:  # after the start, because it may read the store
            self._fetcher.found_few(len(claims), more=claims.more, room_in_seconds=claims.room_in_seconds)
            if claims.more or claims.room_in_seconds < inf:
                self._last_work = time.monotonic()  # it is not idle

    def _start(self, claims: Sequence[Claim], slots: int) -> None:
        """Pass claimed tasks to the executor, or let them wait for others of their batch."""
        now = self._queue.admin.now()
        runs = [self._runs.begin(claim, now) for claim in claims]
        for claim in claims:
            self._limits.started()
            self._breaker.probe(claim.token)
        calls = self._waiting.add(runs)
        if claims and (crowd := self._held()) > slots:
            # Something waits for a slot, so none is kept for a batch that fills.
            calls = [*self._waiting.take_all(), *calls]
            self._waiting.crowded(crowd)
        self._executor.start(calls)

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
            limit = self._available(slots)
            limit = int(min(limit, self._breaker.room()))
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
        self._tell(claims)
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

    def _available(self, slots: int) -> int:
        """Return the number of tasks to claim, if that many calls may be held."""
        if self._waiting.rules:
            return self._limits.available(self._runs.tasks(self._config.concurrency), self._room(slots))
        return self._limits.available(self._held()) + slots - self._config.concurrency

    def _tell(self, claims: Sequence[Claim]) -> None:
        with self._observing():
            now = self._queue.admin.now()
            for claim in claims:
                self._observer.claimed(claim, max(0.0, now - claim.task.created))
            for switch in self._queue.admin.take_order_switches():
                self._observer.switched(switch)

    @override
    def _settles_late(self) -> bool:
        runs = [run for run in self._runs.running if run.phase is Phase.UNSETTLED]
        return any(run.claim.lease_until <= self._queue.admin.now() for run in runs)

    def _run(self, run: TaskRun | BatchRun) -> None:
        """Run a task in a thread of the executor, and have it settled; or start its coroutine."""
        if isinstance(run, BatchRun):
            self._run_batch(run)
            return
        try:
            if run.given_back:
                self._runs.end(run, Outcome.GIVEN_BACK)
                return
            if run.coroutine is None and self._start_coroutine(run):
                return
            if run.is_complete:
                self._run_once(run)
            else:
                self._run_and_settle(run)
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            self._runs.end(run, error)

    def _run_and_settle(self, run: TaskRun) -> None:
        if self._end_request.at_once and run.coroutine is None:
            return  # given back: another worker may have it already
        end = None
        if run.coroutine is None:
            end = self._must_not_start(run) or self._of_unknown_kind(run)
        if end is None and self._config.at_most_once:
            self._runs.settles(run)
            self._executor.settle(
                PendingSettlement(run, completed(run.claim), partial(self._acknowledged, run))
            )
            return
        if end is None:
            end = self._run_to_end(run)
        self._runs.settles(run, frees_slot=end.outcome is Outcome.SUCCEEDED)
        if end.outcome is Outcome.SUCCEEDED:
            self._executor.free([run])
        self._note_ends([run], [end])
        self._executor.settle(self._pending(run, end, time.monotonic() - run.began))

    def _run_batch(self, call: BatchRun) -> None:
        """Run the tasks of a batch and have them settled, or start the coroutine of the call."""
        if call.coroutine is None and self._end_request.at_once:
            return  # given back: another worker may have them already
        try:
            if call.coroutine is None:
                self._begin_batch(call)
                if not call.started or self._start_batch(call):
                    return
            run = partial(answers_of, self._runner, call)
            self._end_batch(
                call, ends_of_batch(self._queue, call.started, run, self._codec, self._limits.may_retry)
            )
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            for each in call.runs:
                if each.ended is None:
                    self._runs.end(each, error)

    def _begin_batch(self, call: BatchRun) -> None:
        """Put back the tasks of a batch that must not start."""
        lost, now = self._waiting.lost(call), self._queue.admin.now()
        for run in call.runs:
            end = self._must_not_start(run)
            if run in lost or run.handle.lost is not None:
                end = given_back(run.claim, "the lease was lost while the task waited for its batch")
            if run.given_back:
                self._runs.end(run, Outcome.GIVEN_BACK)
            elif end is None:
                call.started.append(run)
                run.started, run.began = now, call.began
            else:
                self._runs.settles(run)
                self._note_ends([run], [end])
                self._executor.settle(self._pending(run, end, 0.0))
        for run in call.started:
            if run.claim.task.attempts == 1:
                self._limits.first_attempt()
        if call.started:
            self._waiting.begun(call)

    def _start_batch(self, call: BatchRun) -> bool:
        """Start the coroutine of a call if it has one; return whether it did."""
        if call.problem is not None or not self._is_coroutine(call):
            return False
        answer = self._runner.start_batch([run.claim.task for run in call.started], self._event_loop)
        if answer is None:
            return False
        call.coroutine = answer
        if call.unwanted_coroutine is not None:  # all runs were cancelled while it was started
            answer.cancel()
        answer.add_done_callback(lambda _answer: self._batch_returned(call))
        return True

    def _batch_returned(self, call: BatchRun) -> None:
        """As `_returned`, for the runs of a batch."""
        for run in call.started:
            self._runs.settles(run)
        self._executor.end(call)

    def _end_batch(self, call: BatchRun, ends: Sequence[RunEnd]) -> None:
        """Have the runs of a batch settled in one call."""
        run_seconds = time.monotonic() - call.began
        self._waiting.ended(call, run_seconds)
        together = list(zip(call.started, ends, strict=True))
        for run, end in together:
            self._runs.settles(run, frees_slot=end.outcome is Outcome.SUCCEEDED)
        if all(end.outcome is Outcome.SUCCEEDED for end in ends):
            self._executor.free([call])
        self._tell_killed(call.started)
        self._note_ends(call.started, ends)
        self._executor.settle(*(self._pending(run, end, run_seconds) for run, end in together))

    def _must_not_start(self, run: TaskRun) -> RunEnd | None:
        """Return how to put back a task that must not start; None if it may."""
        if not self._breaker.allows(run.claim.token):
            return given_back(run.claim, "the worker has slowed down, because its runs fail")
        return too_late_to_run(self._queue, run.claim)

    def _note_ends(self, runs: Sequence[TaskRun], ends: Sequence[RunEnd]) -> None:
        """Tell the limits and the breaker how a run ended, or a batch, which is one run for them."""
        self._limits.note_units(map(TASK, runs))
        signals = {end.downstream_ok for end in ends}
        if signals != {None}:
            self._limits.ended(downstream_ok=False not in signals)
        self._slow_down(runs, ends)
        # A busy run spent no attempt, and has a backoff of its own.
        signals = {end.downstream_ok for end in ends if end.outcome is not Outcome.RELEASED}
        self._tell_breaker(runs[0], succeeded=True in signals or (False if False in signals else None))

    def _slow_down(self, runs: Sequence[TaskRun], ends: Sequence[RunEnd]) -> None:
        """Lower the rates of the tasks that met push-back; of those of one rate the longest counts."""
        pushed_back = [
            (end.retry_after_seconds, run.claim.task)
            for run, end in zip(runs, ends, strict=True)
            if end.retry_after_seconds is not None
        ]
        by_rate = {(task.group, task.kind): (task, each) for each, task in sorted(pushed_back, key=SECONDS)}
        for task, seconds in by_rate.values():
            self._limits.slow_down(task, seconds)

    def _tell_breaker(self, run: TaskRun, *, succeeded: bool | None) -> None:
        with self._observing():
            self._breaker.ended(run.claim.token, run.claim.task, self._observer, succeeded=succeeded)

    def _of_unknown_kind(self, run: TaskRun) -> RunEnd | None:
        """Return how to put back a task that other workers may handle, before it is completed or counted."""
        runner = self._runner
        unknown = runner.unknown_kind(run.claim.task) if isinstance(runner, CoroutineRunner) else None
        return None if unknown is None else released(run.claim, unknown)

    def _is_coroutine(self, run: TaskRun | BatchRun) -> bool:
        task = (run.runs[0] if isinstance(run, BatchRun) else run).claim.task
        return isinstance(self._runner, CoroutineRunner) and self._runner.has_coroutine(task)

    def _start_coroutine(self, run: TaskRun) -> bool:
        """Start the coroutine of a task if it has one and may run now; return whether it did."""
        if not isinstance(self._runner, CoroutineRunner):
            return False
        if not run.is_complete and (
            self._end_request.at_once or self._config.at_most_once or self._must_not_start(run) is not None
        ):
            return False
        answer = self._runner.start(run.claim.task, self._event_loop)
        if answer is None:
            return False
        run.await_coroutine(answer)
        answer.add_done_callback(lambda _answer: self._returned(run))
        return True

    def _returned(self, run: TaskRun) -> None:
        """Have a run settled after its coroutine has ended; not here, in its event loop."""
        self._runs.settles(run)
        self._executor.end(run)

    def _runner_of(self, run: TaskRun) -> Runner:
        """Return the runner of the task; for a coroutine that has ended, a function with its result."""
        coroutine = run.coroutine
        return self._runner if coroutine is None else lambda _task: result_of(coroutine)

    def _run_to_end(self, run: TaskRun) -> RunEnd:
        if run.claim.task.attempts == 1:
            self._limits.first_attempt()
        end = run_to_end(self._queue, run, self._runner_of(run), self._codec, self._limits.may_retry)
        self._tell_killed([run])
        return end

    def _settle(self, pending: list[PendingSettlement]) -> None:
        """Settle runs; a separate thread retries those without an answer from the store."""
        with self._ending(pending):
            unanswered = settle_together(self._queue, pending)
            if not unanswered:
                return
            again = in_thread("freshq-settle", partial(self._settle_again, unanswered))
            if again.done() and again.exception() is not None:  # the system has no thread left
                self._settle_again(unanswered)

    def _settle_again(self, unanswered: list[PendingSettlement]) -> None:
        with self._ending(unanswered):
            settle_until_lost(self._queue, unanswered, draining=self._draining.is_set)

    @contextmanager
    def _ending(self, pending: list[PendingSettlement]) -> Iterator[None]:
        """End runs with an unexpected error: the loop raises it."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            for each in pending:
                if each.run.ended is None:
                    self._runs.end(each.run, error)

    def _settled(self, run: TaskRun, run_seconds: float, error: str | None, outcome: Outcome) -> None:
        """Report how a run ended, and free its slot."""
        if not (run.given_back and outcome is Outcome.LEASE_LOST):  # the worker released it itself
            self._tell_settled(run.claim, outcome, run_seconds, error)
        self._runs.end(run, outcome)

    def _acknowledged(self, run: TaskRun, outcome: Outcome) -> None:
        """Run a task that is complete now; do not run it if its completion could not be stored."""
        if outcome is not Outcome.SUCCEEDED:
            self._settled(run, 0.0, "it could not be acknowledged, so it was not run", outcome)
            return
        run.enter(Phase.RUNNING_ONCE)
        self._executor.start([run])
        with suppress(RuntimeError):  # the system lacks threads: the thread that settles runs it next
            self._executor.wake()

    def _run_once(self, run: TaskRun) -> None:
        error, downstream_ok = ran_once(run.claim, self._runner_of(run))
        self._limits.note_units([run.claim.task])
        core_of(self._queue).charge_apart(run.claim.task)
        self._tell_killed([run])
        self._limits.ended(downstream_ok=downstream_ok)
        self._tell_breaker(run, succeeded=downstream_ok)
        outcome = Outcome.SUCCEEDED if error is None else Outcome.FAILED
        self._settled(run, time.monotonic() - run.began, error, outcome)

    def _overran(self, run: TaskRun, run_seconds: float) -> None:
        if run.batch is None or run is run.batch.started[0]:
            self._tell_breaker(run, succeeded=False)
        self._executor.free([run.batch or run])
        self._tell_overran(run, run_seconds)
        self._end_request.wake.set()

    def _tell_killed(self, runs: Iterable[TaskRun]) -> None:
        """Tell the observer about the runs that were ended because they took too long."""
        for run in runs:
            if run.handle.overran:
                self._tell_overran(run, time.monotonic() - run.began)

    def _tell_overran(self, run: TaskRun, run_seconds: float) -> None:
        self.report.overran.append(run.claim.task.task_id)
        with self._observing():
            self._observer.overran(run.claim, run_seconds)

    @override
    def _give_back(self) -> None:
        end = time.monotonic() + GIVE_BACK_SECONDS
        runs = [run for run in self._runs.running if self._may_give_back(run)]
        for run in runs:
            run.given_back = True  # before the store knows: its end may come at any moment
        for run, answer in zip(runs, self._released(runs), strict=True):
            task = run.claim.task
            run.given_back = not isinstance(answer, BaseException)
            if run.given_back:
                self._count_given_back(run)
            elif not isinstance(answer, LeaseLost):  # LeaseLost: already settled or lost; nothing to report
                message = "task %s stays TAKEN until its lease expires: %s"
                logger.warning(message, task.task_id, answer, extra=log_fields(task))
        for run in self._runs.running:
            run.cancel("the worker was stopped immediately")
        self._wait_while(self._settles, end - time.monotonic())

    def _count_given_back(self, run: TaskRun) -> None:
        self.report.given_back.append(run.claim.task.task_id)
        self.report.outcomes[Outcome.GIVEN_BACK] += 1
        run_seconds = time.monotonic() - run.began
        self._tell_settled(run.claim, Outcome.GIVEN_BACK, run_seconds, "the worker was stopped immediately")

    def _may_give_back(self, run: TaskRun) -> bool:
        """Return whether a task is not done: finished runs must be settled, or their tasks run twice."""
        if self._config.at_most_once:  # it runs once it is settled
            return not run.is_complete
        return run.phase is Phase.RUNNING

    def _settles(self) -> bool:
        return any(not run.runs for run in self._runs.running)

    def _released(self, runs: Sequence[TaskRun]) -> Sequence[object]:
        """Release the claims of runs; return the task or the error of each."""
        releases = [Settlement.release(run.claim) for run in runs]
        call = in_thread("freshq-give-back", partial(self._queue.settle_many, releases))
        is_over = bool(wait([call], GIVE_BACK_SECONDS).done)
        error = call.exception() if is_over else TimeoutError(f"{GIVE_BACK_SECONDS:g} s")
        return [error] * len(runs) if error else call.result()
