"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.cli.errors import printable
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import JustifyMethod

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.stores.base import Stats

# Not printed: the store's bookkeeping, and the token, which only its holder may know.
INTERNAL: Final = ("expires", "request_token", "lease_token")
# Units of time: seconds in each, its name, seconds in the next smaller one, and the name of that.
UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
MIN_EXCERPT_CHARS: Final = 8
MIN_ID_CHARS: Final = 12
NUMBERS: Final = ("prio", "tries", "age")


def span(seconds: float | None) -> str:
    """Return a duration in at most two units; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"-{span(-seconds)}"
    for size, unit, smaller_size, smaller in UNITS:
        if seconds >= size:
            rest = int(seconds % size // smaller_size)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - one digit or two


def excerpt(text: str, chars: int) -> str:
    """Return the beginning of a text on one line, at most `chars` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def compact_json(value: object) -> str:
    """Return a value as JSON for people: letters of every script as they are."""
    return json.dumps(value, ensure_ascii=False)


def fields(task: Task, now: float) -> dict[str, Any]:
    """Return a task as JSON has it.

    Args:
        task: The task.
        now: Current time in seconds since the epoch, which decides whether the task is SHED.
    """
    known = {key: value for key, value in asdict(task).items() if key not in INTERNAL}
    return known | {"status": task.status_at(now).value}


def claim_fields(claim: Claim) -> dict[str, Any]:
    """Return a claim as JSON has it: the task, and the token to settle it with."""
    return {
        **fields(claim.task, claim.task.updated),
        "token": claim.token,
        "lease_until": claim.lease_until,
    }


class Output:
    """Prints the answers of a command to standard output.

    Attributes:
        as_json: Whether answers are JSON.
        console: Prints answers for people.
    """

    def __init__(self, *, as_json: bool) -> None:
        """Print to the current standard output."""
        self.as_json = as_json
        self.console = Console(markup=False, emoji=False, highlight=False)

    def answer(self, value: object, *lines: object) -> None:
        """Print a value as JSON, or lines for people."""
        if self.as_json:
            typer.echo(json.dumps(value))
            return
        for line in lines:
            self.console.print(line)

    def task(self, task: Task, now: float) -> None:
        """Print everything about a task."""
        self.answer(fields(task, now), details(_facts(task, now)))

    def changed(self, task: Task, now: float) -> None:
        """Print the new state of a task."""
        status = task.status_at(now).value
        later = task.not_before if task.status is TaskStatus.PENDING else None
        wait = "" if later is None else f", claimable in {span(later - now)}"
        again = f" after attempt {task.attempts}" if task.attempts and status == TaskStatus.PENDING else ""
        self.answer(fields(task, now), f"task {printable(task.task_id)}: {status}{again}{wait}")

    def claims(self, claims: Sequence[Claim]) -> None:
        """Print claims, their tokens in full."""
        shown = [
            details(
                {
                    "task": printable(claim.task.task_id),
                    "token": claim.token,
                    "held for": span(claim.lease_until - claim.task.updated),
                    "attempt": str(claim.task.attempts),
                    **_unusual(claim.task),
                    "payload": compact_json(claim.task.payload),
                }
            )
            for claim in claims
        ]
        self.answer([claim_fields(claim) for claim in claims], *shown)

    def tasks(self, tasks: Sequence[Task], cursor: str | None, now: float, *, errors: bool = False) -> None:
        """Print a listing.

        Args:
            tasks: What to list.
            cursor: Where the next page begins; None on the last one.
            now: Current time in seconds since the epoch.
            errors: Whether the last column is why a task failed rather than its payload.
        """
        rows = [_row(task, now, errors=errors) for task in tasks]
        listing = _listing(rows, "error" if errors else "payload", self.console.width)
        more = [] if cursor is None else [f"more: add --cursor {printable(cursor)}"]
        self.answer(
            {"tasks": [fields(task, now) for task in tasks], "cursor": cursor},
            listing if tasks else "no tasks",
            *more,
        )

    def stats(self, stats: Stats, queue: str, *, paused: bool) -> None:
        """Print the number of tasks in each state, and ages."""
        values = asdict(stats)
        counts = {key: value for key, value in values.items() if not isinstance(value, dict)}
        counts |= {f"shed: {reason}": number for reason, number in stats.shed_by_reason.items()}
        table = Table("state", "tasks", "", title=f"queue {queue}" + (" (paused)" if paused else ""))
        for key, value in counts.items():
            if key.endswith("_seconds"):
                table.add_row(key.removesuffix("_seconds").replace("_", " "), span(value), "")
            else:
                table.add_row(key, f"{value:,}", stats.bounded.get(key, ""))
        table.columns[1].justify = "right"
        self.answer(values | {"paused": paused}, table)


def _listing(rows: Sequence[tuple[str, ...]], last: str, width: int) -> Table:
    """Return a table that fits into `width` characters: first the last column is cut, then ids are folded."""
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


def _row(task: Task, now: float, *, errors: bool) -> tuple[str, ...]:
    return (
        printable(task.task_id),
        "delayed" if task.delayed else task.status_at(now).value,
        str(task.priority),
        str(task.attempts),
        span(max(0.0, now - task.created)),
        (task.error or "") if errors else compact_json(task.payload),
    )


def _unusual(task: Task) -> dict[str, str]:
    """Return the facts that only some tasks have."""
    facts = {}
    if task.priority:
        facts["priority"] = str(task.priority)
    if task.group is not None:
        facts["group"] = printable(task.group)
    if task.error is not None:
        facts["last error"] = printable(task.error)
    return facts


def state(task: Task, now: float) -> dict[str, str]:
    """Return the state of a task for people.

    Args:
        task: The task.
        now: Current time in seconds since the epoch.
    """
    facts = {
        "status": task.status_at(now).value,
        "created": f"{span(now - task.created)} ago",
        "changed": f"{span(now - task.updated)} ago",
        "attempts": str(task.attempts),
        **_unusual(task),
    }
    if task.status is TaskStatus.PENDING:
        facts["stale"] = _when(task.deadline, now)
    if task.not_before is not None:
        facts["claimable"] = _when(task.not_before, now)
    if task.lease_until is not None:
        facts["lease ends"] = _when(task.lease_until, now)
    if task.shed_reason is not None:
        facts["shed for"] = task.shed_reason.value
    return facts


def _when(moment: float, now: float) -> str:
    return f"in {span(moment - now)}" if moment >= now else f"{span(now - moment)} ago"


def _facts(task: Task, now: float) -> dict[str, str]:
    facts = {"task": printable(task.task_id), **state(task, now), "payload": compact_json(task.payload)}
    if task.result is not None:
        facts["result"] = compact_json(task.result)
    return facts


def details(facts: Mapping[str, str]) -> Table:
    """Return names and values side by side, with nothing cut off."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, value)
    return grid
