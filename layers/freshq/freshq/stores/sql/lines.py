"""Claim tasks: in one statement if the database returns the rows it changed, otherwise in a transaction."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.lifecycle import claimed, new_token
from freshq.model.task import TaskStatus
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.stores.base import Conflict, Guard
from freshq.stores.sql.agenda import StaleTasks
from freshq.stores.sql.counts import SqlCounts, in_seconds, on_agenda
from freshq.stores.sql.horizon import COMMIT_US, EVER_US
from freshq.stores.sql.rows import DUE, Stored, line_key, microseconds, stored
from freshq.stores.sql.statements import ONE, TAKEN, Conditions, Statements, rows_of
from freshq.stores.sql.tasks import as_dead_letter
from freshq.stores.sql.windows import NO_OTHERS, LimitedLines, LineWindow, live_in_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.model.lifecycle import ClaimMoment
    from freshq.model.task import Task
    from freshq.policy.groups import GroupRoom
    from freshq.stores.lines import ClaimRequest, Line
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.horizon import Find, Span
    from freshq.stores.sql.schema import Schema
    from freshq.stores.sql.windows import Window

ORDERS: Final = (True, False)
CREATED_AFTER: Final = sa.bindparam("created_after_us", type_=sa.BigInteger)
CREATED_BEFORE: Final = sa.bindparam("created_before_us", type_=sa.BigInteger)
# Index rows that a claim reads over all its lines, to skip tasks past their own deadline; this takes a
# millisecond. It reads at least `MIN_LOOKED_ROWS` of each line.
LOOKED_ROWS: Final = 1_000
MIN_LOOKED_ROWS: Final = 64
# Extra rows on the first page of a line, because some are locked or past their deadline.
SPARE_ROWS: Final = 20
# Rows on the second page: the caller may shed this many before it keeps one.
SECOND_PAGE_ROWS: Final = 50
logger = logging.getLogger(__name__)
# If that is not enough, this many stale tasks leave their lines, and the claim tries once more.
STALE_ROWS: Final = 500
MAX_LOOKS: Final = 2
# Statements per claim that take from the lines of a level: a line may have fewer tasks than turns.
MAX_ROUNDS: Final = 3
# Minimum number of lines in a statement, if there are that many: the next lines may be empty by then.
MIN_ASKED: Final = 4


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
    def _no_others(self) -> Conditions:
        """True if no line follows `others_from` or lies between `level_from` and `others_until`."""
        line = self.tasks.c.line
        ranges = (
            (line >= sa.bindparam("others_from"),),
            (line >= sa.bindparam("level_from"), line < sa.bindparam("others_until")),
        )
        # Not EXISTS, for which PostgreSQL may choose the index of due times; only one index has lines in
        # order.
        return tuple(
            sa.select(line)
            .where(self.in_queue, *others)
            .order_by(line)
            .limit(ONE)
            .scalar_subquery()
            .is_(None)
            for others in ranges
        )

    @cached_property
    def take_only_line(self) -> dict[bool, PreparedStatement]:
        """Take the live tasks among the best `at_most` of a line, unless there are other lines. PostgreSQL.

        It does not look past expired tasks, because that would take a join.
        """
        return {newest_first: self.prepared(self._take_only_line(newest_first)) for newest_first in ORDERS}

    def _take_only_line(self, newest_first: bool) -> sa.Update:  # noqa: FBT001 - a key
        best = (
            sa.select(self.tasks.c.task_id)
            .where(*self.young_in_line, *self._no_others)
            .order_by(*self._best_first[newest_first])
            .limit(sa.bindparam("at_most"))
            .with_for_update(skip_locked=True)
        )
        update = sa.update(self.tasks).where(self.among(best), self._in_time)
        return update.values(self._taken_values).returning(*self.columns)

    @cached_property
    def take_lines(self) -> Callable[[bool, int], PreparedStatement]:
        """Take the best tasks of several lines; each statement is built once per store."""
        return cache(self._take_lines)

    def _take_lines(self, newest_first: bool, arms: int) -> PreparedStatement:  # noqa: FBT001 - a key
        """Take up to `at_most` of the best tasks of several lines, in order, unless there are other lines.

        Args:
            newest_first: Whether the newest task of a line is served first.
            arms: Number of lines; 0 on PostgreSQL, which takes arrays.
        """
        tasks = self.tasks
        if self._is_postgresql:
            best = (
                self._best_of_array(newest_first, is_taken=True)
                .where(*self._no_others)
                .limit(sa.bindparam("at_most"))
            )
            update = sa.update(tasks).where(self.at_places(best))
        else:
            best_ids = self._best_of_arms(newest_first, arms)
            update = sa.update(tasks).where(self.in_queue, tasks.c.task_id.in_(best_ids), *self._no_others)
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


class SqlLines(SqlCounts):
    """Claims tasks, and previews the tasks that a claim would take."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.claim_sql = ClaimStatements.shared(schema, database.engine.dialect)
        self.window = LineWindow(schema, database.engine.dialect)
        self._stale_tasks = StaleTasks(database, schema, self.horizon, self.expired)
        self.limited = LimitedLines(database, schema, self.window)

    def candidates(
        self, connection: sa.Connection, request: ClaimRequest, moment: ClaimMoment
    ) -> Iterator[Stored]:
        """Yield the claimable tasks of all lines, best first, each locked until the transaction ends."""
        levels = self._levels(connection, request, self.window, is_claim=True)
        return self._best_first(connection, request, moment, levels, self.claim_sql.page)

    @override
    def peek(self, request: ClaimRequest) -> list[Task]:
        def look(connection: sa.Connection) -> list[Task]:
            # A separate window, so that this process's claims continue from the same place.
            levels = self._levels(connection, request, self.window.copy())
            shown = self._best_first(connection, request, request.moment(), levels, self.claim_sql.shown)
            return [each.task for each in islice((each for each in shown if not each.problem), request.limit)]

        return self.database.read(look)

    def _best_first(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        moment: ClaimMoment,
        levels: Iterator[Sequence[Line]],
        pages: Mapping[bool, sa.Select[Any]],
        room: GroupRoom | None = None,
    ) -> Iterator[Stored]:
        for lines in levels:
            level, groups = lines[0][0], [group for _level, group in lines]
            share = max(1, request.limit // len(groups))
            of_group = {
                group: self._candidates_of(connection, request, moment, (level, group), share, pages)
                for group in groups
            }
            yield from request.turns.interleave(level, of_group, room)

    def _levels(
        self, connection: sa.Connection, request: ClaimRequest, window: LineWindow, *, is_claim: bool = False
    ) -> Iterator[Sequence[Line]]:
        def read(name: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
            return connection.execute(window.sql.finds[name], parameters).scalars().all()

        find: Find = self._remembering(request.queue, read) if is_claim else read
        return window.levels(find, request.queue)

    def _candidates_of(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        moment: ClaimMoment,
        line: Line,
        share: int,
        pages: Mapping[bool, sa.Select[Any]],
    ) -> Iterator[Stored]:
        """Yield claimable tasks of a line, best first, from a small page and then a larger one."""
        newest_first = self._newest_first(request, line, moment.now, connection)
        parameters = in_time(request.queue, moment) | {"of_line": line_key(*line)}
        spans = [(parameters["created_after_us"], EVER_US)]
        if pages is self.claim_sql.page:

            def probe(where: Mapping[str, Any]) -> Sequence[Any]:
                return connection.execute(self.claim_sql.best[newest_first], where).all()

            (spans,) = self._spans(request, [line_key(*line)], newest_first, probe).values()
        seen: set[str] = set()
        larger = max(request.limit, SECOND_PAGE_ROWS)
        for at_most, looked in ((share, share + SPARE_ROWS), (share + larger, larger + LOOKED_ROWS)):
            for after_us, before_us in spans:
                page = parameters | {"created_after_us": after_us, "created_before_us": before_us}
                page |= {"at_most": at_most, "looked": looked}
                rows = map(stored, connection.execute(pages[newest_first], page).all())
                for each in sorted(rows, key=position, reverse=newest_first):
                    if each.task.task_id not in seen:
                        seen.add(each.task.task_id)
                        yield each

    def _newest_first(
        self, request: ClaimRequest, line: Line, now: float, connection: sa.Connection | None = None
    ) -> bool:
        """Return whether to serve the newest task of a line first."""
        oldest = partial(self.oldest_of_line, request, line, connection)
        nearest = partial(self.nearest_of_line, request, line, connection)
        return request.orders.newest_first(line, now, oldest, nearest)

    def nearest_of_line(
        self, request: ClaimRequest, line: Line, connection: sa.Connection | None = None
    ) -> list[tuple[float, float]]:
        """Return when tasks of a line were created, and their deadlines: of the queue's nearest ones."""
        moment = request.moment()
        page = on_agenda(request.queue, moment.deadline_after, moment.created_after, FIRST_TO_EXPIRE)
        page["of_line"] = line_key(*line)
        statement = self.waiting_sql.nearest_of_line
        return in_seconds(
            self.database.rows(statement, page)
            if connection is None
            else connection.execute(statement, page).all()
        )

    def oldest_of_line(
        self, request: ClaimRequest, line: Line, connection: sa.Connection | None = None
    ) -> float | None:
        """Return when the oldest live task of a line was created, in seconds; None if no task is found."""
        moment = request.moment()
        where = live_in_line(request.queue, line, moment.created_after, moment.deadline_after)
        if (passed := self.horizon.known(request.queue)) is not None:
            spans = passed.spans(where["of_line"], where["created_after_us"], newest_first=False)
            where["created_after_us"] = spans[0][0]

        def read(connection: sa.Connection) -> int | None:
            return connection.execute(
                self.claim_sql.oldest_of_line, where | {"looked": LOOKED_ROWS, "at_most": 1}
            ).scalar()

        created_us = self.database.read(read) if connection is None else read(connection)
        return None if created_us is None else created_us / 1e6

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        passes_over = self.horizon.watches and self.horizon.passed(request.queue) is not None
        # While an old snapshot is open, a check for other lines may read many dead entries.
        window = None if passes_over else self.window.known(request.queue)
        taken: list[Stored] = []
        if window is not None and self.claim_sql.has_returning and not request.groups.has_limits:
            taken += self._take_again(request, window)
        if len(taken) < request.limit:
            self._take_missing(request, taken)
            if not taken and self.horizon.searches_again(request.queue):
                self._take_missing(request, taken)
            self.window.used(request.queue, len(taken))
        return self._sound(taken)

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

    def _take_missing(self, request: ClaimRequest, taken: list[Stored]) -> None:
        """Find lines, and take tasks from them up to the limit."""
        limited = request.groups.has_limits
        take = self._take_by_statements if self.claim_sql.has_returning else self._take_in_transaction
        if limited:
            take = self._take_within_limits
        for _ in range(MAX_LOOKS):
            if len(taken) >= request.limit:
                break
            found_lines = take(request, taken)
            is_short = found_lines and len(taken) < request.limit
            request.effort.bounded = is_short and self.clear_stale(request) > 0
            if not request.effort.bounded:
                break
        if not limited:  # a claim within limits searches every line
            request.effort.bounded |= self.window.is_partial(request.queue)
        request.effort.bounded &= len(taken) < request.limit

    def clear_stale(self, request: ClaimRequest) -> int:
        """Remove a portion of the tasks past their deadline from their lines; return how many."""
        cleared = self._stale_tasks.leave_lines(request.queue, request.clock(), STALE_ROWS)
        if cleared and (passed := self.horizon.known(request.queue)) is not None:
            passed.lines.clear()  # a search may have ended among the stale tasks
        return cleared

    def _take_again(self, request: ClaimRequest, window: Window) -> list[Stored]:
        """Take from the lines of an earlier claim, unless other lines have appeared."""
        if len(window.groups) > 1:
            counts = _asked(request.turns.plan(window.level, window.groups, request.limit))
            found = self._take(request, window.level, counts, window.others, [])
            window.turns_left -= len(found)
            return found
        level, group = window.level, window.groups[0]
        newest_first = request.orders.constant
        if newest_first is None:
            (newest_first,) = self._by_order(request, level, {group: 1})
        lines = {window.only_line: request.limit}
        found = self._take_lines(request, newest_first, lines, window.others, request.limit)
        if len(found) > 1:
            found.sort(key=position, reverse=newest_first)
        request.turns.record(level, group, len(found))
        return found

    def _take_by_statements(self, request: ClaimRequest, taken: list[Stored]) -> bool:
        """Find lines and take from them, committing each statement; return whether there are lines."""
        found_lines = False
        for lines in self.window.levels(self._remembering(request.queue, self._find), request.queue):
            found_lines = True
            self._take_from_level(request, lines, taken)
            if len(taken) >= request.limit:
                break
        return found_lines

    def _remembering(self, queue: str, find: Find) -> Find:
        """Return `find`; while an old snapshot is open, it remembers its answers, unless lines are many."""
        passed = self.horizon.known(queue)
        if passed is None or self.window.is_partial(queue):
            return find
        return partial(passed.look_up, find, self.horizon.monotonic())

    def _find(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return [
            row[0] for row in self.database.execute(self.window.sql.prepared_finds[name], parameters).rows
        ]

    def _take_from_level(self, request: ClaimRequest, lines: Sequence[Line], taken: list[Stored]) -> None:
        level, groups = lines[0][0], [group for _level, group in lines]
        for number in range(1, MAX_ROUNDS + 1):
            turns = request.turns.plan(level, groups, request.limit - len(taken))
            counts = _asked(turns, every=number == MAX_ROUNDS)
            found = self._take(request, level, counts, NO_OTHERS, taken)
            taken += found
            served = [each.task.group for each in found]
            groups = [
                group for group in groups if group not in counts or served.count(group) == counts[group]
            ]
            if not groups or len(taken) >= request.limit:
                return

    def _take(
        self,
        request: ClaimRequest,
        level: int,
        counts: Mapping[str | None, int],
        others: Mapping[str, str],
        taken: list[Stored],
    ) -> list[Stored]:
        """Take tasks of the lines of a level in turns, in one statement if all lines have the same order."""
        found: defaultdict[str | None, list[Stored]] = defaultdict(list)
        missing = request.limit - len(taken)
        for newest_first, asked in self._by_order(request, level, counts).items():
            at_most = min(missing, sum(asked.values()))
            lines = {line_key(level, group): count for group, count in asked.items()}
            rows = self._take_lines(request, newest_first, lines, others, at_most)
            for each in _new(sorted(rows, key=position, reverse=newest_first), taken):
                found[each.task.group].append(each)
                missing -= 1
        if len(found) == 1:
            ((group, only),) = found.items()
            request.turns.record(level, group, len(only))
            return only
        # In the order of the plan, as if each task were claimed on its own.
        in_turn = {group: iter(found[group]) for group in counts if group in found}
        return list(request.turns.interleave(level, in_turn))

    def _by_order(
        self, request: ClaimRequest, level: int, counts: Mapping[str | None, int]
    ) -> dict[bool, dict[str | None, int]]:
        """Return the lines grouped by whether their newest task is served first."""
        now = request.clock()
        by_order: dict[bool, dict[str | None, int]] = {}
        for group, count in counts.items():
            line = (level, group)
            newest_first = self._newest_first(request, line, now)
            by_order.setdefault(newest_first, {})[group] = count
        return by_order

    def _take_lines(
        self,
        request: ClaimRequest,
        newest_first: bool,  # noqa: FBT001 - a key of the statements
        lines: Mapping[str, int],
        others: Mapping[str, str],
        at_most: int,
    ) -> list[Stored]:
        if self.database.dialect == "postgresql":
            is_only_line = others is not NO_OTHERS
            statement, which = self._for_postgresql(request, lines, newest_first, is_only_line)
        else:
            arms = 1 << (len(lines) - 1).bit_length()
            statement = self.claim_sql.take_lines(newest_first, arms)
            which = {}
            surplus = [("", 0)] * (arms - len(lines))  # they take nothing
            for arm, (line, count) in enumerate([*lines.items(), *surplus]):
                which[f"line_{arm}"], which[f"count_{arm}"] = line, count
        moment = request.moment()
        parameters = {
            **in_time(request.queue, moment),
            **taken_parameters(request, moment),
            # A claim slower than its lease may take a task that a sweep has recovered in between, again under
            # its lease token. Another sweep that read the lost lease must not mistake the new one for it.
            "version": new_token(),
            **which,
            **others,
            "looked": at_most + max(MIN_LOOKED_ROWS, LOOKED_ROWS // len(lines)),
            "at_most": at_most,
        }
        result = self.database.execute(statement, parameters, committed_earlier=self.claim_sql.prepared_taken)
        return list(map(stored, result.rows))

    def _for_postgresql(
        self,
        request: ClaimRequest,
        lines: Mapping[str, int],
        newest_first: bool,  # noqa: FBT001 - a key of the statements
        is_only_line: bool,  # noqa: FBT001 - whether to check for others
    ) -> tuple[PreparedStatement, dict[str, Any]]:
        """Return the statement that takes from lines, and the parameters that name the lines."""
        if is_only_line and len(lines) == 1:
            return self.claim_sql.take_only_line[newest_first], {"of_line": next(iter(lines))}

        def run(statement: PreparedStatement, parameters: Mapping[str, Any]) -> Sequence[Any]:
            return self.database.execute(statement, parameters).rows

        probe = partial(run, self.claim_sql.prepared_best[newest_first])
        spans = self._spans(request, lines, newest_first, probe)
        which = _arrays("wanted", lines.items(), "line", "count") | _span_arrays(spans)
        return self.claim_sql.take_lines(newest_first, 0), which

    def _spans(
        self,
        request: ClaimRequest,
        lines: Iterable[str],
        newest_first: bool,  # noqa: FBT001 - a key of the statements
        run: Callable[[Mapping[str, Any]], Sequence[Any]],
    ) -> dict[str, list[Span]]:
        """Return the creation times between which to search each line, in order.

        Args:
            request: The claim.
            lines: The lines.
            newest_first: The order.
            run: Runs `ClaimStatements.best`, to find empty parts.
        """
        moment, passed = request.moment(), self.horizon.known(request.queue)
        after_us = microseconds(moment.created_after)
        if passed is None:
            return {line: [(after_us, EVER_US)] for line in lines}

        def probe(spans: Mapping[str, Sequence[Span]]) -> dict[str, int]:
            where = in_time(request.queue, moment) | {"looked": LOOKED_ROWS}
            where |= _arrays("wanted", [(line, 1) for line in spans], "line", "count")
            return {row[0]: row[1] for row in run(where | _span_arrays(spans))}

        until_us = microseconds(moment.now) - COMMIT_US
        began = self.horizon.monotonic()
        if due := passed.to_probe(lines, began):
            passed.find_out(due, (after_us, until_us), probe, newest_first=newest_first)
            passed.search_seconds = max(passed.search_seconds, self.horizon.monotonic() - began)
        return {line: passed.spans(line, after_us, newest_first=newest_first) for line in lines}

    def _take_in_transaction(self, request: ClaimRequest, taken: list[Stored]) -> bool:
        """Lock and take the best tasks of the lines in a transaction; return whether there are lines.

        For databases whose UPDATE cannot return the changed rows.
        """
        first = request.moment()
        found_lines = False

        def take(connection: sa.Connection) -> list[Stored]:
            nonlocal found_lines
            candidates = self.candidates(connection, request, request.moment())
            found = list(islice(candidates, request.limit - len(taken)))
            found_lines = bool(found) or self.window.known_lines(request.queue)
            return self._take_locked(connection, request, found, request.moment())

        found = self.database.transaction(
            take, committed_earlier=partial(self._claimed_earlier, request=request, first=first)
        )
        taken += _new(found, taken)
        return found_lines

    def _take_within_limits(self, request: ClaimRequest, taken: list[Stored]) -> bool:
        """Take the best tasks of the groups that have room; return whether there are lines.

        One claim of the queue counts and takes at a time, so that no limit is exceeded.
        """
        first = request.moment()

        def take(connection: sa.Connection) -> list[Stored]:
            claim = self.limited.begin(connection, request)
            levels = self.limited.levels(claim)
            moment = request.moment()
            candidates = self._best_first(
                connection, request, moment, levels, self.claim_sql.page, claim.room
            )
            found = list(islice(candidates, request.limit - len(taken)))
            moment = request.moment()  # the search took time
            self.limited.end(claim, moment.now)
            return self._take_locked(connection, request, found, moment)

        earlier = partial(self._claimed_earlier, request=request, first=first)
        found = self.database.transaction(take, committed_earlier=earlier)
        taken += _new(found, taken)
        return True

    def _take_locked(
        self, connection: sa.Connection, request: ClaimRequest, found: Sequence[Stored], moment: ClaimMoment
    ) -> list[Stored]:
        chosen = [each for each in found if is_in_time(each.task, moment)]
        if not chosen:
            return []
        listed = {"of_queue": request.queue, "ids": [each.task.task_id for each in chosen]}
        version = new_token()  # as in `_take_lines`: a repetition, too, may take a recovered task again
        taken = listed | taken_parameters(request, moment) | {"version": version}
        connection.execute(self.claim_sql.take, taken)
        tasks = [replace(claimed(each.task, moment, request.token), request_token=version) for each in chosen]
        return [Stored(task, each.problem) for task, each in zip(tasks, chosen, strict=True)]

    def _claimed_earlier(
        self, connection: sa.Connection, request: ClaimRequest, first: ClaimMoment
    ) -> list[Stored]:
        """Return the tasks that an earlier attempt of this claim, begun at `first`, took; best first."""
        moment = request.moment()

        def rank(each: Stored) -> tuple[int, float, str]:
            task = each.task
            line = (task.priority, task.group)
            newest_first = self._newest_first(request, line, moment.now, connection)
            return -task.priority, -task.created if newest_first else task.created, task.task_id

        parameters = {"of_queue": request.queue} | taken_parameters(request, moment)
        parameters["lease_from_us"] = microseconds(first.lease_until)
        return sorted(map(stored, connection.execute(self.claim_sql.taken, parameters)), key=rank)


def _new(found: Iterable[Stored], taken: list[Stored]) -> list[Stored]:
    """Return the tasks that were not taken before; put the others in place of their older versions.

    A claim slower than its lease may take a task again that was recovered in between.
    """
    places = {each.task.task_id: place for place, each in enumerate(taken)}
    new = []
    for each in found:
        if (place := places.get(each.task.task_id)) is None:
            new.append(each)
        else:
            taken[place] = each
    return new


def in_time(queue: str, moment: ClaimMoment) -> dict[str, Any]:
    """Return the parameters that select the live tasks of a line."""
    return {
        "of_queue": queue,
        "created_after_us": round(moment.created_after * 1e6),
        "deadline_after_us": round(moment.deadline_after * 1e6),
    }


def taken_parameters(request: ClaimRequest, moment: ClaimMoment) -> dict[str, Any]:
    """Return the values that a claim writes: one token for all tasks that it takes."""
    lease_until_us = round(moment.lease_until * 1e6)
    return {
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


def _asked(turns: Mapping[str | None, int], *, every: bool = False) -> dict[str | None, int]:
    """Return how many tasks to take from each line: the lines whose turn it is, and a few in reserve."""
    in_turn = sum(1 for count in turns.values() if count)
    number = len(turns) if every else max(MIN_ASKED, 1 << (in_turn - 1).bit_length())
    return {group: max(1, count) for group, count in islice(turns.items(), number)}
