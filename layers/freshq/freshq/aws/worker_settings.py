"""Settings of the worker, which only its function loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, Json

from freshq.aws.settings import Arn, Count, Positive, WakeUpSettings, ZeroOrMore
from freshq.policy.concurrency_limit import ConcurrencyLimit
from freshq.policy.retry_budget import RetryBudget
from freshq.policy.token_bucket import SharedBucket
from freshq.worker.worker import Worker

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue
    from freshq.worker.report import Observer
    from freshq.worker.runner import Runner

# The part of `settle_seconds` that is kept for the tail call and the last log lines.
TAIL_SECONDS: Final = 1.0
# A pass whose store does not answer for this time fails, so that alarms see it; the sweep starts the next.
GIVE_UP_SECONDS: Final = 10.0


class WorkerSettings(WakeUpSettings):
    """Settings of a worker pass.

    Attributes:
        trigger_topic_arn: Topic of the tail calls.
        max_hops: Maximum number of tail calls in a row; the sweep starts the next series.
        runner: The user's runner, as ``module:function``.
        runner_environment: Environment variables for the runner; a JSON object of strings.
        concurrency: Maximum number of tasks that a worker runs at a time.
        limit_lowest: Lower bound of the concurrency limit over all workers.
        limit_highest: Upper bound of the concurrency limit over all workers; 0 for no limit.
        limit_window_seconds: Time between changes of that limit.
        shared_rate_per_second: Tasks that all workers start per second; 0 for no limit.
        retry_fraction: Maximum number of retries per first attempt; 0 for no limit.
        pass_seconds: Maximum time for which a pass claims tasks.
        idle_exit_seconds: A pass ends after this time without work.
        settle_seconds: Time at the end of the function's timeout for running tasks to end and be settled.
    """

    trigger_topic_arn: Arn
    max_hops: Count = 100
    runner: str = "freshq.aws.demo_runner:run"
    runner_environment: Json[dict[str, str]] = Field(default_factory=dict)
    concurrency: Count = 3
    limit_lowest: Count = 1
    limit_highest: Annotated[int, Field(ge=0)] = 0
    limit_window_seconds: Positive = 10.0
    shared_rate_per_second: ZeroOrMore = 0.0
    retry_fraction: ZeroOrMore = 0.0
    pass_seconds: Positive = 60.0
    idle_exit_seconds: Positive = 1.0
    settle_seconds: Annotated[float, Field(ge=2)] = 30.0

    def claiming_seconds(self, remaining_seconds: float) -> float:
        """Return for how long a pass claims tasks.

        Args:
            remaining_seconds: Time until the function's timeout.

        Raises:
            ValueError: If there is no time to claim: such a worker would start, and never do anything.
        """
        claiming_seconds = min(self.pass_seconds, remaining_seconds - self.settle_seconds)
        if claiming_seconds <= 0:
            msg = (
                f"FRESHQ_SETTLE_SECONDS: {self.settle_seconds:g} s leave no time to claim tasks in the "
                f"{remaining_seconds:g} s until the timeout; lower SettleSeconds or raise TimeoutSeconds"
            )
            raise ValueError(msg)
        return claiming_seconds

    def worker(self, queue: BaseQueue, runner: Runner, observer: Observer) -> Worker:
        """Return the worker that the settings describe.

        Args:
            queue: The queue to claim from.
            runner: Does the work.
            observer: Receives what happens.

        Raises:
            ValueError: If settings contradict each other.
        """
        limit = bucket = budget = None
        if self.limit_highest:
            limit = ConcurrencyLimit(self.limit_lowest, self.limit_highest, self.limit_window_seconds)
        if self.shared_rate_per_second:
            burst = max(1, round(self.shared_rate_per_second))
            bucket = SharedBucket(self.shared_rate_per_second, burst, min(burst, self.concurrency))
        if self.retry_fraction:
            budget = RetryBudget(self.retry_fraction)
        return Worker(
            queue,
            runner,
            concurrency=self.concurrency,
            limit=limit,
            shared_bucket=bucket,
            retry_budget=budget,
            idle_exit_seconds=self.idle_exit_seconds,
            drain_seconds=self.settle_seconds - TAIL_SECONDS,
            give_up_seconds=GIVE_UP_SECONDS,
            observer=observer,
        )
