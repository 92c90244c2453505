"""Settings from the environment, checked once, before anything else happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from freshq.policy.order import Order
from freshq.queue import Queue

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

PREFIX = "FRESHQ_"

Positive = Annotated[float, Field(gt=0)]
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
    retention_seconds: Annotated[float, Field(ge=0)] = 86_400.0
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
        )


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


class WorkerSettings(WakeUpSettings):
    """What a worker pass needs besides.

    Attributes:
        trigger_topic_arn: Topic of the tail calls.
        max_hops: Tail calls in a row, at the most; the sweep starts a new row.
        runner: The user's runner, as ``module:function``.
        concurrency: Tasks in work at a time.
        pass_seconds: How long a pass claims new tasks, at the most.
        idle_exit_seconds: A pass ends when nothing was there to do for so long.
        settle_seconds: Time kept at the end of the function's timeout for tasks in work to be settled.
    """

    trigger_topic_arn: Arn
    max_hops: Count = 100
    runner: str = "freshq.demo_runner:run"
    concurrency: Count = 3
    pass_seconds: Positive = 60.0
    idle_exit_seconds: Positive = 2.0
    settle_seconds: Annotated[float, Field(ge=2)] = 30.0
