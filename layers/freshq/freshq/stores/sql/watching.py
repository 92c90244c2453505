"""Wake processes that wait for tasks of a table, when another process changes them.

PostgreSQL tells them by NOTIFY, which blocks the commits of the whole database while its own is written. So
it is sent only if a process waits: such a process holds a shared advisory lock. Whoever puts a task tries
that lock after the commit, and sends a NOTIFY if it is taken. A waiting process looks once more when it has
the lock, so it misses no task. The other databases are asked at short intervals.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.lifecycle import new_token
from freshq.policy.retry import Backoff
from freshq.stores.sql.database import PreparedStatement
from freshq.stores.sql.url import POLL_SECONDS
from freshq.stores.wakes import Wakes, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from freshq.stores.base import Connection
    from freshq.stores.sql.database import Database
    from freshq.stores.wakes import Signal, Signals

# A process keeps its lock this long after its last wait: most workers wait again soon.
LINGER_SECONDS: Final = 0.2
# How often it looks whether somebody still waits.
CHECK_SECONDS: Final = 1.0
# How long it listens after the last wait.
KEEP_SECONDS: Final = 5.0
# How long a close waits for the thread.
CLOSE_SECONDS: Final = 1.0
RECONNECT: Final = Backoff(base_seconds=0.1, cap_seconds=5.0)
# Sent by a transaction of the caller: the process that sends it does not know when it commits.
ANY_SENDER: Final = "-"
NOTIFY: Final = sa.text("SELECT pg_notify(:channel, :payload)")
# Nobody else sees the lock that is tried, and released in the same statement.
TELL: Final = sa.text(
    "SELECT CASE WHEN pg_try_advisory_lock(CAST(:key AS bigint))"
    " THEN pg_advisory_unlock(CAST(:key AS bigint)) ELSE pg_notify(:channel, :payload) IS NULL END"
)
logger = logging.getLogger(__name__)


def number_of(*parts: str) -> int:
    """Return a number for an advisory lock or a channel."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=7).digest(), "big")


class TableWatcher(Watcher, ABC):
    """Watches a table in a thread of this process, on a connection of its own, while somebody waits."""

    def __init__(self, table: str, signals: Signals, connect: Callable[[], Any]) -> None:
        """Start nothing yet; the first wait does.

        Args:
            table: The table of tasks.
            signals: What to notify.
            connect: Opens a connection of the driver.
        """
        self._table = table
        self._signals = signals
        self._connect = connect
        self._closing = False
        # Whether it cannot work here at all.
        self._is_deaf = False
        self.forget_threads()

    @override
    def forget_threads(self) -> None:
        self.hears = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Queues whose changes it would notice from now on.
        self._held: set[str] = set()
        # A byte in this pipe ends a pause of the thread.
        self._pipe = (-1, -1)

    def await_changes(self, queue: str) -> None:
        """Watch for the changes of a queue while its signal is waited for."""
        with self._lock:
            self._closing = False
            if queue in self._held or self._is_deaf:
                return
            if self._thread is None:
                self._pipe = os.pipe()
                self._thread = threading.Thread(target=self._listen, name="freshq-wakes", daemon=True)
                self._thread.start()
            os.write(self._pipe[1], b".")

    @override
    def close(self) -> None:
        with self._lock:
            self._closing, self._is_deaf = True, False
            thread = self._thread
            if thread is not None:
                os.write(self._pipe[1], b".")
        if thread is not None and not self._awaited():
            thread.join(CLOSE_SECONDS)

    def _awaited(self, seconds: float = 0.0) -> set[str]:
        """Return the queues for which somebody waits, or waited within some time."""
        since = time.monotonic() - seconds
        lines = [*self._signals.lines.items()]
        return {queue for queue, line in lines if line.waiters or line.left_at > since}

    def _is_over(self) -> bool:
        return self._is_deaf or not self._awaited(0.0 if self._closing else KEEP_SECONDS)

    def _listen(self) -> None:
        failures = 0
        while not self._has_ended():
            try:
                with closing(self._connect()) as connection:
                    self._serve(connection)
            except Exception as error:  # noqa: BLE001 - of any driver; whoever waits polls then
                failures = 1 if self.hears else failures + 1
                if failures == 1:
                    logger.info("table %r: polls until it can be watched again: %s", self._table, error)
            if self.hears:
                self._deafen()
            if failures:
                self._pause(RECONNECT.delay_seconds(failures, 1.0))

    def _has_ended(self) -> bool:
        """Return whether the thread is to end; then the next wait starts another one."""
        with self._lock:
            if self._is_over():
                for end in self._pipe:
                    os.close(end)
                self._thread = None
        return self._thread is None

    def _deafen(self) -> None:
        """Have everybody who waits poll from now on."""
        with self._lock:
            self.hears, self._held = False, set()
        self._notify([*self._signals.lines])

    @abstractmethod
    def _serve(self, connection: Any) -> None:
        """Notify signals until `_is_over`, or raise if the connection is lost."""

    def _notify(self, queues: Iterable[str]) -> None:
        for queue in queues:
            if (line := self._signals.lines.get(queue)) is not None:
                line.notify()

    def _pause(self, seconds: float, connection: Any = None) -> None:
        """Wait for a wait to begin, for the end, or for a notification; at most for some time."""
        ready, _, _ = select.select([self._pipe[0], *filter(None, [connection])], [], [], seconds)
        if self._pipe[0] in ready:
            os.read(self._pipe[0], 4096)


class Listener(TableWatcher):
    """Listens to PostgreSQL."""

    def __init__(self, table: str, signals: Signals, connect: Callable[[], Any]) -> None:
        super().__init__(table, signals, connect)
        self.sender = new_token()
        self.channel = f"freshq_{number_of(table):016x}"

    @override
    def _serve(self, connection: Any) -> None:
        connection.autocommit = True
        (process,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        if process != connection.info.backend_pid:
            # Behind a pooler a session has no connection of its own: neither LISTEN nor a lock lasts.
            logger.info("table %r: polls, because LISTEN does not work behind a pooler", self._table)
            self._is_deaf = True
            return
        connection.execute(f"LISTEN {self.channel}")
        self.hears = True
        while not self._is_over():
            self._hold_locks(connection)
            self._pause(LINGER_SECONDS if self._held - self._awaited() else CHECK_SECONDS, connection)
            self._notify(self._heard(connection))

    def _hold_locks(self, connection: Any) -> None:
        """Hold the locks of the queues that are waited for, and release the others."""
        with self._lock:
            awaited = self._awaited(LINGER_SECONDS)
            released, wanted = self._held - awaited, awaited - self._held
            self._held -= released
        for queue in released:
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", [number_of(self._table, queue)])
        for queue in wanted:
            connection.execute("SELECT pg_advisory_lock_shared(%s)", [number_of(self._table, queue)])
        with self._lock:
            self._held |= wanted
        # Who puts a task from now on, sends a NOTIFY: the look that follows finds the tasks put before.
        self._notify(wanted)

    def _heard(self, connection: Any) -> set[str]:
        """Return the queues that other processes changed."""
        payloads = [notification.payload for notification in connection.notifies(timeout=0)]
        changes = [payload.partition(" ") for payload in payloads]
        return {queue for sender, _space, queue in changes if sender != self.sender}


class Poller(TableWatcher):
    """Asks again and again; the pause grows with the time since the last change."""

    shortest_seconds: ClassVar[float]
    longest_seconds: ClassVar[float]
    pause_part: ClassVar[float]

    @abstractmethod
    def _changed(self, connection: Any, queues: set[str]) -> set[str]:
        """Return those of some queues that may have new tasks."""

    @override
    def _serve(self, connection: Any) -> None:
        changed: set[str] = set()
        changed_at = time.monotonic()
        self.hears = True
        while not self._is_over():
            with self._lock:
                awaited = self._awaited()
                wanted, self._held = awaited - self._held, awaited
            before, changed = changed, self._changed(connection, awaited) if awaited else set()
            if changed and not before:
                changed_at = time.monotonic()
            # The first answer for a queue shows no change: whoever waits looks once more after it.
            self._notify(changed | wanted)
            pause_seconds = self.pause_part * (time.monotonic() - changed_at)
            pause_seconds = min(self.longest_seconds, max(self.shortest_seconds, pause_seconds))
            self._pause(pause_seconds if awaited else CHECK_SECONDS)


class FilePoller(Poller):
    """Asks SQLite whether another connection changed the file: 10 us, without a lock."""

    shortest_seconds = 0.005
    longest_seconds = 0.02
    pause_part = 0.01
    _version: int | None = None

    @override
    def _changed(self, connection: Any, queues: set[str]) -> set[str]:
        before = self._version
        (self._version,) = connection.execute("PRAGMA data_version").fetchone()
        return set() if self._version == before else queues


class LinePoller(Poller):
    """Asks MariaDB whether a line has tasks."""

    shortest_seconds = 0.05
    longest_seconds = 3600.0
    pause_part = 0.05

    @override
    def _serve(self, connection: Any) -> None:
        connection.autocommit(True)  # noqa: FBT003 - or it sees only the tasks of its first statement
        super()._serve(connection)

    @override
    def _changed(self, connection: Any, queues: set[str]) -> set[str]:
        # The store has checked the name of its table.
        ask = f"SELECT 1 FROM {self._table} WHERE queue = %s AND line > '' LIMIT 1"  # noqa: S608  # nosec B608
        with connection.cursor() as cursor:
            return {queue for queue in queues if cursor.execute(ask, [queue])}


class TableWakes(Wakes):
    """Wakes who waits for a change by this process, or by another one that a watcher notices."""

    def __init__(self, place: object, database: Database, table: str) -> None:
        """Watch nothing yet.

        Args:
            place: See `Wakes`.
            database: The database.
            table: The table of tasks.
        """
        super().__init__(place, POLL_SECONDS)
        self._database = database
        self._table = table
        if self._signals.watcher is None:
            pool: Any = database.engine.pool
            watcher: Any = WATCHERS[database.dialect]
            self._signals.watcher = watcher(table, self._signals, pool.connect_apart)
        self._watcher = cast("TableWatcher", self._signals.watcher)

    @override
    def line(self, queue: str) -> Signal:
        line = super().line(queue)
        line.on_wait = partial(self._watcher.await_changes, queue)
        return line


class PostgresWakes(TableWakes):
    """As `TableWakes`, and also wakes the processes that listen."""

    @override
    def put(self, queue: str) -> None:
        super().put(queue)
        listener = cast("Listener", self._watcher)
        payload = f"{listener.sender} {queue}"
        self._database.execute_once(
            self._tell,
            {"key": number_of(self._table, queue), "channel": listener.channel, "payload": payload},
        )

    @override
    def put_in(self, queue: str, connection: Connection) -> None:
        payload = f"{ANY_SENDER} {queue}"
        connection.execute(NOTIFY, {"channel": cast("Listener", self._watcher).channel, "payload": payload})

    @cached_property
    def _tell(self) -> PreparedStatement:
        return PreparedStatement(TELL, self._database.engine.dialect)


WATCHERS: Final = {"sqlite": FilePoller, "postgresql": Listener, "mysql": LinePoller, "mariadb": LinePoller}
