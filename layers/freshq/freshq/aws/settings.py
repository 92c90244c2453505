"""Settings of the functions, from their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self, cast

from pydantic import Field
from typing_extensions import override

from freshq.aws.environment import Arn, EnvironmentSettings, client_of
from freshq.aws.invocation import invocation
from freshq.stores.dynamodb.calls import CLIENT_CONFIG

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.aws.pass_options import StoredPassOptions
    from freshq.queue.base import BaseQueue
    from freshq.stores.dynamodb.schema import Names


def dynamodb_client() -> DynamoDBClient:
    """Return a client with the time limits of `Queue.dynamodb`."""
    return cast("DynamoDBClient", client_of("dynamodb", CLIENT_CONFIG))


class QueueSettings(EnvironmentSettings):
    """The location of the queue. Its options are stored with it.

    Attributes:
        table: Name of the DynamoDB table.
        attach_key: Hash key of an application's table that freshq is attached to; empty for a table of
            freshq's own.
        queue_name: Name of the queue in the table.
    """

    table: Annotated[str, Field(min_length=3)]
    attach_key: str = ""
    queue_name: str = "default"

    @classmethod
    @override
    def load(cls) -> Self:
        """Read the environment; a canary has a queue of its own.

        Raises:
            ValueError: One line that names the first variable that is missing or wrong.
        """
        settings = super().load()
        queue = invocation().canary_queue
        return settings if queue is None else settings.model_copy(update={"queue_name": queue})

    def names(self, client: DynamoDBClient) -> Names | None:
        """Return the names in an attached table; None for a table of freshq's own.

        Raises:
            ValueError: If the table has another hash key, or a hash key that is not text: the roles of the
                functions compare keys of items as strings.
            StoreError: If DynamoDB did not answer, or the table does not exist.
        """
        if not self.attach_key:
            return None
        # Only attached tables need these.
        from freshq.stores.dynamodb.attached.attach import described_key
        from freshq.stores.dynamodb.schema import Names

        key = described_key(client, self.table, self.attach_key)
        if key.hash.attribute_type != "S":
            msg = (
                f"FRESHQ_ATTACH_KEY: {self.attach_key!r} is of type {key.hash.attribute_type}; the "
                "functions' roles allow only tables whose hash key is of type S; use freshq work instead"
            )
            raise ValueError(msg)
        return Names.attached(key)

    def queue(self, client: DynamoDBClient | None = None) -> BaseQueue:
        """Return the queue that the settings describe.

        Args:
            client: A low-level client; None for one from the environment.

        Raises:
            ValueError: If the table cannot be used, see `names`.
            StoreError: If the table is attached, and DynamoDB did not answer.
        """
        from freshq.queue.queue import Queue

        used = client or dynamodb_client()
        if self.names(used) is not None:
            return Queue.dynamodb(self.table, used, attach=True, key=self.attach_key, name=self.queue_name)
        return Queue.dynamodb(self.table, used, name=self.queue_name)

    def pass_options(self, client: DynamoDBClient) -> StoredPassOptions:
        """Return the options of the worker passes, which are read when they are needed."""
        from freshq.aws.pass_options import StoredPassOptions

        return StoredPassOptions(self.table, self.queue_name, client, self.names(client))


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
