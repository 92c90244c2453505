"""Count tasks: exactly, and approximately and by group within bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property, partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.fields import NEVER
from freshq.model.task import TaskStatus
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.policy.shedding import ShedReason
from freshq.policy.value import DEFAULT_VALUE
from freshq.stores.base import MOST_STALE, NO_VALUES, STATES, VALUE_ENDS, Stats
from freshq.stores.lines import ALL_LINES, END, WaitingReader, parse_line
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds, task_of
from freshq.stores.sql.statements import (
    PENDING,
    ClaimStatements,
    SqlPart,
    Statements,
    in_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.reserve import ReserveSpans
    from freshq.stores.lines import Times
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

T = TypeVar("T")
# An approximate count stops at this number.
COUNTED_ROWS: Final = 10_000
# Rows read to find the oldest task of a line or of the agenda.
LOOKED_ROWS: Final = 1_000
# With more lines, the ages of the oldest and the newest task are bounds.
FEW_LINES: Final = 8
NONE: Final[sa.ColumnElement[Any]] = sa.literal_column("0")
NULL: Final = sa.null()
SUCCESS: Final[sa.ColumnElement[str]] = sa.literal_column("'SUCCESS'")
SHED: Final[sa.ColumnElement[str]] = sa.literal_column("'SHED'")
DELAYED: Final[sa.ColumnElement[str]] = sa.literal_column("'delayed'")
EXPIRED: Final[sa.ColumnElement[str]] = sa.literal_column(f"'{ShedReason.EXPIRED}'")
RESERVE: Final[sa.ColumnElement[str]] = sa.literal_column(f"'{ShedReason.RESERVE}'")
# The kinds of attention that tasks outside the lines need.
NOT_IN_LINE: Final[list[sa.ColumnElement[str]]] = [sa.literal_column(f"'{agenda}'") for agenda in (DUE, OVER)]
# Time limit of an exact count; a server counts about half a million tasks a second.
COUNT_SECONDS: Final = 600.0


class WaitingStatements(Statements):
    """Statements that read waiting tasks."""

    @cached_property
    def count_line(self) -> sa.Select[Any]:
        """Number of live tasks among the first `looked` tasks of a line, counted up to a limit."""
        seen = self.first_of_line(newest_first=False).limit(sa.bindparam("looked")).subquery("seen")
        in_time = seen.c.deadline_us > sa.bindparam("deadline_after_us")
        counted = sa.select(seen.c.created_us).where(in_time).limit(sa.bindparam("at_most")).subquery()
        return sa.select(sa.func.count()).select_from(counted)

    @cached_property
    def newest_of_line(self) -> sa.Select[Any]:
        """Creation times of the newest live tasks; otherwise as `oldest_of_line`."""
        seen = self.first_of_line(newest_first=True).limit(sa.bindparam("looked")).subquery("seen")
        in_time = seen.c.deadline_us > sa.bindparam("deadline_after_us")
        return sa.select(seen.c.created_us).where(in_time).limit(sa.bindparam("at_most"))

    @cached_property
    def listed_tasks(self) -> sa.Select[Any]:
        """Tasks by their ids."""
        return sa.select(*self.columns).where(self.in_queue_by_id, self.listed)

    def _first_to_expire(self, *columns: sa.ColumnElement[Any]) -> sa.Subquery:
        """Claimable tasks with the earliest deadlines."""
        tasks = self.tasks
        waits = (self.in_queue, tasks.c.agenda == STALE, tasks.c.due_us > sa.bindparam("now_us"))
        page = sa.select(*columns, tasks.c.created_us).where(*waits).order_by(tasks.c.due_us)
        return page.limit(sa.bindparam("page")).subquery("waiting")

    def _last_to_expire(self, *columns: sa.ColumnElement[Any]) -> sa.Subquery:
        """Claimable tasks with the latest deadlines."""
        tasks = self.tasks
        waits = (self.in_queue, tasks.c.agenda == STALE, tasks.c.due_us > sa.bindparam("now_us"))
        page = sa.select(*columns, tasks.c.created_us).where(*waits).order_by(tasks.c.due_us.desc())
        return page.limit(sa.bindparam("page")).subquery("waiting")

    @staticmethod
    def _young(waiting: sa.Subquery) -> sa.ColumnElement[bool]:
        return waiting.c.created_us > sa.bindparam("created_after_us")

    @cached_property
    def count_groups(self) -> sa.Select[Any]:
        """Number of claimable tasks by group, among the tasks with the latest deadlines."""
        waiting = self._last_to_expire(self.tasks.c.task_group)
        counts: sa.Select[Any] = sa.select(waiting.c.task_group, sa.func.count())
        return counts.where(self._young(waiting)).group_by(waiting.c.task_group)

    @cached_property
    def newest_by_group(self) -> sa.Select[Any]:
        """Creation times and groups of the claimable tasks with the latest deadlines."""
        waiting = self._last_to_expire(self.tasks.c.task_group)
        return sa.select(waiting.c.created_us, waiting.c.task_group).where(self._young(waiting))

    @cached_property
    def expiring(self) -> sa.Select[Any]:
        """Creation times of some claimable tasks whose deadlines are not after `until_us`."""
        tasks = self.tasks
        between = (tasks.c.due_us > sa.bindparam("now_us"), tasks.c.due_us <= sa.bindparam("until_us"))
        page = sa.select(tasks.c.created_us).where(self.in_queue, tasks.c.agenda == STALE, *between)
        waiting = page.order_by(tasks.c.due_us).limit(sa.bindparam("page")).subquery("waiting")
        return sa.select(waiting.c.created_us).where(self._young(waiting))

    @cached_property
    def sum_up(self) -> sa.Select[Any]:
        """Number of tasks with the earliest deadlines, number claimable, oldest and newest creation time."""
        waiting = self._first_to_expire()
        created = sa.case((self._young(waiting), waiting.c.created_us))
        each: list[sa.ColumnElement[Any]] = [sa.func.count(), sa.func.count(created)]
        return sa.select(*each, sa.func.min(created), sa.func.max(created))

    @cached_property
    def newest_waiting(self) -> sa.Select[Any]:
        """Creation time of the newest claimable task among the tasks with the latest deadlines."""
        waiting = self._last_to_expire()
        return sa.select(sa.func.max(waiting.c.created_us)).where(self._young(waiting))

    @cached_property
    def count_stale(self) -> sa.Select[Any]:
        """Number of tasks in the lines that went stale after `since_us`, counting at most `page` tasks."""
        tasks = self.tasks
        due = (tasks.c.due_us > sa.bindparam("since_us"), tasks.c.due_us <= sa.bindparam("now_us"))
        page = sa.select(tasks.c.due_us).where(self.in_queue, tasks.c.agenda == STALE, *due)
        counted = page.limit(sa.bindparam("page")).subquery("stale")
        return sa.select(sa.func.count()).select_from(counted)

    @cached_property
    def first_to_expire(self) -> sa.Select[Any]:
        """Priority levels, creation times and ids of the claimable tasks with the earliest deadlines."""
        waiting = self._first_to_expire(self.tasks.c.priority, self.tasks.c.task_id)
        columns = (waiting.c.priority, waiting.c.created_us, waiting.c.task_id)
        return sa.select(*columns).where(self._young(waiting))


class CountStatements(Statements):
    """Statements that count tasks by status."""

    @cached_property
    def statuses(self) -> dict[str, sa.Select[Any]]:
        """Number of tasks by status and kind of attention needed, counting at most `page` tasks."""
        return {agenda: self._statuses(agenda) for agenda in (DUE, OVER, STALE)}

    def _statuses(self, agenda: str) -> sa.Select[Any]:
        tasks = self.tasks
        page = sa.select(tasks.c.status).where(self.in_queue, tasks.c.agenda == agenda)
        if agenda == STALE:
            page = page.where(tasks.c.due_us <= sa.bindparam("now_us"))
        counted = page.order_by(tasks.c.due_us).limit(sa.bindparam("page")).subquery("counted")
        counts: sa.Select[Any] = sa.select(counted.c.status, sa.func.count())
        return counts.group_by(counted.c.status)


class ExactStatements(Statements):
    """The statement of an exact count."""

    @cached_property
    def _is_stale(self) -> sa.ColumnElement[bool]:
        """The deadline of a waiting task has passed, or the queue's max age."""
        tasks = self.tasks
        past_deadline = tasks.c.deadline_us <= sa.bindparam("now_us")
        return sa.or_(past_deadline, tasks.c.created_us <= sa.bindparam("created_until_us"))

    def _reason(self, windows: int) -> sa.ColumnElement[str]:
        """Why a stale task was shed: by the reserve, if the task became stale in a window."""
        tasks = self.tasks
        if not windows:
            return EXPIRED
        by_age = tasks.c.created_us + sa.bindparam("max_age_us", type_=sa.BigInteger)
        stale_us = sa.case((tasks.c.deadline_us < by_age, tasks.c.deadline_us), else_=by_age)
        inside = (
            sa.and_(stale_us > sa.bindparam(f"after_{number}"), stale_us <= sa.bindparam(f"until_{number}"))
            for number in range(windows)
        )
        return sa.case((sa.or_(*inside), RESERVE), else_=EXPIRED)

    @cached_property
    def _worth(self) -> sa.ColumnElement[float]:
        """The value of a task in millionths, or that of a task without one."""
        default: sa.ColumnElement[int] = sa.literal_column(str(round(DEFAULT_VALUE * 1e6)))
        return self._real(sa.func.coalesce(self.tasks.c.value_millionths, default))

    def _real(self, number: sa.ColumnElement[int]) -> sa.ColumnElement[float]:
        """Return a whole number as a float: sums of values may exceed 64 bits."""
        # SQLAlchemy knows no such cast for every server of this dialect.
        if self.is_mysql:
            return sa.literal_column("1e0", sa.Double) * number
        return sa.cast(number, sa.Double)

    @cached_property
    def _has_value(self) -> sa.ColumnElement[int | None]:
        """Set if a task has a value or a decay."""
        tasks = self.tasks
        has_value = sa.or_(tasks.c.value_millionths.is_not(None), tasks.c.decay.is_not(None))
        return sa.case((has_value, sa.literal_column("1")))

    @cached_property
    def _delivered(self) -> sa.ColumnElement[float]:
        """What a completed task was worth when it was done, in millionths, as `value_at` has it; else 0."""
        tasks = self.tasks
        created_us, done_us, deadline_us = tasks.c.created_us, tasks.c.updated_us, tasks.c.deadline_us
        in_time = sa.and_(tasks.c.status == SUCCESS, done_us <= deadline_us)
        decays = sa.and_(tasks.c.decay.is_not(None), deadline_us < microseconds(NEVER), done_us > created_us)
        left = self._real(deadline_us - done_us) / (deadline_us - created_us)
        return sa.case((sa.and_(in_time, decays), self._worth * left), (in_time, self._worth), else_=NONE)

    @cached_property
    def exact(self) -> dict[str, sa.CompoundSelect[Any]]:
        """Number of tasks by state and shed reason, with the oldest and newest creation time and the values.

        One statement, so that it counts each task once, whatever is committed at the same time.
        """
        return {f"windows: {windows}": self.exact_with(windows) for windows in (0, 1)}

    def exact_with(self, windows: int) -> sa.CompoundSelect[Any]:
        """Return `exact` for a number of windows in which the reserve shed tasks."""
        tasks, reason = self.tasks, self._reason(windows)
        created = tasks.c.created_us.label("created_us")
        in_line = sa.select(
            sa.case((self._is_stale, SHED), else_=PENDING).label("state"),
            sa.case((self._is_stale, reason)).label("reason"),
            created,
        ).where(self.in_queue, tasks.c.line.is_not(None))
        is_shed = sa.or_(tasks.c.status == SHED, self._is_stale)
        not_in_line = sa.and_(self.in_queue, tasks.c.agenda.in_(NOT_IN_LINE))
        aside = sa.select(
            sa.case((is_shed, SHED), (tasks.c.not_before_us.is_not(None), DELAYED), else_=PENDING),
            sa.case((is_shed, sa.func.coalesce(tasks.c.shed_reason, reason))),
            created,
        ).where(not_in_line, tasks.c.status.in_((PENDING, SHED)))
        waiting = sa.union_all(in_line, aside).subquery("waiting")
        ages = (sa.func.min(waiting.c.created_us), sa.func.max(waiting.c.created_us))
        counted: sa.Select[Any] = sa.select(waiting.c.state, waiting.c.reason, sa.func.count(), *ages)
        by_state = counted.add_columns(NONE, NONE, NONE).group_by(waiting.c.state, waiting.c.reason)
        worth, valued = sa.func.sum(self._worth), sa.func.count(self._has_value)
        others: sa.Select[Any] = sa.select(tasks.c.status, NULL, sa.func.count(), NULL, NULL)
        others = others.add_columns(worth, sa.func.sum(self._delivered), valued)
        others = others.where(not_in_line, tasks.c.status.not_in((PENDING, SHED)))
        # The values of shed tasks come apart from their number, which the index of lines alone has.
        shed = sa.select(SHED, NULL, NONE, NULL, NULL, worth, NONE, valued)
        stale_in_line = shed.where(self.in_queue, tasks.c.line.is_not(None), self._is_stale)
        shed_aside = shed.where(not_in_line, tasks.c.status.in_((PENDING, SHED)), is_shed)
        return sa.union_all(by_state, others.group_by(tasks.c.status), stale_in_line, shed_aside)

    @cached_property
    def shed_by_group(self) -> sa.Select[Any]:
        """Number of tasks by group that were shed: early, or because they are stale."""
        tasks = self.tasks
        is_shed = sa.or_(tasks.c.status == SHED, sa.and_(tasks.c.status == PENDING, self._is_stale))
        counts: sa.Select[Any] = sa.select(tasks.c.task_group, sa.func.count().label("number"))
        return counts.where(self.in_queue, is_shed).group_by(tasks.c.task_group)


class SqlWaiting(WaitingReader):
    """Reads what waits in the lines of one queue.

    Attributes:
        connection: Runs the statements; None if each takes a connection of its own.
    """

    def __init__(self, store: SqlCounts, queue: str, connection: sa.Connection | None) -> None:
        self.connection = connection
        self._store = store
        self._queue = queue

    def rows(self, statement: sa.Executable, where: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows that a statement selects."""
        if self.connection is None:
            return self._store.database.rows(statement, where)
        return self.connection.execute(statement, where).all()

    def live(
        self, statement: sa.Executable, key: str, now: float, created_after: float, looked: int, most: int = 1
    ) -> Sequence[Any]:
        """Return the rows that a statement selects of up to `most` live tasks, among `looked` tasks."""
        where = in_time(self._queue, now, created_after) | {"now_us": microseconds(now), "of_line": key}
        return self.rows(statement, where | {"looked": looked, "page": looked, "at_most": most})

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        horizon = self._store.horizon
        parts = horizon.recent(self._queue) if (after, until) == ("", END) else None
        if parts is not None and (known := parts.known_lines(horizon.monotonic())):
            return sorted(known)
        where = {"of_queue": self._queue, "of_after": after, "of_until": until, "count": count}
        return sorted(row[0] for row in self.rows(self._store.claim_sql.statement("lines"), where))

    @override
    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        sql, looked = self._store.waiting_sql, at_most + COUNTED_ROWS
        if key == ALL_LINES:
            return dict(self.live(sql.count_groups, key, now, created_after, looked))
        return {parse_line(key)[1]: self.live(sql.count_line, key, now, created_after, looked, at_most)[0][0]}

    @override
    def newest(self, key: str, now: float, created_after: float, count: int) -> Times:
        sql, times = self._store.waiting_sql, defaultdict[str | None, list[float]](list)
        statement = sql.newest_by_group if key == ALL_LINES else sql.newest_of_line
        for created_us, *group in self.live(statement, key, now, created_after, count + COUNTED_ROWS, count):
            times[group[0] if group else parse_line(key)[1]].append(created_us / 1e6)
        return times

    @override
    def oldest(self, key: str, now: float, created_after: float, count: int) -> list[tuple[float, str]]:
        is_all, looked = key == ALL_LINES, count + LOOKED_ROWS
        if not is_all and (parts := self._store.horizon.recent(self._queue)) is not None:
            created_after = parts.spans(key, microseconds(created_after), newest_first=False)[0][0] / 1e6
        oldest_of_line = self._store.claim_sql.statement("oldest_of_line")
        statement = self._store.waiting_sql.first_to_expire if is_all else oldest_of_line
        found = self.live(statement, key, now, created_after, looked, count)
        ranked = sorted(map(tuple, found))[:count] if is_all else found
        return [(created_us / 1e6, task_id) for *_level, created_us, task_id in ranked]

    @override
    def oldest_created(self, key: str, now: float, created_after: float) -> float | None:
        if key != ALL_LINES:
            return super().oldest_created(key, now, created_after)
        created_us = self.live(self._store.waiting_sql.sum_up, key, now, created_after, LOOKED_ROWS)[0][2]
        return None if created_us is None else created_us / 1e6

    @override
    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        statement, horizon = self._store.claim_sql.statement("first_to_expire"), self._store.horizon
        read = partial(self.live, statement, key, now, created_after, FIRST_TO_EXPIRE)
        parts = horizon.recent(self._queue) if key == ALL_LINES else None
        found = read() if parts is None else parts.first_to_expire(read, horizon.monotonic())
        return [(created_us / 1e6, deadline_us / 1e6) for created_us, deadline_us in found]

    @override
    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        where = in_time(self._queue, now, created_after)
        where |= {"now_us": microseconds(now), "until_us": microseconds(until), "page": LOOKED_ROWS}
        return [row[0] / 1e6 for row in self.rows(self._store.waiting_sql.expiring, where)]

    @override
    def listed(self, task_ids: Sequence[str]) -> list[Task]:
        if not task_ids:
            return []
        where = {"of_queue": self._queue, "ids": task_ids}
        tasks = map(task_of, self.rows(self._store.waiting_sql.listed_tasks, where))
        return sorted(tasks, key=lambda task: task_ids.index(task.task_id))


class SqlCounts(SqlPart):
    """Counts tasks, and examines waiting ones."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.waiting_sql = WaitingStatements.shared(schema, database.engine.dialect)
        self.count_sql = CountStatements.shared(schema, database.engine.dialect)
        self.exact_sql = ExactStatements.shared(schema, database.engine.dialect)
        self.claim_sql = ClaimStatements.shared(schema, database.engine.dialect)

    @override
    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        return self.database.read(lambda connection: work(SqlWaiting(self, queue, connection)))

    @override
    def count_stale(self, queue: str, since: float, now: float, life_seconds: float) -> int:
        between = {"since_us": microseconds(since), "now_us": microseconds(now)}
        page = {"of_queue": queue, **between, "page": MOST_STALE}
        return sum(row[0] for row in self.database.rows(self.waiting_sql.count_stale, page))

    @override
    def exact_stats(self, queue: str, now: float, created_after: float, spans: ReserveSpans) -> Stats:
        windows = spans.windows()
        where = {
            "of_queue": queue,
            "now_us": microseconds(now),
            "created_until_us": microseconds(created_after),
            "max_age_us": microseconds(now - created_after),
        }
        for number, (after, until) in enumerate(windows):
            where |= {f"after_{number}": microseconds(after), f"until_{number}": microseconds(until)}
        statement = self.exact_sql.exact_with(len(windows))
        return _exact_stats(now, self.database.read_slowly(statement, where, COUNT_SECONDS))

    @override
    def shed_by_group(self, queue: str, now: float, created_after: float) -> dict[str | None, int]:
        where = {
            "of_queue": queue,
            "now_us": microseconds(now),
            "created_until_us": microseconds(created_after),
        }
        rows = self.database.read_slowly(self.exact_sql.shed_by_group, where, COUNT_SECONDS)
        return {row.task_group: row.number for row in rows}

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        def look(connection: sa.Connection) -> Stats:
            reader = SqlWaiting(self, queue, connection)
            found = reader.live(self.waiting_sql.sum_up, ALL_LINES, now, created_after, COUNTED_ROWS)
            counted, pending, *ends_us = found[0]
            ends = [created_us / 1e6 for created_us in ends_us if created_us is not None]
            bounded = {"shed_by_reason": "not counted", **NO_VALUES}
            if counted == COUNTED_ROWS:
                bounded["pending"] = "at least"
                ends += self._ends(reader, now, created_after, bounded)
            statuses = {
                agenda: dict(reader.live(statement, ALL_LINES, now, created_after, COUNTED_ROWS))
                for agenda, statement in self.count_sql.statuses.items()
            }
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
        found = reader.live(self.waiting_sql.newest_waiting, ALL_LINES, now, created_after, LOOKED_ROWS)
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
    """Return stats from the rows of `ExactStatements.exact`."""
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
