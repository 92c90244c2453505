"""What the threads of the executor do with claimed tasks."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from freshq.queue.core import core_of
from freshq.worker.batches import answers_of
from freshq.worker.executor import Executor, result_of
from freshq.worker.report import Outcome
from freshq.worker.run import BatchRun, Phase, runs_of
from freshq.worker.runner import CoroutineRunner
from freshq.worker.settle import (
    PendingSettlement,
    completed,
    ends_of_batch,
    given_back,
    ran_once,
    released,
    run_to_end,
    too_late_to_run,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from concurrent.futures import Future

    from freshq.model.codec import Codec
    from freshq.queue.base import BaseQueue
    from freshq.worker.batches import WaitingRuns
    from freshq.worker.executor import Call
    from freshq.worker.feedback import RunFeedback
    from freshq.worker.limits import StartLimits
    from freshq.worker.loop import EndRequest
    from freshq.worker.options import WorkerConfig
    from freshq.worker.run import RunEnd, TaskRun, TaskRuns
    from freshq.worker.runner import Runner
    from freshq.worker.settle import Completer


class Performer:
    """Runs claimed tasks in the threads of its executor, and passes their ends to the completer.

    A call is one task, or the tasks of a batch. Its thread checks that the call may still start, calls the
    runner, reports the end to `RunFeedback`, and has the claims settled. If the runner has a coroutine, the
    thread only starts it, and after its end a thread does the rest. With `at_most_once` the task is
    completed first, and then run.

    Attributes:
        executor: The threads.
    """

    def __init__(
        self,
        queue: BaseQueue,
        runner: Any,
        config: WorkerConfig,
        limits: StartLimits,
        end_request: EndRequest,
        event_loop: asyncio.AbstractEventLoop | None,
        codec: Codec,
        runs: TaskRuns,
        waiting: WaitingRuns,
        completer: Completer,
        feedback: RunFeedback,
    ) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            runner: Runs the tasks.
            config: The options.
            limits: Has the retry budget and the breaker.
            end_request: Asks the worker to end.
            event_loop: For the coroutines of the runner; None for its own loop.
            codec: Encodes the runner's results.
            runs: The runs that have not ended.
            waiting: Learns how long the calls of batches take.
            completer: Settles ended runs.
            feedback: Learns how runs end.
        """
        self._queue = queue
        self._runner, self._event_loop, self._codec = runner, event_loop, codec
        self._at_most_once = config.at_most_once
        self._limits, self._feedback = limits, feedback
        self._end_request = end_request
        self._runs, self._waiting = runs, waiting
        self._completer = completer
        slots = config.concurrency if config.may_prefetch or waiting.rules else None
        self.executor = Executor(
            self._perform, completer.settle, runs.free_succeeded, slots, self._has_coroutine
        )

    def _perform(self, call: Call) -> None:
        """Run a call and have it settled, or start its coroutine, or end a call whose coroutine has ended."""
        try:
            if isinstance(call, BatchRun):
                self._perform_batch(call)
            elif call.is_released:
                self._runs.end(call, Outcome.GIVEN_BACK)
            elif call.coroutine is None and self._start_coroutine(call):
                return
            elif call.is_complete:
                self._run_once(call)
            else:
                self._perform_one(call)
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            for run in runs_of([call]):
                if run.ended is None:
                    self._runs.end(run, error)

    def _perform_one(self, run: TaskRun) -> None:
        end = None
        if run.coroutine is None:
            if self._end_request.at_once:
                return  # given back: another worker may have it already
            end = self._must_not_start(run) or self._of_unknown_kind(run)
            if end is None and self._at_most_once:
                self._acknowledge(run)
                return
        if end is None:
            self._count_first_attempts([run])
            end = run_to_end(self._queue, run, self._runner_of(run), self._codec, self._limits.may_retry)
        self._ended(run, [run], [end], time.monotonic() - run.began)

    def _perform_batch(self, call: BatchRun) -> None:
        if call.coroutine is None:
            if self._end_request.at_once:
                return  # given back: another worker may have them already
            self._begin_batch(call)
            if not call.started or self._start_coroutine_of_batch(call):
                return
        answers = partial(answers_of, self._runner, call)
        ends = ends_of_batch(self._queue, call.started, answers, self._codec, self._limits.may_retry)
        run_seconds = time.monotonic() - call.began
        self._waiting.ended(call, run_seconds)
        self._ended(call, call.started, ends, run_seconds)

    def _begin_batch(self, call: BatchRun) -> None:
        """Choose the tasks of a batch that start, and put back the others."""
        lost, now = self._waiting.lost(call), self._queue.admin.now()
        for run in call.runs:
            end = self._must_not_start(run)
            if run in lost or run.handle.lost is not None:
                end = given_back(run.claim, "the lease was lost while the task waited for its batch")
            if run.is_released:
                self._runs.end(run, Outcome.GIVEN_BACK)
            elif end is None:
                call.started.append(run)
                run.started_at, run.began = now, call.began
            else:
                self._ended(call, [run], [end], 0.0)
        self._count_first_attempts(call.started)
        if call.started:
            self._waiting.begun(call)

    def _must_not_start(self, run: TaskRun) -> RunEnd | None:
        """Return how to put back a task that must not start; None if it may."""
        if not self._limits.breaker.allows(run.claim.token):
            return given_back(run.claim, "the worker has slowed down, because its runs fail")
        return too_late_to_run(self._queue, run.claim)

    def _of_unknown_kind(self, run: TaskRun) -> RunEnd | None:
        """Return how to put back a task that other workers may handle, before it is completed or counted."""
        runner = self._runner
        unknown = runner.unknown_kind(run.claim.task) if isinstance(runner, CoroutineRunner) else None
        return None if unknown is None else released(run.claim, unknown)

    def _count_first_attempts(self, runs: Sequence[TaskRun]) -> None:
        for run in runs:
            if run.claim.task.attempts == 1:
                self._limits.first_attempt()

    def _ended(self, call: Call, runs: Sequence[TaskRun], ends: Sequence[RunEnd], run_seconds: float) -> None:
        """Report how runs of a call ended, and have them settled in one call of the store."""
        pending = []
        for run, end in zip(runs, ends, strict=True):
            self._runs.settles(run, frees_slot=end.outcome is Outcome.SUCCEEDED)
            pending.append(self._completer.pending(run, end, run_seconds))
        if all(end.outcome is Outcome.SUCCEEDED for end in ends):
            self.executor.free([call])
        self._feedback.killed(runs)
        self._feedback.ended(runs, ends)
        self.executor.settle(*pending)

    def _has_coroutine(self, call: Call) -> bool:
        """Return whether a call only starts a coroutine."""
        if not isinstance(self._runner, CoroutineRunner):
            return False
        return self._runner.has_coroutine(runs_of([call])[0].claim.task)

    def _start_coroutine(self, run: TaskRun) -> bool:
        """Start the coroutine of a task if it has one and may run now; return whether it did."""
        if not isinstance(self._runner, CoroutineRunner):
            return False
        if not run.is_complete and (
            self._end_request.at_once or self._at_most_once or self._must_not_start(run) is not None
        ):
            return False
        return self._awaits(run, self._runner.start(run.claim.task, self._event_loop))

    def _start_coroutine_of_batch(self, call: BatchRun) -> bool:
        """Start the coroutine of a batch if it has one; return whether it did."""
        if call.problem is not None or not self._has_coroutine(call):
            return False
        tasks = [run.claim.task for run in call.started]
        return self._awaits(call, self._runner.start_batch(tasks, self._event_loop))

    def _awaits(self, call: Call, coroutine: Future[Any] | None) -> bool:
        """Have a call ended once its coroutine has ended; return False if it has no coroutine."""
        if coroutine is None:
            return False
        call.await_coroutine(coroutine)
        coroutine.add_done_callback(lambda _coroutine: self._returned(call))
        return True

    def _returned(self, call: Call) -> None:
        """Have a call ended by a thread of the executor: this one belongs to the event loop."""
        for run in call.started if isinstance(call, BatchRun) else [call]:
            self._runs.settles(run)
        self.executor.end(call)

    def _runner_of(self, run: TaskRun) -> Runner:
        """Return the runner of the task; for a coroutine that has ended, a function with its result."""
        coroutine = run.coroutine
        return self._runner if coroutine is None else lambda _task: result_of(coroutine)

    def _acknowledge(self, run: TaskRun) -> None:
        """Have a task completed before its run."""
        self._runs.settles(run)
        self.executor.settle(PendingSettlement(run, completed(run.claim), partial(self._acknowledged, run)))

    def _acknowledged(self, run: TaskRun, outcome: Outcome) -> None:
        """Run a task that is complete now; do not run it if its completion could not be stored."""
        if outcome is not Outcome.SUCCEEDED:
            error = "it could not be acknowledged, so it was not run"
            self._completer.settled(run, outcome, run_seconds=0.0, error=error)
            return
        run.enter(Phase.RUNNING_ONCE)
        self.executor.start([run])
        with suppress(RuntimeError):  # the system lacks threads: the thread that settles runs it next
            self.executor.wake()

    def _run_once(self, run: TaskRun) -> None:
        error, downstream_ok = ran_once(run.claim, self._runner_of(run))
        core_of(self._queue).limits.charge_apart(run.claim.task)
        self._feedback.killed([run])
        self._feedback.ended_once(run, downstream_ok=downstream_ok)
        outcome = Outcome.SUCCEEDED if error is None else Outcome.FAILED
        self._completer.settled(run, outcome, run_seconds=time.monotonic() - run.began, error=error)
