"""Logs, traces and metrics: the one module of the library that touches Powertools.

Metrics are written as EMF lines to the log, from which CloudWatch makes metrics. Service and
namespace come from POWERTOOLS_SERVICE_NAME and POWERTOOLS_METRICS_NAMESPACE.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit

from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.policy.order import OrderSwitch
    from freshq.stores.base import Stats

logger: Final = Logger()
tracer: Final = Tracer()
metrics: Final = Metrics()

# A handler that fails before it has anything to measure says so by its error.
warnings.filterwarnings("ignore", "No application metrics to publish")

# Metrics are kept in one structure that the worker's threads share.
_lock: Final = threading.Lock()


def count(name: str, value: float = 1) -> None:
    """Add to a counter metric."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)


def measure_seconds(name: str, value: float) -> None:
    """Add a sample to a metric in seconds."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Seconds, value=value)


def gauge(stats: Stats) -> None:
    """Emit the state of the queue. Ages are left out while nothing waits: there is none."""
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
    Outcome.LEASE_LOST: "LeasesLost",
    Outcome.UNSETTLED: "TasksUnsettled",
}


class MetricsObserver:
    """Turns what a worker does into log lines and metrics. Payloads are never logged."""

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Take note of a claim: the age at which work is served is what freshness means."""
        count("TasksClaimed")
        measure_seconds("ClaimAgeSeconds", age_seconds)
        logger.info(
            "task claimed",
            task_id=claim.task.task_id,
            attempt=claim.task.attempts,
            age_seconds=round(age_seconds, 3),
        )

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Take note of how a run ended."""
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

    def overran(self, claim: Claim, run_seconds: float) -> None:
        """Take note that a run is past its limit, and its lease let go."""
        count("TasksOverran")
        logger.error("task overran", task_id=claim.task.task_id, run_seconds=round(run_seconds, 3))

    def switched(self, switch: OrderSwitch) -> None:
        """Take note that an adaptive order turned round."""
        count("OrderSwitches")
        logger.info(
            "order switched",
            newest_first=switch.newest_first,
            oldest_age_seconds=round(switch.oldest_age_seconds, 3),
        )
