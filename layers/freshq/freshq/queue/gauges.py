"""The gauges of a queue, by the names that metrics have everywhere: docs/operations.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshq.policy.pressure import Pressure
    from freshq.stores.base import Stats


def gauges(stats: Stats, pressure: Pressure, *, paused: bool) -> dict[str, float]:
    """Return the state of a queue as metrics; no ages while nothing is pending.

    Args:
        stats: Its counts.
        pressure: Its rates. The share of new tasks that will not be served in time is the `ShedRatio`.
        paused: Whether claims are suspended.
    """
    ages_seconds = {
        "OldestPendingSeconds": stats.oldest_pending_seconds,
        "NewestPendingSeconds": stats.newest_pending_seconds,
    }
    return {
        "TasksPending": stats.pending,
        "TasksDelayed": stats.delayed,
        "TasksTaken": stats.taken,
        "TasksStaleInIndex": stats.shed,
        **{name: age for name, age in ages_seconds.items() if age is not None},
        "OfferedPerSecond": pressure.offered_per_second,
        "ServedPerSecond": pressure.served_per_second,
        "ShedRatio": 1 - pressure.probability_in_time,
        "QueuePaused": float(paused),
    }
