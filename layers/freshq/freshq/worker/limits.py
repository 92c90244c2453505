"""The limits of a worker: how many tasks may start, and a slower pace while every run fails."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from freshq.errors import StoreError
from freshq.policy.breaker import Breaker, BreakerChange, BreakerState
from freshq.policy.limits import TokenBucket
from freshq.policy.value import DEFAULT_COST
from freshq.queue.core import core_of
from freshq.queue.gauges import share_breaker
from freshq.queue.shared.limits import LAST_COST_WEIGHT, OF_QUEUE, SharedRetries, SharedSlots, SharedTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.worker.options import WorkerConfig
    from freshq.worker.report import Observer

logger = logging.getLogger(__name__)


class RunBreaker:
    """The breaker of one worker. Thread-safe.

    It never slows a queue with a max age: there the deadline limits what a task may cost, and a pause would
    let fresh tasks go stale.
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
        """Note the end of a run; log a change of the breaker, and tell the observer.

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
        """Tell other processes about a change; if the store does not answer, the next call tries again."""
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


class StartLimits:
    """The limits of a worker. Checked before every claim, so that a claimed task starts immediately.

    The claim loop calls `available`, `admit`, `charge`, `started` and `seconds_to_wait`; any thread may call
    the others.

    Attributes:
        awaits_token: Whether only the rate prevented a start at the last `available`.
        breaker: Slows the worker down while every run fails.
    """

    def __init__(self, queue: BaseQueue, config: WorkerConfig, tasks_per_slot: int = 1) -> None:
        """Prepare the limits that the options set.

        Args:
            queue: Its store keeps the shared limits.
            config: The options.
            tasks_per_slot: Maximum number of tasks that share a slot.
        """
        store, name = core_of(queue).store, queue.name
        self.awaits_token = False
        self.breaker = RunBreaker(queue)
        self._queue = queue
        self._concurrency = config.concurrency
        self._bucket = self._slots = self._tokens = self._retries = None
        if config.rate_per_second is not None:
            burst = max(1, round(config.rate_per_second))
            self._bucket = TokenBucket(config.rate_per_second, burst, time.monotonic())
        if config.limit is not None:
            self._slots = SharedSlots(store, name, config.limit, config.concurrency * tasks_per_slot)
        if config.shared_bucket is not None:
            self._tokens = SharedTokens(store, name, config.shared_bucket, core_of(queue).limits.brakes)
        if config.retry_budget is not None:
            self._retries = SharedRetries(store, name, config.retry_budget)
        self._rates = [rate for rate in (self._bucket, self._tokens) if rate is not None]
        # Mean cost of the last tasks, and what their runs took in addition.
        self._expected_units = DEFAULT_COST
        self._corrections: deque[float] = deque()

    def available(self, in_flight: int, room: int | None = None) -> int:
        """Return the number of tasks that may start now.

        Args:
            in_flight: Tasks that this worker runs.
            room: Number of further tasks that it has room for; None if each takes one of its slots.

        Raises:
            StoreError: If the store did not answer a request for shared slots or tokens.
        """
        slots = self._concurrency - in_flight if room is None else room
        if self._slots is not None:
            slots = min(slots, self._slots.free(in_flight, self._queue.admin.now()))
        tasks = slots
        self._correct()
        if self._bucket is not None:
            part = core_of(self._queue).limits.brakes.part(self._queue.admin.now())
            tasks = min(tasks, self._tasks_of(self._bucket.available(time.monotonic(), part)))
        if self._tokens is not None and tasks > 0:
            wanted = max(1, round(tasks * self._expected_units))
            units = self._tokens.available(self._queue.admin.now(), wanted)
            if units and self._expected_units > 1:  # dear tasks are charged to the bucket
                units += max(0, int(self._tokens.beyond))
            tasks = min(tasks, self._tasks_of(units))
        self.awaits_token = slots > 0 and tasks <= 0
        return tasks

    def _tasks_of(self, units: int) -> int:
        """Return how many tasks of the expected cost may start with some units: one, if there is any."""
        return max(1, int(units / self._expected_units)) if units else 0

    def admit(self, tasks: Sequence[Task]) -> int:
        """Charge the costs of claimed tasks to the rates, and return for how many of them they leave room."""
        if not self._rates:
            return len(tasks)
        costs = [task.units for task in tasks]
        for cost in costs:
            self._expected_units += LAST_COST_WEIGHT * (cost - self._expected_units)
        for place, rate in enumerate(self._rates):
            room = rate.take(*costs)
            for earlier in self._rates[:place]:
                earlier.correct(-sum(costs[room:]))
            costs = costs[:room]
        return len(costs)

    def charge(self, task: Task) -> None:
        """Charge the cost of a task that runs already: as a debt, if the rates leave no room for it."""
        if not self.admit([task]):
            self._corrections.append(task.units)

    def note_units(self, tasks: Iterable[Task]) -> None:
        """Note the units that the runs of tasks took, if they said so."""
        if self._rates:
            taken = [(task.units_taken, task.units) for task in tasks]
            self._corrections += [took - units for took, units in taken if took is not None]

    def _correct(self) -> None:
        """Charge what runs took beyond, or less than, the costs of their tasks."""
        while self._corrections:
            units = self._corrections.popleft()
            for rate in self._rates:
                rate.correct(units)

    def started(self) -> None:
        """Count one start against the limit of running tasks."""
        if self._slots is not None:
            self._slots.started()

    def seconds_to_wait(self, in_flight: int, poll_seconds: float) -> float:
        """Return the time to wait for a start: less than `poll_seconds` if only a token is missing."""
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

    def slow_down(self, task: Task, retry_after_seconds: float) -> None:
        """Lower the rate that a task counts towards, for all workers, because the downstream pushed back.

        This is the rate of its kind, or else of its group or of the nearest ancestor of the group that has a
        rate, or else of the queue.

        Args:
            task: The task that met the push-back.
            retry_after_seconds: How long the downstream takes no requests.
        """
        core = core_of(self._queue)
        name = core.rules.config.groups.rated(task.group, task.kind)
        if name is None and self._bucket is None and self._tokens is None:
            return
        try:
            core.limits.brakes.lower(OF_QUEUE if name is None else name, core.now(), retry_after_seconds)
        except StoreError:
            logger.warning("queue %r: could not share the push-back", self._queue.name, exc_info=True)

    def leave(self) -> None:
        """Return the shared slots, and charge what runs took."""
        self._correct()
        if self._slots is not None:
            self._slots.leave(self._queue.admin.now())
        if self._tokens is not None:
            self._tokens.leave()
