"""Feedback from runs to the observer, the limits and the breaker."""

from __future__ import annotations

import time
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from freshq.model.task import handle_of
from freshq.queue.core import core_of
from freshq.worker.report import Outcome, UnknownKinds, log_end

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.worker.limits import StartLimits
    from freshq.worker.options import WorkerConfig
    from freshq.worker.report import RunReport
    from freshq.worker.run import RunEnd, TaskRun

TASK: Final = attrgetter("claim.task")
SECONDS: Final = itemgetter(0)


class RunFeedback:
    """Tells the observer, the limits and the breaker of a worker about its runs. Any thread may call it.

    An exception of the observer ends the worker, but no run: the loop raises it.
    """

    def __init__(
        self, queue: BaseQueue, config: WorkerConfig, limits: StartLimits, report: RunReport
    ) -> None:
        """Tell nothing yet.

        Args:
            queue: The queue.
            config: The options, with the observer.
            limits: How many tasks may start.
            report: Gets the unknown kinds, the tasks given back and the runs that exceeded their time limit.
        """
        self._queue = queue
        self._limits = limits
        self._report = report
        self._unknown_kinds = UnknownKinds(report.unknown_kinds)
        self._observer = config.observer_beside(core_of(queue).telemetries)
        # Tracebacks are logged also if the application's observer does not log.
        self._observer_logs = config.observer is None or getattr(config.observer, "logs_failures", False)
        self._failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Have the loop end with an error; the first one counts."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise an observer's error, or an unexpected one. The worker then waits for its running tasks."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """Call the observer; its exceptions end the worker, but no run."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            self.fail(error)

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Tell the observer about claimed tasks."""
        with self._observing():
            now = self._queue.admin.now()
            for claim in claims:
                self._observer.claimed(claim, max(0.0, now - claim.task.created))

    def switched(self) -> None:
        """Tell the observer about the switches of the order since the last call."""
        with self._observing():
            for switch in self._queue.admin.take_order_switches():
                self._observer.switched(switch)

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Tell the observer how a run ended; log its traceback if the observer does not."""
        if outcome is Outcome.UNKNOWN_KIND:
            self._unknown_kinds.note(claim.task, error)
        handle = handle_of(claim.task)
        if handle is not None and handle.raised is not None and not self._observer_logs:
            log_end(claim.task, outcome, run_seconds, error)
        try:  # not `_observing`: entering its block takes longer than most observers do
            self._observer.settled(claim, outcome, run_seconds, error)
        except BaseException as raised:  # noqa: BLE001 - raised by the loop
            self.fail(raised)
        if handle is not None:
            handle.raised = None  # its frames refer to the task, which refers to the handle

    def given_back(self, run: TaskRun, why: str) -> None:
        """Count a task that was released while it runs, and tell the observer."""
        self._report.given_back.append(run.claim.task.task_id)
        self._report.outcomes[Outcome.GIVEN_BACK] += 1
        self.settled(run.claim, Outcome.GIVEN_BACK, time.monotonic() - run.began, why)

    def ended(self, runs: Sequence[TaskRun], ends: Sequence[RunEnd]) -> None:
        """Tell the limits and the breaker how a run ended, or a batch, which is one run for them."""
        self._limits.note_units(map(TASK, runs))
        signals = {end.downstream_ok for end in ends}
        if signals != {None}:
            self._limits.ended(downstream_ok=False not in signals)
        self._slow_down(runs, ends)
        # A busy run spent no attempt, and has a backoff of its own.
        signals = {end.downstream_ok for end in ends if end.outcome is not Outcome.RELEASED}
        succeeded = True in signals or (False if False in signals else None)
        self.tell_breaker(runs[0].claim.token, runs[0].claim.task, succeeded=succeeded)

    def _slow_down(self, runs: Sequence[TaskRun], ends: Sequence[RunEnd]) -> None:
        """Lower the rate of each group and kind that met push-back, by the longest time asked for."""
        pushed_back = [
            (end.retry_after_seconds, run.claim.task)
            for run, end in zip(runs, ends, strict=True)
            if end.retry_after_seconds is not None
        ]
        by_rate = {(task.group, task.kind): (task, each) for each, task in sorted(pushed_back, key=SECONDS)}
        for task, seconds in by_rate.values():
            self._limits.slow_down(task, seconds)

    def ended_once(self, run: TaskRun, *, downstream_ok: bool) -> None:
        """Tell the limits and the breaker how a run ended whose task was completed before it began."""
        self._limits.note_units([run.claim.task])
        self._limits.ended(downstream_ok=downstream_ok)
        self.tell_breaker(run.claim.token, run.claim.task, succeeded=downstream_ok)

    def tell_breaker(self, run: Hashable, task: Task | None, *, succeeded: bool | None) -> None:
        """Tell the breaker how a run ended, and the observer if the breaker changes."""
        with self._observing():
            self._limits.breaker.ended(run, task, self._observer, succeeded=succeeded)

    def timed_out(self, run: TaskRun) -> None:
        """Tell the breaker about a run that exceeded its time limit and still runs; once for a batch."""
        if run.batch is None or run is run.batch.started[0]:
            self.tell_breaker(run.claim.token, run.claim.task, succeeded=False)

    def killed(self, runs: Iterable[TaskRun]) -> None:
        """Tell the observer about the runs whose processes were ended because they took too long."""
        for run in runs:
            if run.handle.overran:
                self.overran(run, time.monotonic() - run.began)

    def overran(self, run: TaskRun, run_seconds: float) -> None:
        """Count a run that exceeded its time limit, and tell the observer."""
        self._report.overran.append(run.claim.task.task_id)
        with self._observing():
            self._observer.overran(run.claim, run_seconds)
