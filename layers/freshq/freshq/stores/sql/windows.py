"""Statements that find the lines with tasks, and count the running tasks of groups."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.stores.lines import line_key
from freshq.stores.sql.rows import DUE, microseconds
from freshq.stores.sql.statements import TAKEN, Conditions, Statements, rows_of

if TYPE_CHECKING:
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import PreparedStatement

FOLLOWING: Final = "following"
LAST: Final = "last"


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
