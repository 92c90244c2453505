"""Which lines a claim looks at: all of a small number, else a window that goes round."""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.stores.sql.rows import parse_line
from freshq.stores.sql.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

# Lines of a level that one claim looks at: enough for fair turns, few enough for a claim of a millisecond.
WINDOW_LINES: Final = 64
# Comes after the lines of every level: these begin with a digit.
END: Final = ":"


class WindowStatements(Statements):
    """The statements that find lines, each with one index search for each line that it returns."""

    @cached_property
    def following(self) -> sa.Select[Any]:
        """The first `of_count` lines between `of_after` and `of_until`."""
        tasks = self.tasks
        before_end = tasks.c.line < sa.bindparam("of_until")
        first: Any = sa.select(sa.func.min(tasks.c.line).label("line"), sa.literal_column("1").label("place"))
        lines = first.where(self.in_queue, tasks.c.line > sa.bindparam("of_after"), before_end).cte(
            "next_lines", recursive=True
        )
        following = (
            sa.select(sa.func.min(tasks.c.line))
            .where(self.in_queue, tasks.c.line > lines.c.line, before_end)
            .scalar_subquery()
            .correlate(lines)
        )
        go_on = (lines.c.line.is_not(None), lines.c.place < sa.bindparam("of_count"))
        lines = lines.union_all(sa.select(following, lines.c.place + 1).where(*go_on))
        # In no order: the connection discourages sorts, and PostgreSQL compiles plans that seem costly.
        return sa.select(lines.c.line).where(lines.c.line.is_not(None))

    @cached_property
    def last(self) -> sa.Select[Any]:
        """The last line before `of_until`."""
        return sa.select(sa.func.max(self.tasks.c.line)).where(
            self.in_queue, self.tasks.c.line < sa.bindparam("of_until")
        )


class LineWindow:
    """Finds the lines for a claim. Thread-safe: threads that share a cursor only skip lines for a while."""

    def __init__(self, database: Database, schema: Schema) -> None:
        """Start before the first line."""
        self._sql = WindowStatements(schema, database.engine.dialect)
        # By queue and level: the last line of the last window.
        self._cursors: dict[tuple[str, str], str] = {}

    def levels(self, connection: sa.Connection, queue: str) -> Iterator[list[Line]]:
        """Yield some lines of each priority level, the highest level first: all, if they fit the window."""
        keys = self._following(connection, queue, "", END, WINDOW_LINES + 1)
        if len(keys) <= WINDOW_LINES:
            levels = [list(level) for _digit, level in groupby(keys, key=lambda key: key[0])]
            yield from ([parse_line(key) for key in level] for level in reversed(levels))
            return
        until = END
        last = self._last(connection, queue, until)
        while last is not None:
            level = last[0]
            below = self._last(connection, queue, level)
            keys = self._window(connection, queue, level, (below or "", until))
            yield [parse_line(key) for key in keys]
            until, last = level, below

    def _window(
        self, connection: sa.Connection, queue: str, level: str, between: tuple[str, str]
    ) -> list[str]:
        """Return the lines of a level that follow those of the last window, round and round."""
        start, until = between
        after = self._cursors.get((queue, level), start)
        keys = self._following(connection, queue, after, until, WINDOW_LINES)
        if len(keys) < WINDOW_LINES and after != start:
            keys += [
                key
                for key in self._following(connection, queue, start, until, WINDOW_LINES - len(keys))
                if key <= after
            ]
        if keys:
            self._cursors[queue, level] = keys[-1]
        return keys

    def _following(
        self, connection: sa.Connection, queue: str, after: str, until: str, count: int
    ) -> list[str]:
        where = {"of_queue": queue, "of_after": after, "of_until": until, "of_count": count}
        return sorted(connection.execute(self._sql.following, where).scalars())

    def _last(self, connection: sa.Connection, queue: str, until: str) -> str | None:
        where = {"of_queue": queue, "of_until": until}
        line: str | None = connection.execute(self._sql.last, where).scalar()
        return line
