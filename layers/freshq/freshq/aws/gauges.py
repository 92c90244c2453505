"""The state of a queue as metrics, which only the sweep emits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.aws.observability import count, measure_seconds
from freshq.queue.gauges import gauges
from freshq.worker.report import METRIC_OF_OUTCOME

if TYPE_CHECKING:
    from freshq.policy.pressure import Pressure
    from freshq.stores.base import Stats

# Alarms compare these. CloudWatch cannot fill in a metric that has no value at all.
COUNTED_EVERY_MINUTE: Final = ("TasksClaimed", *METRIC_OF_OUTCOME.values())


def emit_gauges(stats: Stats, pressure: Pressure, *, paused: bool) -> None:
    """Emit the state of the queue; no ages while nothing is pending.

    Args:
        stats: Its counts.
        pressure: Its rates. The share of new tasks that will not be served in time is the `ShedRatio`.
        paused: Whether claims are suspended.
    """
    for name, value in gauges(stats, pressure, paused=paused).items():
        (measure_seconds if name.endswith("PendingSeconds") else count)(name, value)
    for name in COUNTED_EVERY_MINUTE:
        count(name, 0)
