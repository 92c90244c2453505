"""Find lines that have work, and whose groups have room within their limits."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.model.validation import json_text
from freshq.policy.groups import GroupRoom, StartLog
from freshq.stores.sql.records import RecordStatements
from freshq.stores.sql.rows import DUE, line_key, microseconds, parse_line
from freshq.stores.sql.statements import TAKEN, Conditions, Statements, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq.policy.groups import GroupRules
    from freshq.stores.lines import ClaimRequest, Line
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.schema import Schema

    Find: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Any]]

# Lines of a level that one claim reads: enough for fair turns, few enough for a claim of a millisecond.
WINDOW_LINES: Final = 64
# Up to this many lines, every claim checks for new ones; with more, only an occasional claim does.
FEW_LINES: Final = 8
REUSE_SECONDS: Final = 0.5
STARTS: Final = "freshq#group-starts"
# How long a process uses its list of the lines of groups with room, if there are too many for a window.
OPEN_SECONDS: Final = 1.0
# Lines that one statement finds: MariaDB ends a recursion after a thousand steps.
PAGE_LINES: Final = 500
# Sorts after every name that begins with a separator.
LAST_NAME: Final = chr(0x10FFFF)
FOLLOWING: Final = "following"
LAST: Final = "last"
# Sorts after the lines of every level, because lines begin with a digit.
END: Final = ":"
# A suffix that sorts between a line and the next one, because a group has no NUL.
NEXT: Final = "\x01"
# For `Window.others`: any other line may exist.
NO_OTHERS: Final = {"others_from": END, "level_from": END, "others_until": END}


def live_in_line(queue: str, line: Line, created_after: float, deadline_after: float) -> dict[str, Any]:
    """Return the parameters of `Statements.live_in_line`."""
    return {
        "of_queue": queue,
        "of_line": line_key(*line),
        "created_after_us": microseconds(created_after),
        "deadline_after_us": microseconds(deadline_after),
    }


class WindowStatements(Statements):
    """Statements that find lines, with one index search for each returned line."""

    @cached_property
    def finds(self) -> dict[str, sa.Select[Any]]:
        """Statements by name."""
        return {FOLLOWING: self._following, LAST: self._last}

    @cached_property
    def prepared_finds(self) -> dict[str, PreparedStatement]:
        """As `finds`."""
        return {name: self.prepared(statement) for name, statement in self.finds.items()}

    @property
    def _following(self) -> sa.Select[Any]:
        """The first `of_count` lines between `of_after` and `of_until`."""
        line = self.tasks.c.line
        # Not min(), for which PostgreSQL without statistics would read all lines.
        next_line = (
            sa.select(line).where(self.in_queue, line < sa.bindparam("of_until")).order_by(line).limit(1)
        )
        first = next_line.where(line > sa.bindparam("of_after")).scalar_subquery()
        place: sa.Label[int] = sa.literal_column("1").label("place")
        lines = sa.select(first.label("line"), place).cte("next_lines", recursive=True)
        following = next_line.where(line > lines.c.line).scalar_subquery().correlate(lines)
        go_on = (lines.c.line.is_not(None), lines.c.place < sa.bindparam("of_count"))
        lines = lines.union_all(sa.select(following, lines.c.place + 1).where(*go_on))
        return sa.select(lines.c.line).where(lines.c.line.is_not(None))

    @property
    def _last(self) -> sa.Select[Any]:
        """The last line before `of_until`."""
        line = self.tasks.c.line
        before = sa.select(line).where(self.in_queue, line < sa.bindparam("of_until"))
        return before.order_by(line.desc()).limit(1)


@dataclass
class Window:
    """Lines found on the highest non-empty level.

    Attributes:
        level: The level.
        groups: The groups of the lines, in order.
        turns_left: Number of tasks to take before the lines are looked up again.
        usable_until: Latest time of the next lookup, on the monotonic clock.
    """

    level: int
    groups: list[str | None]
    turns_left: int
    usable_until: float

    @cached_property
    def only_line(self) -> str:
        """The line, in its stored form, of a window with a single one."""
        return line_key(self.level, self.groups[0])

    @cached_property
    def others(self) -> dict[str, str]:
        """Ranges that must have no line for this window to be used again.

        For a single line, they cover all other lines of its level and of higher levels; otherwise only higher
        levels.
        """
        level = str(self.level)
        if len(self.groups) == 1:
            line = self.only_line
            return {"others_from": line + NEXT, "level_from": level, "others_until": line}
        return {"others_from": chr(ord(level) + 1), "level_from": level, "others_until": level}


class LineWindow:
    """Finds the lines for a claim.

    Thread-safe: threads that share a cursor only skip some lines for a while.
    """

    def __init__(
        self, schema: Schema, dialect: sa.Dialect, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._schema = schema
        self._dialect = dialect
        self.sql = WindowStatements.shared(schema, dialect)
        self._monotonic = monotonic
        # By queue and level: the last line of the last window.
        self._cursors: dict[tuple[str, str], str] = {}
        self._known: dict[str, Window] = {}
        # Queues whose lines exceeded a window at the last lookup.
        self._many: set[str] = set()

    def copy(self) -> LineWindow:
        """Return an independent copy, for a peek."""
        copied = LineWindow(self._schema, self._dialect, self._monotonic)
        copied._cursors, copied._many = dict(self._cursors), set(self._many)
        return copied

    def known(self, queue: str) -> Window | None:
        """Return the last window of a queue if it can be reused under its condition `others`."""
        window = self._known.get(queue)
        if window is None or len(window.groups) == 1:
            return window
        is_used_up = window.turns_left <= 0 or self._monotonic() >= window.usable_until
        return None if is_used_up or len(window.groups) <= FEW_LINES else window

    def used(self, queue: str, turns: int) -> None:
        """Count the turns taken by lines of the last window."""
        window = self._known.get(queue)
        if window is not None:
            window.turns_left -= turns

    def known_lines(self, queue: str) -> bool:
        """Return whether the last lookup of a queue found lines."""
        return queue in self._known

    def is_partial(self, queue: str) -> bool:
        """Return whether the last lookup of a queue left out lines."""
        return queue in self._many

    def is_whole(self, queue: str) -> None:
        """Note that the lines of a queue fit a window."""
        self._many.discard(queue)

    def levels(self, find: Find, queue: str) -> Iterator[list[Line]]:
        """Yield lines of each priority level, the highest level first; all of them if they fit a window."""
        self._known.pop(queue, None)
        for lines in self._levels(find, queue):
            if queue not in self._known:
                groups = [group for _level, group in lines]
                # With many lines, all other lines have their turn before new ones.
                usable_until = math.inf if queue in self._many else self._monotonic() + REUSE_SECONDS
                self._known[queue] = Window(lines[0][0], groups, len(groups), usable_until)
            yield lines

    def _levels(self, find: Find, queue: str) -> Iterator[list[Line]]:
        if queue not in self._many:
            keys = self._following(find, queue, "", END, WINDOW_LINES + 1)
            if len(keys) <= WINDOW_LINES:
                levels = [list(level) for _digit, level in groupby(keys, key=lambda key: key[0])]
                yield from ([parse_line(key) for key in level] for level in reversed(levels))
                return
            self._many.add(queue)
        yield from self._levels_of_many(find, queue)

    def _levels_of_many(self, find: Find, queue: str) -> Iterator[list[Line]]:
        until = END
        last = self._last(find, queue, until)
        if last is None:
            self._many.discard(queue)
        while last is not None:
            level = last[0]
            below = self._last(find, queue, level)
            keys = self._window(find, queue, level, (below or "", until))
            if len(keys) < WINDOW_LINES:
                self._many.discard(queue)
            if keys:
                yield [parse_line(key) for key in keys]
            until, last = level, below

    def _window(self, find: Find, queue: str, level: str, between: tuple[str, str]) -> list[str]:
        """Return the lines of a level that follow the last window, wrapping around."""
        start, until = between
        after = self._cursors.get((queue, level), start)
        keys = self._following(find, queue, after, until, WINDOW_LINES)
        if len(keys) < WINDOW_LINES and after != start:
            keys += [
                key
                for key in self._following(find, queue, start, until, WINDOW_LINES - len(keys))
                if key <= after
            ]
        if keys:
            self._cursors[queue, level] = keys[-1]
        return keys

    def _following(self, find: Find, queue: str, after: str, until: str, count: int) -> list[str]:
        where = {"of_queue": queue, "of_after": after, "of_until": until, "of_count": count}
        return sorted(find(FOLLOWING, where))

    def _last(self, find: Find, queue: str, until: str) -> str | None:
        return next(iter(find(LAST, {"of_queue": queue, "of_until": until})), None)


class LimitStatements(Statements):
    """Statements that count the running tasks by group."""

    @cached_property
    def _in_work(self) -> Conditions:
        tasks = self.tasks.c
        conditions = (self.in_queue, tasks.status == TAKEN, tasks.task_group.is_not(None))
        # Only the other databases have an index of the running tasks.
        return (*conditions, tasks.agenda == DUE) if self.is_mysql else conditions

    @cached_property
    def by_group(self) -> sa.Select[Any]:
        """The number of running tasks of each group."""
        group = self.tasks.c.task_group
        return sa.select(group, sa.func.count()).where(*self._in_work).group_by(group)

    @cached_property
    def of_groups(self) -> sa.Select[Any]:
        """As `by_group`, of the groups `of_names`."""
        group = self.tasks.c.task_group
        if self.dialect.name == "postgresql":
            # One by one, because PostgreSQL looks up a list among the running tasks of all groups.
            wanted = rows_of("of", names=sa.Text()).c.names
            number = sa.select(sa.func.count()).where(*self._in_work, group == wanted)
            return sa.select(wanted, number.scalar_subquery())
        chosen = (*self._in_work, group.in_(sa.bindparam("of_names", expanding=True)))
        # To group by the index, SQLite would read the tasks of all groups.
        key = sa.func.coalesce(group, sa.literal_column("''")) if self.dialect.name == "sqlite" else group
        return sa.select(group, sa.func.count()).where(*chosen).group_by(key)

    @cached_property
    def below(self) -> sa.Select[Any]:
        """The number of running tasks of all groups between two names."""
        group = self.tasks.c.task_group
        between = (group >= sa.bindparam("of_first"), group <= sa.bindparam("of_last"))
        return sa.select(sa.func.count()).where(*self._in_work, *between)


class LimitedLines:
    """The lines of groups that have room, as seen by the claims of one process. Thread-safe."""

    def __init__(self, database: Database, schema: Schema, window: LineWindow) -> None:
        self._sql = LimitStatements.shared(schema, database.engine.dialect)
        self._records = RecordStatements.shared(schema, database.engine.dialect)
        self._dialect = database.dialect
        self._lock_id = zlib.crc32(schema.tasks.name.encode())
        self._window = window
        self._lock = new_lock()
        # By queue: when to list the lines again, the rules, and the lines of groups that had room.
        self._open: dict[str, tuple[float, GroupRules, list[Line]]] = {}

    def begin(self, connection: sa.Connection, request: ClaimRequest) -> LimitedClaim:
        """Keep other claims of the queue out until the transaction ends; return the claim with its room."""
        log = StartLog()
        if self._dialect == "postgresql":
            lock = sa.func.pg_advisory_xact_lock(self._lock_id ^ zlib.crc32(request.queue.encode()))
            connection.execute(sa.select(lock))
        # On MariaDB the row is also the lock. SQLite has one writer at a time.
        if request.groups.has_rates or self._dialect in ("mysql", "mariadb"):
            log = self._starts(connection, request.queue)
        return LimitedClaim(connection, request, self._sql, log, request.moment().now)

    def _starts(self, connection: sa.Connection, queue: str) -> StartLog:
        this = {"of_queue": queue, "of_name": STARTS}
        read = self._records.read.with_for_update()
        row = connection.execute(read, this).one_or_none()
        if row is None:
            new = {"record": "{}", "version": new_token()}
            connection.execute(self._records.add, {"queue": queue, "name": STARTS} | new)
            row = connection.execute(read, this).one()
        return StartLog(json.loads(row.record))

    def end(self, claim: LimitedClaim, now: float) -> None:
        """Store the starts of a claim that takes its tasks at `now` (seconds)."""
        request = claim.request
        if not request.groups.has_rates or not claim.started:
            return
        claim.log.delay(claim.room.rated, now)
        values = claim.log.values(request.groups, now)
        connection, this = claim.connection, {"of_queue": request.queue, "of_name": STARTS}
        version = connection.execute(self._records.read, this).one().version
        new = {"record": json_text(values), "version": new_token(), "of_version": version}
        connection.execute(self._records.change, this | new)

    def levels(self, claim: LimitedClaim) -> Iterator[list[Line]]:
        """Yield lines of each priority level, the highest level first, of groups that may have room."""
        queue, connection = claim.request.queue, claim.connection

        def find(name: str, parameters: Any) -> Sequence[Any]:
            return connection.execute(self._window.sql.finds[name], parameters).scalars().all()

        if not self._window.is_partial(queue):
            levels = list(self._window.levels(find, queue))
            if not self._window.is_partial(queue):
                for lines in levels:
                    claim.count([group for _level, group in lines])
                    yield lines
                return
        fresh = False
        while True:
            lines, is_new = self._open_lines(claim, find, renew=fresh)
            for _level, of_level in groupby(lines, key=lambda line: line[0]):
                remaining = list(of_level)
                for start in range(0, len(remaining), WINDOW_LINES):
                    some = remaining[start : start + WINDOW_LINES]
                    claim.count([group for _level, group in some])
                    yield some
            if is_new:
                return
            fresh = True

    def _open_lines(self, claim: LimitedClaim, find: Find, *, renew: bool) -> tuple[list[Line], bool]:
        """Return the lines of groups with room, rotated; and whether they were listed just now."""
        queue, rules = claim.request.queue, claim.request.groups
        with self._lock:
            until, known_for, lines = self._open.get(queue, (0.0, rules, []))
        if not renew and time.monotonic() < until and known_for == rules:
            turned = lines[claim.request.limit :] + lines[: claim.request.limit]
            with self._lock:
                self._open[queue] = (until, rules, turned)
            return sorted(lines, key=lambda line: -line[0]), False
        keys: list[str] = []
        while len(page := self._page(find, queue, keys[-1] if keys else "")) == PAGE_LINES:
            keys += page
        keys += page
        if len(keys) <= WINDOW_LINES:
            self._window.is_whole(queue)
        room = claim.counted()
        lines = [line for line in map(parse_line, keys) if room.allows(line[1])]
        with self._lock:
            self._open[queue] = (time.monotonic() + OPEN_SECONDS, rules, lines)
        return sorted(lines, key=lambda line: -line[0]), True

    @staticmethod
    def _page(find: Find, queue: str, after: str) -> list[str]:
        where = {"of_queue": queue, "of_after": after, "of_until": END, "of_count": PAGE_LINES}
        return sorted(find(FOLLOWING, where))


class LimitedClaim:
    """One claim under the lock.

    Attributes:
        connection: Its transaction.
        request: The claim.
        log: The recent starts.
        room: The room that the limits leave.
    """

    def __init__(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        sql: LimitStatements,
        log: StartLog,
        now: float,
    ) -> None:
        self.connection = connection
        self.request = request
        self.log = log
        self._sql = sql
        self._now = now
        self._queue = {"of_queue": request.queue}
        self._counts: dict[str, int] = {}
        self.room = GroupRoom(request.groups, self._running, log, now)

    @property
    def started(self) -> bool:
        """Whether it found a task."""
        return self.room.started

    def count(self, groups: Sequence[str | None]) -> None:
        """Count the running tasks of the given groups in one statement, if no group has groups below it."""
        names = [group for group in groups if group is not None and group not in self._counts]
        if self.request.groups.separator is None and names:
            found = self.connection.execute(self._sql.of_groups, self._queue | {"of_names": names})
            self._counts |= dict.fromkeys(names, 0) | {row[0]: int(row[1]) for row in found}

    def counted(self) -> GroupRoom:
        """Return the room of all groups, by one statement that counts every running task."""
        rules, counts = self.request.groups, Counter[str]()
        for group, number in self.connection.execute(self._sql.by_group, self._queue):
            for name in rules.lineage(group):
                counts[str(name)] += number
        return GroupRoom(rules, counts.__getitem__, self.log, self._now)

    def _running(self, name: str) -> int:
        if name not in self._counts:
            separator = self.request.groups.separator
            if separator is None:
                self.count([name])
            else:
                # Two ranges, because names such as `acme-2` sort between `acme` and `acme/`.
                below = {"of_first": name + separator, "of_last": name + separator + LAST_NAME}
                self._counts[name] = sum(
                    int(self.connection.execute(self._sql.below, self._queue | range_).scalar_one())
                    for range_ in ({"of_first": name, "of_last": name}, below)
                )
        return self._counts[name]
