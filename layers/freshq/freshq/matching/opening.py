"""Opens the resources of a store, for `MatchQueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.errors import needs, quoted
from freshq.matching.changes import Changes
from freshq.matching.line import CallerLine
from freshq.matching.matches import Matches
from freshq.matching.walk import Walk
from freshq.model.checks import checked_seconds
from freshq.policy.order import Order
from freshq.stores.clocks import ComparedClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypedDict, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.matching.stores.base import MatchHistories, MatchStore

    class MatchOptions(TypedDict, total=False):
        """Options by name, as the constructors of `MatchQueue` take them; `MatchQueue` describes them."""

        order: Order | str
        lease_seconds: float
        clock: Callable[[], float] | None


DEFAULT_LEASE_SECONDS: Final = 60.0


class OpenedResources:
    """Resources in a store, with what works on them."""

    def __init__(
        self,
        store: MatchStore,
        order: Order | str = Order.FIFO,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Use a store.

        Args:
            store: Where the resources are.
            order: fifo: the resource that has waited longest is first; lifo: the one that came last.
            lease_seconds: How long a match holds its resource unless extended. Must be the same in every
                process.
            clock: Returns the time in seconds since the Unix epoch; None for the store's. A clock that runs,
                but is certainly not the store's time, is corrected.

        Raises:
            ValueError: If an option is wrong.
        """
        if order not in (Order.FIFO, Order.LIFO):
            msg = f"order: must be fifo or lifo, got {quoted(order)}"
            raise ValueError(msg)
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        self._clock = store.clock if clock is None else ComparedClock(clock, store.time_range)
        self._store = store
        self._changes = Changes(store, self._clock, lease_seconds)
        self._walk = Walk(store, newest_first=Order(order) is Order.LIFO)
        self._line = CallerLine(store, self._walk, self._changes)
        self._matches = Matches(self._walk, self._changes, self.recover)

    def recover(self) -> int:
        """Return resources whose callers' leases have expired to their old positions.

        Reads every registered resource. One that fits a waiting caller is matched to it. In a SQL database
        it also deletes some events of the history that are past their retention.

        Returns:
            How many were recovered.
        """
        self._store.tidy(self._clock())
        return self._changes.recover(self._line.served)

    @classmethod
    def memory(cls, **options: Unpack[MatchOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
        from freshq.matching.stores.memory import MemoryMatchStore  # noqa: PLC0415 - only the store in use

        return cls(MemoryMatchStore(), **options)

    @classmethod
    def dynamodb(
        cls, table: str, client: DynamoDBClient | None = None, **options: Unpack[MatchOptions]
    ) -> Self:
        """Return a queue on its own DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            **options: As for `MatchQueue`.

        Raises:
            MissingExtra: If the extra `aws` is not installed.
        """
        with needs("aws"):
            from freshq.matching.stores.dynamodb import DynamoDBMatchStore  # noqa: PLC0415 - only the store in use

        return cls(DynamoDBMatchStore(table, client), **options)

    @classmethod
    def sql(
        cls,
        url: str,
        table: str = "resources",
        *,
        history: bool | None = None,
        history_seconds: float | None = None,
        **options: Unpack[MatchOptions],
    ) -> Self:
        """Return a queue in SQLite, PostgreSQL, MariaDB or MySQL; nothing is sent before the first call.

        Args:
            url: Such as `sqlite:///agents.db`, `postgresql://user@host/name` or `mariadb://user@host/name`.
            table: Name of the table of resources, and prefix of the names of the other tables.
            history: Whether every change of a resource that waits and of a caller also writes an event, in
                the same transaction, for the data pipeline. `create_table` begins it, for all programs.
                False: it ends it, and deletes the events. None: as it is.
            history_seconds: How long events are kept. None: a week.
            **options: As for `MatchQueue`.

        Raises:
            ValueError: If an argument is wrong.
            MissingExtra: If the extra `sql` is not installed.
        """
        with needs("sql"):
            from freshq.matching.stores.sql import SqlMatchStore  # noqa: PLC0415 - only the store in use
            from freshq.stores.sql.history import history_seconds_for  # noqa: PLC0415 - likewise

        seconds = history_seconds_for(history, history_seconds)
        return cls(SqlMatchStore(url, table, history_seconds=seconds), **options)

    @property
    def history(self) -> MatchHistories | None:
        """The histories of resources and callers; None where the store keeps none itself."""
        return self._store.history

    def close(self) -> None:
        """Close the connections that the queue opened; it can be used again."""
        self._store.close()

    def now(self) -> float:
        """Return the queue's time, in seconds since the epoch."""
        return self._clock()

    def create_table(self) -> None:
        """Create what the store needs, unless it exists; return once it can be used."""
        self._store.create_table()

    def delete_table(self) -> None:
        """Delete what the store made, with every resource; return once it is gone. Missing is no error.

        Raises:
            StoreError: If the table is not one of resources: nothing was deleted.
        """
        self._store.delete_table()
