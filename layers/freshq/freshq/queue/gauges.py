"""Names of metrics, the state of a queue as metrics, and which of its workers have slowed down."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import IllegalTransition, Overloaded, PutIncomplete, RefusedError
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.task import LIVE
from freshq.queue.core import core_of
from freshq.queue.shared.measures import change_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq.model.telemetry import PutSpan
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats, Store

GAUGES: Final = {
    "TasksPending": "Tasks that can be claimed now.",
    "TasksDelayed": "Tasks that are not due yet.",
    "TasksTaken": "Tasks that are held under a lease.",
    "TasksStaleInIndex": "Tasks past their deadline, or shed early, as far as they are counted.",
    "OldestPendingSeconds": "Age of the oldest task that can be claimed; missing if there is none.",
    "NewestPendingSeconds": "Age of the newest task that can be claimed; missing if there is none.",
    "TasksDead": "Dead letters, which wait for somebody to redrive or purge them.",
    "OldestDeadSeconds": "Time since the death of the oldest dead letter; missing if there is none.",
    "OldestSnapshotSeconds": "Age of the oldest snapshot in PostgreSQL; missing if there is none.",
    "DeadRows": "Old versions of rows that PostgreSQL has not removed; missing on other stores.",
    "OfferedPerSecond": "Tasks put, turned away included, over the last max age, at most a minute.",
    "ServedPerSecond": "Tasks done, over the same time.",
    "ShedRatio": "Share of new tasks that will not be served in time.",
    "ValueOfferedPerSecond": "Value of the tasks put, over the same time; missing if none has a value.",
    "ValueDeliveredPerSecond": "Value that tasks still had when they were done; missing as above.",
    "ValueLostRatio": "Share of the value of new tasks that will not be delivered; missing as above.",
    "WantedServers": "Slots that suffice for the offered work, by arrivals and service times.",
    "WorkersSlowed": "Workers that run one task at a time, because their last runs have all failed.",
    "QueuePaused": "1 while claims are suspended.",
}
METRIC_OF_PUT: Final = {
    PutOutcome.CREATED: "TasksCreated",
    PutOutcome.DUPLICATE: "TasksDuplicate",
    PutOutcome.UPDATED: "TasksUpdated",
}
# Metrics of puts that wrote nothing.
METRICS_OF_NO_PUT: Final = ("TasksRefused", "TasksTurnedAway", "TasksNotWritten")
# Most waits and runs take well below a second; the default bounds are meant for milliseconds.
BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
# Shared by the processes of a queue: when each slowed worker probes next.
BREAKERS: Final = "freshq#breakers"
# A worker writes at each probe; after this time without one, it has ended.
KEPT_SECONDS: Final = 60.0


def snake_case(name: str) -> str:
    """Return the name of a metric in lower case: TasksPending is tasks_pending."""
    return re.sub(r"(?<!^)[A-Z]", lambda letter: f"_{letter[0]}", name).lower()


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


@contextmanager
def counted_put(span: PutSpan, count: Callable[[Sequence[object]], object]) -> Iterator[None]:
    """Count the outcomes of a put during a `with` block: for each task a receipt or an error."""
    try:
        yield
    except Exception as error:
        count(error.receipts if isinstance(error, PutIncomplete) else [error] * len(span.tasks))
        raise
    count(span.receipts)


def gauges(stats: Stats, pressure: Pressure, *, paused: bool, slowed: int = 0) -> dict[str, float]:
    """Return the state of a queue as metrics; ages of empty states and values that no task has are left out.

    Args:
        stats: Its counts.
        pressure: Its rates. The share of new tasks that will not be served in time is the `ShedRatio`.
        paused: Whether claims are suspended.
        slowed: Number of workers that have slowed down.
    """
    known = {
        "OldestPendingSeconds": stats.oldest_pending_seconds,
        "NewestPendingSeconds": stats.newest_pending_seconds,
        "OldestDeadSeconds": stats.oldest_dead_seconds,
        "OldestSnapshotSeconds": stats.oldest_snapshot_seconds,
        "DeadRows": stats.dead_rows,
        "ValueOfferedPerSecond": pressure.value_offered_per_second,
        "ValueDeliveredPerSecond": pressure.value_delivered_per_second,
        "ValueLostRatio": pressure.value_lost_ratio,
    }
    return {
        "TasksPending": stats.pending,
        "TasksDelayed": stats.delayed,
        "TasksTaken": stats.taken,
        "TasksStaleInIndex": stats.shed,
        "TasksDead": stats.failure,
        **{name: value for name, value in known.items() if value is not None},
        "OfferedPerSecond": pressure.offered_per_second,
        "ServedPerSecond": pressure.served_per_second,
        "ShedRatio": 1 - pressure.probability_in_time,
        "WantedServers": wanted_capacity(stats, pressure),
        "WorkersSlowed": float(slowed),
        "QueuePaused": float(paused),
    }


def gauges_of(queue: BaseQueue, stats: Stats | None = None) -> dict[str, float]:
    """Read the state of a queue, and return it as metrics.

    Args:
        queue: The queue.
        stats: Its counts, if they are known.

    Raises:
        StoreError: If the store did not answer.
    """
    slowed = workers_slowed(core_of(queue).store, queue.name, queue.admin.now())
    counts = queue.stats(approximate=True) if stats is None else stats
    return gauges(counts, queue.pressure(), paused=queue.paused(), slowed=slowed)


def wanted_capacity(stats: Stats, pressure: Pressure) -> int:
    """Return the number of slots that suffice for the offered work; at least one while a task waits or runs.

    Until a task is done, so that its time is known, it equals the number of running tasks.

    Args:
        stats: The counts of the queue.
        pressure: Its rates.
    """
    known = pressure.wanted_servers
    return max(stats.taken if known is None else known, int(stats.pending + stats.taken > 0))


def share_breaker(store: Store, queue: str, worker: str, next_probe_at: float | None, now: float) -> None:
    """Tell other processes that a worker has slowed down, or no longer.

    Args:
        store: The store of the queue.
        queue: Name of the queue.
        worker: The worker.
        next_probe_at: When it probes next, in seconds since the epoch; None if it works normally.
        now: Current time in seconds since the epoch.

    Raises:
        StoreError: If the store did not answer.
    """

    def changed(values: Mapping[str, Any]) -> dict[str, Any] | None:
        kept = {name: at for name, at in values.items() if at > now - KEPT_SECONDS and name != worker}
        if next_probe_at is not None:
            kept[worker] = next_probe_at
        return None if kept == values else kept

    change_record(store, queue, BREAKERS, changed)


def workers_slowed(store: Store, queue: str, now: float) -> int:
    """Return the number of workers that have slowed down because their runs fail.

    Args:
        store: The store of the queue.
        queue: Name of the queue.
        now: Current time in seconds since the epoch.

    Raises:
        StoreError: If the store did not answer.
    """
    record = store.read_record(queue, BREAKERS)
    if record is None:
        return 0
    since = now - KEPT_SECONDS
    return sum(isinstance(at, int | float) and at > since for at in record.values.values())
