"""Claim tasks: in one statement if the database returns the rows it changed, otherwise in a transaction."""

from __future__ import annotations

import json
import logging
import zlib
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from freshq.model.lifecycle import claimed, new_token
from freshq.model.task import TaskStatus
from freshq.model.validation import json_text
from freshq.stores.base import Conflict, Guard
from freshq.stores.lines import END, Head, LimitedLines, Stored
from freshq.stores.sql.counts import SqlCounts, SqlWaiting
from freshq.stores.sql.horizon import COMMIT_US, EVER_US
from freshq.stores.sql.rows import microseconds, stored
from freshq.stores.sql.statements import MYSQL, in_time
from freshq.stores.sql.tasks import as_dead_letter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from freshq.model.lifecycle import ClaimMoment
    from freshq.model.task import Task
    from freshq.stores.lines import Choice, ClaimRequest, LineReader, Range
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.horizon import Span
    from freshq.stores.sql.schema import Schema

T = TypeVar("T")
# Index rows that a claim reads over all its lines, to skip tasks past their own deadline; this takes a
# millisecond. It reads at least `MIN_LOOKED_ROWS` of each line.
LOOKED_ROWS: Final = 1_000
MIN_LOOKED_ROWS: Final = 64
# The same in a line with tasks of kinds that have no room: these may be many, and hide the others.
LOOKED_BEHIND_KINDS: Final = 5_000
# No task has this kind. SQL has no empty lists.
NO_KIND: Final = ""
# Stale tasks that leave their lines at a time, when a claim did not find enough.
STALE_ROWS: Final = 500
# The record of the recent starts of groups.
STARTS: Final = "freshq#group-starts"
# Sorts after every name that begins with a separator.
LAST_NAME: Final = chr(0x10FFFF)
# The parameters of the ranges that `take_line` checks on PostgreSQL.
RANGE_NAMES: Final = (("first_1", "until_1"), ("first_2", "until_2"))
# The statements that find lines.
LINES: Final = "lines"
LAST_LINE: Final = "last_line"
# As `json.dumps`, without making an encoder each time; and remembering the ranges of the last claims.
JSON: Final = json.JSONEncoder(ensure_ascii=False).encode
RANGES_JSON: Final = lru_cache(JSON)
logger = logging.getLogger(__name__)


class SqlReader(LimitedLines, SqlWaiting):
    """Reads the lines of one queue for a claim or a peek: each time on its own, or in a transaction."""

    def __init__(
        self,
        lines: SqlLines,
        queue: str,
        connection: sa.Connection | None,
        request: ClaimRequest | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            lines: The store.
            queue: Name of the queue.
            connection: The transaction; None if each statement commits on its own.
            request: The claim in whose transaction it reads, and locks what it reads; None: it locks nothing.
        """
        SqlWaiting.__init__(self, lines, queue, connection)
        self._lines = lines
        self._sql = lines.sql
        self._request = request
        self._of_queue = {"of_queue": queue}
        self._record: Any = None

    def _execute(
        self, name: str, parameters: Mapping[str, Any], *, newest_first: bool = False
    ) -> sa.CursorResult[Any]:
        if self.connection is None:
            raise TypeError("only in a transaction")
        return self.connection.execute(self._sql.statement(name, newest_first), parameters)

    def _find(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        if self.connection is None:
            ready = self._sql.ready(name)
            return [row[0] for row in self._lines.database.execute(ready, parameters).rows]
        return [*self._execute(name, parameters).scalars()]

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        where = self._of_queue | {"of_after": after, "of_until": until, "count": count}
        is_look = self.connection is not None and self._request is None
        parts = None if is_look or (after, until) != ("", END) else self._lines.horizon.known(self._queue)
        if parts is None:
            return sorted(self._find(LINES, where))
        # While an old snapshot is open, remember the answer.
        now = self._lines.horizon.monotonic()
        return sorted(parts.look_up(partial(parts.find_lines, self._find, now), now, LINES, where))

    @override
    def last_line(self, until: str) -> str | None:
        return next(iter(self._find(LAST_LINE, self._of_queue | {"of_until": until})), None)

    @override
    def page(
        self, key: str, moment: ClaimMoment, count: int, looked: int, *, newest_first: bool
    ) -> list[Stored]:
        locks = self._request is not None
        parameters = in_time(self._queue, moment.deadline_after, moment.created_after)
        looked = max(looked, LOOKED_BEHIND_KINDS) if self.full_kinds else looked
        parameters |= {"of_line": key, "at_most": count, "looked": looked}
        parameters["of_full_kinds"] = [*self.full_kinds] or [NO_KIND]
        spans = [(parameters["created_after_us"], EVER_US)]
        if locks:  # beside an old snapshot, parts of a line may be known to be empty

            def probe(where: Mapping[str, Any]) -> Sequence[Any]:
                return self._execute("best", where, newest_first=newest_first).all()

            spans = self._lines.spans(self._queue, moment, [key], newest_first, probe)[key]
        found: list[Stored] = []
        for after_us, before_us in spans:
            page = parameters | {"created_after_us": after_us, "created_before_us": before_us}
            rows = self._execute("page" if locks else "shown", page, newest_first=newest_first).all()
            found += sorted(map(stored, rows), key=position, reverse=newest_first)
        return found

    @override
    def heads(self, key: str, moment: ClaimMoment, count: int, *, newest_first: bool) -> list[Head]:
        if self.full_kinds:  # the index of lines has no kinds
            page = self.page(key, moment, count, count, newest_first=newest_first)
            return [Head(task.task_id, task.created, task.deadline) for task, _problem in page]
        where = in_time(self._queue, moment.deadline_after, moment.created_after)
        where |= {"of_line": key, "looked": count}
        rows: Iterable[Any] = self._execute("heads", where, newest_first=newest_first)
        return [Head(row[0], row[1] / 1e6, row[2] / 1e6) for row in rows]

    @override
    def found(self, heads: Sequence[Head]) -> list[Stored]:
        ids = [head.task_id for head in heads]
        name = "found" if self._request is None else "found_locked"
        rows = self._execute(name, self._of_queue | {"of_ids": ids}).all()
        found = {each.task_id: each for each in map(stored, rows)}
        return [found[task_id] for task_id in ids if task_id in found]

    @override
    def take(self, found: Sequence[Stored], moment: ClaimMoment) -> list[Stored]:
        chosen = [each for each in found if is_in_time(each.task, moment)]
        if not chosen or self._request is None:
            return []
        listed = {"of_ids": [each.task.task_id for each in chosen]}
        version = new_token()
        taken = listed | taken_parameters(self._request, moment) | {"version": version}
        self._execute("take", taken)
        token = self._request.token
        tasks = [claimed(each.task, moment, token, version) for each in chosen]
        return [Stored(task, each.problem) for task, each in zip(tasks, chosen, strict=True)]

    def keep_others_out(self) -> None:
        """Let no other claim within limits count or take until the transaction ends."""
        dialect = self._lines.database.dialect
        if dialect == "postgresql":
            lock_id = zlib.crc32(self._lines.schema.tasks.name.encode()) ^ zlib.crc32(self._queue.encode())
            self._execute("keep_others_out", {"lock_id": lock_id})
        elif dialect in MYSQL:  # the record of starts is the lock; SQLite has one writer at a time
            self.starts()

    @override
    def starts(self) -> Mapping[str, Any]:
        if self._record is None:
            this = self._of_queue | {"of_name": STARTS}
            self._record = self._execute("lock_record", this).one_or_none()
            if self._record is None:
                self._execute("add_record", this | {"record": "{}", "version": new_token()})
                self._record = self._execute("lock_record", this).one()
        starts: dict[str, Any] = json.loads(self._record.record)
        return starts

    @override
    def keep_starts(self, values: Mapping[str, Any]) -> None:
        this = self._of_queue | {"of_name": STARTS, "earlier_version": self._record.version}
        self._execute("change_record", this | {"record": json_text(values), "version": new_token()})

    @override
    def running(self, names: Collection[str]) -> dict[str, int]:
        found: Iterable[Any] = self._execute("running_of_groups", self._of_queue | {"of_names": [*names]})
        return {row[0]: int(row[1]) for row in found}

    @override
    def running_below(self, name: str, separator: str) -> int:
        # Two ranges, because names such as `acme-2` sort between `acme` and `acme/`.
        below = {"of_first": name + separator, "of_last": name + separator + LAST_NAME}
        return sum(
            int(self._execute("running_between", self._of_queue | names).scalar_one())
            for names in ({"of_first": name, "of_last": name}, below)
        )

    @override
    def running_by_group(self) -> dict[str, int]:
        found: Iterable[Any] = self._execute("running_by_group", self._of_queue)
        return {row[0]: int(row[1]) for row in found}


class SqlLines(SqlCounts):
    """Takes tasks from their lines: by one statement, or in a transaction that locks them first."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.locks_to_take = not self.sql.has_returning

    @override
    def line_reader(self, queue: str) -> SqlReader:
        self.horizon.empty_parts(queue)  # looks for old snapshots, now and then
        return SqlReader(self, queue, None)

    @override
    def look(self, request: ClaimRequest, work: Callable[[LineReader[Any]], T]) -> T:
        return self.database.read(lambda connection: work(SqlReader(self, request.queue, connection)))

    @override
    def searches_again(self, queue: str) -> bool:
        return self.horizon.searches_again(queue)

    @override
    def clear_stale(self, queue: str, now: float) -> int:
        cleared = self.leave_lines(queue, now, STALE_ROWS)
        if cleared and (parts := self.horizon.known(queue)) is not None:
            parts.lines.clear()  # a search may have ended among the stale tasks
        return cleared

    @override
    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        lines, unless = choice.lines, choice.unless
        if unless and self.horizon.watches and self.horizon.empty_parts(request.queue) is not None:
            return []  # while an old snapshot is open, a check of the ranges may read many dead entries
        name, which = self._which(request, choice)
        parameters = {
            **taken_parameters(request, request.moment()),
            "version": new_token(),  # as in `claimed`
            **which,
            "looked": choice.limit + max(MIN_LOOKED_ROWS, LOOKED_ROWS // len(lines)),
            "at_most": min(choice.limit, sum(lines.values())),
        }
        statement = self.sql.ready(name, choice.newest_first)
        earlier = self.sql.ready("taken_earlier")
        result = self.database.execute(statement, parameters, committed_earlier=earlier)
        taken = list(map(stored, result.rows))
        unreadable = [each for each in taken if each.problem is not None]
        return self._sound(taken) if unreadable else [each.task for each in taken]

    def _which(self, request: ClaimRequest, choice: Choice) -> tuple[str, dict[str, Any]]:
        """Return the name of the statement that takes from lines, and the parameters that name the lines."""
        lines, newest_first, unless = choice.lines, choice.newest_first, choice.unless
        if self.database.dialect == "sqlite":
            if len(lines) == 1:
                return "take_line", {"unless": RANGES_JSON(unless), "of_line": next(iter(lines))}
            wanted = JSON([*lines.items()])
            most = max(lines.values())
            return "take_lines", {"unless": RANGES_JSON(unless), "wanted": wanted, "most": most}
        if len(lines) == 1 and 0 < len(unless) <= len(RANGE_NAMES):
            return "take_line", {"of_line": next(iter(lines)), **_named(unless)}

        def run(parameters: Mapping[str, Any]) -> Sequence[Any]:
            return self.database.execute(self.sql.ready("best", newest_first), parameters).rows

        spans = self.spans(request.queue, request.moment(), lines, newest_first, run)
        which = _arrays("wanted", lines.items(), "line", "count") | _span_arrays(spans)
        return "take_lines", which | _arrays("unless", unless, "first", "until")

    def spans(
        self,
        queue: str,
        moment: ClaimMoment,
        lines: Iterable[str],
        newest_first: bool,  # noqa: FBT001 - a key of the statements
        run: Callable[[Mapping[str, Any]], Sequence[Any]],
    ) -> dict[str, list[Span]]:
        """Return the creation times between which to search each line, in order.

        Args:
            queue: Name of the queue.
            moment: The times of the claim.
            lines: The lines.
            newest_first: The order.
            run: Runs the statement `best`, to find empty parts.
        """
        parts = self.horizon.known(queue)
        after_us = microseconds(moment.created_after)
        if parts is None:
            return {line: [(after_us, EVER_US)] for line in lines}

        def probe(spans: Mapping[str, Sequence[Span]]) -> dict[str, int]:
            where = in_time(queue, moment.deadline_after, moment.created_after) | {"looked": LOOKED_ROWS}
            where |= _arrays("wanted", [(line, 1) for line in spans], "line", "count")
            return {row[0]: row[1] for row in run(where | _span_arrays(spans))}

        until_us = microseconds(moment.now) - COMMIT_US
        began = self.horizon.monotonic()
        if due := parts.to_probe(lines, began):
            parts.find_out(due, (after_us, until_us), probe, newest_first=newest_first)
            parts.search_seconds = max(parts.search_seconds, self.horizon.monotonic() - began)
        return {line: parts.spans(line, after_us, newest_first=newest_first) for line in lines}

    @override
    def take_locked(self, request: ClaimRequest, work: Callable[[LimitedLines], list[Stored]]) -> list[Task]:
        first = request.moment()
        self.horizon.empty_parts(request.queue)  # before this takes a connection

        def take(connection: sa.Connection) -> list[Stored]:
            reader = SqlReader(self, request.queue, connection, request)
            if request.groups.has_limits:
                reader.keep_others_out()
            return work(reader)

        def taken_earlier(connection: sa.Connection) -> list[Stored]:
            parameters = taken_parameters(request, request.moment())
            parameters["lease_from_us"] = microseconds(first.lease_until)
            earlier = self.sql.statement("taken_earlier")
            return list(map(stored, connection.execute(earlier, parameters).all()))

        return self._sound(self.database.transaction(take, committed_earlier=taken_earlier))

    def _sound(self, taken: Sequence[Stored]) -> list[Task]:
        """Return the tasks that can be read; make dead letters of the others."""
        for task, problem in taken:
            if problem is not None:
                self._discard_unreadable(task, problem, task.updated)
        return [task for task, problem in taken if problem is None]

    def _discard_unreadable(self, task: Task, problem: str, now: float) -> None:
        try:
            self.replace(
                as_dead_letter(task, problem, now), Guard(TaskStatus.TAKEN, lease_token=task.lease_token)
            )
        except Conflict:
            logger.warning("task %s changed before it could become a dead letter", task.task_id)


@lru_cache
def _named(unless: tuple[Range, ...]) -> dict[str, str]:
    """Return the parameters of up to two ranges."""
    named = zip(RANGE_NAMES, (*unless, (END, END)), strict=False)
    return {name: key for names, keys in named for name, key in zip(names, keys, strict=True)}


def taken_parameters(request: ClaimRequest, moment: ClaimMoment) -> dict[str, Any]:
    """Return the parameters of live tasks, and the values that a claim writes: one token for all tasks."""
    lease_until_us = round(moment.lease_until * 1e6)
    return {
        "of_queue": request.queue,
        "created_after_us": round(moment.created_after * 1e6),
        "deadline_after_us": round(moment.deadline_after * 1e6),
        "now_us": round(moment.now * 1e6),
        "token": request.token,
        "lease_from_us": lease_until_us,
        "lease_until_us": lease_until_us,
        "new_expires": moment.expires,
    }


def is_in_time(task: Task, moment: ClaimMoment) -> bool:
    """Return whether a task found a while ago can still be claimed."""
    return task.created > moment.created_after and task.stale_at > moment.deadline_after


def position(each: Stored) -> tuple[float, str]:
    """Return the position of a task in its line."""
    return each.task.created, each.task.task_id


def _arrays(name: str, rows: Iterable[Sequence[Any]], *columns: str) -> dict[str, list[Any]]:
    """Return an array of each column; without rows, empty arrays."""
    values = zip(*rows, strict=True)
    return {f"{name}_{column}": list(next(values, ())) for column in columns}


def _span_arrays(spans: Mapping[str, Sequence[Span]]) -> dict[str, list[Any]]:
    rows = [(line, *span) for line, of_line in spans.items() for span in of_line]
    return _arrays("span", rows, "line", "after_us", "before_us")
