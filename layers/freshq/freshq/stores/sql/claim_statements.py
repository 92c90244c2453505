"""The statements of claims. Those that depend on the order are keyed by "newest first"."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.stores.sql.rows import DUE
from freshq.stores.sql.statements import TAKEN, Conditions, Statements

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.stores.sql.prepared import PreparedStatement

ORDERS: Final = (True, False)


class ClaimStatements(Statements):
    """The statements of claims."""

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

    def _seen(self, line: sa.ColumnElement[str], newest_first: bool) -> sa.Select[Any]:  # noqa: FBT001 - a key
        """The first `looked` tasks of a line: those past their own deadline are passed over among them."""
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
                created > sa.bindparam("created_after_us"),
            )
            .order_by(*best_first)
            .limit(sa.bindparam("looked"))
        )

    def _joined(self, seen: sa.FromClause, held: sa.FromClause) -> sa.ColumnElement[bool]:
        """The condition that joins what was seen with its row."""
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
        # Not by an index of lines: the rows were found already.
        still = sa.func.coalesce(tasks.c.line, "", type_=tasks.c.line.type) == line
        page = (
            sa.select(*self.columns)
            .select_from(seen.join(tasks, self._joined(seen, tasks)))
            .where(seen.c.deadline_us > sa.bindparam("deadline_after_us"), still)
            .limit(sa.bindparam("at_most"))
        )
        if self._is_postgresql:
            return page.order_by(*_best_first(seen, newest_first=newest_first))
        # Rows are read, and locked, in the order of the line.
        for dialect in ("mysql", "mariadb"):
            page = page.prefix_with("STRAIGHT_JOIN", dialect=dialect)
            page = page.with_hint(tasks, "FORCE INDEX (PRIMARY)", dialect)
        return page

    @cached_property
    def _taken_values(self) -> dict[str, Any]:
        """The columns that a claim changes."""
        return {
            "status": TAKEN,
            "line": sa.null(),
            "updated_us": sa.bindparam("now_us"),
            "attempts": self.tasks.c.attempts + 1,
            "first_claim_us": sa.func.coalesce(self.tasks.c.first_claim_us, sa.bindparam("now_us")),
            "last_claim_us": sa.bindparam("now_us"),
            "lease_token": sa.bindparam("token"),
            "request_token": sa.bindparam("token"),
            "lease_until_us": sa.bindparam("lease_until_us"),
            "agenda": sa.literal_column(f"'{DUE}'"),
            "due_us": sa.bindparam("lease_until_us"),
            "expires": sa.bindparam("new_expires"),
        }

    @cached_property
    def take(self) -> sa.Update:
        """Take the tasks that the transaction has locked."""
        in_line = self.tasks.c.line.is_not(None)
        return (
            sa.update(self.tasks).where(self.in_queue_by_id, self.listed, in_line).values(self._taken_values)
        )

    @cached_property
    def taken(self) -> sa.Select[Any]:
        """The tasks that are held under a token, with a lease that ends in a range."""
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
        """No line follows `others_from`, and none is between `level_from` and `others_until`."""
        line = self.tasks.c.line
        ranges = (
            (line >= sa.bindparam("others_from"),),
            (line >= sa.bindparam("level_from"), line < sa.bindparam("others_until")),
        )
        # Not EXISTS, for which PostgreSQL may choose the index of due times: only one has lines in order.
        return tuple(
            sa.select(line).where(self.in_queue, *others).order_by(line).limit(1).scalar_subquery().is_(None)
            for others in ranges
        )

    @cached_property
    def take_only_line(self) -> dict[bool, PreparedStatement]:
        """Take what is in time of the best `at_most` tasks of a line, unless there are others; on PostgreSQL.

        It does not look beyond tasks that are too late, which would take a join.
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
        """Take the best tasks of several lines; each statement is made once for a store."""
        return cache(self._take_lines)

    def _take_lines(self, newest_first: bool, arms: int) -> PreparedStatement:  # noqa: FBT001 - a key
        """Take up to `at_most` of the best tasks of several lines, in their order, unless there are others.

        Args:
            newest_first: Which end of the lines is served.
            arms: How many lines; on PostgreSQL, which takes arrays, 0.
        """
        tasks = self.tasks
        if self._is_postgresql:
            best = self._best_of_array(newest_first).where(*self._no_others).limit(sa.bindparam("at_most"))
            update = sa.update(tasks).where(self.at_places(best))
        else:
            best_ids = self._best_of_arms(newest_first, arms)
            update = sa.update(tasks).where(self.in_queue, tasks.c.task_id.in_(best_ids), *self._no_others)
        return self.prepared(update.values(self._taken_values).returning(*self.columns))

    def _best_of_array(self, newest_first: bool) -> sa.Select[Any]:  # noqa: FBT001 - a key
        """The places of the best tasks of the lines `many_lines`, of each as many as in `many_counts`."""
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

        lines = sa.bindparam("many_lines", type_=postgresql.ARRAY(sa.Text))
        counts = sa.bindparam("many_counts", type_=postgresql.ARRAY(sa.Integer))
        wanted = (
            sa.func.unnest(
                sa.cast(lines, postgresql.ARRAY(sa.Text)), sa.cast(counts, postgresql.ARRAY(sa.Integer))
            )
            .table_valued(sa.column("line", sa.Text), sa.column("count", sa.Integer))
            .render_derived(name="wanted")
        )
        seen = self._seen(wanted.c.line, newest_first).correlate(wanted).lateral("seen")
        held = self.tasks.alias("held")
        best = (
            sa.select(sa.literal_column("held.ctid").label("place"))
            .select_from(seen.join(held, self._joined(seen, held)))
            .where(
                seen.c.deadline_us > sa.bindparam("deadline_after_us"),
                sa.func.coalesce(held.c.line, "") == wanted.c.line,
            )
            .order_by(*_best_first(seen, newest_first=newest_first))
            .limit(wanted.c.count)
            .with_for_update(of=held, skip_locked=True)
            .correlate(wanted)
            .lateral("best")
        )
        return sa.select(sa.literal_column("best.place")).select_from(wanted.join(best, sa.true()))

    def _best_of_arms(self, newest_first: bool, arms: int) -> sa.Select[Any]:  # noqa: FBT001 - a key
        """The ids of the best tasks of the lines `line_0`, `line_1`..., up to `count_0`... of each."""
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
