"""Ledger violations that no earlier run had, in the summaries of several runs. Needs no Spark."""

from __future__ import annotations

from typing import Any, Final

NEW: Final = "new_ledger_violations"


def without_new(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of the current run as that of a run that found nothing to do."""
    return summary | {NEW: 0, "queues": [row | {NEW: 0} for row in summary["queues"]]}


def with_earlier(summary: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with the new violations of an earlier one added.

    A later run may have more queues, never fewer.
    """
    known = {row["queue"]: row[NEW] for row in earlier["queues"]}
    queues = [row | {NEW: row[NEW] + known.get(row["queue"], 0)} for row in summary["queues"]]
    return summary | {NEW: summary[NEW] + earlier[NEW], "queues": queues}
