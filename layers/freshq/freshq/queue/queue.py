"""How a queue is opened on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from freshq.errors import needs
from freshq.queue.attached import AttachedQueue, open_dynamodb
from freshq.queue.base import BaseQueue

if TYPE_CHECKING:
    from typing import Self, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.options import QueueOptions


class Queue(BaseQueue):
    """A queue whose tasks are in a table of freshq."""

    @classmethod
    def memory(cls, **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in the memory of this process, for tests and experiments."""
        from freshq.stores.memory import MemoryStore  # noqa: PLC0415 - only the store in use is loaded

        return cls(MemoryStore(), **options)

    @overload
    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int = 1,
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
        shards: int = 1,
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
        shards: int = 1,
        attach: bool = False,
        key: str | None = None,
        **options: Unpack[QueueOptions],
    ) -> Self | AttachedQueue:
        """Return a queue on a DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of the index of claimable tasks. One keeps strict order. N raise the write
                limit N-fold, and a claim merges the newest tasks of each. On an attached table: 1, or
                the number that it was attached with.
            attach: Whether the tasks are records of an application's table that was prepared with
                `freshq attach`. Order and shards are then those of the attachment by default, and
                records do not become stale.
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
            from freshq.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - only the store in use is loaded

        return cls(DynamoDBStore(table, client, shards=shards), **options)

    @classmethod
    def sql(
        cls,
        url: str,
        table: str = "tasks",
        *,
        connect_timeout_seconds: float | None = None,
        answer_timeout_seconds: float | None = None,
        lock_timeout_seconds: float | None = None,
        max_connections: int = 10,
        durable: bool = True,
        **options: Unpack[QueueOptions],
    ) -> Self:
        """Return a queue in SQLite, PostgreSQL, MariaDB or MySQL; nothing is sent before the first call.

        Args:
            url: Such as `sqlite:///tasks.db`, `postgresql://user@host/name` or `mariadb://user@host/name`.
            table: Name of the table of tasks, which `create_table()` or `freshq table create` makes.
            connect_timeout_seconds: How long to wait for a connection. None: 5 s, less if leases are short.
            answer_timeout_seconds: Likewise for an answer, and for a free connection. None: 15 s, or less.
            lock_timeout_seconds: How long a statement waits for a lock. None: 5 s, or less.
            max_connections: Maximum number of connections of this process.
            durable: Whether SQLite waits for the disk at each commit.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an argument is wrong.
            MissingExtra: If the extra `sql` is not installed.
        """
        with needs("sql"):
            from freshq.stores.sql import SqlStore, connecting_for  # noqa: PLC0415 - only the store in use is loaded
        connecting = connecting_for(
            options.get("lease_seconds"),
            connect_timeout_seconds=connect_timeout_seconds,
            answer_timeout_seconds=answer_timeout_seconds,
            lock_timeout_seconds=lock_timeout_seconds,
            max_connections=max_connections,
            durable=durable,
        )
        name = options.get("name", "default")
        return cls(SqlStore(url, table, queue=name, connecting=connecting), **options)
