"""The queue: how one is opened on each store."""

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
    """A queue whose tasks freshq keeps itself."""

    @classmethod
    def memory(cls, **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
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
            shards: Partitions of the index of claimable tasks. One keeps strict order; N lift the
                write limit N-fold, and a claim merges the newest of each. An attached table has as
                many as it was attached with; more than one must be that number.
            attach: Whether the tasks are records of an application's table, to which `freshq attach`
                was applied. Then order and shards default to what it was attached with, and no record
                is stale by age.
            key: The hash key of such a table.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an argument is wrong, or does not agree with how the table was attached.
            TableMissing: If a table that is to be attached is not.
            MissingExtra: If the extra `aws` is not installed.
        """
        if attach:
            return open_dynamodb(table, client, key, shards, options)
        if key is not None:
            raise ValueError("key: only with attach=True; a table of freshq's own has the key taskId")
        with needs("aws"):
            from freshq.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - only the store in use is loaded

        return cls(DynamoDBStore(table, client, shards=shards), **options)

    @classmethod
    def sql(cls, url: str, table: str = "tasks", **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in a relational database: SQLite, PostgreSQL, MariaDB or MySQL.

        Args:
            url: Where the database is: `sqlite:///tasks.db`, `postgresql://user@host/name` or
                `mariadb://user@host/name`.
            table: Name of the table of tasks; the names of the others begin with it.
            **options: See `freshq.model.options.QueueConfig`. Unless a clock is given, the time is the
                database's.

        Raises:
            MissingExtra: If the extra `sql` is not installed.
        """
        with needs("sql"):
            from freshq.stores.sql import SqlStore  # noqa: PLC0415 - only the store in use is loaded

        store = SqlStore(url, table, queue=options.get("name", "default"))
        options.setdefault("clock", store.clock)
        return cls(store, **options)
