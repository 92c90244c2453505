"""One frame of `freshq watch`, for terminals of any size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from freshq.cli.commands.watch.snapshots import MAX_COUNTED, bands
from freshq.cli.errors import printable
from freshq.cli.facts import progress
from freshq.cli.texts import excerpt, span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from freshq.cli.commands.watch.snapshots import Snapshot

TWO_COLUMNS_CHARS: Final = 50
MAX_BAR_CHARS: Final = 40
AGE_CHARS: Final = 18
COUNT_CHARS: Final = 9
AGO_CHARS: Final = 11
MIN_ID_CHARS: Final = 12
# Tasks in work that are shown at most.
SHOWN_IN_WORK: Final = 5
GAP: Final = "  "


def frame(snapshot: Snapshot, width: int, height: int, problem: str | None = None) -> RenderableType:
    """Return a snapshot as a frame that fits the terminal.

    If there is not enough room, parts are left out in this order: all dead letters but the last, blank lines,
    tasks in work, tables (replaced by lines), bars, the last dead letter, the less important figures.

    Args:
        snapshot: The queue.
        width: Width of the terminal, in characters.
        height: Height of the terminal, in rows.
        problem: Why there is no newer snapshot; None if the snapshot is current.
    """
    head, bars = _head(snapshot, problem), _bars(snapshot, width)
    tables, tables_rows = _side_by_side(width, _rates(snapshot), _states(snapshot))
    lines = _lines(snapshot, width)
    working, working_rows = _in_work(snapshot, width)
    blank = Text()
    # Each with the rows that it takes above the dead letters, and the fewest that these need.
    layouts: list[tuple[list[RenderableType], int, int]] = [
        (
            [head, blank, tables, blank, bars, blank, *working, *([blank] if working else [])],
            4 + tables_rows + bars.row_count + working_rows + bool(working),
            2,
        ),
        ([head, tables, bars, *working], 1 + tables_rows + bars.row_count + working_rows, 1),
        ([head, tables, bars], 1 + tables_rows + bars.row_count, 1),
        ([head, *lines, bars], 1 + len(lines) + bars.row_count, 1),
        ([head, *lines], 1 + len(lines), 1),
    ]
    for above, rows, least in layouts:
        if rows + least <= height:
            return Group(*above, _dead_letters(snapshot, width, height - rows))
    return Group(*[head, *lines][: max(1, height)])


def _head(snapshot: Snapshot, problem: str | None) -> Text:
    head = Text(f"queue {snapshot.queue}", style="bold")
    head.append(time.strftime("  %H:%M:%S", time.localtime(snapshot.at)), style="not bold")
    if snapshot.paused:
        head.append("  paused", style="yellow")
    if snapshot.pressure.overloaded:
        head.append("  overloaded", style="red")
    if problem is not None:
        head.append(f"  not updated: {excerpt(problem, 200)}", style="red")
    head.no_wrap, head.overflow = True, "ellipsis"
    return head


def _side_by_side(width: int, left: Table, right: Table) -> tuple[RenderableType, int]:
    """Return two tables side by side if they fit, and the number of rows they take."""
    if width < TWO_COLUMNS_CHARS:
        return Group(left, Text(), right), left.row_count + 1 + right.row_count
    grid = Table.grid(padding=(0, 4))
    grid.add_row(left, right)
    return grid, max(left.row_count, right.row_count)


def _lines(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the figures of both tables as lines, the most important first."""
    rates, states = dict(_rate_figures(snapshot)), dict(_state_figures(snapshot))
    figures = {**states, **rates}
    first = ("waiting", "in work", "oldest", "done", "put")
    shown = [f"{name} {figures[name]}" for name in (*first, *(name for name in figures if name not in first))]
    lines = [""]
    for figure in shown:
        longer = lines[-1] + GAP + figure if lines[-1] else figure
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(figure)
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    return grid


def _rates(snapshot: Snapshot) -> Table:
    grid = _grid()
    for name, figure in _rate_figures(snapshot):
        grid.add_row(name, figure)
    return grid


def _rate_figures(snapshot: Snapshot) -> list[tuple[str, str]]:
    pressure = snapshot.pressure
    return [
        ("put", _rate(pressure.offered_per_second)),
        ("claimed", _rate(snapshot.claimed_per_second)),
        ("done", _rate(pressure.served_per_second)),
        ("in time", f"{pressure.probability_in_time:.0%}"),
        ("newest", span(snapshot.stats.newest_pending_seconds)),
        ("oldest", span(snapshot.stats.oldest_pending_seconds)),
    ]


def _states(snapshot: Snapshot) -> Table:
    grid = _grid()
    for name, figure in _state_figures(snapshot):
        number, _, bound = figure.partition(" ") if figure[0].isdigit() else ("-", "", figure)
        grid.add_row(name, number, bound)
    return grid


def _state_figures(snapshot: Snapshot) -> list[tuple[str, str]]:
    stats = snapshot.stats
    figures = []
    for name, state in (
        ("waiting", "pending"),
        ("delayed", "delayed"),
        ("in work", "taken"),
        ("shed", "shed"),
    ):
        bound = stats.bounded.get(state, "")
        number = "" if bound == "not counted" else f"{getattr(stats, state):,} "
        figures.append((name, f"{number}{bound}".rstrip()))
    return figures


def _bars(snapshot: Snapshot, width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, width=AGE_CHARS)
    grid.add_column(justify="right", no_wrap=True, width=COUNT_CHARS)
    grid.add_column(no_wrap=True)
    found = bands(snapshot.backlog)
    most = max((tasks for *_, tasks in found), default=0)
    longest = max(1, min(MAX_BAR_CHARS, width - AGE_CHARS - COUNT_CHARS - 6))
    grid.add_row(Text("waiting, by age", style="bold"), "" if found else "none")
    for (from_seconds, to_seconds, tasks), (_, younger) in zip(found, snapshot.backlog, strict=True):
        ages = f"{span(from_seconds)} +" if to_seconds == float("inf") else f"below {span(to_seconds)}"
        more = "+" if younger >= MAX_COUNTED else ""
        bar = "█" * (round(longest * tasks / most) or 1) if tasks else ""
        grid.add_row(f"  {ages}", f"{tasks:,}{more}", Text(bar, style="cyan"))
    return grid


def _in_work(snapshot: Snapshot, width: int) -> tuple[list[RenderableType], int]:
    """Return the tasks in work that reported progress, and the number of rows that they take."""
    found = snapshot.in_work[:SHOWN_IN_WORK]
    if not found:
        return [], 0
    grid = _tasks_grid([task.task_id for task in found], width)
    for task in found:
        held = span(max(0.0, snapshot.at - (task.last_claim_at or task.updated)))
        grid.add_row(printable(task.task_id), held, excerpt(progress(task), width))
    heading = Text("in work, for how long and how far", style="bold", no_wrap=True, overflow="ellipsis")
    return [heading, Padding(grid, (0, 0, 0, 2))], 1 + len(found)


def _tasks_grid(task_ids: list[str], width: int) -> Table:
    """Return a grid for an id, a time and a string in each row."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    longest = max(len(printable(task_id)) for task_id in task_ids)
    grid.add_column(no_wrap=True, overflow="ellipsis", width=min(longest, max(MIN_ID_CHARS, width // 3)))
    grid.add_column(no_wrap=True, justify="right", width=AGO_CHARS)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    return grid


def _dead_letters(snapshot: Snapshot, width: int, rows: int) -> RenderableType:
    """Return the latest dead letters in at most `rows` rows."""
    heading = Text("last dead letters", style="bold", no_wrap=True, overflow="ellipsis")
    found = snapshot.dead_letters[: max(1, rows - 1)]
    if not found:
        return heading.append("  none", style="not bold")
    if rows == 1:
        last = found[0]
        parts = (printable(last.task_id), span(max(0.0, snapshot.at - last.updated)), last.error or "-")
        return heading.append(GAP + excerpt(GAP.join(parts), width), style="not bold")
    grid = _tasks_grid([task.task_id for task in found], width)
    for task in found:
        ago = span(max(0.0, snapshot.at - task.updated))
        grid.add_row(printable(task.task_id), ago, excerpt(task.error or "-", width))
    return Group(heading, Padding(grid, (0, 0, 0, 2)))


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.2f}/s" if 0 < per_second < 1 else f"{per_second:,.1f}/s"
