"""Work the queue during one invocation."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from threading import Timer
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field, Json
from typing_extensions import override

from freshq.aws.environment import Arn, check_runner_environment, dynamodb_client
from freshq.aws.invocation import invocation, within
from freshq.aws.observability import (
    CANARY,
    IS_TRACED,
    count,
    fields,
    is_canary,
    log_transition,
    logger,
    measure_seconds,
    sample_logs,
)
from freshq.aws.wakeup import SWITCHED_OFF, Ring, WakeUp, WakeUpSettings
from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.queue.claim import has_claimable
from freshq.queue.core import core_of
from freshq.worker.report import METRIC_OF_OUTCOME, Observer, Outcome, raised_by
from freshq.worker.runner import CoroutineRunner, DelegatingRunner, checked_runner, load_runner
from freshq.worker.worker import Worker, go_on_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.aws.invocation import Invocation
    from freshq.model.answers import Claim
    from freshq.model.pass_options import PassOptions
    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.queue.base import BaseQueue
    from freshq.worker.limits import RunBreaker
    from freshq.worker.report import RunReport
    from freshq.worker.runner import Runner

# The part of `settle_seconds` that is reserved for the tail call and the last log lines.
TAIL_SECONDS: Final = 1.0
# A pass fails if its store does not answer for this time, so that alarms notice; the sweep starts the next
# pass.
GIVE_UP_SECONDS: Final = 10.0
# If the module of the runner is missing.
ADVICE: Final = "add it to functions/process_tasks or to a layer"
# Kind of the task that a stack with SyntheticTask=on puts every minute.
SYNTHETIC: Final = "freshq-synthetic"


class WorkerSettings(WakeUpSettings):
    """Settings of a worker pass.

    Attributes:
        trigger_topic_arn: Topic of the tail calls.
        runner: The user's runner, as ``module:function``.
        runner_environment: Environment variables for the runner; a JSON object of strings.
        synthetic_task: Whether the stack puts a task of its own every minute, which is not the runner's.
    """

    trigger_topic_arn: Arn
    runner: str = "freshq.aws.demo_runner:run"
    runner_environment: Json[dict[str, str]] = Field(default_factory=dict)
    synthetic_task: Literal["on", "off"] = "off"

    @override
    @classmethod
    def load(cls) -> Self:
        settings = super().load()
        try:
            check_runner_environment(settings.runner_environment)
        except ValueError as error:
            msg = f"FRESHQ_RUNNER_ENVIRONMENT (parameter RunnerEnvironment): {error}"
            raise ValueError(msg) from None
        return settings


def claiming_seconds(options: PassOptions, remaining_seconds: float) -> float:
    """Return how long a pass claims tasks.

    Args:
        options: The options of the pass.
        remaining_seconds: Time until the function's timeout.

    Raises:
        ValueError: If there is no time to claim: such a worker would start and do nothing.
    """
    seconds = min(options.pass_seconds, remaining_seconds - options.settle_seconds)
    if seconds <= 0:
        msg = (
            f"settle_seconds: {options.settle_seconds:g} s leave no time to claim tasks in the "
            f"{remaining_seconds:g} s until the timeout; lower it with freshq configure --stack, or raise "
            "TimeoutSeconds"
        )
        raise ValueError(msg)
    return seconds


def pass_worker(options: PassOptions, queue: BaseQueue, runner: Runner, observer: Observer) -> Worker:
    """Return the worker of a pass.

    Args:
        options: The options of the pass.
        queue: The queue to claim from.
        runner: Does the work.
        observer: Receives what happens.

    Raises:
        ValueError: If options contradict each other.
    """
    limit = bucket = budget = None
    if options.limit_highest:
        limit = ConcurrencyLimit(options.limit_lowest, options.limit_highest, options.limit_window_seconds)
    if options.shared_rate_per_second:
        burst = max(1, round(options.shared_rate_per_second))
        bucket = SharedBucket(options.shared_rate_per_second, burst, min(burst, options.concurrency))
    if options.retry_fraction:
        budget = RetryBudget(options.retry_fraction)
    return Worker(
        queue,
        runner,
        concurrency=options.concurrency,
        limit=limit,
        shared_bucket=bucket,
        retry_budget=budget,
        idle_exit_seconds=options.idle_exit_seconds,
        drain_seconds=options.settle_seconds - TAIL_SECONDS,
        give_up_seconds=GIVE_UP_SECONDS,
        observer=observer,
    )


def traced(runner: Runner) -> Runner:
    """Return a runner whose runs are in the traces; the same runner if tracing is off."""
    if not IS_TRACED:
        return runner
    from freshq.aws import traces

    one = traces.traced(runner)
    if not isinstance(runner, CoroutineRunner):
        return one
    return ThreadRunner(runner, one, lambda tasks: traces.traced_batch(runner.run_batch, tasks))


class ThreadRunner(DelegatingRunner):
    """Runs tasks by functions around a runner, all of them in threads."""

    def __init__(
        self,
        runner: CoroutineRunner,
        one: Callable[[Task], Any],
        batch: Callable[[Sequence[Task]], Sequence[Any]],
    ) -> None:
        """Call `one` with each task, and `batch` with the tasks of a batch."""
        super().__init__(runner)
        self._one = one
        self._batch = batch

    @override
    def __call__(self, task: Task) -> Any:
        return self._one(task)

    @override
    def unknown_kind(self, task: Task) -> None:
        """Leave it to the function of one task to raise."""

    @override
    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        return self._batch(tasks)


def past_synthetic(runner: Runner) -> Runner:
    """Return a runner that does nothing for synthetic tasks, and passes all other tasks to another runner."""

    def run(task: Task) -> Any:
        return None if task.kind == SYNTHETIC else runner(task)

    return ThreadRunner(runner, run, runner.run_batch) if isinstance(runner, CoroutineRunner) else run


def canary_of(runner: Runner, module: str) -> Runner:
    """Return the runner of a canary: the handler of its kind, or `canary` in the runner's module.

    A runner that has neither is not called, because it might do real work.
    """

    def run(task: Task) -> Any:
        if isinstance(runner, CoroutineRunner):
            return None if runner.unknown_kind(task) else runner(task)
        canary = vars(sys.modules[module]).get(CANARY)
        return None if canary is None else canary(task)

    return run


def _known(task: Task) -> dict[str, str]:
    """Return the kind and the trace of a task, if it has them."""
    found = {"kind": task.kind, "trace_id": task.trace_id}
    return {name: value for name, value in found.items() if value is not None}


def _of_its_pass(report: Callable[..., None]) -> Callable[..., None]:
    """Return a method that reports as the invocation that made the observer, in whichever thread."""

    @wraps(report)
    def reported(self: MetricsObserver, *facts: Any, **named: Any) -> None:
        with within(self.of):
            report(self, *facts, **named)

    return reported


class MetricsObserver(Observer):
    """Turns events of a worker into log lines and metrics. Never logs payloads.

    Attributes:
        of: The invocation whose pass it observes.
    """

    logs_failures: ClassVar[bool] = True

    def __init__(self) -> None:
        """Observe a pass of this invocation."""
        self.of: Invocation = invocation()

    @override
    @_of_its_pass
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        count("TasksClaimed")
        measure_seconds("ClaimAgeSeconds", age_seconds)
        log_transition(
            "task claimed",
            claim.task.task_id,
            attempt=claim.task.attempts,
            age_seconds=round(age_seconds, 3),
            **_known(claim.task),
        )

    @override
    @_of_its_pass
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        count(METRIC_OF_OUTCOME[outcome])
        if claim.task.kind == SYNTHETIC and outcome is Outcome.SUCCEEDED:
            count("SyntheticTasksDone")
        measure_seconds("RunSeconds", run_seconds)
        facts: dict[str, Any] = {
            "outcome": outcome.value,
            "run_seconds": round(run_seconds, 3),
            "error": error,
            **_known(claim.task),
        }
        # The worker warns about unknown kinds.
        if outcome in (Outcome.SUCCEEDED, Outcome.UNKNOWN_KIND, Outcome.GIVEN_BACK):
            log_transition("task settled", claim.task.task_id, **facts)
        else:
            raised = raised_by(claim.task)
            log = logger.warning if raised is None else logger.error
            log("task settled", exc_info=raised, **fields(task_id=claim.task.task_id, **facts))

    @override
    @_of_its_pass
    def overran(self, claim: Claim, run_seconds: float) -> None:
        count("TasksOverran")
        of_run = fields(task_id=claim.task.task_id, run_seconds=round(run_seconds, 3))
        logger.error("task overran", **of_run)

    @_of_its_pass
    def slowed(self, _queue: str, *, opened: bool) -> None:
        """Count a pass that slowed down; freshq logs it."""
        count("BreakersOpened", int(opened))

    @override
    @_of_its_pass
    def switched(self, switch: OrderSwitch) -> None:
        count("OrderSwitches")
        of_order = fields(
            newest_first=switch.newest_first, oldest_age_seconds=round(switch.oldest_age_seconds, 3)
        )
        logger.info("order switched", **of_order)


def _powertools_of(runner: str) -> dict[str, str]:
    """Return the defaults of the runner's own Powertools: the name of its package, instead of freshq's."""
    name = runner.partition(":")[0].partition(".")[0]
    return {"POWERTOOLS_SERVICE_NAME": name, "POWERTOOLS_METRICS_NAMESPACE": name}


@dataclass(frozen=True)
class Connections:
    """The connections of a pass.

    Attributes:
        queue: The queue.
        runner: Runs the tasks.
        wakeup: Rings the doorbell, and counts the passes.
        breakers: The breakers of earlier passes, by queue.
    """

    queue: BaseQueue
    runner: Runner
    wakeup: WakeUp
    breakers: dict[str, RunBreaker] = field(default_factory=dict)

    @classmethod
    def open(cls) -> Self:
        """Return the connections that the environment describes.

        Raises:
            ValueError: If a setting is wrong, or the runner cannot be loaded.
        """
        settings = WorkerSettings.load()
        os.environ.update(_powertools_of(settings.runner) | settings.runner_environment)
        client = dynamodb_client()
        wakeup = WakeUp.connect(settings, settings.trigger_topic_arn, client)
        runner = checked_runner(load_runner(settings.runner, ADVICE))
        if is_canary():
            runner = canary_of(runner, settings.runner.partition(":")[0])
        runner = traced(runner)
        if settings.synthetic_task == "on":
            runner = past_synthetic(runner)
        return cls(settings.queue(client), runner, wakeup)


def work(connections: Connections, remaining_seconds: float) -> RunReport:
    """Claim, run and settle tasks while the invocation has time.

    Args:
        connections: The connections of the pass.
        remaining_seconds: Time until Lambda ends the invocation.
    """
    stored, queue = connections.wakeup.options, connections.queue
    options = stored.current()
    sample_logs(options.log_sample_ratio)
    worker = pass_worker(options, queue, connections.runner, MetricsObserver())
    go_on_with(worker, connections.breakers)
    seconds = claiming_seconds(options, remaining_seconds)
    with stored.watched(options, worker.stop), _bounded(worker, seconds, remaining_seconds):
        return worker.run(until=queue.admin.now() + seconds)


@contextmanager
def _bounded(worker: Worker, seconds: float, remaining_seconds: float) -> Iterator[None]:
    """Stop a worker in time, whatever the clocks of the process and of the store show.

    Timers wait for a lock with a timeout, which the operating system measures: no replaced clock stops it.

    Args:
        worker: The worker.
        seconds: How long it claims tasks.
        remaining_seconds: Time until Lambda ends the invocation.
    """
    ends = {seconds + TAIL_SECONDS: worker.stop, remaining_seconds - TAIL_SECONDS / 2: worker.stop_at_once}
    timers = [Timer(max(0.0, after_seconds), stop) for after_seconds, stop in ends.items()]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def tail_call(connections: Connections, ring: Ring, report: RunReport) -> bool:
    """Start the successor if it would find work, and nothing forbids it.

    Args:
        connections: The connections of the pass.
        ring: The ring that started it.
        report: The report of the pass.

    Returns:
        Whether the successor was called.
    """
    queue, max_hops = connections.queue, connections.wakeup.options.current().max_hops
    core_of(queue).store.reread_lines(queue.name)  # a line that opened since the last claim has work, too
    if any(breaker.slows for breaker in connections.breakers.values()):
        return False  # the sweep rings every minute
    stats = queue.stats(approximate=True)
    if stats.pending == 0 or queue.paused() or not _finds_work(connections, report):
        return False
    if ring.hop >= max_hops:
        logger.warning("too many tail calls in a row; the sweep will ring", **fields(max_hops=max_hops))
        count("TailCallsCapped")
        return False
    if connections.wakeup.switch.stops():
        logger.warning("no tail call: " + SWITCHED_OFF)
        return False
    connections.wakeup.ring(Ring(hop=ring.hop + 1, reason="tail_call", chain=ring.chain))
    count("TailCalls")
    return True


def _finds_work(connections: Connections, report: RunReport) -> bool:
    """Return whether a successor would get on with the tasks that wait.

    A pass without progress leaves tasks that it could not claim, such as of a group at its limit. But while
    the slot was taken, Trigger rang no pass for a task that was put after the last claim. Any
    other pass looks for it when it ends.
    """
    if report.progress:
        return True
    wakeup = connections.wakeup
    if not report.idle or wakeup.passes.any_taken(wakeup.options.current().worker_passes):
        return False
    return has_claimable(core_of(connections.queue))
