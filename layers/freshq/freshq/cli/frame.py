"""One frame of `freshq watch`, for terminals of any size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from freshq.cli.output import excerpt, printable, span
from freshq.cli.readings import MOST_COUNTED, bands

if TYPE_CHECKING:
    from rich.console import RenderableType

    from freshq.cli.readings import Reading

TWO_COLUMNS_CHARS: Final = 50
LONGEST_BAR_CHARS: Final = 40
AGE_CHARS: Final = 18
COUNT_CHARS: Final = 9
AGO_CHARS: Final = 11
SHORTEST_ID_CHARS: Final = 12
# Rows above the dead letters: the head, the blank lines and headings, and the longer of two lists.
ROWS_ABOVE: Final = 12


def frame(reading: Reading, width: int, height: int, problem: str | None = None) -> RenderableType:
    """Return the picture of a reading.

    Args:
        reading: The queue as it was.
        width: Of the terminal, in characters.
        height: Of the terminal, in rows.
        problem: Why there is no newer reading; None if it is new.
    """
    bars = _bars(reading, width)
    rest = height - ROWS_ABOVE - bars.row_count
    parts = [
        _head(reading, problem),
        Text(),
        _side_by_side(width, _rates(reading), _states(reading)),
        Text(),
        bars,
        Text(),
        _dead_letters(reading, width, max(1, rest)),
    ]
    return Group(*parts)


def _head(reading: Reading, problem: str | None) -> Text:
    head = Text(f"queue {reading.queue}", style="bold")
    head.append(time.strftime("  %H:%M:%S", time.localtime(reading.at)), style="not bold")
    if reading.paused:
        head.append("  paused", style="yellow")
    if reading.pressure.overloaded:
        head.append("  overloaded", style="red")
    if problem is not None:
        head.append(f"  no news: {excerpt(problem, 200)}", style="red")
    head.no_wrap, head.overflow = True, "ellipsis"
    return head


def _side_by_side(width: int, left: Table, right: Table) -> RenderableType:
    if width < TWO_COLUMNS_CHARS:
        return Group(left, Text(), right)
    grid = Table.grid(padding=(0, 4))
    grid.add_row(left, right)
    return grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    return grid


def _rates(reading: Reading) -> Table:
    grid = _grid()
    pressure = reading.pressure
    grid.add_row("put", _rate(pressure.offered_per_second))
    grid.add_row("claimed", _rate(reading.claimed_per_second))
    grid.add_row("done", _rate(pressure.served_per_second))
    grid.add_row("in time", f"{pressure.probability_in_time:.0%}")
    grid.add_row("newest", span(reading.stats.newest_pending_seconds))
    grid.add_row("oldest", span(reading.stats.oldest_pending_seconds))
    return grid


def _states(reading: Reading) -> Table:
    grid = _grid()
    stats = reading.stats
    for name, number in (
        ("waiting", stats.pending),
        ("delayed", stats.delayed),
        ("in work", stats.taken),
        ("shed", stats.shed),
    ):
        bound = stats.bounded.get({"waiting": "pending", "in work": "taken"}.get(name, name), "")
        grid.add_row(name, f"{number:,}", bound)
    return grid


def _bars(reading: Reading, width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, width=AGE_CHARS)
    grid.add_column(justify="right", no_wrap=True, width=COUNT_CHARS)
    grid.add_column(no_wrap=True)
    found = bands(reading.backlog)
    most = max((tasks for *_, tasks in found), default=0)
    longest = max(1, min(LONGEST_BAR_CHARS, width - AGE_CHARS - COUNT_CHARS - 6))
    grid.add_row(Text("waiting, by age", style="bold"), "" if found else "none")
    for (from_seconds, to_seconds, tasks), (_, younger) in zip(found, reading.backlog, strict=True):
        ages = f"{span(from_seconds)} +" if to_seconds == float("inf") else f"below {span(to_seconds)}"
        more = "+" if younger >= MOST_COUNTED else ""
        bar = "█" * (round(longest * tasks / most) or 1) if tasks else ""
        grid.add_row(f"  {ages}", f"{tasks:,}{more}", Text(bar, style="cyan"))
    return grid


def _dead_letters(reading: Reading, width: int, rows: int) -> RenderableType:
    heading = Text("last dead letters", style="bold")
    found = reading.dead_letters[:rows]
    if not found:
        return heading.append("  none" if reading.searched_all else "  none so far", style="not bold")
    grid = Table.grid(padding=(0, 2, 0, 0))
    longest = max(len(printable(task.task_id)) for task in found)
    grid.add_column(no_wrap=True, overflow="ellipsis", width=min(longest, max(SHORTEST_ID_CHARS, width // 3)))
    grid.add_column(no_wrap=True, justify="right", width=AGO_CHARS)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for task in found:
        ago = span(max(0.0, reading.at - task.updated))
        grid.add_row(printable(task.task_id), ago, excerpt(task.error or "-", width))
    return Group(heading, Padding(grid, (0, 0, 0, 2)))


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.2f}/s" if 0 < per_second < 1 else f"{per_second:,.1f}/s"
