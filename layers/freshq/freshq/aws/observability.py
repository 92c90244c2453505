"""Logs, traces and metrics: the only module that imports Powertools.

Metrics are EMF lines in the log, which CloudWatch turns into metrics. POWERTOOLS_SERVICE_NAME and
POWERTOOLS_METRICS_NAMESPACE set service and namespace.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit
from typing_extensions import override

from freshq.worker.report import Observer, Outcome

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.policy.order import OrderSwitch
    from freshq.stores.base import Stats

logger: Final = Logger()
tracer: Final = Tracer()
metrics: Final = Metrics()

# A handler that fails before its first metric reports the error; the warning adds nothing.
warnings.filterwarnings("ignore", "No application metrics to publish")

# The threads of a worker share the metrics, which are not thread-safe.
_lock: Final = threading.Lock()


def count(name: str, value: float = 1) -> None:
    """Add to a counter metric."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)


def measure_seconds(name: str, value: float) -> None:
    """Add a sample to a metric in seconds."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Seconds, value=value)


def emit_gauges(stats: Stats) -> None:
    """Emit the state of the queue; no ages while nothing is pending."""
    for name in ("pending", "delayed", "taken"):
        count(f"Tasks{name.capitalize()}", getattr(stats, name))
    count("TasksStaleInIndex", stats.shed)
    for name, age_seconds in (
        ("OldestPendingSeconds", stats.oldest_pending_seconds),
        ("NewestPendingSeconds", stats.newest_pending_seconds),
    ):
        if age_seconds is not None:
            measure_seconds(name, age_seconds)


METRIC_OF_OUTCOME: Final = {
    Outcome.SUCCEEDED: "TasksSucceeded",
    Outcome.FAILED: "TasksFailed",
    Outcome.RETRIED: "TasksRetried",
    Outcome.RELEASED: "TasksReleased",
    Outcome.SHED: "TasksShedBeforeRun",
    Outcome.LEASE_LOST: "LeasesLost",
    Outcome.UNSETTLED: "TasksUnsettled",
}


class MetricsObserver(Observer):
    """Turns what a worker does into log lines and metrics. Never logs payloads."""

    @override
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        count("TasksClaimed")
        measure_seconds("ClaimAgeSeconds", age_seconds)
        logger.info(
            "task claimed",
            task_id=claim.task.task_id,
            attempt=claim.task.attempts,
            age_seconds=round(age_seconds, 3),
        )

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        count(METRIC_OF_OUTCOME[outcome])
        measure_seconds("RunSeconds", run_seconds)
        log = logger.info if outcome is Outcome.SUCCEEDED else logger.warning
        log(
            "task settled",
            task_id=claim.task.task_id,
            outcome=outcome.value,
            run_seconds=round(run_seconds, 3),
            error=error,
        )

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        count("TasksOverran")
        logger.error("task overran", task_id=claim.task.task_id, run_seconds=round(run_seconds, 3))

    @override
    def switched(self, switch: OrderSwitch) -> None:
        count("OrderSwitches")
        logger.info(
            "order switched",
            newest_first=switch.newest_first,
            oldest_age_seconds=round(switch.oldest_age_seconds, 3),
        )
