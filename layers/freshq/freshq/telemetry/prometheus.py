"""Count verbs and runs for Prometheus."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from typing_extensions import override

from freshq.errors import needs, quoted
from freshq.model.answers import PutOutcome
from freshq.model.forks import new_lock
from freshq.model.telemetry import Telemetry
from freshq.queue.gauges import (
    BOUNDS_SECONDS,
    METRIC_OF_PUT,
    METRICS_OF_NO_PUT,
    counted_put,
    metric_of,
    snake_case,
)
from freshq.worker.report import METRIC_OF_OUTCOME, Observer, Outcome

with needs("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, values
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from prometheus_client import Metric

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.model.telemetry import ClaimSpan, PutSpan
    from freshq.policy.shedding import ShedReason

# Each kind adds time series, and producers may invent kinds, so later kinds share one label.
MOST_KINDS: Final = 100
OTHER_KINDS: Final = "other"
# By queue and kind.
COUNTERS: Final = {
    **dict.fromkeys(METRIC_OF_PUT.values(), "Puts by this process with this outcome."),
    **dict.fromkeys(METRICS_OF_NO_PUT, "Puts by this process that wrote nothing, for this reason."),
    "TasksClaimed": "Claims by this process.",
    **dict.fromkeys(METRIC_OF_OUTCOME.values(), "Claims of this process that ended in this way."),
    "TasksOverran": "Runs that exceeded max_run_seconds.",
    "ValueOffered": "Value of the tasks created that have a value or a decay.",
    "ValueDelivered": "Value that tasks with a value or a decay still had when their runs succeeded.",
}
SHED: Final = "TasksShed"
HISTOGRAMS: Final = {
    "ClaimAgeSeconds": "Age of the tasks that this process claimed.",
    "RunSeconds": "Time of the runs that succeeded, failed, or will be repeated.",
}
# Outcomes of runs that ended on their own.
RAN: Final = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)


def prometheus_name(name: str) -> str:
    """Return the name of a metric in the style of Prometheus: freshq_tasks_pending for TasksPending."""
    return f"freshq_{snake_case(name)}"


class _Metrics:
    """The metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("queue", "kind")
        self._counters = {
            name: Counter(prometheus_name(name), help_, labels, registry=None)
            for name, help_ in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(prometheus_name(name), help_, labels, registry=None, buckets=BOUNDS_SECONDS)
            for name, help_ in HISTOGRAMS.items()
        }
        help_ = "Tasks that this process shed, by reason, or found to be past their deadlines."
        self.shed = Counter(prometheus_name(SHED), help_, ("queue", "reason"), registry=None)
        self._kinds: set[str] = set()
        self._register(registry)

    def _register(self, registry: CollectorRegistry) -> None:
        """Register all metrics or, if the name of one is taken, none."""
        with ExitStack() as registered:
            for metric in (*self._counters.values(), *self._histograms.values(), self.shed):
                try:
                    registry.register(metric)
                except ValueError as error:
                    msg = f"registry: has a metric of this name already, pass another registry ({error})"
                    raise ValueError(msg) from None
                registered.callback(registry.unregister, metric)
            registered.pop_all()

    def _kind(self, kind: str | None) -> str:
        if kind is None or kind in self._kinds:
            return kind or ""
        if len(self._kinds) >= MOST_KINDS:
            return OTHER_KINDS
        self._kinds.add(kind)
        return kind

    def count(self, name: str, queue: str, kind: str | None, amount: float = 1) -> None:
        """Add to a counter; adding 0 makes it visible."""
        self._counters[name].labels(queue, self._kind(kind)).inc(amount)

    def record(self, name: str, task: Task, seconds: float) -> None:
        """Add a duration to a histogram."""
        self._histograms[name].labels(task.queue, self._kind(task.kind)).observe(seconds)


_of_registries: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()
_lock: Final = new_lock()


def _metrics_of(registry: CollectorRegistry) -> _Metrics:
    """Return the metrics of a registry; made once, because a registry refuses a second metric of a name."""
    with _lock:
        if registry not in _of_registries:
            _of_registries[registry] = _Metrics(registry)
        return _of_registries[registry]


class Prometheus(Telemetry, Observer):
    """Counts puts, claims, runs and shed tasks for Prometheus. Pass it to a queue as `telemetry`.

    Serve the registry as your program serves its other metrics. `freshq work --health-port` serves the
    default registry at `/metrics`, and counts all queues of its processes. The labels are the queue and the
    kind, never the group or the id. Needs the extra `metrics`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Count in a registry.

        Args:
            registry: The registry; by default that of the process.

        Raises:
            ValueError: If it is no registry, or has other metrics of the same names.
        """
        given: object = registry
        if not isinstance(given, CollectorRegistry):
            msg = f"registry: must be a prometheus_client.CollectorRegistry, got {quoted(given)}"
            raise ValueError(msg)
        self._metrics = _metrics_of(registry)

    def expect(self, queue: str, kinds: Iterable[str]) -> None:
        """Start the counters of runs of these kinds at 0, so that `increase` sees the first failure.

        Args:
            queue: Name of the queue.
            kinds: The kinds that a worker runs; "" for tasks without one.
        """
        for kind in kinds:
            for outcome in RAN:
                self._metrics.count(METRIC_OF_OUTCOME[outcome], queue, kind or None, 0)

    @override
    def put(self, span: PutSpan) -> AbstractContextManager[None]:
        return counted_put(span, partial(self._count_puts, span.tasks))

    def _count_puts(self, tasks: Iterable[Task], answers: Iterable[object]) -> None:
        created = METRIC_OF_PUT[PutOutcome.CREATED]
        for task, answer in zip(tasks, answers, strict=True):
            name = metric_of(answer)
            self._metrics.count(name, task.queue, task.kind)
            if name == created and task.has_value:
                self._metrics.count("ValueOffered", task.queue, task.kind, task.worth)

    @override
    @contextmanager
    def claim(self, span: ClaimSpan) -> Iterator[None]:
        yield
        for claim in span.claims:
            task = claim.task
            self._metrics.count("TasksClaimed", task.queue, task.kind)
            self._metrics.record("ClaimAgeSeconds", task, max(0.0, task.updated - task.created))

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        task = claim.task
        self._metrics.count(METRIC_OF_OUTCOME[outcome], task.queue, task.kind)
        if outcome in RAN:
            self._metrics.record("RunSeconds", task, run_seconds)
        if outcome is Outcome.SUCCEEDED and task.has_value:
            value = task.value_at(task.updated + run_seconds)
            self._metrics.count("ValueDelivered", task.queue, task.kind, value)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        self._metrics.count("TasksOverran", claim.task.queue, claim.task.kind)

    @override
    def exhausted(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._metrics.count(METRIC_OF_OUTCOME[Outcome.FAILED], task.queue, task.kind)

    @override
    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        self._metrics.shed.labels(queue, reason.value).inc(tasks)


def share_values(number: int) -> None:
    """Keep the values of this process in the file with a number, in the folder of the environment.

    A process that replaces a dead one continues its file, so no count is lost and no files pile up.

    Args:
        number: Number of the process, unique among the running processes.
    """
    own = os.getpid()

    def identifier() -> str:
        """Return the number; a fork of this process gets a file of its own."""
        return str(number) if os.getpid() == own else f"{number}-{os.getpid()}"

    values.ValueClass = values.MultiProcessValue(identifier)  # type: ignore[no-untyped-call]  # it has no types


def exposition(folder: str | None = None) -> bytes:
    """Return the metrics in the text format of Prometheus.

    Args:
        folder: The folder where several processes keep their values; None for the registry of this process.
    """
    if folder is None:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    registry.register(_Folder(Path(folder)))
    return generate_latest(registry)


class _Folder(Collector):
    """The summed values of several processes. Skips empty files: a process has just created them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield the sums of the values in all files."""
        files = [str(file) for file in self._folder.glob("*.db") if file.stat().st_size]
        yield from MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]  # it has no types
