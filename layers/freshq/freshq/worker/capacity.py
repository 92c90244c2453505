"""How many tasks a worker may start now: its own bounds, and those that all workers share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from freshq.model.checks import checked_count, checked_seconds
from freshq.policy.limits import TokenBucket
from freshq.queue.shared.limits import SharedSlots, SharedTokens

if TYPE_CHECKING:
    from freshq.policy.limits import ConcurrencyLimit, SharedBucket
    from freshq.queue.base import BaseQueue


class Capacity:
    """Is asked before every claim, so that no task is taken that cannot be started at once.

    Attributes:
        awaits_token: Whether the rate alone was in the way of a start when it was last asked.
    """

    def __init__(
        self,
        queue: BaseQueue,
        concurrency: int,
        rate_per_second: float | None = None,
        limit: ConcurrencyLimit | None = None,
        bucket: SharedBucket | None = None,
    ) -> None:
        """Prepare the bounds.

        Args:
            queue: Its store has what the workers share.
            concurrency: Tasks of this worker in work at a time.
            rate_per_second: Tasks that this worker starts a second; None for no limit.
            limit: Tasks of all workers in work at a time; None for no limit.
            bucket: Tasks that all workers start a second; None for no limit.

        Raises:
            ValueError: If an argument is wrong.
        """
        self.awaits_token = False
        self._queue = queue
        self._concurrency = checked_count("concurrency", concurrency)
        self._bucket = None
        if rate_per_second is not None:
            checked_seconds("rate_per_second", rate_per_second, above_zero=True)
            self._bucket = TokenBucket(rate_per_second, max(1, round(rate_per_second)), time.monotonic())
        self._slots = None if limit is None else SharedSlots(queue.store, queue.name, limit, concurrency)
        self._tokens = None if bucket is None else SharedTokens(queue.store, queue.name, bucket)

    def available(self, in_flight: int) -> int:
        """Return how many tasks may be started now.

        Args:
            in_flight: Tasks of this worker in work.

        Raises:
            StoreError: If the store did not answer when it was asked for what is shared.
        """
        slots = self._concurrency - in_flight
        if self._slots is not None:
            slots = min(slots, self._slots.free(in_flight, self._queue.now()))
        tokens = slots
        if self._bucket is not None:
            tokens = min(tokens, self._bucket.available(time.monotonic()))
        if self._tokens is not None and tokens > 0:
            tokens = self._tokens.available(self._queue.now(), tokens)
        self.awaits_token = slots > 0 and tokens <= 0
        return tokens

    def started(self) -> None:
        """Take note that a task was started."""
        if self._bucket is not None:
            self._bucket.take(1)
        if self._tokens is not None:
            self._tokens.take(1)

    def ended(self, *, well: bool) -> None:
        """Take note of what the downstream said to a task: done, or busy, timed out or failed."""
        if self._slots is None:
            return
        if well:
            self._slots.succeeded()
        else:
            self._slots.pushed_back()

    def pause_seconds(self, in_flight: int, at_most: float) -> float:
        """Return how long to wait for capacity: less than `at_most` while a token is all that is missing."""
        if in_flight >= self._concurrency:
            return at_most
        waits = [at_most]
        if self._bucket is not None:
            waits.append(self._bucket.seconds_until_next())
        if self._tokens is not None and (seconds := self._tokens.seconds_until_next(self._queue.now())):
            waits.append(seconds)
        return max(0.001, min(waits))

    def leave(self) -> None:
        """Give back what is shared."""
        if self._slots is not None:
            self._slots.leave(self._queue.now())
