"""Metrics through OpenTelemetry, by the names of docs/operations.md."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Observation, get_meter

from freshq.errors import AlreadyQueued, Overloaded, PutIncomplete, RefusedError, StoreError
from freshq.model.answers import PutOutcome, Receipt
from freshq.queue.gauges import GAUGES, gauges, snake_case
from freshq.worker.report import METRIC_OF_OUTCOME, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

SCOPE: Final = "freshq"
COUNTERS: Final = {
    "TasksCreated": "{task}",
    "TasksDuplicate": "{task}",
    "TasksUpdated": "{task}",
    "TasksRefused": "{task}",
    "TasksTurnedAway": "{task}",
    "TasksNotWritten": "{task}",
    "TasksClaimed": "{task}",
    **dict.fromkeys(METRIC_OF_OUTCOME.values(), "{task}"),
    "TasksOverran": "{task}",
    "OrderSwitches": "{switch}",
}
METRIC_OF_PUT: Final = {
    PutOutcome.CREATED: "TasksCreated",
    PutOutcome.DUPLICATE: "TasksDuplicate",
    PutOutcome.UPDATED: "TasksUpdated",
}
# Waits and runs are mostly well below a second; the default bounds are meant for milliseconds.
BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
HISTOGRAMS: Final = ("ClaimAgeSeconds", "RunSeconds")
# The gauges of one collection share one reading of the queue.
READING_SECONDS: Final = 0.5


def otel_name(name: str) -> str:
    """Return the name of a metric as OpenTelemetry writes names: TasksPending is freshq.tasks_pending."""
    return f"freshq.{snake_case(name)}"


def unit_of(gauge: str) -> str:
    """Return the unit of a gauge, as UCUM writes it."""
    units = {"PerSecond": "{task}/s", "Seconds": "s", "Ratio": "1", "Paused": ""}
    return next((unit for end, unit in units.items() if gauge.endswith(end)), "{task}")


class Instruments:
    """The metrics of queues and workers."""

    def __init__(self, meter: Meter) -> None:
        """Create the instruments, and watch no queue yet."""
        self._readings: dict[BaseQueue, _Reading] = {}
        self._counters = {
            name: meter.create_counter(otel_name(name), unit) for name, unit in COUNTERS.items()
        }
        self._histograms = {
            name: meter.create_histogram(
                otel_name(name), "s", explicit_bucket_boundaries_advisory=BOUNDS_SECONDS
            )
            for name in HISTOGRAMS
        }
        for name, meaning in GAUGES.items():
            meter.create_observable_gauge(
                otel_name(name), [partial(self._observed, name)], unit_of(name), meaning
            )

    def count(self, queue: str, name: str, number: int = 1) -> None:
        """Add to a counter."""
        if number:
            self._counters[name].add(number, {"queue": queue})

    def put(self, queue: str, answers: Sequence[object]) -> None:
        """Count the outcomes of a put: for each task a receipt or an error."""
        for answer in answers:
            self.count(queue, _metric_of(answer))

    def put_failed(self, queue: str, tasks: int, error: Exception) -> None:
        """Count the outcomes of a put that raised an error."""
        self.put(queue, error.receipts if isinstance(error, PutIncomplete) else [error] * tasks)

    def claimed(self, queue: str, claims: Sequence[Claim]) -> None:
        """Count claims, and the ages of the tasks."""
        self.count(queue, "TasksClaimed", len(claims))
        for claim in claims:
            age_seconds = max(0.0, claim.task.updated - claim.task.created)
            self._histograms["ClaimAgeSeconds"].record(age_seconds, {"queue": queue})

    def settled(self, queue: str, outcome: Outcome, run_seconds: float) -> None:
        """Count the end of a run, and its time."""
        self.count(queue, METRIC_OF_OUTCOME[outcome])
        self._histograms["RunSeconds"].record(run_seconds, {"queue": queue})

    def switched(self) -> None:
        """Count an order switch; which queue it was of, is not known."""
        self._counters["OrderSwitches"].add(1)

    def watch(self, queue: BaseQueue) -> None:
        """Observe the state of a queue, too, whenever metrics are collected."""
        # A new dictionary: another thread may be collecting.
        self._readings = {**self._readings, queue: _Reading(queue)}

    def _observed(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        for queue, reading in self._readings.items():
            value = reading.values().get(name)
            if value is not None:
                yield Observation(value, {"queue": queue.name})


class _Reading:
    """The state of a queue, read once for the gauges of one collection."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._values: dict[str, float] = {}

    def values(self) -> dict[str, float]:
        """Return the gauges that have a value now: none if the store does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at >= READING_SECONDS:
                self._values = self._read()
                self._read_at = time.monotonic()
            return self._values

    def _read(self) -> dict[str, float]:
        queue = self._queue
        try:
            return gauges(queue.stats(approximate=True), queue.pressure(), paused=queue.paused)
        except StoreError as error:
            logger.warning("queue %r was not read, so its metrics have no values: %s", queue.name, error)
            return {}


class _Process:
    """Stands for the provider of the process, which may be set later."""


_PROCESS: Final = _Process()
_of_providers: Final[WeakKeyDictionary[object, Instruments]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def instruments_of(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider, always the same.

    An SDK keeps one instrument of a name, and silently drops what another one of that name would observe.

    Args:
        provider: The provider; None for that of the process.
    """
    key: object = _PROCESS if provider is None else provider
    with _lock:
        if key not in _of_providers:
            _of_providers[key] = Instruments(get_meter(SCOPE, meter_provider=provider))
        return _of_providers[key]


def _metric_of(answer: object) -> str:
    """Return the metric that counts the outcome of a put of one task."""
    if isinstance(answer, Receipt):
        return METRIC_OF_PUT[answer.outcome]
    if isinstance(answer, AlreadyQueued):
        return METRIC_OF_PUT[PutOutcome.DUPLICATE]
    if isinstance(answer, Overloaded):
        return "TasksTurnedAway"
    return "TasksRefused" if isinstance(answer, RefusedError) else "TasksNotWritten"
