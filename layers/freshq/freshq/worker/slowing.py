"""Slow down while every run fails, and tell the log, the observer and other processes."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from math import inf
from typing import TYPE_CHECKING

from freshq.errors import StoreError
from freshq.policy.breaker import Breaker, BreakerChange, BreakerState
from freshq.queue.core import core_of
from freshq.queue.gauges import share_breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.worker.report import Observer

logger = logging.getLogger(__name__)


class RunBreaker:
    """The breaker of one worker. Thread-safe.

    With a max age there is none: there the deadline limits what a task may cost, and a pause would let fresh
    tasks go stale.
    """

    def __init__(self, queue: BaseQueue) -> None:
        """Begin closed.

        Args:
            queue: The queue of the worker.
        """
        self._queue = queue
        self._breaker = Breaker(core_of(queue).uniform)
        self._lock = threading.Lock()
        self._worker = f"{queue.admin.config.worker_name}-{uuid.uuid4().hex[:8]}"
        # The state to share with other processes, by the monotonic clock, and whether it was shared.
        self._next_probe_at: float | None = None
        self._is_shared = True

    @property
    def slows(self) -> bool:
        """Whether the worker has slowed down."""
        return self._breaker.state is not BreakerState.CLOSED and self._applies

    @property
    def _applies(self) -> bool:
        return self._queue.admin.config.max_age_seconds is None

    def room(self) -> float:
        """Return how many runs may start now: no limit, one, or none."""
        with self._lock:
            return self._breaker.room(time.monotonic()) if self._applies else inf

    def probe(self, run: Hashable) -> None:
        """Note a run that starts while `room` is one."""
        with self._lock:
            self._breaker.probe(run, time.monotonic())

    def allows(self, run: Hashable) -> bool:
        """Return whether a claimed task may run."""
        with self._lock:
            return self._breaker.allows(run) or not self._applies

    def ended(self, run: Hashable, task: Task | None, observer: Observer, *, succeeded: bool | None) -> None:
        """Note the end of a run, and tell a change.

        Args:
            run: The run.
            task: Its task; None if it found none. The failure of a task that goes stale says nothing about
                the others.
            observer: Receives the change if it has a method `slowed`.
            succeeded: None if the end does not count for other runs.
        """
        if not self._applies or task is None or (task.deadline is not None and not succeeded):
            succeeded = None
        with self._lock:
            change = self._breaker.ended(run, time.monotonic(), succeeded=succeeded)
            if change is not None:
                is_closed = change.state is BreakerState.CLOSED
                self._next_probe_at = None if is_closed else time.monotonic() + change.pause_seconds
                self._is_shared = False
        if change is not None and task is not None:
            _log(change)
            tell: Callable[..., object] | None = getattr(observer, "slowed", None)
            if tell is not None:
                tell(task.queue, opened=change.opened)

    def share(self) -> None:
        """Tell other processes what changed; the next call tries again if the store does not answer."""
        with self._lock:
            if self._is_shared:
                return
            probe_at, self._is_shared = self._next_probe_at, True
        left_seconds = None if probe_at is None else probe_at - time.monotonic()
        try:
            core = core_of(self._queue)
            now = core.now()
            next_probe_at = None if left_seconds is None else now + left_seconds
            share_breaker(core.store, self._queue.name, self._worker, next_probe_at, now)
        except StoreError:
            logger.debug("queue %r: could not share the breaker", self._queue.name, exc_info=True)
            self._is_shared = False


def _log(change: BreakerChange) -> None:
    if change.state is BreakerState.CLOSED:
        logger.info("a run succeeded again after %d failures in a row: works normally", change.failures)
    elif change.opened:
        message = "%d runs failed in a row: one run at a time until one succeeds, the next in %.0f s"
        logger.warning(message, change.failures, change.pause_seconds)
    else:
        logger.info("%d runs failed in a row, next run in %.0f s", change.failures, change.pause_seconds)
