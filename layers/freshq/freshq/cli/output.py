"""Print tasks, tables and JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from freshq.errors import needs, printable
from freshq.model.answers import WaitsFor
from freshq.model.task import INTERNAL, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table

    from freshq.model.answers import Claim, Waiting
    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.simulate.forecast import Forecast, Interval
    from freshq.stores.base import Stats

# Units of time: seconds, name, seconds of the next smaller unit, and its name.
UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
MIN_EXCERPT_CHARS: Final = 8
MIN_ID_CHARS: Final = 12
# Width of pipes and files: wider than any task's line, so nothing is wrapped.
PIPE_CHARS: Final = 10_000_000
NUMBERS: Final = ("prio", "tries", "age")
NAMES: Final = ("value", "kind", "group")
# The columns that a narrow terminal does without, in this order.
LEAST_IMPORTANT: Final = ("value", "group", "kind", "prio", "tries")
# Longer names of kinds and groups are cut in listings.
NAME_CHARS: Final = 16
# How a listing describes the reason for a wait.
STATES: Final = {
    None: "PENDING",
    WaitsFor.DUE: "delayed",
    WaitsFor.RESUME: "paused",
    WaitsFor.TURN: "waits for its turn",
}
Answer: TypeAlias = "str | Mapping[str, str] | RenderableType | Callable[[], RenderableType]"


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


def chance_in_time(forecast: Forecast | None, pressure: Pressure, *, paused: bool) -> float | None:
    """Return the chance of a new task to be done in time, from 0 to 1; None while claims are suspended.

    It is the forecast's, so that both show one figure; before the first forecast, the recently served share.
    """
    if paused:
        return None
    return pressure.probability_in_time if forecast is None else forecast.in_time_ratio.median


def percentage(share: float | None) -> str:
    """Return a share in percent; what is little is not nothing, and what is nearly all is not all."""
    if share is None:
        return "-"
    if 0 < share < 0.01:  # noqa: PLR2004 - a hundredth
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{math.floor(100 * share + 0.5)}%"  # noqa: PLR2004 - as above


def value_facts(pressure: Pressure) -> dict[str, str]:
    """Return the value that is offered, delivered and lost by name; empty if the tasks have no values."""
    offered, delivered = pressure.value_offered_per_second, pressure.value_delivered_per_second
    if offered is None or delivered is None:
        return {}
    return {
        "value offered": f"{offered:,.2f}/s",
        "value delivered": f"{delivered:,.2f}/s",
        "value lost": percentage(pressure.value_lost_ratio),
    }


def forecast_lines(forecast: Forecast | None, *, waiting: bool = True) -> dict[str, str]:
    """Return a forecast as lines by heading; none without a forecast.

    Args:
        forecast: The forecast, perhaps some seconds old.
        waiting: Whether tasks still wait.
    """
    if forecast is None:
        return {}
    lines = {"put next": f"{_shares(forecast.in_time_ratio)} in time"}
    over, in_time = forecast.backlog_over_seconds, forecast.backlog_in_time_ratio
    if over is not None and in_time is not None and waiting:
        ends = f"served or stale in {span(over.median)} ({span(over.low)} to {span(over.high)})"
        lines["waiting now"] = f"{_shares(in_time)} in time, {ends}"
    if forecast.by_value:
        lines["by value"] = chances_by_value(forecast.by_value)
    more, better = forecast.more_slots, forecast.better_ratio
    helps = []
    if more.median:
        helps.append(f"{counted(round(more.median), 'more slot')} ({more.low:.0f} to {more.high:.0f})")
    if better is not None:
        helps.append(f"order {forecast.better_order}, {_shares(better)} more in time")
    lines["would help"] = "; ".join(helps) or "nothing needed"
    return lines


def chances_by_value(by_value: Mapping[float, float]) -> str:
    """Return chances in time, such as "from 8: 98%, from 4: 61%, less: 1% in time"."""
    said = [f"from {least:.3g}: {percentage(chance)}" for least, chance in by_value.items()]
    said[0] = f"less: {percentage(next(iter(by_value.values())))}"
    return f"{', '.join(reversed(said))} in time"


def _shares(interval: Interval) -> str:
    """Return an interval of shares, such as 73% (55 to 90)."""
    return f"{percentage(interval.median)} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 task" and "2 tasks"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def excerpt(text: str, chars: int) -> str:
    """Return the beginning of a string on one line, at most `chars` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def compact_json(value: object) -> str:
    """Return a value as JSON for people: all letters unescaped, control characters escaped."""
    return printable(json.dumps(value, ensure_ascii=False))


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON for programs. Infinity and NaN, which JSON lacks, become null."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fields(task: Task, now: float) -> dict[str, Any]:
    """Return a task as values for JSON.

    Args:
        task: The task.
        now: Current time in seconds since the epoch; it decides whether the task is SHED.
    """
    known = {key: value for key, value in asdict(task).items() if key not in INTERNAL}
    attempts = [attempt._asdict() for attempt in task.attempt_log]
    return known | {"status": task.status_at(now).value, "attempt_log": attempts}


def claim_fields(claim: Claim) -> dict[str, Any]:
    """Return a claim as values for JSON: the task, and the token that settles it."""
    return {
        **fields(claim.task, claim.task.updated),
        "token": claim.token,
        "lease_until": claim.lease_until,
    }


def times(task: Task, now: float) -> dict[str, str | None]:
    """Return when a task entered each state, as ISO 8601 strings; None for states that it never entered."""
    moments = {
        "put": task.put_at,
        "due": task.first_due,
        "first_claim": task.first_claim_at,
        "last_claim": task.last_claim_at,
        "end": task.ended_at(now),
        "dead": task.dead_at,
    }
    return {name: None if moment is None else instant(moment) for name, moment in moments.items()}


def instant(moment: float) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    at = datetime.fromtimestamp(round(moment, 3), UTC)
    text = at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
    return text.replace("+00:00", "Z")


def claim_facts(claim: Claim) -> dict[str, str]:
    """Return a claim for people, with its full token."""
    return {
        "task": printable(claim.task.task_id),
        "token": claim.token,
        "held for": span(claim.lease_until - claim.task.updated),
        "attempt": str(claim.task.attempts),
        **_unusual(claim.task),
        "payload": compact_json(claim.task.payload),
    }


def _unusual(task: Task) -> dict[str, str]:
    """Return facts that not every task has."""
    facts = {}
    if task.priority:
        facts["priority"] = str(task.priority)
    texts = {"group": task.group, "kind": task.kind, "decay": task.decay}
    facts |= {name: printable(text) for name, text in texts.items() if text is not None}
    numbers = {"value": task.value, "cost": task.cost}
    facts |= {name: f"{number:g}" for name, number in numbers.items() if number is not None}
    if task.error is not None:
        facts["last error"] = printable(task.error)
    if task.trace_id is not None:
        facts["trace"] = task.trace_id
    if task.parent_id is not None and task.root_id is not None:
        facts["parent"] = printable(task.parent_id)
        facts["root"] = printable(task.root_id)
    return facts


def state(task: Task, now: float) -> dict[str, str]:
    """Return the state of a task for people.

    Args:
        task: The task.
        now: Current time in seconds since the epoch.
    """
    if task.status is TaskStatus.READY:
        return {"status": "READY, in no queue"}  # without times or attempts
    facts = {
        "status": task.status_at(now).value,
        **_beginnings(task, now),
        **_changes(task, now),
        "attempts": str(task.attempts),
        **_unusual(task),
    }
    if task.status is TaskStatus.PENDING:
        facts["stale"] = "never" if task.deadline is None else _when(task.deadline, now)
    if task.not_before is not None:
        facts["claimable"] = _when(task.not_before, now)
    if task.lease_until is not None:
        facts["lease ends"] = _when(task.lease_until, now)
    if task.progress_fraction is not None:
        facts["progress"] = progress(task)
    if task.shed_reason is not None:
        facts["shed for"] = task.shed_reason.value
    return facts


def progress(task: Task) -> str:
    """Return the progress of a task's last run, such as ``40%, loading``."""
    done = percent(task)
    return done if task.progress_step is None else f"{done}, {printable(task.progress_step)}"


def percent(task: Task) -> str:
    """Return the share of the work that the last run did, such as ``40%``; empty if unknown."""
    if task.progress_fraction is None:
        return ""
    # Millionths are exact: 0.29 is 29%, not 28.999. Rounded down: only finished work is 100%.
    return f"{round(task.progress_fraction * 1_000_000) // 10_000}%"


def _beginnings(task: Task, now: float) -> dict[str, str]:
    """Return when a task was put, first due and created, leaving out times that follow from the others."""
    facts = {}
    if task.put_at is not None and task.created - task.put_at >= 1:  # delayed, or made new
        facts["put"] = _at(task.put_at, now)
    if task.first_due is not None:
        facts["due"] = _at(task.first_due, now)
    if task.first_due is None or task.created - task.first_due >= 1:
        facts["created"] = _at(task.created, now)
    return facts


def _changes(task: Task, now: float) -> dict[str, str]:
    """Return when a task was claimed, became a dead letter, ended or last changed."""
    facts = {}
    if task.first_claim_at is not None and task.last_claim_at is not None:
        once = task.first_claim_at == task.last_claim_at
        facts["claimed" if once else "first claim"] = _at(task.first_claim_at, now)
        if not once:
            facts["last claim"] = _at(task.last_claim_at, now)
    if task.dead_at is not None and task.status is not TaskStatus.FAILURE:
        facts["was dead"] = _at(task.dead_at, now)
    ended = task.ended_at(now)
    name = "changed" if ended is None else "dead" if task.status is TaskStatus.FAILURE else "ended"
    facts[name] = _at(task.updated if ended is None else ended, now)
    return facts


def _at(moment: float, now: float) -> str:
    """Return a time, and its distance from now."""
    return f"{instant(moment)}, {_when(moment, now)}"


def _when(moment: float, now: float) -> str:
    return f"in {span(moment - now)}" if moment >= now else f"{span(now - moment)} ago"


def task_facts(task: Task, now: float) -> dict[str, str]:
    """Return everything about a task for people."""
    facts = {"task": printable(task.task_id), **state(task, now), "payload": compact_json(task.payload)}
    if task.result is not None:
        facts["result"] = compact_json(task.result)
    return facts | _attempts(task, now)


def _attempts(task: Task, now: float) -> dict[str, str]:
    """Return the ended attempts of a task that failed at least once, and the last traceback."""
    log = task.attempt_log if task.attempt_record is not None else ()
    facts = {}
    for attempt in log:
        took = "" if attempt.started is None else f" after {span(attempt.ended - attempt.started)}"
        by = "" if attempt.worker is None else f" by {printable(attempt.worker)}"
        error = "" if attempt.error is None else f": {printable(attempt.error)}"
        facts[f"attempt {attempt.number}"] = (
            f"{attempt.outcome}{took}{by}, {_when(attempt.ended, now)}{error}"
        )
    tracebacks = [attempt.traceback for attempt in log if attempt.traceback]
    if tracebacks:
        facts["traceback"] = "\n".join(map(printable, tracebacks[-1].splitlines()))
    return facts


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
            from rich.console import Console

        width = None if self.wraps else PIPE_CHARS
        return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=width)

    def answer(self, value: object, *lines: Answer) -> None:
        """Print a value as JSON; or for people, lines, names with values, and Rich renderables."""
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
        """Print claims with their full tokens."""
        self.answer([claim_fields(claim) for claim in claims], *map(claim_facts, claims))

    def dequeued(self, tasks: Sequence[Task], now: float) -> None:
        """Print everything about tasks that were dequeued."""
        self.answer([fields(task, now) for task in tasks], *(task_facts(task, now) for task in tasks))

    def tasks(self, tasks: Sequence[Task], cursor: str | None, now: float, *, errors: bool = False) -> None:
        """Print a listing.

        Args:
            tasks: The tasks of the page.
            cursor: Start of the next page; None on the last page.
            now: Current time in seconds since the epoch.
            errors: Whether the last column has the error of a task instead of its payload.
        """
        more = [] if cursor is None else [f"more: add --cursor {printable(cursor)}"]

        def listing() -> Table:
            rows = [_row(task, now, errors=errors) for task in shown]
            return _listing(rows, "error" if errors else "payload", self.console.width)

        # A page of dead letters begins with the latest.
        shown = tasks if errors else sorted(tasks, key=lambda task: -task.created)
        self.answer(
            {"tasks": [fields(task, now) for task in shown], "cursor": cursor},
            listing if tasks else "no tasks",
            *more,
        )

    def waiting(self, waiting: Sequence[Waiting], now: float) -> None:
        """Print waiting tasks in the order of claims, with the reason of the wait."""

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
    """Return a table of the states with their task counts, and the ages."""
    from rich.table import Table

    values = {key: value for key, value in asdict(stats).items() if not isinstance(value, dict)}
    if stats.dead_rows is None:  # not PostgreSQL
        del values["dead_rows"], values["oldest_snapshot_seconds"]
    if stats.value_delivered is None:  # no task has a value, or they were not counted
        del values["value_delivered"], values["value_lost"]
    values |= {f"shed: {reason}": number for reason, number in stats.shed_by_reason.items()}
    table = Table("state", "tasks", *(["first ids"] if stats.ids else []), title=title)
    table.columns[1].justify = "right"
    for key, value in values.items():
        bound = stats.bounded.get(key, "")
        shown = bound if bound == "not counted" else f"{bound} {_figure(key, value)}".lstrip()
        some = [", ".join(map(printable, stats.ids.get(key, ())))] if stats.ids else []
        table.add_row(key.removesuffix("_seconds").replace("_", " "), shown, *some)
    return table


def _figure(name: str, value: float | None) -> str:
    """Return an age, a sum of values or a count as text."""
    if name.endswith("_seconds"):
        return span(value)
    return f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"


def _listing(rows: Sequence[tuple[str, ...]], last: str, width: int) -> Table:
    """Return a table that fits into `width` characters: the last column is cut first, then ids fold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    headings, rows, widths = _fitting(["task", "state", *NUMBERS, *NAMES], rows, width)
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


def _fitting(
    headings: list[str], rows: Sequence[tuple[str, ...]], width: int
) -> tuple[list[str], Sequence[tuple[str, ...]], list[int]]:
    """Return headings, rows and widths of the columns that say something and for which there is room."""
    for name in LEAST_IMPORTANT:
        widths = _widths(headings, rows)
        # Each column has two spaces after it, and the table has one on each side.
        needed = MIN_ID_CHARS + sum(widths[1:]) + 2 * len(widths) + 2 + MIN_EXCERPT_CHARS
        at = headings.index(name)
        if needed > width or (name in NAMES and not any(row[at] for row in rows)):
            headings = [*headings[:at], *headings[at + 1 :]]
            rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return headings, rows, _widths(headings, rows)


def _widths(headings: list[str], rows: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *(row[:-1] for row in rows), strict=True)]


def _row(task: Task, now: float, *, errors: bool, state: str | None = None) -> tuple[str, ...]:
    return (
        printable(task.task_id),
        state or _state(task, now),
        str(task.priority),
        str(task.attempts),
        "-" if task.status is TaskStatus.READY else span(max(0.0, now - task.created)),
        "" if task.value is None else f"{task.value:g}",
        excerpt(task.kind or "", NAME_CHARS),
        excerpt(task.group or "", NAME_CHARS),
        (task.error or "") if errors else compact_json(task.payload),
    )


def _state(task: Task, now: float) -> str:
    """Return the state of a task, with its progress while it runs."""
    if task.delayed:
        return "delayed"
    far = percent(task) if task.status is TaskStatus.TAKEN else ""
    return f"{task.status_at(now).value} {far}".rstrip()


def details(facts: Mapping[str, str]) -> Table:
    """Return names and values side by side, without truncation."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, value)
    return grid
