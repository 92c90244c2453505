"""Count tasks: exactly, and approximately and by group within bounds. `counts.sql` has the statements."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.stores.base import MOST_STALE, NO_VALUES, STATES, VALUE_ENDS, Stats
from freshq.stores.lines import ALL_LINES, END, WaitingReader, parse_line
from freshq.stores.sql.horizon import EVER_US
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds, task_of
from freshq.stores.sql.statements import SqlPart, in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.policy.reserve import ReserveSpans
    from freshq.stores.lines import Times

T = TypeVar("T")
# An approximate count stops at this number.
COUNTED_ROWS: Final = 10_000
# Rows read to find the oldest task of a line or of the agenda.
LOOKED_ROWS: Final = 1_000
# With more lines, the ages of the oldest and the newest task are bounds.
FEW_LINES: Final = 8
# Time limit of an exact count; a server counts about half a million tasks a second.
COUNT_SECONDS: Final = 600.0


class SqlWaiting(WaitingReader):
    """Reads what waits in the lines of one queue.

    Attributes:
        connection: Runs the statements; None if each takes a connection of its own.
    """

    def __init__(self, store: SqlCounts, queue: str, connection: sa.Connection | None) -> None:
        self.connection = connection
        self._store = store
        self._queue = queue

    def rows(self, name: str, where: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows that the statement of a name selects."""
        if self.connection is None:
            return self._store.rows(name, where)
        return self.connection.execute(self._store.sql.statement(name), where).all()

    def live(
        self, name: str, key: str, now: float, created_after: float, looked: int, most: int = 1
    ) -> Sequence[Any]:
        """Return the rows that a statement selects of up to `most` live tasks, among `looked` tasks."""
        where = in_time(self._queue, now, created_after) | {"now_us": microseconds(now), "of_line": key}
        return self.rows(name, where | {"looked": looked, "page": looked, "at_most": most})

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        horizon = self._store.horizon
        parts = horizon.recent(self._queue) if (after, until) == ("", END) else None
        if parts is not None and (known := parts.known_lines(horizon.monotonic())):
            return sorted(known)
        where = {"of_queue": self._queue, "of_after": after, "of_until": until, "count": count}
        return sorted(row[0] for row in self.rows("lines", where))

    @override
    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        looked = at_most + COUNTED_ROWS
        if key == ALL_LINES:
            return dict(map(tuple, self.live("count_groups", key, now, created_after, looked)))
        return {parse_line(key)[1]: self.live("count_line", key, now, created_after, looked, at_most)[0][0]}

    @override
    def newest(self, key: str, now: float, created_after: float, count: int) -> Times:
        times = defaultdict[str | None, list[float]](list)
        name = "newest_by_group" if key == ALL_LINES else "newest_of_line"
        for created_us, *group in self.live(name, key, now, created_after, count + COUNTED_ROWS, count):
            times[group[0] if group else parse_line(key)[1]].append(created_us / 1e6)
        return times

    @override
    def oldest(self, key: str, now: float, created_after: float, count: int) -> list[tuple[float, str]]:
        is_all, looked = key == ALL_LINES, count + LOOKED_ROWS
        if not is_all and (parts := self._store.horizon.recent(self._queue)) is not None:
            created_after = parts.spans(key, microseconds(created_after), newest_first=False)[0][0] / 1e6
        name = "oldest_waiting" if is_all else "oldest_of_line"
        found = self.live(name, key, now, created_after, looked, count)
        ranked = sorted(map(tuple, found))[:count] if is_all else found
        return [(created_us / 1e6, task_id) for *_level, created_us, task_id in ranked]

    @override
    def oldest_created(self, key: str, now: float, created_after: float) -> float | None:
        if key != ALL_LINES:
            return super().oldest_created(key, now, created_after)
        created_us = self.live("sum_up", key, now, created_after, LOOKED_ROWS)[0][2]
        return None if created_us is None else created_us / 1e6

    @override
    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        horizon = self._store.horizon
        read = partial(self.live, "first_to_expire", key, now, created_after, FIRST_TO_EXPIRE)
        parts = horizon.recent(self._queue) if key == ALL_LINES else None
        found = read() if parts is None else parts.first_to_expire(read, horizon.monotonic())
        return [(created_us / 1e6, deadline_us / 1e6) for created_us, deadline_us in found]

    @override
    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        where = in_time(self._queue, now, created_after)
        where |= {"now_us": microseconds(now), "until_us": microseconds(until), "page": LOOKED_ROWS}
        return [row[0] / 1e6 for row in self.rows("expiring", where)]

    @override
    def listed(self, task_ids: Sequence[str]) -> list[Task]:
        where = {"of_queue": self._queue, "of_ids": task_ids}
        tasks = map(task_of, self.rows("found", where) if task_ids else ())
        return sorted(tasks, key=lambda task: task_ids.index(task.task_id))


class SqlCounts(SqlPart):
    """Counts tasks, and examines waiting ones."""

    @override
    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        return self.database.read(lambda connection: work(SqlWaiting(self, queue, connection)))

    @override
    def count_stale(self, queue: str, since: float, now: float, life_seconds: float) -> int:
        between = {"since_us": microseconds(since), "now_us": microseconds(now)}
        page = {"of_queue": queue, **between, "page": MOST_STALE}
        return sum(row[0] for row in self.rows("count_stale", page))

    @override
    def exact_stats(self, queue: str, now: float, created_after: float, spans: ReserveSpans) -> Stats:
        windows = [(microseconds(after), microseconds(until)) for after, until in spans.windows()]
        by_age_us = f"created_us + {microseconds(now - created_after)}"
        stale_us = f"CASE WHEN deadline_us < {by_age_us} THEN deadline_us ELSE {by_age_us} END"
        inside = [
            f"({stale_us}) > {after_us} AND ({stale_us}) <= {until_us}" for after_us, until_us in windows
        ]
        text = self.sql.text("exact").replace(":in_windows", " OR ".join(inside) or "1 = 0")
        return _exact_stats(now, self._counted(self.sql.of_text(text), queue, now, created_after))

    def _counted(
        self, statement: sa.Executable, queue: str, now: float, created_after: float
    ) -> Sequence[Any]:
        """Return the rows of a statement that counts all tasks."""
        stale = {"now_us": microseconds(now), "created_until_us": microseconds(created_after)}
        return self.database.read_slowly(statement, {"of_queue": queue, **stale}, COUNT_SECONDS)

    @override
    def shed_by_group(self, queue: str, now: float, created_after: float) -> dict[str | None, int]:
        statement = self.sql.statement("shed_by_group")
        return dict(map(tuple, self._counted(statement, queue, now, created_after)))

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        def look(connection: sa.Connection) -> Stats:
            reader = SqlWaiting(self, queue, connection)
            found = reader.live("sum_up", ALL_LINES, now, created_after, COUNTED_ROWS)
            counted, pending, *ends_us = found[0]
            ends = [created_us / 1e6 for created_us in ends_us if created_us is not None]
            bounded = {"shed_by_reason": "not counted", **NO_VALUES}
            if counted == COUNTED_ROWS:
                bounded["pending"] = "at least"
                ends += self._ends(reader, now, created_after, bounded)
            page = {"of_queue": queue, "page": COUNTED_ROWS}
            statuses = {}
            for agenda in (DUE, OVER, STALE):
                until_us = microseconds(now) if agenda == STALE else EVER_US
                rows = reader.rows("statuses", page | {"agenda": agenda, "until_us": until_us})
                statuses[agenda] = dict(map(tuple, rows))
            return _stats(now, pending, statuses, ends, bounded)

        return self.database.read(look)

    def _ends(
        self, reader: SqlWaiting, now: float, created_after: float, bounded: dict[str, str]
    ) -> list[float]:
        """Return when the oldest and newest tasks were created, if the count stopped at its limit."""
        keys = reader.lines("", END, FEW_LINES + 1)
        if len(keys) <= FEW_LINES:
            oldest = [end for key in keys for end, _id in reader.oldest(key, now, created_after, 1)]
            newest = (reader.newest(key, now, created_after, 1) for key in keys)
            return oldest + [end for times in newest for (end,) in times.values()]
        bounded |= {"oldest_pending_seconds": "at least", "newest_pending_seconds": "at most"}
        found = reader.live("newest_waiting", ALL_LINES, now, created_after, LOOKED_ROWS)
        return [row[0] / 1e6 for row in found if row[0] is not None]


def _stats(
    now: float,
    pending: int,
    statuses: dict[str, dict[str, int]],
    ends: list[float],
    bounded: dict[str, str],
) -> Stats:
    """Return stats from the counts by status and the creation times of the oldest and newest task."""
    due, over, stale = (statuses[agenda] for agenda in (DUE, OVER, STALE))
    if sum(due.values()) == COUNTED_ROWS:
        bounded |= {"taken": "at least", "delayed": "at least"}
    if COUNTED_ROWS in (sum(stale.values()), sum(over.values())):
        bounded["shed"] = "at least"
    if sum(over.values()) == COUNTED_ROWS:
        bounded |= dict.fromkeys(("success", "failure", "cancelled"), "at least")
    ages = [max(0.0, now - created) for created in ends]
    return Stats(
        pending=pending,
        delayed=due.get(TaskStatus.PENDING, 0),
        taken=due.get(TaskStatus.TAKEN, 0),
        success=over.get(TaskStatus.SUCCESS, 0),
        failure=over.get(TaskStatus.FAILURE, 0),
        cancelled=over.get(TaskStatus.CANCELLED, 0),
        shed=sum(stale.values()) + over.get(TaskStatus.PENDING, 0) + over.get(TaskStatus.SHED, 0),
        oldest_pending_seconds=max(ages, default=None),
        newest_pending_seconds=min(ages, default=None),
        bounded=bounded,
    )


def _exact_stats(now: float, rows: Iterable[Sequence[Any]]) -> Stats:
    """Return stats from the rows of the statement `exact`."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    ends: list[int] = []
    worth, delivered, valued = 0.0, 0.0, 0
    for state, reason, number, oldest_us, newest_us, *values in rows:
        counts[state.lower()] += number
        if state in VALUE_ENDS:
            worth, delivered, valued = map(add, (worth, delivered, valued), (each or 0 for each in values))
        if reason is not None:
            reasons[reason] += number
        if state == TaskStatus.PENDING:
            ends += (oldest_us, newest_us)
    ages = [max(0.0, now - created_us / 1e6) for created_us in ends]
    states: dict[str, Any] = {state: counts[state] for state in STATES}
    if valued:
        states |= {"value_delivered": delivered / 1e6, "value_lost": max(0.0, worth - delivered) / 1e6}
    return Stats(
        **states,
        shed_by_reason=dict(reasons),
        oldest_pending_seconds=max(ages, default=None),
        newest_pending_seconds=min(ages, default=None),
    )
