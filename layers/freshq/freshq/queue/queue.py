"""Open a queue on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from freshq.errors import needs
from freshq.model.checks import queue_name
from freshq.queue.attached import AttachedQueue, open_dynamodb
from freshq.queue.base import BaseQueue
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from typing import Self, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.options import QueueOptions, SqlOptions


class Queue(BaseQueue):
    """A queue with its own table of tasks.

    Examples:
        >>> queue = Queue.memory(max_age_seconds=60)  # or Queue.sql("sqlite:///tasks.db")
        >>> queue.put({"symbol": "ABC"}, task_id="quote-1", priority=5)
        Receipt(task_id='quote-1', outcome=<PutOutcome.CREATED: 'CREATED'>)
        >>> (claim,) = queue.claim(1)
        >>> queue.fail(claim, error="no answer").status.value
        'FAILURE'
        >>> [task.error for task in queue.list("FAILURE")], queue.stats().failure
        (['no answer'], 1)
        >>> queue.redrive(where=lambda task: "no answer" in task.error)
        1
        >>> queue.purge(confirm=queue.name)
        1
    """

    @classmethod
    def memory(cls, **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in the memory of this process, for tests and experiments.

        Examples:
            >>> Queue.memory(order="fifo", max_age_seconds=None).name
            'default'
        """
        from freshq.stores.memory import MemoryStore

        return cls(MemoryStore(), **options)

    @overload
    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int | None = None,
        attach: Literal[False] = False,
        key: None = None,
        **options: Unpack[QueueOptions],
    ) -> Self: ...

    @overload
    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int | None = None,
        attach: Literal[True],
        key: str,
        **options: Unpack[QueueOptions],
    ) -> AttachedQueue: ...

    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int | None = None,
        attach: bool = False,
        key: str | None = None,
        **options: Unpack[QueueOptions],
    ) -> Self | AttachedQueue:
        """Return a queue on a DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of the index of claimable tasks. One shard keeps strict order; N shards raise
                the write limit N-fold, and a claim merges the newest tasks of each. None: the stored number,
                or 1; on an attached table, the number that it was attached with.
            attach: Whether the tasks are records of an application's table that was prepared with
                `freshq table attach`. Order and shards then come from the attachment by default, and records
                do not become stale.
            key: The hash key of an attached table.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an argument is wrong, or contradicts the attachment.
            TableMissing: If `attach` is set and the table is not attached.
            MissingExtra: If the extra `aws` is not installed.
        """
        if attach:
            return open_dynamodb(table, client, key, shards, options)
        if key is not None:
            raise ValueError("key: only with attach=True; freshq's own tables have the key taskId")
        with needs("aws"):
            from freshq.stores.dynamodb.store import DynamoDBStore

        store = DynamoDBStore(table, client, shards=shards, queue=queue_name(options))
        return cls(store, **options)

    @classmethod
    def sql(
        cls,
        url: str,
        table: str = "tasks",
        *,
        history: bool | None = None,
        history_seconds: float | None = None,
        **options: Unpack[SqlOptions],
    ) -> Self:
        """Return a queue in SQLite, PostgreSQL, MariaDB or MySQL; nothing is sent before the first call.

        Args:
            url: Such as `sqlite:///tasks.db`, `postgresql://user@host/name` or `mariadb://user@host/name`.
            table: Name of the table of tasks, created by `create_table()` or `freshq table create`.
            history: Whether every change of a task also writes an event for `freshq-pipeline pull`, in the
                same transaction. `create_table()` applies it, for all programs that use the queue; False
                stops the history and deletes its events. None: unchanged.
            history_seconds: How long events are kept. None: a week.
            **options: See `freshq.model.options.QueueConfig`, and `freshq.model.options.SqlOptions` for
                timeouts and connections.

        Raises:
            ValueError: If an argument is wrong.
            MissingExtra: If the extra `sql` is not installed.

        Examples:
            >>> queue = Queue.sql("sqlite:///tasks.db", name="mail", max_age_seconds=60)
            >>> queue.name
            'mail'
        """
        with needs("sql"):
            from freshq.stores.sql import open_store

        store, others = open_store(url, table, dict(options), history, history_seconds)
        return cls(store, **others)


def sibling(queue: Queue, **options: Unpack[QueueOptions]) -> Queue:
    """Return another queue in the same tables, on the same connections: close the first one last.

    Args:
        queue: The first queue.
        **options: See `freshq.model.options.QueueConfig`. `name` distinguishes them.

    Raises:
        ValueError: If an argument is wrong.
    """
    return type(queue)(core_of(queue).store.of_queue(queue_name(options)), **options)
