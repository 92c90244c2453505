"""A PostgreSQL connection that does not wait indefinitely for an answer, and one that a coroutine lends.

The server's own timeout does not help if the network loses the answer, and TCP's does not if a middlebox
acknowledges packets that it drops.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.rows import tuple_row
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

# The server's timeout is shorter: its error says why, and keeps the connection usable.
GRACE_SECONDS: Final = 1.0
# Whether COPY can write to a table: it takes no views, and no rules or policies of rows.
CAN_COPY: Final = (
    "SELECT relkind IN ('r', 'p') AND NOT relhasrules AND NOT row_security_active(oid) "
    "FROM pg_class WHERE oid = to_regclass(%(of_table)s::text)"
)
_LENT: Final[ContextVar[Any]] = ContextVar("freshq_lent")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that limits the wait for each answer.

    Attributes:
        answer_timeout_seconds: How long to wait for an answer; None to wait indefinitely.
        settings: The settings of the session, by name.
    """

    answer_timeout_seconds: float | None = None
    settings: Mapping[str, str] = MappingProxyType({})

    def is_pooled(self) -> bool:
        """Return whether a pooler is between this connection and the server.

        A session of the server then serves several clients in turn: it keeps neither prepared statements nor
        locks nor LISTEN for any of them.
        """
        cursor = self.execute("SELECT pg_backend_pid()")
        return cursor.fetchone() != (self.info.backend_pid,)

    @override
    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        if self.answer_timeout_seconds is None:
            return super().wait(gen, *arguments, **options)
        return super().wait(self._bounded(gen, self.answer_timeout_seconds), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        """Drive a generator of the driver until it ends or the timeout passes."""
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    msg = f"no answer within {seconds:g} s"
                    raise psycopg.OperationalError(msg)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows to write by COPY.

    Attributes:
        table: Name of the table, quoted if need be.
        statement: COPY ... FROM STDIN.
        rows: Returns the rows.
    """

    table: str
    statement: str
    rows: Callable[[], Iterable[Sequence[Any]]]

    def write(self, cursor: psycopg.Cursor[Any]) -> int | None:
        """Write the rows; return their number, or None if COPY cannot write to the table.

        The server reads them while they are made.
        """
        cursor.execute(CAN_COPY, {"of_table": self.table})
        if cursor.fetchone() != (True,):
            return None
        with cursor.copy(self.statement) as copy:
            for row in self.rows():
                copy.write_row(row)
        return cursor.rowcount

    def write_in(self, connection: sa.Connection) -> bool:
        """Write the rows in the transaction of a caller; return False, having written none, if it cannot."""
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return False
        if not connection.in_transaction():
            connection.begin()  # as its first statement does
        driver: Any = connection.connection
        with driver.cursor(row_factory=tuple_row) as cursor:
            return self.write(cursor) is not None


class _Lent:
    """A connection whose owner ends its transaction; SQLAlchemy would add a handler for notices."""

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def close(self) -> None:
        """Leave the connection open."""

    commit = rollback = close

    def add_notice_handler(self, _handler: object) -> None:
        """Leave the connection unchanged."""


@cache
def _engine() -> AsyncEngine:
    """Return an engine on the connection that this coroutine lends."""
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - asyncio is slow to load
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    async def lent() -> Any:
        return _LENT.get()

    options: dict[str, Any] = {
        "poolclass": NullPool,
        "pool_reset_on_return": None,
        "use_native_hstore": False,
    }
    return create_async_engine("postgresql+psycopg_async://", async_creator=lent, **options)


class LentAsync:
    """An AsyncConnection of psycopg, with the method by which SQLAlchemy's connections run a function.

    Attributes:
        dialect: Of the database.
    """

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        """Use a connection whose owner ends its transaction."""
        self._raw = raw
        self.dialect = _engine().dialect

    async def run_sync(self, work: Callable[[sa.Connection], T]) -> T:
        """Call a function with the connection, and return its result."""
        token = _LENT.set(_Lent(self._raw))
        try:
            async with _engine().connect() as connection:
                return await connection.run_sync(work)
        finally:
            _LENT.reset(token)
