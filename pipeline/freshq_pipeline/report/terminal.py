"""Results on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshq_pipeline.report.words import conclusions, duration, replayed_days

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Most queues in a table.
MAX_QUEUES: Final = 6


def show_summary(summary: dict[str, Any], headlines: Mapping[str, str]) -> None:
    """Print what became of the tasks, the figures of a summary, and those of each queue.

    Args:
        summary: The summary.
        headlines: A sentence for each queue; empty if they are not known.
    """
    table = Table("figure", "value", title="what happened")
    for name, value in summary.items():
        if not isinstance(value, dict | list):
            table.add_row(name.replace("_", " "), _text(value))
    table.columns[1].justify = "right"
    console = Console()
    for queue, sentence in headlines.items():
        named = f"{queue}: {sentence}" if len(headlines) > 1 else sentence
        console.print(named, style="bold", soft_wrap=True, markup=False, highlight=False)
    console.print(table)
    # An older package on a cluster answers without it.
    if "queues" in summary:
        console.print(_by_queue(summary["queues"]))


def _by_queue(queues: list[dict[str, Any]]) -> Table:
    """Return a table with a column for each of the queues with the most tasks."""
    shown = sorted(queues, key=lambda row: -row["tasks"])[:MAX_QUEUES]
    title = "by queue" if len(shown) == len(queues) else f"the {MAX_QUEUES} largest of {len(queues)} queues"
    table = Table("figure", *(escape(str(row["queue"])) for row in shown), title=title)
    for name in queues[0]:
        if name != "queue":
            table.add_row(name.replace("_", " "), *(_text(row[name]) for row in shown))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _text(value: float | str | None) -> str:
    return "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)


def show_replay(result: dict[str, Any]) -> None:
    """Print the scenarios of a replay below what was recorded, and for each queue what follows from them."""
    rows = [row for one in result["queues"] for row in _rows(one, result["scenarios"])]
    console = Console()
    console.print(_scenarios(rows))
    for text in (*conclusions(result), f"{replayed_days(result)}.", result["record"]["imputation"]):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _scenarios(rows: list[dict[str, str]]) -> Table:
    # Columns that say nothing would make the others too narrow.
    names = [name for name in rows[0] if name in _ALWAYS or any(row[name] not in _NOTHING for row in rows)]
    table = Table(*names, title="what would have happened")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(row.__getitem__, names), style="bold" if row["policy"] == _RECORDED else None)
    return table


_RECORDED: Final = "recorded"
_ALWAYS: Final = ("queue", "policy", "servers", "in time", "shed")
_NOTHING: Final = ("", "0", "-")


def _rows(one: dict[str, Any], scenarios: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Return the cells of a queue: what was recorded, and its scenarios."""
    queue, record = escape(str(one["queue"])), one["record"]
    yield {"queue": queue, "policy": _RECORDED, "capacity": "", "max age": ""} | _counts(
        record, record["shed"]
    )
    for row in scenarios:
        if row["queue"] == one["queue"]:
            age, shed = row["deadline_seconds"], sum(row["shed_by_reason"].values())
            cells = {"queue": queue, "policy": row["policy"], "capacity": f"{row['capacity']:g}"}
            yield cells | {"max age": "" if age is None else duration(age)} | _counts(row, shed)


def _counts(row: dict[str, Any], shed: int) -> dict[str, str]:
    wait = row.get("wait_p99_seconds")
    named = {"in time": "served_in_time", "late": "served_late", "failed": "failed", "waiting": "pending"}
    counts = {title: f"{row[name]:,}" for title, name in named.items()}
    return (
        {"servers": f"{row['servers']:,}"}
        | counts
        | {
            "shed": f"{shed:,}",
            "p99 wait": "-" if wait is None else duration(wait),
        }
    )
