"""The store in a relational database, put together from its parts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import sqlalchemy as sa
from typing_extensions import override

from freshq.stores.sql.approximate_counts import ApproximateCounts
from freshq.stores.sql.claims import Claims
from freshq.stores.sql.clock import database_clock
from freshq.stores.sql.database import Database
from freshq.stores.sql.engine import DEFAULT, open_engine
from freshq.stores.sql.migrations import migrate
from freshq.stores.sql.puts import Puts
from freshq.stores.sql.schema import checked_table, schema
from freshq.stores.sql.shared_records import SharedRecords
from freshq.stores.sql.transactions import SqlTransactions
from freshq.stores.sql.upkeep import Upkeep

if TYPE_CHECKING:
    from freshq.stores.clocks import TimeRange
    from freshq.stores.sql.clock import DatabaseClock, SqliteClock
    from freshq.stores.sql.connecting import Connecting


class SqlStore(Claims, Puts, Upkeep, SharedRecords, ApproximateCounts):
    """Tasks in a table of a relational database. Thread-safe; each process makes its own."""

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str = "tasks",
        *,
        queue: str | None = None,
        connecting: Connecting = DEFAULT,
    ) -> None:
        """Use a database; nothing is sent before the first call.

        Args:
            url: Address of the database, or an engine made by `freshq.stores.sql.engine.open_engine`.
            table: Name of the table of tasks; the names of the others begin with it.
            queue: Whose tasks `get` returns: ids are unique within a queue. None: of any queue of the
                table.
            connecting: The limits of its connections; an engine has its own.

        Raises:
            ValueError: If an argument is wrong.
        """
        checked_table(table)
        self._owns_engine = not isinstance(url, sa.Engine)
        engine = url if isinstance(url, sa.Engine) else open_engine(url, connecting)
        super().__init__(Database(engine, table, connecting), schema(table, engine.dialect.name), queue)
        self.transactions = SqlTransactions(claims=self, puts=self)

    @cached_property
    def _clock(self) -> DatabaseClock | SqliteClock:
        return database_clock(self.database)

    @override
    def clock(self) -> float:
        return self._clock()

    @override
    def time_range(self) -> TimeRange:
        return self._clock.range()

    @override
    def create_table(self) -> None:
        self.migrate()

    def migrate(self) -> list[str]:
        """Bring the tables to the newest version; return the names of the migrations that were applied."""
        return migrate(self.database, self.schema)

    @override
    def close(self) -> None:
        """Close the connections if the store opened the engine; the store can be used again."""
        if self._owns_engine:
            self.database.engine.dispose()
