"""Limits on the starts of tasks, of one worker or of all workers of a queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from freshq.policy.limits import TokenBucket
from freshq.queue.core import core_of
from freshq.queue.shared.limits import SharedRetries, SharedSlots, SharedTokens

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue
    from freshq.worker.options import WorkerConfig


class StartLimits:
    """The limits of a worker. Checked before every claim, so that a claimed task starts immediately.

    The claim loop calls `available`, `started` and `seconds_to_wait`; any thread may call the others.

    Attributes:
        awaits_token: Whether only the rate prevented a start at the last `available`.
    """

    def __init__(self, queue: BaseQueue, config: WorkerConfig) -> None:
        """Prepare the limits that the options set.

        Args:
            queue: Its store keeps the shared limits.
            config: The options.
        """
        store, name = core_of(queue).store, queue.name
        self.awaits_token = False
        self._queue = queue
        self._concurrency = config.concurrency
        self._bucket = self._slots = self._tokens = self._retries = None
        if config.rate_per_second is not None:
            burst = max(1, round(config.rate_per_second))
            self._bucket = TokenBucket(config.rate_per_second, burst, time.monotonic())
        if config.limit is not None:
            self._slots = SharedSlots(store, name, config.limit, config.concurrency)
        if config.shared_bucket is not None:
            self._tokens = SharedTokens(store, name, config.shared_bucket)
        if config.retry_budget is not None:
            self._retries = SharedRetries(store, name, config.retry_budget)

    def available(self, in_flight: int) -> int:
        """Return how many tasks may start now.

        Args:
            in_flight: Tasks that this worker runs.

        Raises:
            StoreError: If the store did not answer a request for shared slots or tokens.
        """
        slots = self._concurrency - in_flight
        if self._slots is not None:
            slots = min(slots, self._slots.free(in_flight, self._queue.admin.now()))
        tokens = slots
        if self._bucket is not None:
            tokens = min(tokens, self._bucket.available(time.monotonic()))
        if self._tokens is not None and tokens > 0:
            tokens = self._tokens.available(self._queue.admin.now(), tokens)
        self.awaits_token = slots > 0 and tokens <= 0
        return tokens

    def started(self) -> None:
        """Count one start against the limits."""
        if self._slots is not None:
            self._slots.started()
        if self._bucket is not None:
            self._bucket.take(1)
        if self._tokens is not None:
            self._tokens.take(1)

    def seconds_to_wait(self, in_flight: int, poll_seconds: float) -> float:
        """Return how long to wait for a start: less than `poll_seconds` if only a token is missing."""
        if in_flight >= self._concurrency:
            return poll_seconds
        waits = [poll_seconds]
        if self._bucket is not None:
            waits.append(self._bucket.seconds_until_next())
        if self._tokens is not None:
            waits.append(self._tokens.seconds_until_next(self._queue.admin.now()))
        # 0 means that a token is available, so that the worker waits for tasks.
        return max(0.001, min(seconds for seconds in waits if seconds > 0))

    def first_attempt(self) -> None:
        """Credit the retry budget with a first attempt."""
        if self._retries is not None:
            self._retries.first_attempt()

    def may_retry(self) -> bool:
        """Return whether the retry budget allows a retry, and spend it."""
        return self._retries is None or self._retries.spend()

    def ended(self, *, downstream_ok: bool) -> None:
        """Adapt the concurrency limit to the end of a run.

        Args:
            downstream_ok: False if the downstream pushed back: busy, timed out or failed.
        """
        if self._slots is None:
            return
        if downstream_ok:
            self._slots.succeeded()
        else:
            self._slots.pushed_back()

    def leave(self) -> None:
        """Return the shared slots."""
        if self._slots is not None:
            self._slots.leave(self._queue.admin.now())
