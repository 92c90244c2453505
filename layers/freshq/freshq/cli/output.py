"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeAlias

import typer

from freshq.cli.errors import printable
from freshq.cli.facts import claim_facts, claim_fields, fields, percent, task_facts, times
from freshq.cli.texts import compact_json, excerpt, json_text, span
from freshq.errors import needs
from freshq.model.answers import WaitsFor
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table

    from freshq.model.answers import Claim, Waiting
    from freshq.model.task import Task
    from freshq.stores.base import Stats

MIN_EXCERPT_CHARS: Final = 8
MIN_ID_CHARS: Final = 12
# The width of what is not a terminal: longer lines than any task makes, so that nothing is wrapped.
PIPE_CHARS: Final = 10_000_000
NUMBERS: Final = ("prio", "tries", "age")

# How a listing shows what tasks wait for.
STATES: Final = {
    None: "PENDING",
    WaitsFor.DUE: "delayed",
    WaitsFor.RESUME: "paused",
    WaitsFor.TURN: "waits for its turn",
}

Answer: TypeAlias = "str | Mapping[str, str] | RenderableType | Callable[[], RenderableType]"


class Output:
    """Prints the answers of a command to standard output.

    Attributes:
        as_json: Whether answers are JSON.
        wraps: Whether lines must fit the width of a terminal.
    """

    def __init__(self, *, as_json: bool) -> None:
        """Print to the current standard output."""
        self.as_json = as_json
        self.wraps = bool(sys.stdout and sys.stdout.isatty()) or "COLUMNS" in os.environ

    @cached_property
    def console(self) -> Console:
        """Prints tables for people."""
        with needs("cli"):
            from rich.console import Console  # noqa: PLC0415 - slow to load, and many answers need none

        width = None if self.wraps else PIPE_CHARS
        return Console(markup=False, emoji=False, highlight=False, width=width)

    def answer(self, value: object, *lines: Answer) -> None:
        """Print a value as JSON; or for people lines, names with their values, and what Rich draws."""
        if self.as_json:
            typer.echo(json_text(value))
            return
        for line in lines:
            if isinstance(line, str):
                typer.echo(printable(line))
            elif not isinstance(line, Mapping):
                self.console.print(line() if callable(line) else line)
            elif self.wraps:
                self.console.print(details(line))
            else:
                chars = max(map(len, line))
                typer.echo("\n".join(f"{name:<{chars}}  {text}" for name, text in line.items()))

    def task(self, task: Task, now: float) -> None:
        """Print everything about a task."""
        self.answer(fields(task, now) | {"times": times(task, now)}, task_facts(task, now))

    def changed(self, task: Task, now: float) -> None:
        """Print the new state of a task."""
        status = task.status_at(now).value
        later = task.not_before if task.status is TaskStatus.PENDING else None
        wait = "" if later is None else f", claimable in {span(later - now)}"
        again = f" after attempt {task.attempts}" if task.attempts and status == TaskStatus.PENDING else ""
        self.answer(fields(task, now), f"task {printable(task.task_id)}: {status}{again}{wait}")

    def claims(self, claims: Sequence[Claim]) -> None:
        """Print claims, their tokens in full."""
        self.answer([claim_fields(claim) for claim in claims], *map(claim_facts, claims))

    def dequeued(self, tasks: Sequence[Task], now: float) -> None:
        """Print everything about tasks that were claimed and completed."""
        self.answer([fields(task, now) for task in tasks], *(task_facts(task, now) for task in tasks))

    def tasks(self, tasks: Sequence[Task], cursor: str | None, now: float, *, errors: bool = False) -> None:
        """Print a listing.

        Args:
            tasks: What to list.
            cursor: Where the next page begins; None on the last one.
            now: Current time in seconds since the epoch.
            errors: Whether the last column is why a task failed rather than its payload.
        """
        more = [] if cursor is None else [f"more: add --cursor {printable(cursor)}"]

        def listing() -> Table:
            rows = [_row(task, now, errors=errors) for task in tasks]
            return _listing(rows, "error" if errors else "payload", self.console.width)

        self.answer(
            {"tasks": [fields(task, now) for task in tasks], "cursor": cursor},
            listing if tasks else "no tasks",
            *more,
        )

    def waiting(self, waiting: Sequence[Waiting], now: float) -> None:
        """Print waiting tasks in the order of claims, with what they wait for."""

        def listing() -> Table:
            rows = [_row(each.task, now, errors=False, state=STATES[each.waits_for]) for each in waiting]
            return _listing(rows, "payload", self.console.width)

        shown = [fields(each.task, now) | {"waits_for": each.waits_for} for each in waiting]
        self.answer({"tasks": shown, "cursor": None}, listing if waiting else "no tasks")

    def stats(self, stats: Stats, queue: str, *, paused: bool) -> None:
        """Print the number of tasks in each state, and ages."""
        title = f"queue {printable(queue)}" + (" (paused)" if paused else "")
        values = asdict(stats) | {"paused": paused}
        if not stats.ids:
            del values["ids"]
        self.answer(values, partial(_counts, stats, title))


def _counts(stats: Stats, title: str) -> Table:
    """Return the table of the states, their numbers of tasks and their ages."""
    from rich.table import Table  # noqa: PLC0415 - slow to load

    values = {key: value for key, value in asdict(stats).items() if not isinstance(value, dict)}
    values |= {f"shed: {reason}": number for reason, number in stats.shed_by_reason.items()}
    table = Table("state", "tasks", *(["first ids"] if stats.ids else []), title=title)
    table.columns[1].justify = "right"
    for key, value in values.items():
        is_age = key.endswith("_seconds")
        bound = stats.bounded.get(key, "")
        text = span(value) if is_age else f"{value:,}"
        shown = bound if bound == "not counted" else f"{bound} {text}".lstrip()
        some = [", ".join(map(printable, stats.ids.get(key, ())))] if stats.ids else []
        table.add_row(key.removesuffix("_seconds").replace("_", " "), shown, *some)
    return table


def _listing(rows: Sequence[tuple[str, ...]], last: str, width: int) -> Table:
    """Return a table that fits into `width` characters: first the last column is cut, then ids are folded."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - slow to load
    from rich.table import Table  # noqa: PLC0415 - slow to load

    headings = ("task", "state", *NUMBERS)
    widths = [max(map(len, column)) for column in zip(headings, *(row[:-1] for row in rows), strict=True)]
    # Each column has two spaces after it, and the table has one on each side.
    left = width - sum(widths) - 2 * len(widths) - 2
    excerpt_chars = max(MIN_EXCERPT_CHARS, left)
    widths[0] = min(widths[0], max(MIN_ID_CHARS, widths[0] - (excerpt_chars - left)))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading, chars in zip(headings, widths, strict=True):
        justify: JustifyMethod = "right" if heading in NUMBERS else "left"
        table.add_column(heading, justify=justify, width=chars, overflow="fold")
    table.add_column(last, no_wrap=True)
    for *cells, text in rows:
        table.add_row(*cells, excerpt(text, excerpt_chars))
    return table


def _row(task: Task, now: float, *, errors: bool, state: str | None = None) -> tuple[str, ...]:
    return (
        printable(task.task_id),
        state or _state(task, now),
        str(task.priority),
        str(task.attempts),
        "-" if task.status is TaskStatus.READY else span(max(0.0, now - task.created)),
        (task.error or "") if errors else compact_json(task.payload),
    )


def _state(task: Task, now: float) -> str:
    """Return the state of a task, and how far it is while it runs."""
    if task.delayed:
        return "delayed"
    far = percent(task) if task.status is TaskStatus.TAKEN else ""
    return f"{task.status_at(now).value} {far}".rstrip()


def details(facts: Mapping[str, str]) -> Table:
    """Return names and values side by side, with nothing cut off."""
    from rich.table import Table  # noqa: PLC0415 - slow to load

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, value)
    return grid
