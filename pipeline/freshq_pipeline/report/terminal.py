"""Results on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshq_pipeline.report.words import NO_NAME, cell, conclusions, duration, heading, replayed_days

if TYPE_CHECKING:
    from collections.abc import Mapping

# Most queues in a table.
MAX_QUEUES: Final = 6
# Shown also if it is 0.
ALWAYS: Final = ("tasks", "ledger_violations")


def show_summary(summary: dict[str, Any], headlines: Mapping[str, str]) -> None:
    """Print what became of the tasks, the figures of a summary, and those of each queue.

    Args:
        summary: The summary.
        headlines: A sentence for each queue; empty if they are not known.
    """
    figures = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
    console = Console()
    for queue, sentence in headlines.items():
        named = f"{queue}: {sentence}" if len(headlines) > 1 else sentence
        console.print(named, style="bold", soft_wrap=True, markup=False, highlight=False)
    _print(console, "what happened", {"value": figures})
    # An older package on a cluster answers without it.
    if "queues" in summary:
        _print_queues(console, summary["queues"])


def _print_queues(console: Console, queues: list[dict[str, Any]]) -> None:
    """Print a table with a column for each of the queues with the most tasks."""
    shown = sorted(queues, key=lambda row: -row["tasks"])[:MAX_QUEUES]
    title = "by queue" if len(shown) == len(queues) else f"the {MAX_QUEUES} largest of {len(queues)} queues"
    columns = {row["queue"] or NO_NAME: {name: row[name] for name in row if name != "queue"} for row in shown}
    _print(console, title, columns)


def _print(console: Console, title: str, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Print columns of figures; those that are 0 in all of them as one line below."""
    table, zeros = Table("figure", *map(escape, columns), title=title), []
    for name in next(iter(columns.values())):
        values = [column[name] for column in columns.values()]
        if name in ALWAYS or any(value != 0 for value in values):
            table.add_row(escape(heading(name)), *(escape(cell(name, value)) for value in values))
        else:
            zeros.append(heading(name))
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)
    if zeros:
        console.print(f"Zero: {', '.join(zeros)}.", soft_wrap=True, markup=False, highlight=False)


def show_replay(result: dict[str, Any]) -> None:
    """Print for each queue what was recorded and the scenarios of a replay, and what follows from them."""
    console = Console()
    for one in result["queues"]:
        scenarios = [row for row in result["scenarios"] if row["queue"] == one["queue"]]
        title = (
            f"queue {one['queue']}: what would have happened" if one["queue"] else "what would have happened"
        )
        console.print(_scenarios(escape(title), [_recorded(one["record"]), *map(_scenario, scenarios)]))
    for text in (*conclusions(result), f"{replayed_days(result)}.", result["record"]["imputation"]):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _scenarios(title: str, rows: list[dict[str, str]]) -> Table:
    # Columns that say nothing would make the others too narrow.
    names = [name for name in rows[0] if name in _ALWAYS or any(row[name] not in _NOTHING for row in rows)]
    table = Table(*names, title=title)
    for column in table.columns:
        column.justify, column.no_wrap = ("left" if column.header == "policy" else "right"), True
    for row in rows:
        table.add_row(*map(row.__getitem__, names), style="bold" if row["policy"] == _RECORDED else None)
    return table


_RECORDED: Final = "recorded"
_ALWAYS: Final = ("policy", "servers", "in time", "shed")
_NOTHING: Final = ("", "0", "-")


def _recorded(record: dict[str, Any]) -> dict[str, str]:
    return {"policy": _RECORDED, "max age": ""} | _counts(record, record["shed"])


def _scenario(row: dict[str, Any]) -> dict[str, str]:
    age, shed = row["deadline_seconds"], sum(row["shed_by_reason"].values())
    return {"policy": row["policy"], "max age": "" if age is None else duration(age)} | _counts(row, shed)


def _counts(row: dict[str, Any], shed: int) -> dict[str, str]:
    wait = row.get("wait_p99_seconds")
    named = {"in time": "served_in_time", "late": "served_late", "failed": "failed", "waiting": "pending"}
    counts = {title: f"{row[name]:,}" for title, name in named.items()}
    more = {"shed": f"{shed:,}", "p99 wait": "-" if wait is None else duration(wait)}
    return {"servers": f"{row['servers']:,}"} | counts | more
