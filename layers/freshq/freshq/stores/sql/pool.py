"""The pool of connections of an engine, also across forks."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from typing_extensions import override

from freshq.errors import RefusedError
from freshq.stores.held import OPEN
from freshq.stores.sql import forks
from freshq.stores.sql.url import DEFAULT

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

    from freshq.stores.held import OpenTransaction

# How often a fork checks whether a connection that it waits for was lent to an application.
LOOK_AT_LENT_SECONDS: Final = 0.05
OWN_CONNECTIONS: Final = (
    "this code runs inside queue.transaction(), which uses all connections that max_connections={} allows; "
    "put with connection=held.connection, or open the queue with a larger max_connections"
)


class StatementPool(Pool):
    """A bounded pool for SQLAlchemy that also lends bare cursors for single statements.

    A checkout through SQLAlchemy takes as long as some of the statements. `borrow` avoids it, and keeps
    one cursor per connection. The connection used last is reused first.

    Attributes:
        lent: The transactions that last while the code of an application runs.
    """

    def __init__(
        self,
        creator: Any,
        pool_size: int = DEFAULT.max_connections,
        timeout: float = DEFAULT.answer_timeout_seconds,
        **options: Any,
    ) -> None:
        """Open no connection yet.

        Args:
            creator: Opens a connection.
            pool_size: Maximum number of connections.
            timeout: Maximum wait for a free connection, in seconds.
            **options: See SQLAlchemy's Pool.
        """
        super().__init__(creator, **options)
        self._size = pool_size
        self._timeout_seconds = timeout
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(pool_size):
            self._permits.put(None)
        self._entries: list[ConnectionPoolEntry] = []
        self._idle: list[ConnectionPoolEntry] = []
        self._disposed = False
        # Set when the fork in progress is done: without it, busy threads would take each permit again.
        self._fork_over: threading.Event | None = None
        self._kept_for_fork = 0
        self.lent: set[OpenTransaction] = set()
        forks.close_for_forks(self)

    @override
    def _do_get(self) -> ConnectionPoolEntry:
        if self.lent and sum(each in self.lent for each in OPEN.get()) >= self._size:
            raise RefusedError(OWN_CONNECTIONS.format(self._size))  # nobody else could give one back
        if (fork_over := self._fork_over) is not None:
            fork_over.wait(self._timeout_seconds)
        try:
            self._permits.get(timeout=self._timeout_seconds)
        except Empty:
            used = f"all {self._size} connections of this process were in use for {self._timeout_seconds:g} s"
            msg = f"{used}; use fewer threads, or open the queue with a larger max_connections"
            raise PoolTimeout(msg) from None
        try:
            return self._idle.pop()
        except IndexError:
            pass  # no idle connection: open a new one below
        try:
            entry = self._create_connection()
        except BaseException:
            self._permits.put(None)
            raise
        self._entries.append(entry)
        return entry

    @override
    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if self._disposed:
            record.close()
        else:
            self._idle.append(record)
        self._permits.put(None)

    @override
    def dispose(self) -> None:
        self._disposed = True
        while self._idle:
            self._idle.pop().close()

    @override
    def recreate(self) -> StatementPool:
        return StatementPool(
            self._creator,
            pool_size=self._size,
            timeout=self._timeout_seconds,
            _dispatch=self.dispatch,
            dialect=self._dialect,
        )

    @override
    def status(self) -> str:
        return f"{self._size - self._permits.qsize()} of {self._size} connections in use"

    def borrow(self) -> tuple[ConnectionPoolEntry, DBAPICursor]:
        """Return a pool entry and the cursor of its connection; wait while all are in use."""
        entry: Any = self._do_get()
        try:
            connection = entry.get_connection()  # reconnects if the connection is invalid
            cursor = entry.info.get("cursor")
            if cursor is None:
                cursor = entry.info["cursor"] = connection.cursor()
        except BaseException:
            self._do_return_conn(entry)
            raise
        return entry, cursor

    give_back = _do_return_conn

    @property
    def has_free(self) -> bool:
        """Whether a connection could be lent now without a wait."""
        return not self._permits.empty()

    def close_for_fork(self, until: float) -> None:
        """See `forks.Holder`. Servers' connections stay open: a child can open others beside them."""
        if not self._is_sqlite:
            return
        self._fork_over = threading.Event()
        while self._kept_for_fork < self._size - len(self.lent):
            try:
                self._permits.get(timeout=LOOK_AT_LENT_SECONDS)
            except Empty:
                if time.monotonic() >= until:
                    break
            else:
                self._kept_for_fork += 1
        for entry in self._idle:
            entry.close()  # its next use connects again

    def reopen(self) -> None:
        """See `forks.Holder`."""
        while self._kept_for_fork:
            self._kept_for_fork -= 1
            self._permits.put(None)
        if self._fork_over is not None:
            self._fork_over.set()
            self._fork_over = None

    def abandon(self) -> None:
        """See `forks.Holder`."""
        self._disposed = True
        for transaction in self.lent:
            transaction.is_open = False
        idle = () if self._is_sqlite else self._idle
        for entry in self._entries:
            if entry.dbapi_connection is not None and entry not in idle:
                self._leave_to_parent(entry)

    def _leave_to_parent(self, record: Any) -> None:
        """Make every use of a connection raise an error; `record` is what SQLAlchemy knows of it."""
        if self._is_sqlite:
            forks.keep_for_ever([record.info, record.dbapi_connection])
        dialect: Any = self._dialect
        of_parent = forks.OfParent(dialect.loaded_dbapi.ProgrammingError)
        proxy = None if record.fairy_ref is None else record.fairy_ref()
        record.dbapi_connection = of_parent
        if proxy is not None:
            proxy.dbapi_connection = of_parent

    @property
    def _is_sqlite(self) -> bool:
        # The dialect of a pool without an engine has no name.
        return getattr(self._dialect, "name", None) == "sqlite"

    def connect_apart(self) -> Any:
        """Return a new connection of the driver, which the caller closes."""
        creator: Any = self._invoke_creator  # takes no entry for a connection that is not in the pool
        return creator(None)

    def discard(self, entry: ConnectionPoolEntry, error: BaseException, *, all_others: bool) -> None:
        """Close the connection of an entry and return the entry; its next use reconnects.

        Args:
            entry: The entry.
            error: What went wrong.
            all_others: Whether the server is gone, so that every other connection must reconnect as well.
        """
        if all_others:
            self._invalidate_time = time.time()
        entry.invalidate(error)
        self._do_return_conn(entry)
