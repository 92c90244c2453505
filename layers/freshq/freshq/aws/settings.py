"""Settings from the environment, checked at the start of a function."""

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

# The part of `settle_seconds` that is kept for the tail call and the last log lines.
TAIL_SECONDS: Final = 1.0
# A pass whose store does not answer for this time fails, so that alarms see it; the sweep starts the next.
GIVE_UP_SECONDS: Final = 10.0
PREFIX = "FRESHQ_"

Positive = Annotated[float, Field(gt=0)]
ZeroOrMore = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Arn = Annotated[str, Field(pattern=r"^arn:")]


class QueueSettings(BaseSettings):
    """The queue and its options. The variable of a field is its name in capitals after FRESHQ_.

    Attributes:
        table: Name of the DynamoDB table.
        queue_name: Name of the queue in the table.
        order: Order of service within a priority level.
        max_age_seconds: Maximum age of a task; an older one is stale.
        max_attempts: Attempts after which a task that fails becomes a dead letter.
        lease_seconds: Duration of a lease.
        retention_seconds: How long a task stays readable after it is over.
        reserve: Time that must be left before the deadline for a task to be claimed: seconds, or a
            percentile of the service times such as p90.
        codel_target_seconds: Target of CoDel for the shortest wait, only with order FIFO; 0 for no CoDel.
        max_backlog: Maximum number of claimable tasks; 0 for no limit.
        when_full: What to shed when the backlog is full.
        group_share: Share of a full backlog above which a group is evicted first; 0 for no limit.
        door_multiple: While overloaded, admit this multiple of what is served; 0 for no door.
        shards: Number of shards of the index of claimable tasks.
        worker_passes: Maximum number of worker passes at a time.
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
        """Return the queue that the settings describe.

        Args:
            client: A low-level boto3 client; None for one from the environment.

        Raises:
            ValueError: If settings contradict each other.
        """
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
    """Settings of all functions of the wake-up loop.

    Attributes:
        kill_switch_parameter: Name of the SSM parameter of the kill switch.
    """

    kill_switch_parameter: str


class DoorbellSettings(WakeUpSettings):
    """Settings of a function that rings for a worker pass.

    Attributes:
        process_tasks_topic_arn: Topic that starts a worker pass.
    """

    process_tasks_topic_arn: Arn


class ArchiveSettings(QueueSettings):
    """Settings of the archive.

    Attributes:
        delivery_stream: Name of the Firehose delivery stream.
    """

    delivery_stream: Annotated[str, Field(min_length=1)]


class WorkerSettings(WakeUpSettings):
    """Settings of a worker pass.

    Attributes:
        trigger_topic_arn: Topic of the tail calls.
        max_hops: Maximum number of tail calls in a row; the sweep starts the next series.
        runner: The user's runner, as ``module:function``.
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
