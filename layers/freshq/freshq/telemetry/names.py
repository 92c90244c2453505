"""Names of metrics, which all ways to report them share."""

from __future__ import annotations

from typing import Final

from freshq.errors import IllegalTransition, Overloaded, RefusedError
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.task import LIVE

METRIC_OF_PUT: Final = {
    PutOutcome.CREATED: "TasksCreated",
    PutOutcome.DUPLICATE: "TasksDuplicate",
    PutOutcome.UPDATED: "TasksUpdated",
}
# Metrics of puts that wrote nothing.
METRICS_OF_NO_PUT: Final = ("TasksRefused", "TasksTurnedAway", "TasksNotWritten")
# Most waits and runs take well below a second; the default bounds are meant for milliseconds.
BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


def metric_of(answer: object) -> str:
    """Return the metric that counts the outcome of a put of one task.

    Args:
        answer: A receipt or an error.
    """
    if isinstance(answer, Receipt):
        return METRIC_OF_PUT[answer.outcome]
    if isinstance(answer, IllegalTransition) and answer.status in LIVE:
        return METRIC_OF_PUT[PutOutcome.DUPLICATE]
    if isinstance(answer, Overloaded):
        return "TasksTurnedAway"
    return "TasksRefused" if isinstance(answer, RefusedError) else "TasksNotWritten"
