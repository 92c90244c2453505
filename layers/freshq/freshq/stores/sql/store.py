"""The store in a relational database, put together from its parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.stores.sql.approximate_counts import ApproximateCounts
from freshq.stores.sql.claims import ClaimPart
from freshq.stores.sql.database import Database
from freshq.stores.sql.engine import DEFAULT
from freshq.stores.sql.migrations import migrate
from freshq.stores.sql.place import place_of
from freshq.stores.sql.puts import PutPart
from freshq.stores.sql.schema import checked_table, schema
from freshq.stores.sql.shared_records import SharedRecords
from freshq.stores.sql.transactions import SqlTransactions
from freshq.stores.sql.upkeep import Upkeep

if TYPE_CHECKING:
    import sqlalchemy as sa

    from freshq.stores.clocks import TimeRange
    from freshq.stores.sql.connection_limits import ConnectionLimits


class SqlStore(ClaimPart, PutPart, Upkeep, SharedRecords, ApproximateCounts):
    """Tasks in a table of a relational database. Thread-safe; each process makes its own."""

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str = "tasks",
        *,
        queue: str | None = None,
        limits: ConnectionLimits = DEFAULT,
        history_seconds: float | None = None,
    ) -> None:
        """Use a database; nothing is sent before the first call.

        Args:
            url: Address of the database, or an engine made by `freshq.stores.sql.engine.open_engine`.
            table: Name of the table of tasks; the names of the others begin with it.
            queue: Whose tasks `get` returns: ids are unique within a queue. None: of any queue of the
                table.
            limits: The limits of its connections; an engine has its own.
            history_seconds: How long `create_table` makes the database keep the history of `queue`; 0: it
                keeps none any more. None: as it is.

        Raises:
            ValueError: If an argument is wrong.
        """
        checked_table(table)
        if history_seconds is not None and queue is None:
            raise ValueError("queue: must be given with history_seconds")
        database = Database(url, table, limits)
        super().__init__(database, schema(table, database.dialect), queue)
        self._history_seconds = history_seconds
        if queue is not None:  # ids are unique within a queue
            self.place = (place_of(database.engine.url), table, queue)
        if queue is not None and history_seconds:
            database.requirement = partial(self.history.check, queue)
        self.transactions = SqlTransactions(claims=self, puts=self)

    @override
    def clock(self) -> float:
        return self.database.clock()

    @override
    def time_range(self) -> TimeRange:
        return self.database.clock.range()

    @override
    def create_table(self) -> None:
        self.database.requirement = None
        self.migrate()
        if self.queue is None or self._history_seconds is None:
            return
        if self._history_seconds > 0:
            self.history.begin(self.queue, self._history_seconds)
        else:
            self.history.end(self.queue)

    def migrate(self) -> list[str]:
        """Bring the tables to the newest version; return the names of the migrations that were applied."""
        self.database.allow_new_file()
        return migrate(self.database, self.schema)

    @override
    def close(self) -> None:
        """Close the connections if the store opened the engine; the store can be used again."""
        self.database.close()
