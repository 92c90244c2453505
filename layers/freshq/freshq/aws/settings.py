"""Settings of the functions, from their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field

from freshq.aws.environment import Arn, Count, EnvironmentSettings, Share, ZeroOrMore, session
from freshq.model.storable_options import DynamoDBOptions
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.pressure import Door
from freshq.policy.rules import CodelRule
from freshq.stores.dynamodb.calls import CLIENT_CONFIG

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.options import QueueOptions
    from freshq.queue.base import BaseQueue
    from freshq.stores.dynamodb.schema import Names


def dynamodb_client() -> DynamoDBClient:
    """Return a client with the time limits of `Queue.dynamodb`."""
    return cast("DynamoDBClient", session().create_client("dynamodb", config=CLIENT_CONFIG))


class QueueSettings(EnvironmentSettings, DynamoDBOptions):
    """The queue and its options: those of `DynamoDBOptions`, and policies whose parts are settings.

    Attributes:
        table: Name of the DynamoDB table.
        attach_key: Hash key of an application's table that freshq is attached to; empty for a table of
            freshq's own. The attachment then sets order, shards and max age.
        queue_name: Name of the queue in the table.
        codel_target_seconds: Target wait of CoDel, only with order FIFO; 0 for no CoDel.
        max_backlog: Maximum number of claimable tasks; 0 for no limit.
        when_full: Which tasks to shed when the backlog is full.
        group_share: Share of a full backlog above which a group sheds first; 0 for no limit.
        door_multiple: While overloaded, admit this multiple of the served rate; 0 for no door.
        worker_passes: Maximum number of worker passes at a time.
    """

    table: Annotated[str, Field(min_length=3)]
    attach_key: str = ""
    queue_name: str = "default"
    codel_target_seconds: ZeroOrMore = 0.0
    max_backlog: Annotated[int, Field(ge=0)] = 0
    when_full: WhenFull = WhenFull.DROP_OLDEST
    group_share: Share = 0.0
    door_multiple: ZeroOrMore = 0.0
    worker_passes: Count = 1

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
        from freshq.stores.dynamodb.attached.attach import described_key  # noqa: PLC0415
        from freshq.stores.dynamodb.schema import Names  # noqa: PLC0415

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
            ValueError: If settings contradict each other.
            StoreError: If the table is attached, and DynamoDB did not answer.
        """
        from freshq.queue.queue import Queue  # noqa: PLC0415 - the trigger starts without it

        used = client or dynamodb_client()
        options: QueueOptions = {
            "name": self.queue_name,
            "override": True,  # the stack's parameters count
            "max_attempts": self.max_attempts,
            "lease_seconds": self.lease_seconds,
            "reserve": self.reserve,
            "codel": self._codel(),
            "backlog": self._backlog(),
            "door": Door(self.door_multiple) if self.door_multiple else None,
        }
        if self.names(used) is not None:
            return Queue.dynamodb(self.table, used, attach=True, key=self.attach_key, **options)
        options |= {
            "order": self.order,
            "max_age_seconds": self.max_age_seconds,
            "retention_seconds": self.retention_seconds,
            "dead_letter_retention_seconds": self.dead_letter_retention_seconds,
        }
        return Queue.dynamodb(self.table, used, shards=self.shards, **options)

    def _codel(self) -> CodelRule | None:
        target_seconds = self.codel_target_seconds
        return CodelRule(target_seconds, 2 * target_seconds) if target_seconds else None

    def _backlog(self) -> BacklogLimit | None:
        if not self.max_backlog:
            if self.group_share:
                raise ValueError("FRESHQ_GROUP_SHARE: needs FRESHQ_MAX_BACKLOG, because it is a share of it")
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
