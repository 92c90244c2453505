"""Wake processes that wait for tasks of a table, when another process changes them.

SQLite and MariaDB are asked at short intervals, while somebody waits; `listening` has PostgreSQL.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from typing_extensions import override

from freshq.policy.retry import Backoff
from freshq.stores.notifier import Notifier, Topic, Watcher
from freshq.stores.sql.forks import close_for_forks, keep_for_ever
from freshq.stores.sql.url import POLL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from freshq.stores.notifier import EndSignal, Signal, Signals
    from freshq.stores.sql.database import Database

# How often it checks whether somebody still waits.
CHECK_SECONDS: Final = 1.0
# How long it keeps listening after the last wait.
KEEP_SECONDS: Final = 5.0
# How long a close waits for the thread.
CLOSE_SECONDS: Final = 1.0
RECONNECT: Final = Backoff(base_seconds=0.1, cap_seconds=5.0)
logger = logging.getLogger(__name__)


class TableWatcher(Watcher, ABC):
    """Watches a table in a separate thread with its own connection, while somebody waits."""

    # Whether it notices the ends of tasks.
    notices_ends: ClassVar[bool] = True

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
        # Whether the last start of the thread succeeded.
        self._could_start = True
        # Whether it cannot work here at all.
        self._cannot_listen = False
        self.forget_threads()

    @override
    def forget_threads(self) -> None:
        self.is_connected = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # The topics whose changes it would notice from now on.
        self._held: set[Topic] = set()
        # A byte in this pipe ends a pause of the thread.
        self._pipe = (-1, -1)

    def await_changes(self, topic: Topic) -> None:
        """Watch for changes while somebody waits for a topic's signal."""
        with self._lock:
            self._closing = False
            if topic in self._held or self._cannot_listen:
                return
            if self._thread is None and not self._start():
                return
            os.write(self._pipe[1], b".")

    def _start(self) -> bool:
        """Start the thread; return False if the system has no file or thread left for it.

        Whoever waits polls then, and the next wait tries again.
        """
        try:
            self._pipe = os.pipe()
        except OSError as error:
            self._could_not_start(error)
            return False
        thread = threading.Thread(target=self._listen, name="freshq-notifier", daemon=True)
        self._thread = thread  # the thread looks for it
        try:
            thread.start()
        except RuntimeError as error:
            self._thread = None
            for end in self._pipe:
                os.close(end)
            self._could_not_start(error)
            return False
        self._could_start = True
        return True

    def _could_not_start(self, error: Exception) -> None:
        if self._could_start:
            logger.warning("table %r: polls, because it cannot be watched now: %s", self._table, error)
        self._could_start = False

    @override
    def close(self) -> None:
        with self._lock:
            self._closing, self._cannot_listen = True, False
            thread = self._thread
            if thread is not None:
                os.write(self._pipe[1], b".")
        if thread is not None and not self._awaited():
            thread.join(CLOSE_SECONDS)

    def _open(self) -> Any:
        """Return a new connection for `_serve`, which is closed after it."""
        return self._connect()

    def _awaited(self, seconds: float = 0.0) -> set[Topic]:
        """Return the topics for which somebody waits, or waited within some time."""
        since = time.monotonic() - seconds
        signals = [*self._signals.by_topic.items()]
        return {topic for topic, signal in signals if signal.waiters or signal.left_at > since}

    def _is_over(self) -> bool:
        return self._cannot_listen or not self._awaited(0.0 if self._closing else KEEP_SECONDS)

    def _listen(self) -> None:
        failures = 0
        while not self._has_ended():
            try:
                with closing(self._open()) as connection:
                    self._serve(connection)
            except Exception as error:  # noqa: BLE001 - of any driver; whoever waits polls then
                failures = 1 if self.is_connected else failures + 1
                if failures == 1:
                    logger.info("table %r: polls until it can be watched again: %s", self._table, error)
            if self.is_connected:
                self._disconnect()
            if failures:
                self._pause(RECONNECT.delay_seconds(failures, 1.0))

    def _has_ended(self) -> bool:
        """Return whether the thread should end; then the next wait starts another one."""
        with self._lock:
            if self._is_over():
                for end in self._pipe:
                    os.close(end)
                self._thread = None
        return self._thread is None

    def _disconnect(self) -> None:
        """Have all waiters poll from now on."""
        with self._lock:
            self.is_connected, self._held = False, set()
        self._notify([*self._signals.by_topic])

    @abstractmethod
    def _serve(self, connection: Any) -> None:
        """Notify signals until `_is_over`, or raise if the connection is lost."""

    def _notify(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._signals.notify(topic)

    def _pause(self, seconds: float, connection: Any = None) -> None:
        """Wait for a wait to begin, for the end, or for a notification; at most for some time."""
        # Not by `select.select`, which refuses the files of a process that has more than a thousand open.
        with selectors.PollSelector() as selector:
            pipe = selector.register(self._pipe[0], selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection, selectors.EVENT_READ)
            if any(key is pipe for key, _events in selector.select(seconds)):
                os.read(self._pipe[0], 4096)


class Poller(TableWatcher):
    """Polls repeatedly; the pause grows with the time since the last change."""

    shortest_seconds: ClassVar[float]
    longest_seconds: ClassVar[float]
    pause_part: ClassVar[float]

    @abstractmethod
    def _changed(self, connection: Any, topics: set[Topic]) -> set[Topic]:
        """Return the topics that may have changed."""

    @override
    def _serve(self, connection: Any) -> None:
        changed: set[Topic] = set()
        changed_at = time.monotonic()
        self.is_connected = True
        while not self._is_over():
            with self._lock:
                awaited = self._awaited()
                wanted, self._held = awaited - self._held, awaited
            before, changed = changed, self._changed(connection, awaited) if awaited else set()
            if changed and not before:
                changed_at = time.monotonic()
            # The first answer for a topic shows no change: the waiting process looks once more after it.
            self._notify(changed | wanted)
            pause_seconds = self.pause_part * (time.monotonic() - changed_at)
            pause_seconds = min(self.longest_seconds, max(self.shortest_seconds, pause_seconds))
            self._pause(pause_seconds if awaited else CHECK_SECONDS)


class FileVersion:
    """Asks SQLite whether another connection changed the file, on a connection that forks close."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Connect when first asked.

        Args:
            connect: Opens a connection of the driver.
        """
        self._connect = connect
        self._connection: Any = None
        # Versions of different connections cannot be compared.
        self._connections = 0
        self._lock = threading.Lock()
        self._is_kept_for_fork = False
        close_for_forks(self)

    def read(self) -> tuple[int, int]:
        """Return something that differs after a change, in 10 us and without a lock of SQLite.

        The first answer after a fork differs too.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
                self._connections += 1
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            return self._connections, version

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        with self._lock:
            self._close()

    def close_for_fork(self, until: float) -> None:
        """See `forks.Holder`."""
        self._is_kept_for_fork = self._lock.acquire(timeout=max(0.0, until - time.monotonic()))
        if self._is_kept_for_fork:
            self._close()

    def reopen(self) -> None:
        """See `forks.Holder`."""
        if self._is_kept_for_fork:
            self._is_kept_for_fork = False
            self._lock.release()

    def abandon(self) -> None:
        """See `forks.Holder`."""
        self._lock = threading.Lock()
        self._is_kept_for_fork = False
        if self._connection is not None:
            keep_for_ever([self._connection])
            self._connection = None

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class FilePoller(Poller):
    """Asks SQLite for the version of the file."""

    shortest_seconds = 0.005
    longest_seconds = 0.02
    pause_part = 0.01
    _version: tuple[int, int] | None = None

    @override
    def _open(self) -> FileVersion:
        version = FileVersion(self._connect)
        version.read()  # so that a file that cannot be opened is not watched
        return version

    @override
    def _changed(self, connection: FileVersion, topics: set[Topic]) -> set[Topic]:
        before, self._version = self._version, connection.read()
        return set() if self._version == before else topics


class LinePoller(Poller):
    """Asks MariaDB whether a line has tasks. It does not report tasks that end."""

    notices_ends = False
    shortest_seconds = 0.05
    longest_seconds = 3600.0
    pause_part = 0.05

    @override
    def _serve(self, connection: Any) -> None:
        connection.autocommit(True)  # noqa: FBT003 - or it sees only the tasks of its first statement
        super()._serve(connection)

    @override
    def _changed(self, connection: Any, topics: set[Topic]) -> set[Topic]:
        # The store has checked the name of its table.
        ask = f"SELECT 1 FROM {self._table} WHERE queue = %s AND line > '' LIMIT 1"  # noqa: S608  # nosec B608
        with connection.cursor() as cursor:
            return {topic for topic in topics if cursor.execute(ask, [topic.queue])}


class TableNotifier(Notifier):
    """Wakes waiters after a change by this process, or by another one that a watcher notices."""

    def __init__(self, place: object, database: Database, table: str) -> None:
        """Watch nothing yet.

        Args:
            place: See `Notifier`.
            database: The database.
            table: The table of tasks.
        """
        super().__init__(place, POLL_SECONDS)
        self._database = database
        self._table = table
        if self._signals.watcher is None:
            pool: Any = database.engine.pool
            self._signals.watcher = self._kind()(table, self._signals, pool.connect_apart)
        self._watcher = cast("TableWatcher", self._signals.watcher)

    def _kind(self) -> type[TableWatcher]:
        return FilePoller if self._database.dialect == "sqlite" else LinePoller

    @override
    def line(self, queue: str) -> Signal:
        line = super().line(queue)
        line.on_wait = partial(self._watcher.await_changes, Topic(queue, "line"))
        return line

    @override
    def ends(self, queue: str, task_ids: Iterable[str]) -> EndSignal:
        if self._watcher.notices_ends:
            awaits = partial(self._watcher.await_changes, Topic(queue, "end"))
            self._signals.ends(queue).on_wait = awaits
        return super().ends(queue, task_ids)
