"""Settings from the environment, checked once, before anything else happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.policy.order import Order
from freshq.policy.pressure import Door
from freshq.policy.rules import CodelRule
from freshq.policy.shedding import BacklogLimit, WhenFull
from freshq.queue.queue import Queue
from freshq.worker.worker import Worker

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.worker.report import Observer
    from freshq.worker.runner import Runner

# Kept for the tail call and the last log lines, out of the time to settle.
TAIL_SECONDS: Final = 1.0
PREFIX = "FRESHQ_"

Positive = Annotated[float, Field(gt=0)]
ZeroOrMore = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Arn = Annotated[str, Field(pattern=r"^arn:")]


class QueueSettings(BaseSettings):
    """Which queue, and how it behaves; the variables are the fields in capitals after FRESHQ_.

    Attributes:
        table: Name of the DynamoDB table.
        queue_name: Name of the queue in it.
        order: Order of service within a priority level.
        max_age_seconds: A task older than this is stale.
        max_attempts: Claims after which a task that fails is a dead letter.
        lease_seconds: How long a worker may go without a word.
        retention_seconds: How long a finished or shed task stays readable.
        reserve: Time that a task must still have to be claimed: seconds, or a percentile such as p90.
        codel_target_seconds: With order FIFO, shed what waits long; 0 for never.
        max_backlog: Tasks that may wait; 0 for no bound.
        when_full: What gives way when that is reached.
        group_share: Share of a full backlog above which a group gives way first; 0 for never.
        door_multiple: While overloaded, let in so many times what is served; 0 for no door.
        shards: Partitions of the index of claimable tasks.
        worker_passes: Worker passes at a time.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    table: Annotated[str, Field(min_length=3)]
    queue_name: str = "default"
    order: Order = Order.LIFO
    max_age_seconds: Positive = 3600.0
    max_attempts: Count = 5
    lease_seconds: Positive = 60.0
    retention_seconds: ZeroOrMore = 86_400.0
    reserve: str = "0"
    codel_target_seconds: ZeroOrMore = 0.0
    max_backlog: Annotated[int, Field(ge=0)] = 0
    when_full: WhenFull = WhenFull.DROP_OLDEST
    group_share: ZeroOrMore = 0.0
    door_multiple: ZeroOrMore = 0.0
    shards: Count = 1
    worker_passes: Count = 1

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            ValueError: One line that names the first variable that is missing or wrong.
        """
        try:
            return cls()
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = PREFIX + "_".join(map(str, problem["loc"])).upper()
            msg = f"{name}: {problem['msg']}; set it in the function's environment (template.yaml)"
            raise ValueError(msg) from None

    def queue(self, client: DynamoDBClient | None = None) -> Queue:
        """Return the queue that the settings describe."""
        return Queue.dynamodb(
            self.table,
            client,
            shards=self.shards,
            name=self.queue_name,
            order=self.order,
            max_age_seconds=self.max_age_seconds,
            max_attempts=self.max_attempts,
            lease_seconds=self.lease_seconds,
            retention_seconds=self.retention_seconds,
            reserve=self.reserve,
            codel=self._codel(),
            backlog=self._backlog(),
            door=Door(self.door_multiple) if self.door_multiple else None,
        )

    def _codel(self) -> CodelRule | None:
        target_seconds = self.codel_target_seconds
        return CodelRule(target_seconds, 2 * target_seconds) if target_seconds else None

    def _backlog(self) -> BacklogLimit | None:
        if not self.max_backlog:
            if self.group_share:
                raise ValueError("FRESHQ_GROUP_SHARE: needs FRESHQ_MAX_BACKLOG, of which it is a share")
            return None
        return BacklogLimit(self.max_backlog, self.when_full, self.group_share or None)


class WakeUpSettings(QueueSettings):
    """What every function of the wake-up loop needs besides.

    Attributes:
        kill_switch_parameter: Name of the SSM parameter that stops all passes.
    """

    kill_switch_parameter: str


class DoorbellSettings(WakeUpSettings):
    """What a function that rings for a worker pass needs besides.

    Attributes:
        process_tasks_topic_arn: Topic that starts a worker pass.
    """

    process_tasks_topic_arn: Arn


class ArchiveSettings(QueueSettings):
    """What the archive needs besides.

    Attributes:
        delivery_stream: Name of the Firehose delivery stream.
    """

    delivery_stream: Annotated[str, Field(min_length=1)]


class WorkerSettings(WakeUpSettings):
    """What a worker pass needs besides.

    Attributes:
        trigger_topic_arn: Topic of the tail calls.
        max_hops: Tail calls in a row, at the most; the sweep starts a new row.
        runner: The user's runner, as ``module:function``.
        concurrency: Tasks in work at a time.
        limit_lowest: Tasks in work at a time over all workers, at the least.
        limit_highest: Tasks in work at a time over all workers, at the most; 0 for no limit.
        limit_window_seconds: Time between changes of that limit.
        shared_rate_per_second: Tasks that all workers start a second; 0 for no limit.
        retry_fraction: Retries for each first attempt, at the most; 0 for no limit.
        pass_seconds: How long a pass claims new tasks, at the most.
        idle_exit_seconds: A pass ends when nothing was there to do for so long.
        settle_seconds: Time kept at the end of the function's timeout for tasks in work to be settled.
    """

    trigger_topic_arn: Arn
    max_hops: Count = 100
    runner: str = "freshq.aws.demo_runner:run"
    concurrency: Count = 3
    limit_lowest: Count = 1
    limit_highest: Annotated[int, Field(ge=0)] = 0
    limit_window_seconds: Positive = 10.0
    shared_rate_per_second: ZeroOrMore = 0.0
    retry_fraction: ZeroOrMore = 0.0
    pass_seconds: Positive = 60.0
    idle_exit_seconds: Positive = 2.0
    settle_seconds: Annotated[float, Field(ge=2)] = 30.0

    def worker(self, queue: Queue, runner: Runner, observer: Observer) -> Worker:
        """Return the worker that the settings describe.

        Raises:
            ValueError: If settings make no sense together.
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
            observer=observer,
        )
