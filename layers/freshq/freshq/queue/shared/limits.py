"""Limits that the workers of a queue keep together, for what their tasks call."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.policy.limits import BucketState, ConcurrencyLimit, LimitState, RetryBudget, Signals
from freshq.policy.slots import Share, WorkerShares
from freshq.queue.shared.records import change_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.policy.limits import SharedBucket
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

SLOTS: Final = "slots"
TOKENS: Final = "tokens"
RETRIES: Final = "retries"
# A worker that got fewer slots than it could use asks again after so long, within a window.
ASK_AGAIN_SECONDS: Final = 1.0
# First attempts are brought to the shared budget after so many.
DEPOSIT_EVERY: Final = 20


class SharedSlots:
    """This worker's share of the tasks that may be in work at a time over all workers. Thread-safe.

    Each worker writes the shared record once a window: what it saw of the downstream, and how many
    slots it claims. The shares of all workers never add up to more than the limit, but for tasks that
    are in work while the limit falls. A worker that dies keeps its share for two windows.
    """

    def __init__(self, store: Store, queue: str, limit: ConcurrencyLimit, wanted: int) -> None:
        """Have no slots yet.

        Args:
            store: Where the shared record is.
            queue: Name of the queue.
            limit: The rule for all workers together.
            wanted: How many slots this worker can use.
        """
        self._store = store
        self._queue = queue
        self._limit = limit
        self._wanted = wanted
        self._worker = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._slots = 0
        self._window = -1
        self._until = 0.0
        self._ask_at = 0.0
        self._succeeded = self._pushed_back = self._peak = 0

    def succeeded(self) -> None:
        """Take note that a task went well."""
        with self._lock:
            self._succeeded += 1

    def pushed_back(self) -> None:
        """Take note that the downstream was busy, timed out or failed."""
        with self._lock:
            self._pushed_back += 1

    def free(self, in_flight: int, now: float) -> int:
        """Return how many more tasks may be started.

        Args:
            in_flight: Tasks of this worker in work.
            now: Current time in seconds.

        Raises:
            StoreError: If the store did not answer when it was asked for slots.
        """
        self._peak = max(self._peak, in_flight)
        if self._limit.window(now) != self._window or (self._slots < self._wanted and now >= self._ask_at):
            self._exchange(in_flight, now)
        if now >= self._until:
            return 0
        return max(0, self._slots - in_flight)

    def _exchange(self, in_flight: int, now: float) -> None:
        """Bring in what was seen, and take the share that is due."""
        window = self._limit.window(now)
        with self._lock:
            succeeded, pushed_back = self._succeeded, self._pushed_back
        share = Share(now + 2 * self._limit.window_seconds, self._slots, self._peak)
        got = 0

        def change(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal got
            state = LimitState(**values["limit"]) if "limit" in values else self._limit.initial()
            shares = WorkerShares.of(values.get("workers", {}), now)
            peak = shares.peak_of_others(self._worker) + self._peak
            if window != self._window or pushed_back:
                seen = Signals(succeeded, pushed_back, peak)
                state = self._limit.moved(state, window - 1, seen) or state
            shares, got = shares.taken(self._worker, share, state.slots, self._wanted, in_flight)
            return {"limit": asdict(state), "workers": shares.values()}

        self._ask_at = now + min(ASK_AGAIN_SECONDS, self._limit.window_seconds / 4)
        if not change_record(self._store, self._queue, SLOTS, change):
            return
        with self._lock:
            self._succeeded -= succeeded
            self._pushed_back -= pushed_back
        if window != self._window:
            self._peak = in_flight
        self._slots, self._window, self._until = got, window, share.until

    def leave(self, now: float) -> None:
        """Give the share back."""

        def change(values: Mapping[str, Any]) -> dict[str, Any] | None:
            if self._worker not in values.get("workers", {}):
                return None
            shares = WorkerShares.of(values["workers"], now)
            return {**values, "workers": shares.without(self._worker).values()}

        self._slots, self._until = 0, 0.0
        try:
            change_record(self._store, self._queue, SLOTS, change)
        except StoreError:
            logger.warning("slots of queue %r were not given back; they lapse", self._queue, exc_info=True)


class SharedTokens:
    """Tokens of a bucket that all workers of the queue share, taken in blocks."""

    def __init__(self, store: Store, queue: str, bucket: SharedBucket) -> None:
        """Have no tokens yet."""
        self._store = store
        self._queue = queue
        self._bucket = bucket
        self._left = 0
        self._until = 0.0
        self._ask_at = 0.0

    def available(self, now: float, wanted: int) -> int:
        """Return how many tasks may be started now, out of those wanted.

        Raises:
            StoreError: If the store did not answer when it was asked for tokens.
        """
        if now >= self._until:
            self._left = 0
        if not self._left and wanted > 0 and now >= self._ask_at:
            self._lease(now, wanted)
        return min(self._left, wanted)

    def _lease(self, now: float, wanted: int) -> None:
        block = None

        def change(values: Mapping[str, Any]) -> dict[str, Any] | None:
            nonlocal block
            state = BucketState(**values) if values else self._bucket.full(now)
            state, block = self._bucket.lease(state, now, max(wanted, self._bucket.block))
            return asdict(state) if block.count else None

        if change_record(self._store, self._queue, TOKENS, change) and block is not None:
            self._left, self._until = block.count, block.until
            self._ask_at = now + block.retry_after_seconds

    def take(self, count: int) -> None:
        """Spend tokens that `available` has just reported."""
        self._left -= count

    def seconds_until_next(self, now: float) -> float:
        """Return how long until it is worth asking again; 0 if there are tokens."""
        return 0.0 if self._left else max(0.0, self._ask_at - now)


class SharedRetries:
    """The queue's budget of retries. Thread-safe."""

    def __init__(self, store: Store, queue: str, budget: RetryBudget) -> None:
        """Use a budget as it begins."""
        self._store = store
        self._queue = queue
        self._budget = budget
        self._lock = threading.Lock()
        self._first_attempts = 0

    def first_attempt(self) -> None:
        """Take note that a task was tried for the first time."""
        with self._lock:
            self._first_attempts += 1
            due = self._first_attempts >= DEPOSIT_EVERY
        if due:
            self._settle(spend=False)

    def spend(self) -> bool:
        """Return whether a retry may be made, and if so take it out; yes, if the store does not answer.

        A retry too many does less harm than a task that is given up because of a failed call.
        """
        return self._settle(spend=True)

    def _settle(self, *, spend: bool) -> bool:
        with self._lock:
            deposited, self._first_attempts = self._first_attempts, 0
        granted = False

        def change(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal granted
            budget = self._budget.at(values.get("balance", self._budget.balance))
            budget.deposit(deposited)
            granted = spend and budget.spend()
            return {"balance": budget.balance}

        try:
            if change_record(self._store, self._queue, RETRIES, change):
                return granted
        except StoreError:
            logger.warning("retry budget of queue %r was not reached", self._queue, exc_info=True)
        with self._lock:
            self._first_attempts += deposited
        return True
