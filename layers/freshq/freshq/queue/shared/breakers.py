"""Share which workers of a queue have slowed down, for dashboards and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.queue.shared.measures import change_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.stores.base import Store

RECORD: Final = "freshq#breakers"
# A worker writes at each probe; after this time without one, it has ended.
KEPT_SECONDS: Final = 60.0


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

    change_record(store, queue, RECORD, changed)


def workers_slowed(store: Store, queue: str, now: float) -> int:
    """Return the number of workers that have slowed down because their runs fail.

    Args:
        store: The store of the queue.
        queue: Name of the queue.
        now: Current time in seconds since the epoch.

    Raises:
        StoreError: If the store did not answer.
    """
    record = store.read_record(queue, RECORD)
    if record is None:
        return 0
    since = now - KEPT_SECONDS
    return sum(isinstance(at, int | float) and at > since for at in record.values.values())
