"""Claim tasks: in one statement if the database returns the rows it changed, otherwise in a transaction."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.lifecycle import claimed, new_token
from freshq.model.task import TaskStatus
from freshq.model.validation import json_text
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.stores.base import Conflict, Guard
from freshq.stores.lines import END, LimitedLines, Stored
from freshq.stores.sql.agenda import StaleTasks
from freshq.stores.sql.counts import SqlCounts, in_seconds, on_agenda
from freshq.stores.sql.horizon import COMMIT_US, EVER_US
from freshq.stores.sql.records import RecordStatements
from freshq.stores.sql.rows import DUE, microseconds, stored
from freshq.stores.sql.statements import (
    FOLLOWING,
    LAST,
    MYSQL,
    ONE,
    TAKEN,
    Conditions,
    Statements,
    WindowStatements,
    rows_of,
)
from freshq.stores.sql.tasks import as_dead_letter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from freshq.model.lifecycle import ClaimMoment
    from freshq.model.task import Task
    from freshq.stores.lines import Choice, ClaimRequest, LineReader, Range
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.horizon import Span
    from freshq.stores.sql.schema import Schema

T = TypeVar("T")
ORDERS: Final = (True, False)
CREATED_AFTER: Final = sa.bindparam("created_after_us", type_=sa.BigInteger)
CREATED_BEFORE: Final = sa.bindparam("created_before_us", type_=sa.BigInteger)
# Index rows that a claim reads over all its lines, to skip tasks past their own deadline; this takes a
# millisecond. It reads at least `MIN_LOOKED_ROWS` of each line.
LOOKED_ROWS: Final = 1_000
MIN_LOOKED_ROWS: Final = 64
# Stale tasks that leave their lines at a time, when a claim did not find enough.
STALE_ROWS: Final = 500
# The record of the recent starts of groups.
STARTS: Final = "freshq#group-starts"
# Sorts after every name that begins with a separator.
LAST_NAME: Final = chr(0x10FFFF)
# The conditions that ranges of keys have no line: for one line, and for several.
UP_TO_TWO: Final = 2
ANY_NUMBER: Final = 3
logger = logging.getLogger(__name__)


class ClaimStatements(Statements):
    """Statements of claims."""

    @cached_property
    def _is_postgresql(self) -> bool:
        return self.dialect.name == "postgresql"

    @cached_property
    def _in_time(self) -> sa.ColumnElement[bool]:
        return self.tasks.c.deadline_us > sa.bindparam("deadline_after_us")

    @cached_property
    def _best_first(self) -> dict[bool, tuple[sa.ColumnElement[Any], ...]]:
        created, task_id = self.tasks.c.created_us, self.tasks.c.task_id
        return {True: (created.desc(), task_id.desc()), False: (created, task_id)}

    def _seen(
        self,
        line: sa.ColumnElement[str],
        newest_first: bool,  # noqa: FBT001 - a key
        span: tuple[sa.ColumnElement[int], sa.ColumnElement[int]] = (CREATED_AFTER, CREATED_BEFORE),
    ) -> sa.Select[Any]:
        """The first `looked` tasks of a line, from which a claim skips tasks past their own deadline.

        Args:
            line: The line.
            newest_first: The order.
            span: Times between which the tasks were created; only PostgreSQL passes over part of a line.
        """
        after_us, before_us = span
        tasks = self.tasks.alias("in_line")
        created, task_id = tasks.c.created_us, tasks.c.task_id
        place: sa.Label[Any] = sa.literal_column("in_line.ctid").label("place")
        best_first = (created.desc(), task_id.desc()) if newest_first else (created, task_id)
        return (
            sa.select(
                *([place] if self._is_postgresql else []),
                task_id,
                tasks.c.queue,
                created,
                tasks.c.deadline_us,
            )
            .where(
                tasks.c.queue == sa.bindparam("of_queue"),
                tasks.c.line == line,
                created > after_us,
                *([created < before_us] if self._is_postgresql else []),
            )
            .order_by(*best_first)
            .limit(sa.bindparam("looked"))
        )

    def _joined(self, seen: sa.FromClause, held: sa.FromClause) -> sa.ColumnElement[bool]:
        """The condition that joins an index entry with its row."""
        if self._is_postgresql:
            return sa.literal_column(f"{held.name}.ctid") == sa.literal_column("seen.place")  # type: ignore[attr-defined]
        return sa.and_(held.c.task_id == seen.c.task_id, held.c.queue == seen.c.queue)

    @cached_property
    def page(self) -> dict[bool, sa.Select[Any]]:
        """The best `at_most` of the first `looked` tasks of a line, locked until the transaction ends."""
        return {
            newest_first: self._page(newest_first).with_for_update(of=self.tasks, skip_locked=True)
            for newest_first in ORDERS
        }

    @cached_property
    def shown(self) -> dict[bool, sa.Select[Any]]:
        """As `page`, without locks."""
        return {newest_first: self._page(newest_first) for newest_first in ORDERS}

    def _page(self, newest_first: bool) -> sa.Select[Any]:  # noqa: FBT001 - a key
        tasks, line = self.tasks, sa.bindparam("of_line", type_=self.tasks.c.line.type)
        seen = self._seen(line, newest_first).subquery("seen")
        # Keep the planner off the index of lines: the rows are found already.
        still = sa.func.coalesce(tasks.c.line, "", type_=tasks.c.line.type) == line
        page = (
            sa.select(*self.columns)
            .select_from(seen.join(tasks, self._joined(seen, tasks)))
            .where(seen.c.deadline_us > sa.bindparam("deadline_after_us"), still)
            .limit(sa.bindparam("at_most"))
        )
        if self._is_postgresql:
            return page.order_by(*_best_first(seen, newest_first=newest_first))
        return self.in_order(page)

    @cached_property
    def _taken_values(self) -> dict[str, Any]:
        """The columns that a claim changes."""
        return {
            "status": TAKEN,
            "line": sa.null(),
            "updated_us": sa.bindparam("now_us"),
            "attempts": self.tasks.c.attempts + ONE,
            "first_claim_us": sa.func.coalesce(self.tasks.c.first_claim_us, sa.bindparam("now_us")),
            "last_claim_us": sa.bindparam("now_us"),
            "lease_token": sa.bindparam("token"),
            "request_token": sa.bindparam("version"),
            "lease_until_us": sa.bindparam("lease_until_us"),
            "agenda": sa.literal_column(f"'{DUE}'"),
            "due_us": sa.bindparam("lease_until_us"),
            "expires": sa.bindparam("new_expires"),
        }

    @cached_property
    def take(self) -> sa.Update:
        """Take the locked tasks."""
        in_line = self.tasks.c.line.is_not(None)
        take = sa.update(self.tasks).where(self.in_queue_by_id, self.listed, in_line)
        return self.by_key(self.tasks, take.values(self._taken_values))

    @cached_property
    def taken(self) -> sa.Select[Any]:
        """Tasks held under a token, with a lease that ends in a range."""
        tasks = self.tasks
        return sa.select(*self.columns).where(
            self.in_queue,
            tasks.c.agenda == DUE,
            tasks.c.due_us.between(sa.bindparam("lease_from_us"), sa.bindparam("lease_until_us")),
            tasks.c.lease_token == sa.bindparam("token"),
        )

    @cached_property
    def prepared_taken(self) -> PreparedStatement:
        """As `taken`."""
        return self.prepared(self.taken)

    @cached_property
    def _two_ranges_empty(self) -> Conditions:
        """True if no line has its key in one of two ranges, which are parameters."""
        line = self.tasks.c.line
        # Not EXISTS, for which PostgreSQL may choose the index of due times; only one index has lines in
        # order.
        return tuple(
            sa.select(line)
            .where(self.in_queue, line >= sa.bindparam(f"from_{each}"), line < sa.bindparam(f"until_{each}"))
            .order_by(line)
            .limit(ONE)
            .scalar_subquery()
            .is_(None)
            for each in (0, 1)
        )

    @cached_property
    def _ranges_empty(self) -> Conditions:
        """True if no line has its key in one of the ranges `unless`, with one index search for each range."""
        other = self.tasks.alias("other")
        bounds: list[sa.ColumnElement[str]]
        if self._is_postgresql:
            gap = rows_of("unless", first=sa.Text(), until=sa.Text())
            bounds = [gap.c.first, gap.c.until]
        else:
            gap = sa.func.json_each(sa.bindparam("unless")).table_valued("value").alias("gap")
            bounds = [sa.func.json_extract(gap.c.value, sa.literal_column(f"'$[{end}]'")) for end in (0, 1)]
        first, until = bounds
        in_gap = (other.c.queue == sa.bindparam("of_queue"), other.c.line >= first, other.c.line < until)
        found = sa.select(other.c.line).where(*in_gap).order_by(other.c.line).limit(ONE)
        each = (
            sa.select(found.correlate(gap).scalar_subquery().label("line")).select_from(gap).subquery("found")
        )
        return (
            sa.select(each.c.line).where(each.c.line.is_not(None)).limit(ONE).scalar_subquery().is_(None),
        )

    def _guard(self, ranges: int) -> Conditions:
        """Return the condition that none of the ranges has a line; of none, if there are none."""
        return {0: (), UP_TO_TWO: self._two_ranges_empty, ANY_NUMBER: self._ranges_empty}[ranges]

    @cached_property
    def take_only_line(self) -> dict[bool, PreparedStatement]:
        """Take the live tasks among the best `at_most` of a line, unless there are other lines. PostgreSQL.

        It does not look past expired tasks, because that would take a join.
        """
        return {newest_first: self.prepared(self._take_only_line(newest_first)) for newest_first in ORDERS}

    def _take_only_line(self, newest_first: bool) -> sa.Update:  # noqa: FBT001 - a key
        best = (
            sa.select(self.tasks.c.task_id)
            .where(*self.young_in_line, *self._two_ranges_empty)
            .order_by(*self._best_first[newest_first])
            .limit(sa.bindparam("at_most"))
            .with_for_update(skip_locked=True)
        )
        update = sa.update(self.tasks).where(self.among(best), self._in_time)
        return update.values(self._taken_values).returning(*self.columns)

    @cached_property
    def take_lines(self) -> Callable[[bool, int, int], PreparedStatement]:
        """Take the best tasks of several lines; each statement is built once per store."""
        return cache(self._take_lines)

    def _take_lines(self, newest_first: bool, arms: int, ranges: int) -> PreparedStatement:  # noqa: FBT001
        """Take up to `at_most` of the best tasks of several lines, in order, unless there are better lines.

        Args:
            newest_first: Whether the newest task of a line is served first.
            arms: Number of lines; 0 on PostgreSQL, which takes arrays.
            ranges: In how many ranges there may be no line: 0, `UP_TO_TWO` or `ANY_NUMBER`.
        """
        tasks = self.tasks
        if self._is_postgresql:
            best = (
                self._best_of_array(newest_first, is_taken=True)
                .where(*self._guard(ranges))
                .limit(sa.bindparam("at_most"))
            )
            update = sa.update(tasks).where(self.at_places(best))
        else:
            best_ids = self._best_of_arms(newest_first, arms)
            update = sa.update(tasks).where(
                self.in_queue, tasks.c.task_id.in_(best_ids), *self._guard(ranges)
            )
        return self.prepared(update.values(self._taken_values).returning(*self.columns))

    @cached_property
    def best(self) -> dict[bool, sa.Select[Any]]:
        """When each line's best waiting task was created, in the line's spans. PostgreSQL."""
        return {newest_first: self._best_of_array(newest_first, is_taken=False) for newest_first in ORDERS}

    @cached_property
    def prepared_best(self) -> dict[bool, PreparedStatement]:
        """As `best`."""
        return {newest_first: self.prepared(statement) for newest_first, statement in self.best.items()}

    def _best_of_array(self, newest_first: bool, *, is_taken: bool) -> sa.Select[Any]:  # noqa: FBT001 - a key
        """The best tasks of the given lines, as many of each as `wanted` says, created in its spans.

        Args:
            newest_first: The order.
            is_taken: Whether to lock the rows, and return their places.
        """
        wanted = rows_of("wanted", line=sa.Text(), count=sa.Integer())
        span = rows_of("span", line=sa.Text(), after_us=sa.BigInteger(), before_us=sa.BigInteger())
        of_span = self._seen(wanted.c.line, newest_first, (span.c.after_us, span.c.before_us))
        seen = of_span.correlate(wanted, span).lateral("seen")
        held = self.tasks.alias("held")
        place: sa.ColumnElement[Any] = sa.literal_column("held.ctid").label("place")
        # Not sorted, so that it reads no more than it takes: nested loops keep the order.
        page = (
            sa.select(place if is_taken else seen.c.created_us)
            .select_from(span.join(seen, sa.true()).join(held, self._joined(seen, held)))
            .where(
                span.c.line == wanted.c.line,
                seen.c.deadline_us > sa.bindparam("deadline_after_us"),
                sa.func.coalesce(held.c.line, "") == wanted.c.line,
            )
            .limit(wanted.c.count)
        )
        if is_taken:
            page = page.with_for_update(of=held, skip_locked=True)
        best = page.correlate(wanted).lateral("best")
        found = [sa.literal_column("best.place")] if is_taken else [wanted.c.line, best.c.created_us]
        return sa.select(*found).select_from(wanted.join(best, sa.true()))

    def _best_of_arms(self, newest_first: bool, arms: int) -> sa.Select[Any]:  # noqa: FBT001 - a key
        """Ids of the best tasks of the lines `line_0`, `line_1`..., at most `count_0`... of each."""
        selects = []
        for arm in range(arms):
            line: sa.BindParameter[str] = sa.bindparam(f"line_{arm}", type_=sa.Text())
            seen = self._seen(line, newest_first).subquery("seen")
            in_time = seen.c.deadline_us > sa.bindparam("deadline_after_us")
            best = sa.select(seen.c.task_id).where(in_time).limit(sa.bindparam(f"count_{arm}"))
            selects.append(sa.select(best.subquery(f"best_{arm}").c.task_id))
        united = selects[0] if arms == 1 else sa.union_all(*selects)
        found = united.subquery("best")
        return sa.select(found.c.task_id).limit(sa.bindparam("at_most"))


def _best_first(seen: sa.FromClause, *, newest_first: bool) -> tuple[sa.ColumnElement[Any], ...]:
    created, task_id = seen.c.created_us, seen.c.task_id
    return (created.desc(), task_id.desc()) if newest_first else (created, task_id)


class SqlReader(LimitedLines):
    """Reads the lines of one queue: each time on its own, or in a transaction.

    Attributes:
        connection: The transaction; None if each statement commits on its own.
    """

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
        self.connection = connection
        self._lines = lines
        self._queue = queue
        self._request = request
        self._of_queue = {"of_queue": queue}
        self._record: Any = None

    def _execute(self, statement: sa.Executable, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
        if self.connection is None:
            raise TypeError("only in a transaction")
        return self.connection.execute(statement, parameters)

    def _find(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        if self.connection is None:
            prepared = self._lines.window_sql.prepared_finds[name]
            return [row[0] for row in self._lines.database.execute(prepared, parameters).rows]
        return [*self._execute(self._lines.window_sql.finds[name], parameters).scalars()]

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        where = self._of_queue | {"of_after": after, "of_until": until, "of_count": count}
        is_look = self.connection is not None and self._request is None
        parts = None if is_look or (after, until) != ("", END) else self._lines.horizon.known(self._queue)
        if parts is None:
            return sorted(self._find(FOLLOWING, where))
        # While an old snapshot is open, remember the answer.
        return sorted(parts.look_up(self._find, self._lines.horizon.monotonic(), FOLLOWING, where))

    @override
    def last_line(self, until: str) -> str | None:
        return next(iter(self._find(LAST, self._of_queue | {"of_until": until})), None)

    @override
    def page(
        self, key: str, moment: ClaimMoment, count: int, looked: int, *, newest_first: bool
    ) -> list[Stored]:
        locks = self._request is not None
        sql = self._lines.claim_sql
        parameters = in_time(self._queue, moment)
        parameters |= {"of_line": key, "at_most": count, "looked": looked}
        spans = [(parameters["created_after_us"], EVER_US)]
        if locks:  # beside an old snapshot, parts of a line may be known to be empty

            def probe(where: Mapping[str, Any]) -> Sequence[Any]:
                return self._execute(sql.best[newest_first], where).all()

            spans = self._lines.spans(self._queue, moment, [key], newest_first, probe)[key]
        found: list[Stored] = []
        for after_us, before_us in spans:
            page = parameters | {"created_after_us": after_us, "created_before_us": before_us}
            rows = self._execute((sql.page if locks else sql.shown)[newest_first], page).all()
            found += sorted(map(stored, rows), key=position, reverse=newest_first)
        return found

    @override
    def oldest_created(self, key: str, moment: ClaimMoment) -> float | None:
        where = in_time(self._queue, moment) | {"of_line": key, "looked": LOOKED_ROWS, "at_most": 1}
        if (parts := self._lines.horizon.known(self._queue)) is not None:
            where["created_after_us"] = parts.spans(key, where["created_after_us"], newest_first=False)[0][0]

        def read(connection: sa.Connection) -> int | None:
            return connection.execute(self._lines.claim_sql.oldest_of_line, where).scalar()

        connection = self.connection
        created_us = self._lines.database.read(read) if connection is None else read(connection)
        return None if created_us is None else created_us / 1e6

    @override
    def first_to_expire(self, key: str, moment: ClaimMoment) -> list[tuple[float, float]]:
        page = on_agenda(self._queue, moment.deadline_after, moment.created_after, FIRST_TO_EXPIRE)
        page["of_line"] = key
        statement = self._lines.waiting_sql.nearest_of_line
        if self.connection is None:
            return in_seconds(self._lines.database.rows(statement, page))
        return in_seconds(self._execute(statement, page).all())

    @override
    def take(self, found: Sequence[Stored], moment: ClaimMoment) -> list[Stored]:
        chosen = [each for each in found if is_in_time(each.task, moment)]
        if not chosen or self._request is None:
            return []
        listed = {"ids": [each.task.task_id for each in chosen]}
        version = new_token()  # as in `SqlLines.take`: a repetition, too, may take a recovered task again
        taken = listed | taken_parameters(self._request, moment) | {"version": version}
        self._execute(self._lines.claim_sql.take, taken)
        token = self._request.token
        tasks = [replace(claimed(each.task, moment, token), request_token=version) for each in chosen]
        return [Stored(task, each.problem) for task, each in zip(tasks, chosen, strict=True)]

    def keep_others_out(self) -> None:
        """Let no other claim within limits count or take until the transaction ends."""
        dialect = self._lines.database.dialect
        if dialect == "postgresql":
            lock_id = zlib.crc32(self._lines.schema.tasks.name.encode()) ^ zlib.crc32(self._queue.encode())
            self._execute(sa.select(sa.func.pg_advisory_xact_lock(lock_id)), {})
        elif dialect in MYSQL:  # the record of starts is the lock; SQLite has one writer at a time
            self.starts()

    @override
    def starts(self) -> Mapping[str, Sequence[Sequence[float]]]:
        if self._record is None:
            this = self._of_queue | {"of_name": STARTS}
            read = self._lines.record_sql.read.with_for_update()
            self._record = self._execute(read, this).one_or_none()
            if self._record is None:
                new = {"record": "{}", "version": new_token()}
                self._execute(self._lines.record_sql.add, {"queue": self._queue, "name": STARTS} | new)
                self._record = self._execute(read, this).one()
        starts: dict[str, list[list[float]]] = json.loads(self._record.record)
        return starts

    @override
    def keep_starts(self, values: Mapping[str, list[list[float]]]) -> None:
        this = self._of_queue | {"of_name": STARTS, "of_version": self._record.version}
        new = {"record": json_text(values), "version": new_token()}
        self._execute(self._lines.record_sql.change, this | new)

    @override
    def running(self, names: Collection[str]) -> dict[str, int]:
        found: Iterable[Any] = self._execute(
            self._lines.limit_sql.of_groups, self._of_queue | {"of_names": [*names]}
        )
        return {row[0]: int(row[1]) for row in found}

    @override
    def running_below(self, name: str, separator: str) -> int:
        # Two ranges, because names such as `acme-2` sort between `acme` and `acme/`.
        below = {"of_first": name + separator, "of_last": name + separator + LAST_NAME}
        return sum(
            int(self._execute(self._lines.limit_sql.below, self._of_queue | names).scalar_one())
            for names in ({"of_first": name, "of_last": name}, below)
        )

    @override
    def running_by_group(self) -> dict[str, int]:
        found: Iterable[Any] = self._execute(self._lines.limit_sql.by_group, self._of_queue)
        return {row[0]: int(row[1]) for row in found}


class SqlLines(SqlCounts):
    """Takes tasks from their lines: by one statement, or in a transaction that locks them first."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        dialect = database.engine.dialect
        self.claim_sql = ClaimStatements.shared(schema, dialect)
        self.window_sql = WindowStatements.shared(schema, dialect)
        self.limit_sql = LimitStatements.shared(schema, dialect)
        self.record_sql = RecordStatements.shared(schema, dialect)
        self.locks_to_take = not self.claim_sql.has_returning
        self._stale_tasks = StaleTasks(database, schema, self.horizon, self.expired)

    @override
    def line_reader(self, queue: str) -> SqlReader:
        self.horizon.empty_parts(queue)  # looks for old snapshots, now and then
        return SqlReader(self, queue, None)

    @override
    def look(self, queue: str, work: Callable[[LineReader], T]) -> T:
        return self.database.read(lambda connection: work(SqlReader(self, queue, connection)))

    @override
    def searches_again(self, queue: str) -> bool:
        return self.horizon.searches_again(queue)

    @override
    def clear_stale(self, queue: str, now: float) -> int:
        cleared = self._stale_tasks.leave_lines(queue, now, STALE_ROWS)
        if cleared and (parts := self.horizon.known(queue)) is not None:
            parts.lines.clear()  # a search may have ended among the stale tasks
        return cleared

    @override
    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        lines, unless = choice.lines, choice.unless
        if unless and self.horizon.watches and self.horizon.empty_parts(request.queue) is not None:
            return []  # while an old snapshot is open, a check of the ranges may read many dead entries
        if self.database.dialect == "postgresql":
            statement, which = self._for_postgresql(request, choice)
        else:
            arms = 1 << (len(lines) - 1).bit_length()
            kind, ranges = _condition(unless)
            statement = self.claim_sql.take_lines(choice.newest_first, arms, kind)
            which = dict(ranges)
            surplus = [("", 0)] * (arms - len(lines))  # they take nothing
            for arm, (line, count) in enumerate([*lines.items(), *surplus]):
                which[f"line_{arm}"], which[f"count_{arm}"] = line, count
        parameters = {
            **taken_parameters(request, request.moment()),
            # A claim slower than its lease may take a task that a sweep has recovered in between, again under
            # its lease token. Another sweep that read the lost lease must not mistake the new one for it.
            "version": new_token(),
            **which,
            "looked": choice.limit + max(MIN_LOOKED_ROWS, LOOKED_ROWS // len(lines)),
            "at_most": choice.limit,
        }
        result = self.database.execute(statement, parameters, committed_earlier=self.claim_sql.prepared_taken)
        taken = list(map(stored, result.rows))
        unreadable = [each for each in taken if each.problem is not None]
        return self._sound(taken) if unreadable else [each.task for each in taken]

    def _for_postgresql(
        self, request: ClaimRequest, choice: Choice
    ) -> tuple[PreparedStatement, dict[str, Any]]:
        """Return the statement that takes from lines, and the parameters that name the lines."""
        lines, newest_first, unless = choice.lines, choice.newest_first, choice.unless
        kind, ranges = _condition(unless)
        if len(lines) == 1 and kind == UP_TO_TWO:
            return self.claim_sql.take_only_line[newest_first], {**ranges, "of_line": next(iter(lines))}

        def run(parameters: Mapping[str, Any]) -> Sequence[Any]:
            return self.database.execute(self.claim_sql.prepared_best[newest_first], parameters).rows

        spans = self.spans(request.queue, request.moment(), lines, newest_first, run)
        which = _arrays("wanted", lines.items(), "line", "count") | _span_arrays(spans)
        if unless:
            which |= _arrays("unless", unless, "first", "until")
        return self.claim_sql.take_lines(newest_first, 0, ANY_NUMBER if unless else 0), which

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
            run: Runs `ClaimStatements.best`, to find empty parts.
        """
        parts = self.horizon.known(queue)
        after_us = microseconds(moment.created_after)
        if parts is None:
            return {line: [(after_us, EVER_US)] for line in lines}

        def probe(spans: Mapping[str, Sequence[Span]]) -> dict[str, int]:
            where = in_time(queue, moment) | {"looked": LOOKED_ROWS}
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
            return list(map(stored, connection.execute(self.claim_sql.taken, parameters).all()))

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
def _condition(unless: tuple[Range, ...]) -> tuple[int, dict[str, str]]:
    """Return which condition of `ClaimStatements.take_lines` checks ranges, and its parameters."""
    if not unless:
        return 0, {}
    if len(unless) > UP_TO_TWO:
        return ANY_NUMBER, {"unless": json.dumps(unless)}
    (from_0, until_0), (from_1, until_1) = (*unless, (END, END))[:2]
    return UP_TO_TWO, {"from_0": from_0, "until_0": until_0, "from_1": from_1, "until_1": until_1}


def in_time(queue: str, moment: ClaimMoment) -> dict[str, Any]:
    """Return the parameters that select the live tasks of a line."""
    return {
        "of_queue": queue,
        "created_after_us": round(moment.created_after * 1e6),
        "deadline_after_us": round(moment.deadline_after * 1e6),
    }


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
    """Return the parameters of `rows_of`; without rows, empty arrays."""
    values = zip(*rows, strict=True)
    return {f"{name}_{column}": list(next(values, ())) for column in columns}


def _span_arrays(spans: Mapping[str, Sequence[Span]]) -> dict[str, list[Any]]:
    rows = [(line, *span) for line, of_line in spans.items() for span in of_line]
    return _arrays("span", rows, "line", "after_us", "before_us")


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
