"""Find lines that have work."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from freshq.stores.sql.rows import line_key, microseconds, parse_line
from freshq.stores.sql.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq.stores.lines import Line
    from freshq.stores.sql.database import PreparedStatement
    from freshq.stores.sql.schema import Schema

    Find: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Any]]

# Lines of a level that one claim reads: enough for fair turns, few enough for a claim of a millisecond.
WINDOW_LINES: Final = 64
# Up to this many lines, every claim looks for new ones; with more, only an occasional claim does.
FEW_LINES: Final = 8
REUSE_SECONDS: Final = 0.5
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
    def others(self) -> dict[str, str]:
        """Ranges that must have no line for this window to be used again.

        For a single line, they cover all other lines of its level and of higher levels; otherwise only higher
        levels.
        """
        level = str(self.level)
        if len(self.groups) == 1:
            line = level + (self.groups[0] or "")
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
