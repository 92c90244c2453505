"""Results on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshq_pipeline.report.words import conclusions

if TYPE_CHECKING:
    from collections.abc import Mapping

# Most queues in a table.
MAX_QUEUES: Final = 6
# Servers that were idle for less, while tasks waited, do not explain a replay that is far off.
LEAST_IDLE_RATIO: Final = 0.01


def show_summary(summary: dict[str, Any], verdicts: Mapping[str, str]) -> None:
    """Print what became of the tasks, the figures of a summary, and those of each queue.

    Args:
        summary: The summary.
        verdicts: A sentence for each queue; empty if they are not known.
    """
    table = Table("figure", "value", title="what happened")
    for name, value in summary.items():
        if not isinstance(value, dict | list):
            table.add_row(name.replace("_", " "), _text(value))
    table.columns[1].justify = "right"
    console = Console()
    for queue, sentence in verdicts.items():
        named = f"{queue}: {sentence}" if len(verdicts) > 1 else sentence
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
    """Print the scenarios of a replay, and in a sentence for each queue what follows from them."""
    table = Table(
        *("queue", "policy", "capacity", "stale at, s", "in time", "late", "shed", "p99 wait, s"),
        title="what would have happened; the first row of a queue repeats the recording",
    )
    for row in result["scenarios"]:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    for text in (result["record"]["imputation"], *conclusions(result)):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _cells(row: dict[str, Any]) -> list[str]:
    stale, wait = row["deadline_seconds"], row["wait_p99_seconds"]
    counts = (row["served_in_time"], row["served_late"], sum(row["shed_by_reason"].values()))
    return [
        escape(str(row["queue"])),
        row["policy"],
        f"{row['capacity']:g}",
        "as recorded" if stale is None else f"{stale:g}",
        *(f"{count:,}" for count in counts),
        "-" if wait is None else f"{wait:,.2f}",
    ]


def difference(check: dict[str, Any]) -> str:
    """Return how far the replay of a queue is from the recording, and the probable reason, as a line.

    Args:
        check: The check of a replay, not within its tolerance.
    """
    recorded, replayed = check["served_in_time_recorded"], check["served_in_time_replayed"]
    text = (
        f"queue {check['queue']}: the replay of {check['policy']} differs from the recording by "
        f"{check['difference_ratio']:.1%}: {replayed:,} tasks in time, {recorded:,} in the recording. "
    )
    if replayed > recorded and check["idle_ratio"] < LEAST_IDLE_RATIO:
        return text + (
            "Probably there were fewer servers at times: expect the other scenarios to be as optimistic, "
            "or give --servers"
        )
    if replayed > recorded:
        return text + (
            "Probably the machine was starved or workers paused while it was recorded: "
            f"{check['idle_ratio']:.0%} of the servers were idle while tasks waited. "
            "Expect the other scenarios to be as optimistic, or give --servers"
        )
    return text + (
        "Probably there were more servers at times, or tasks were served in another order: "
        "give --servers or --recorded-policy"
    )
