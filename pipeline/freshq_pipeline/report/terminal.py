"""Results on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show_summary(summary: dict[str, Any]) -> None:
    """Print the figures of a summary."""
    table = Table("figure", "value", title="what happened")
    for name, value in summary.items():
        if not isinstance(value, dict):
            text = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), text)
    table.columns[1].justify = "right"
    Console().print(table)


def show_replay(result: dict[str, Any]) -> None:
    """Print the scenarios of a replay."""
    table = Table(
        *("policy", "capacity", "stale at, s", "in time", "late", "shed", "p99 wait, s"),
        title="what would have happened; the first row repeats the recording",
    )
    for row in result["scenarios"]:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    console.print(result["record"]["imputation"], soft_wrap=True, markup=False, highlight=False)


def _cells(row: dict[str, Any]) -> list[str]:
    stale, wait = row["deadline_seconds"], row["wait_p99_seconds"]
    counts = (row["served_in_time"], row["served_late"], sum(row["shed_by_reason"].values()))
    return [
        row["policy"],
        f"{row['capacity']:g}",
        "as recorded" if stale is None else f"{stale:g}",
        *(f"{count:,}" for count in counts),
        "-" if wait is None else f"{wait:,.2f}",
    ]
