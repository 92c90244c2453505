"""Wake processes that wait for tasks of a table of PostgreSQL, when another process changes them.

NOTIFY blocks the commits of the whole database while its own is written. So
it is sent only if a process waits: such a process holds a shared advisory lock. A process that changes a task
tries that lock after the commit, and sends a NOTIFY if it is taken. Afterwards it is silent for a moment, so
that a busy producer pays almost nothing. A waiting process looks when it gets the lock or hears of a task,
and again when that moment has passed, so it misses nothing.
"""

from __future__ import annotations

import json
import logging
import math
import time
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.lifecycle import new_token
from freshq.model.validation import json_text
from freshq.stores.notifier import Topic
from freshq.stores.sql.database import PreparedStatement
from freshq.stores.sql.watching import CHECK_SECONDS, TableNotifier, TableWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from freshq.stores.base import Connection
    from freshq.stores.notifier import Signals

# A process keeps its lock this long after its last wait: most workers wait again soon.
LINGER_SECONDS: Final = 0.2
# After finding that nobody waits, a process does not try the lock again for this time.
UNASKED_SECONDS: Final = 0.05
# After announcing a task to claim, a process announces no other one for this time.
SILENT_SECONDS: Final = 0.01
# Bytes of ids in a NOTIFY, which has room for 7,999.
IDS_BYTES: Final = 6000
# Sent by a transaction of the caller: the process that sends it does not know when it commits.
ANY_SENDER: Final = "-"
NOTIFY: Final = sa.text("SELECT pg_notify(:channel, :payload)")
# Return whether nobody is waiting. Nobody else sees the lock that is tried, and released in the same
# statement.
TELL: Final = sa.text(
    "SELECT CASE WHEN pg_try_advisory_lock(CAST(:key AS bigint))"
    " THEN pg_advisory_unlock(CAST(:key AS bigint)) ELSE pg_notify(:channel, :payload) IS NULL END"
).columns(sa.column("nobody", sa.Boolean))
logger = logging.getLogger(__name__)


def parted(task_ids: Sequence[str], limit_bytes: int) -> Iterator[list[str]]:
    """Split ids into parts that each have room in JSON text of about this size."""
    part: list[str] = []
    left = limit_bytes
    for task_id in task_ids:
        size = len(json_text(task_id).encode())
        if part and size > left:
            yield part
            part, left = [], limit_bytes
        part.append(task_id)
        left -= size + 1
    yield part


def number_of(*parts: str) -> int:
    """Return a number for an advisory lock or a channel."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=7).digest(), "big")


def channel_of(table: str) -> str:
    """Return the channel of a table of tasks."""
    return f"freshq_{number_of(table):016x}"


def announcement(sender: str, queue: str, task_ids: Sequence[str] = ()) -> str:
    """Return the payload that announces ended tasks; without ids, a task to claim."""
    return json_text([sender, queue, *task_ids])


class Listener(TableWatcher):
    """Listens to PostgreSQL.

    Attributes:
        channel: The channel of the table.
        silent_until: By topic, until when this process need not notify others, by the monotonic clock.
    """

    def __init__(self, table: str, signals: Signals, connect: Callable[[], Any]) -> None:
        super().__init__(table, signals, connect)
        self.channel = channel_of(table)

    @override
    def forget_threads(self) -> None:
        super().forget_threads()
        self._sender = new_token()  # or a forked child and its parent would not hear each other
        self.silent_until: dict[Topic, float] = {}
        self._look_again_at: dict[Topic, float] = {}

    def lock_of(self, topic: Topic) -> int:
        """Return the number of the advisory lock of waiting processes."""
        return number_of(self._table, *topic)

    def payload_of(self, queue: str, task_ids: Sequence[str] = ()) -> str:
        """Return the announcement of this process."""
        return announcement(self._sender, queue, task_ids)

    @override
    def _serve(self, connection: Any) -> None:
        connection.autocommit = True
        if connection.is_pooled():
            logger.info("table %r: polls, because LISTEN does not work behind a pooler", self._table)
            self._cannot_listen = True
            return
        connection.execute(f"LISTEN {self.channel}")
        self.is_connected = True
        while not self._is_over():
            self._hold_locks(connection)
            seconds = LINGER_SECONDS if self._held - self._awaited() else CHECK_SECONDS
            look_again_at = min(self._look_again_at.values(), default=math.inf)
            self._pause(max(0.0, min(seconds, look_again_at - time.monotonic())), connection)
            self._hear([notification.payload for notification in connection.notifies(timeout=0)])
            self._look_again()

    def _hold_locks(self, connection: Any) -> None:
        """Hold the locks of the topics with waiters, and release the others."""
        with self._lock:
            awaited = self._awaited(LINGER_SECONDS)
            released, wanted = self._held - awaited, awaited - self._held
            self._held -= released
        for topic in released:
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", [self.lock_of(topic)])
        for topic in wanted:
            connection.execute("SELECT pg_advisory_lock_shared(%s)", [self.lock_of(topic)])
        with self._lock:
            self._held |= wanted
        # Other processes announce their changes from now on: the looks that follow find the rest.
        self._look_twice(wanted, UNASKED_SECONDS)

    def _hear(self, payloads: Iterable[str]) -> None:
        """Notify signals of changes by other processes."""
        lines: set[Topic] = set()
        for payload in payloads:
            try:
                sender, queue, *task_ids = json.loads(payload)
            except ValueError:  # not sent by freshq
                continue
            if sender == self._sender:
                continue
            if task_ids:
                self._signals.ends(queue).tell(task_ids)
            else:
                lines.add(Topic(queue, "line"))
        self._look_twice(lines, SILENT_SECONDS)

    def _look_twice(self, topics: Iterable[Topic], silent_seconds: float) -> None:
        """Notify signals now, and again when other processes are no longer silent."""
        for topic in topics:
            at = time.monotonic() + silent_seconds
            self._look_again_at[topic] = max(at, self._look_again_at.get(topic, at))
            self._signals.notify(topic)

    def _look_again(self) -> None:
        now = time.monotonic()
        for topic in [topic for topic, at in self._look_again_at.items() if at <= now]:
            del self._look_again_at[topic]
            self._signals.notify(topic)


class PostgresNotifier(TableNotifier):
    """As `TableNotifier`, and also wakes the processes that listen."""

    @override
    def _kind(self) -> type[TableWatcher]:
        return Listener

    @override
    def put(self, queue: str) -> None:
        super().put(queue)
        self._tell(Topic(queue, "line"))

    @override
    def put_in(self, queue: str, connection: Connection) -> None:
        payload = announcement(ANY_SENDER, queue)
        connection.execute(NOTIFY, {"channel": self._listener.channel, "payload": payload})

    @override
    def ended(self, queue: str, task_ids: Sequence[str]) -> None:
        super().ended(queue, task_ids)
        for some in parted(task_ids, IDS_BYTES):
            self._tell(Topic(queue, "end"), some)

    def _tell(self, topic: Topic, task_ids: Sequence[str] = ()) -> None:
        """Notify other processes, if somebody waits and may not know it."""
        listener, now = self._listener, time.monotonic()
        if now < listener.silent_until.get(topic, now):
            return
        payload = listener.payload_of(topic.queue, task_ids)
        arguments = {"key": listener.lock_of(topic), "channel": listener.channel, "payload": payload}
        told = self._database.execute_once(self._tell_sql, arguments)
        if told and told[0][0]:
            listener.silent_until[topic] = now + UNASKED_SECONDS
        elif told and topic.what == "line":  # each end is announced to its waiters
            listener.silent_until[topic] = now + SILENT_SECONDS

    @property
    def _listener(self) -> Listener:
        return cast("Listener", self._watcher)

    @cached_property
    def _tell_sql(self) -> PreparedStatement:
        return PreparedStatement(TELL, self._database.engine.dialect)
