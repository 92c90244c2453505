"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import JustifyMethod

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.stores.base import Stats

# What a reader has no use for: the store's bookkeeping, and the token, which is its holder's alone.
INTERNAL: Final = ("expires", "request_token", "lease_token")
SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
SHORTEST_EXCERPT_CHARS: Final = 12
SHORTEST_ID_CHARS: Final = 12
NUMBERS: Final = ("prio", "tries", "age")


def span(seconds: float | None) -> str:
    """Return a length of time as people write it: at most two units, "-" for none."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < SPANS[-1][0]:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - one digit or two
    below = {"d": (3_600, "h"), "h": (60, "min"), "min": (1, "s")}
    size, unit = next((size, unit) for size, unit in SPANS if seconds >= size)
    smaller_size, smaller = below[unit]
    rest = int(seconds % size // smaller_size)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")


def printable(text: str) -> str:
    """Return a text with whatever a terminal might obey written out."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def excerpt(text: str, chars: int) -> str:
    """Return the beginning of a text, on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def fields(task: Task, now: float) -> dict[str, Any]:
    """Return what JSON tells of a task."""
    told = {key: value for key, value in asdict(task).items() if key not in INTERNAL}
    return told | {"status": task.status_at(now).value}


def claim_fields(claim: Claim) -> dict[str, Any]:
    """Return what JSON tells of a claim: the task, and what its holder needs to settle it."""
    return {
        **fields(claim.task, claim.task.updated),
        "token": claim.token,
        "lease_until": claim.lease_until,
    }


class Output:
    """Where a command's answer goes.

    Attributes:
        as_json: Whether the answer is JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        """Write to the standard output of now."""
        self.as_json = as_json
        self.console = Console(markup=False, emoji=False, highlight=False)

    def answer(self, value: object, *lines: object) -> None:
        """Print a value as JSON, or else what people read instead."""
        if self.as_json:
            typer.echo(json.dumps(value))
            return
        for line in lines:
            self.console.print(line)

    def task(self, task: Task, now: float) -> None:
        """Print all about a task."""
        self.answer(fields(task, now), _details(_told(task, now)))

    def changed(self, task: Task, now: float) -> None:
        """Print what became of a task."""
        status = task.status_at(now).value
        later = task.not_before if task.status is TaskStatus.PENDING else None
        wait = "" if later is None else f", claimable in {span(later - now)}"
        again = f" after attempt {task.attempts}" if task.attempts and status == TaskStatus.PENDING else ""
        self.answer(fields(task, now), f"task {printable(task.task_id)}: {status}{again}{wait}")

    def claims(self, claims: Sequence[Claim]) -> None:
        """Print claims with their tokens, whole, to be copied."""
        shown = [
            _details(
                {
                    "task": printable(claim.task.task_id),
                    "token": claim.token,
                    "held for": span(claim.lease_until - claim.task.updated),
                    "attempt": str(claim.task.attempts),
                    **_optional(claim.task),
                    "payload": json.dumps(claim.task.payload, ensure_ascii=False),
                }
            )
            for claim in claims
        ]
        self.answer([claim_fields(claim) for claim in claims], *shown)

    def tasks(self, tasks: Sequence[Task], cursor: str | None, now: float, *, errors: bool = False) -> None:
        """Print a listing.

        Args:
            tasks: What to list.
            cursor: Where it goes on; None at its end.
            now: Current time in seconds.
            errors: Whether to show why tasks failed rather than what they are.
        """
        rows = [_row(task, now, errors=errors) for task in tasks]
        headings = ("task", "state", *NUMBERS)
        widths = [max(map(len, column)) for column in zip(headings, *(row[:-1] for row in rows), strict=True)]
        # What is left of the line: each column has two spaces after it, and the table one on each side.
        left = self.console.width - sum(widths) - 2 * len(widths) - 2
        excerpt_chars = max(SHORTEST_EXCERPT_CHARS, left)
        widths[0] = min(widths[0], max(SHORTEST_ID_CHARS, widths[0] - (excerpt_chars - left)))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for heading, width in zip(headings, widths, strict=True):
            justify: JustifyMethod = "right" if heading in NUMBERS else "left"
            table.add_column(heading, justify=justify, width=width, overflow="fold")
        table.add_column("error" if errors else "payload", no_wrap=True)
        for *cells, last in rows:
            table.add_row(*cells, excerpt(last, excerpt_chars))
        more = [] if cursor is None else [f"more: add --cursor {printable(cursor)}"]
        listing = [table] if tasks else ["no tasks"]
        self.answer(
            {"tasks": [fields(task, now) for task in tasks], "cursor": cursor},
            *listing,
            *more,
        )

    def stats(self, stats: Stats, queue: str, *, paused: bool) -> None:
        """Print counts by state."""
        told = asdict(stats)
        table = Table("state", "tasks", "", title=f"queue {queue}" + (" (paused)" if paused else ""))
        reasons = {f"shed: {reason}": number for reason, number in stats.shed_by_reason.items()}
        counts = {key: value for key, value in told.items() if not isinstance(value, dict)}
        for key, value in (counts | reasons).items():
            if key.endswith("_seconds"):
                table.add_row(key.removesuffix("_seconds").replace("_", " "), span(value), "")
            else:
                table.add_row(key, f"{value:,}", stats.bounded.get(key, ""))
        table.columns[1].justify = "right"
        self.answer(told | {"paused": paused}, table)


def _row(task: Task, now: float, *, errors: bool) -> tuple[str, ...]:
    return (
        printable(task.task_id),
        "delayed" if task.delayed else task.status_at(now).value,
        str(task.priority),
        str(task.attempts),
        span(max(0.0, now - task.created)),
        (task.error or "") if errors else json.dumps(task.payload, ensure_ascii=False),
    )


def _optional(task: Task) -> dict[str, str]:
    """Return what is worth telling only where it is not as usual."""
    told = {}
    if task.priority:
        told["priority"] = str(task.priority)
    if task.group is not None:
        told["group"] = printable(task.group)
    if task.error is not None:
        told["last error"] = printable(task.error)
    return told


def state(task: Task, now: float) -> dict[str, str]:
    """Return how a task stands, for people."""
    told = {
        "status": task.status_at(now).value,
        "created": f"{span(now - task.created)} ago",
        "changed": f"{span(now - task.updated)} ago",
        "attempts": str(task.attempts),
        **_optional(task),
    }
    if task.status is TaskStatus.PENDING:
        told["stale"] = _when(task.deadline, now)
    if task.not_before is not None:
        told["claimable"] = _when(task.not_before, now)
    if task.lease_until is not None:
        told["lease ends"] = _when(task.lease_until, now)
    if task.shed_reason is not None:
        told["shed for"] = task.shed_reason.value
    return told


def _when(moment: float, now: float) -> str:
    return f"in {span(moment - now)}" if moment >= now else f"{span(now - moment)} ago"


def _told(task: Task, now: float) -> Mapping[str, str]:
    told = {"task": printable(task.task_id), **state(task, now)}
    told["payload"] = json.dumps(task.payload, ensure_ascii=False)
    if task.result is not None:
        told["result"] = json.dumps(task.result, ensure_ascii=False)
    return told


def _details(told: Mapping[str, str]) -> Table:
    return details(told.items())


def details(told: Iterable[tuple[str, str]]) -> Table:
    """Return names and values side by side, nothing cut off."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in told:
        grid.add_row(name, value)
    return grid
