"""The reserve of a queue, as all its workers learn it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.policy.quantile import QuantileSketch
from freshq.policy.reserve import LearnedReserve, ReserveSpans, SkippedTasks
from freshq.queue.shared.shared_records import change_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.policy.rules import OverloadRules
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

SERVICE: Final = "service-times"
SPANS: Final = "reserve-spans"


class SharedReserve:
    """The time that a task must have left to be claimed. Thread-safe.

    A fixed reserve is in the rules. A quantile is learnt by all workers together: each adds the service
    times it saw to a shared record, and continues with what all of them saw.
    """

    def __init__(self, store: Store, queue: str, rules: OverloadRules) -> None:
        """Start with nothing learnt.

        Args:
            store: Where the shared records are.
            queue: Name of the queue.
            rules: How the reserve is found.
        """
        self._store = store
        self._queue = queue
        self._lock = threading.Lock()
        self._reserve = LearnedReserve(rules.new_reserve)
        self._skipped = SkippedTasks(rules.order)

    def observe(self, service_seconds: float) -> None:
        """Record how long a task took."""
        with self._lock:
            self._reserve.observe(service_seconds)

    def seconds(self, now: float) -> float:
        """Return the reserve, after a sync with other workers if one is due."""
        if now >= self._reserve.next_sync:
            self.sync(now)
        return self._reserve.seconds

    def sync(self, now: float) -> None:
        """Merge what this process and others saw; if the store does not answer, at the next sync."""
        with self._lock:
            seen = self._reserve.begin_sync(now)
        merged = QuantileSketch()

        def add(values: Mapping[str, Any]) -> dict[str, Any] | None:
            nonlocal merged
            shared = {int(index): weight for index, weight in values.get("counts", {}).items()}
            merged = LearnedReserve.merged(shared, seen)
            counts = LearnedReserve.shared_counts(merged)
            return {"counts": {str(index): weight for index, weight in counts.items()}} if seen else None

        try:
            written = change_record(self._store, self._queue, SERVICE, add)
        except StoreError:
            logger.warning("queue %r: could not share service times", self._queue, exc_info=True)
            written = False
        with self._lock:
            if written:
                self._reserve.end_sync(merged)
            else:
                self._reserve.abort_sync(seen)

    def check_due(self, now: float, reserve_seconds: float, *, short: bool) -> bool:
        """Return whether to call `note_skipped` after a claim; see `SkippedTasks.check_due`."""
        return self._skipped.check_due(now, reserve_seconds, short=short)

    def note_skipped(
        self, now: float, reserve_seconds: float, oldest: float | None, created_after: float, *, short: bool
    ) -> None:
        """Record whether a claim skipped tasks because of the reserve; see `SkippedTasks.found`.

        The record shows later whether a stale task was shed by the reserve or by its age alone.
        """
        if not self._skipped.found(now, reserve_seconds, oldest, created_after, short=short):
            return

        def extend(values: Mapping[str, Any]) -> dict[str, Any]:
            return {"spans": ReserveSpans(values.get("spans", ())).extended(now, reserve_seconds)}

        try:
            change_record(self._store, self._queue, SPANS, extend)
        except StoreError:
            logger.warning("queue %r: could not record the reserve", self._queue, exc_info=True)

    def spans(self) -> ReserveSpans:
        """Return when claims skipped tasks because of the reserve.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._store.read_record(self._queue, SPANS)
        try:
            return ReserveSpans(() if record is None else record.values["spans"])
        except (KeyError, TypeError, ValueError):
            logger.warning("queue %r: the record of the reserve is damaged", self._queue)
            return ReserveSpans()
