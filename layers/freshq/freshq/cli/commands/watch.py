"""`freshq watch`: a queue, live in the terminal."""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from freshq.cli.command import QueueContext, checked_interval
from freshq.cli.output import (
    chance_in_time,
    excerpt,
    fields,
    forecast_lines,
    json_text,
    percentage,
    progress,
    span,
    value_facts,
)
from freshq.errors import StoreError, printable
from freshq.model.task import TaskStatus
from freshq.queue.core import core_of
from freshq.queue.reading import count_waiting, newest_created
from freshq.simulate.forecast import Forecaster, WaitingTasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.simulate.forecast import Forecast
    from freshq.stores.base import Stats

# The states that are shown, by their names for people.
STATES: Final = {"waiting": "pending", "delayed": "delayed", "in work": "taken", "shed": "shed"}
AGES_SECONDS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0)
# Maximum number of waiting tasks that are counted below each age; the frame marks higher counts as "at
# least".
MAX_COUNTED: Final = 2000
# Window for estimating the claim rate.
CLAIM_WINDOW_SECONDS: Final = 10.0
# Tasks are read this often, and this many: a frame has no room for more. Progress changes no faster.
TASKS_EVERY_SECONDS: Final = 5.0
MAX_DEAD_LETTERS: Final = 50
MAX_HELD: Final = 50
TWO_COLUMNS_CHARS: Final = 50
MAX_BAR_CHARS: Final = 40
AGE_CHARS: Final = 18
COUNT_CHARS: Final = 9
AGO_CHARS: Final = 11
MIN_ID_CHARS: Final = 12
# Maximum number of running tasks shown.
SHOWN_IN_WORK: Final = 5
GAP: Final = "  "
# Minimum height of a printed frame: unlike a live one, it may scroll.
ONCE_ROWS: Final = 24
Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
EverySeconds = Annotated[float, typer.Option(help="Time between two frames.")]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment.

    Attributes:
        at: Time in seconds since the epoch.
        queue: Name of the queue.
        paused: Whether claims are suspended.
        stats: Approximate counts by state.
        pressure: Rates, and the chance of a new task to be served in time.
        claimed_per_second: Estimated claim rate; None in the first snapshot.
        backlog: Pairs of an age in seconds and the number of waiting tasks younger than that, up to
            `MAX_COUNTED`.
        dead_letters: Dead letters, the latest first.
        in_work: Running tasks with progress, among those whose leases expire first.
        forecast: The forecast for the queue; None if it is not known, or the queue is paused.
    """

    at: float
    queue: str
    paused: bool
    stats: Stats
    pressure: Pressure
    claimed_per_second: float | None
    backlog: tuple[tuple[float, int], ...]
    dead_letters: tuple[Task, ...]
    in_work: tuple[Task, ...] = ()
    forecast: Forecast | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as values for JSON."""
        return asdict(self) | {
            "backlog": [
                {"younger_than_seconds": None if math.isinf(age) else age, "tasks": tasks}
                for age, tasks in self.backlog
            ],
            "dead_letters": [fields(task, self.at) for task in self.dead_letters],
            "in_work": [fields(task, self.at) for task in self.in_work],
        }


class Watcher:
    """Takes snapshots of a queue for the terminal."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._dead_letters: tuple[Task, ...] = ()
        self._in_work: tuple[Task, ...] = ()
        self._next_read = float("-inf")
        self._taken: deque[tuple[float, int]] = deque()
        self._forecaster = Forecaster()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the queue.

        Raises:
            StoreError: If the store did not answer.
        """
        queue = self._queue
        now = queue.admin.now()
        stats = queue.stats(approximate=True)
        pressure = queue.pressure()
        self._read_tasks(now)
        paused = queue.paused()
        waiting = WaitingTasks(stats.pending, stats.oldest_pending_seconds, partial(self._newest, now))
        rules = queue.admin.config.rules()
        forecast = self._forecaster.forecast(now, rules, pressure, stats.taken, waiting)
        return Snapshot(
            at=now,
            queue=queue.name,
            paused=paused,
            stats=stats,
            pressure=pressure,
            claimed_per_second=self._claimed_per_second(now, stats.taken, pressure.served_per_second),
            backlog=self._backlog(now, stats),
            dead_letters=self._dead_letters,
            in_work=self._in_work,
            forecast=None if paused else forecast,
        )

    def _newest(self, now: float) -> Iterator[float]:
        """Read the creation times of the newest waiting tasks."""
        since = now - self._queue.admin.config.stale_after_seconds
        found = newest_created(core_of(self._queue).store, self._queue.name, now, since, MAX_COUNTED)
        return chain.from_iterable(found.values())

    def _read_tasks(self, now: float) -> None:
        """Read the tasks of a frame, at most every few seconds."""
        if now < self._next_read:
            return
        self._dead_letters = self._queue.list(TaskStatus.FAILURE, limit=MAX_DEAD_LETTERS).tasks
        held = core_of(self._queue).store.leased(self._queue.name, MAX_HELD)
        self._in_work = tuple(task for task in held if task.progress_fraction is not None)
        self._next_read = now + TASKS_EVERY_SECONDS

    def _claimed_per_second(self, now: float, taken: int, served_per_second: float) -> float | None:
        """Return the rate of settled tasks plus the growth rate of the tasks held."""
        self._taken.append((now, taken))
        while now - self._taken[0][0] > CLAIM_WINDOW_SECONDS:
            self._taken.popleft()
        since, taken_then = self._taken[0]
        if now <= since:
            return None
        return max(0.0, served_per_second + (taken - taken_then) / (now - since))

    def _backlog(self, now: float, stats: Stats) -> tuple[tuple[float, int], ...]:
        """Count the waiting tasks below each age, up to the age of the oldest."""
        oldest_seconds = stats.oldest_pending_seconds
        if oldest_seconds is None:
            return ()
        ages = [age for age in AGES_SECONDS if age < oldest_seconds]
        store, name = core_of(self._queue).store, self._queue.name
        counts = (count_waiting(store, name, now, now - age, MAX_COUNTED) for age in ages)
        younger = [
            (age, min(stats.pending, sum(count.values()))) for age, count in zip(ages, counts, strict=True)
        ]
        last = next((age for age in AGES_SECONDS if age >= oldest_seconds), math.inf)
        return (*younger, (last, stats.pending))


def bands(backlog: Sequence[tuple[float, int]]) -> list[tuple[float, float, int]]:
    """Return the number of tasks in each age band as (from, to, tasks), from the counts below each age."""
    counts = []
    below_seconds, below = 0.0, 0
    for age_seconds, younger in backlog:
        counts.append((below_seconds, age_seconds, max(0, younger - below)))
        below_seconds, below = age_seconds, max(below, younger)
    return counts


def frame(snapshot: Snapshot, width: int, height: int, problem: str | None = None) -> RenderableType:
    """Return a snapshot as a frame that fits the terminal.

    If there is not enough room, parts are left out in this order: all but the latest dead letter, blank
    lines, running tasks and the forecast, tables (replaced by lines), bars, the latest dead letter, less
    important figures.

    Args:
        snapshot: The queue.
        width: Width of the terminal, in characters.
        height: Height of the terminal, in rows.
        problem: Why there is no newer snapshot; None if the snapshot is current.
    """
    head, bars = _head(snapshot, problem), _bars(snapshot, width)
    tables, tables_rows = _side_by_side(width, _grid(_rate_figures(snapshot)), _grid(_state_rows(snapshot)))
    lines = _lines(snapshot, width)
    working, working_rows = _in_work(snapshot, width)
    if expected := _forecast(snapshot):
        working, working_rows = [*expected, *working], len(expected) + working_rows
    blank = Text()
    # Each layout with its rows above the dead letters, and the minimum number of rows for the dead letters.
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
    rates, states = (
        dict(_rate_figures(snapshot)),
        {
            name: f"{number.removeprefix('-')} {bound}".strip()
            for name, number, bound in _state_rows(snapshot)
        },
    )
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


def _grid(rows: Iterable[Sequence[str]]) -> Table:
    """Return rows of a name and figures as a table."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    return grid


def _rate_figures(snapshot: Snapshot) -> list[tuple[str, str]]:
    pressure = snapshot.pressure
    in_time = chance_in_time(snapshot.forecast, pressure, paused=snapshot.paused)
    return [
        ("put", _rate(pressure.offered_per_second)),
        ("claimed", _rate(snapshot.claimed_per_second)),
        ("done", _rate(pressure.served_per_second)),
        ("in time", percentage(in_time)),
        ("newest", span(snapshot.stats.newest_pending_seconds)),
        ("oldest", span(snapshot.stats.oldest_pending_seconds)),
        *value_facts(pressure).items(),
    ]


def _state_rows(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the number of tasks and the bound of each state."""
    for name, state in STATES.items():
        bound = snapshot.stats.bounded.get(state, "")
        number = "-" if bound == "not counted" else f"{getattr(snapshot.stats, state):,}"
        yield name, number, bound


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


def _forecast(snapshot: Snapshot) -> list[Text]:
    """Return the forecast in rows, under a heading."""
    found = forecast_lines(snapshot.forecast, waiting=snapshot.stats.pending > 0)
    lines = [f"  {name:<11}  {line}" for name, line in found.items()]
    if not lines:
        return []
    shown = [Text(line, no_wrap=True, overflow="ellipsis") for line in ("forecast, 90% interval", *lines)]
    shown[0].stylize("bold")
    return shown


def _in_work(snapshot: Snapshot, width: int) -> tuple[list[RenderableType], int]:
    """Return the running tasks with progress, and their number of rows."""
    found = snapshot.in_work[:SHOWN_IN_WORK]
    if not found:
        return [], 0
    grid = _tasks_grid([task.task_id for task in found], width)
    for task in found:
        held = span(max(0.0, snapshot.at - (task.last_claim_at or task.updated)))
        grid.add_row(printable(task.task_id), held, excerpt(progress(task), width))
    heading = Text("in work: time held, progress", style="bold", no_wrap=True, overflow="ellipsis")
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


def watch(context: QueueContext, once: Once = False, every_seconds: EverySeconds = 1.0) -> None:
    """Show the queue live in the terminal.

    Shows rates, the backlog by age, claimed tasks and the last dead letters until Ctrl-C.
    """
    checked_interval(every_seconds)
    session = context.session
    watcher = Watcher(session.queue)
    console = session.output.console
    if once:
        snapshot = watcher.snapshot()
        columns = min(console.width, shutil.get_terminal_size().columns)
        picture = partial(frame, snapshot, columns, max(console.height, ONCE_ROWS))
        session.output.answer(snapshot.as_json(), picture)
        return
    with suppress(KeyboardInterrupt):
        if session.output.as_json:
            while True:
                typer.echo(json_text(watcher.snapshot().as_json()))
                time.sleep(every_seconds)
        elif console.is_interactive:
            draw(console, watcher, every_seconds)
        else:
            raise ValueError("once: the output is not a terminal that can be redrawn; add --once or --json")


def draw(console: Console, watcher: Watcher, every_seconds: float) -> None:
    """Draw frames until interrupted. If the store does not answer, keep the last frame and say so in it."""
    snapshot: Snapshot = watcher.snapshot()
    problem: str | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(snapshot, console.width, console.height, problem), refresh=True)
            time.sleep(every_seconds)
            try:
                snapshot, problem = watcher.snapshot(), None
            except StoreError as error:
                problem = str(error)
