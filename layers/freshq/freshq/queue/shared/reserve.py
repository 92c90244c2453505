"""The reserve of a queue: how long its tasks take, as all its workers saw it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.policy.quantile import QuantileSketch
from freshq.policy.shedding import ReserveSpans
from freshq.queue.shared.records import change_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.policy.rules import OverloadRules
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

SERVICE: Final = "service-times"
SPANS: Final = "reserve-spans"
# What workers saw is brought together so often: a read and a write for each of them.
SYNC_SECONDS: Final = 5.0
# More than a process sees between two times; beyond, the oldest are dropped.
MOST_KEPT: Final = 5000


class SharedReserve:
    """The time that a task must still have to be claimed. Thread-safe.

    A fixed reserve is in the rules. A running quantile is learnt by all workers together: each brings
    the service times it saw, and takes over what the others saw; a new process begins with that.
    """

    def __init__(self, store: Store, queue: str, rules: OverloadRules) -> None:
        """Know nothing yet.

        Args:
            store: Where the shared record is.
            queue: Name of the queue.
            rules: Say how the reserve is found.
        """
        self._store = store
        self._queue = queue
        self._rules = rules
        self._lock = threading.Lock()
        self._reserve = rules.new_reserve()
        self._learns = rules.reserve.quantile is not None
        self._seen: list[float] = []
        self._sync_at = 0.0
        self._spans_at = 0.0

    def observe(self, service_seconds: float) -> None:
        """Take note of how long a task took."""
        if not self._learns:
            return
        with self._lock:
            self._reserve.observe(service_seconds)
            self._seen = [*self._seen[-MOST_KEPT:], service_seconds]

    def seconds(self, now: float) -> float:
        """Return the reserve, after what other workers saw if that is due."""
        if self._learns and now >= self._sync_at:
            self.sync(now)
        return self._reserve.seconds

    def sync(self, now: float) -> None:
        """Bring together what this process and others saw; if the store does not answer, next time."""
        with self._lock:
            self._sync_at = now + SYNC_SECONDS
            seen, self._seen = self._seen, []
        merged = QuantileSketch()

        def add(values: Mapping[str, Any]) -> dict[str, Any] | None:
            merged.clear()
            merged.merge({int(index): weight for index, weight in values.get("counts", {}).items()})
            merged.add(seen)
            counts = {str(index): round(weight, 6) for index, weight in merged.counts().items()}
            return {"counts": counts} if seen else None

        try:
            written = change_record(self._store, self._queue, SERVICE, add)
        except StoreError:
            logger.warning("service times of queue %r were not shared", self._queue, exc_info=True)
            written = False
        with self._lock:
            if not written:
                self._seen = [*seen, *self._seen]
                return
            self._reserve = self._rules.new_reserve(merged)

    def note_due(self, now: float, reserve_seconds: float) -> bool:
        """Return whether it is time to look again for tasks that claims leave because of the reserve."""
        return reserve_seconds > 0 and now >= self._spans_at

    def passed_over(self, now: float, reserve_seconds: float) -> None:
        """Take note that a claim left tasks waiting because of the reserve.

        That is how a stale task is told to have been shed by the reserve, not by its age alone.
        """
        self._spans_at = now + reserve_seconds / 2

        def extend(values: Mapping[str, Any]) -> dict[str, Any]:
            return {"spans": ReserveSpans(values.get("spans", ())).extended(now, reserve_seconds)}

        try:
            change_record(self._store, self._queue, SPANS, extend)
        except StoreError:
            logger.warning("reserve of queue %r was not noted", self._queue, exc_info=True)

    def spans(self) -> ReserveSpans:
        """Return when claims left tasks waiting because of the reserve.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._store.read_record(self._queue, SPANS)
        return ReserveSpans(() if record is None else record.values["spans"])
