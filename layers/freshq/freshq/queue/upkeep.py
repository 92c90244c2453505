"""Bring in due tasks and tidy up, in bounded portions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.queue.shared.measures import change_record
from freshq.stores.base import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.stores.base import Store

# Maximum number of tasks that a claim brings in.
SMALL_PORTION: Final = 25
# Maximum number of tasks that the sweep and background upkeep bring in at a time.
LARGE_PORTION: Final = 1000
# Longest pause between two portions of one run.
MAX_PAUSE_SECONDS: Final = 0.1
# A worker relies on its reading of the next due time for this long. A task that another process delays may
# start that much late; in exchange, claims within milliseconds of each other save three reads each.
RELY_SECONDS: Final = 0.05
# Checks for due tasks per lease, even while every claim finds enough tasks.
LOOKS_PER_LEASE: Final = 4
RECORD: Final = "upkeep"
# If the process that does the upkeep dies, another process takes over after this time.
LEASE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Portion:
    """The result of a portion of upkeep.

    Attributes:
        moved: How many expired leases and due tasks it returned to their lines, or made dead letters.
        more: Whether more is left to do that another call can do immediately.
    """

    moved: int
    more: bool


class Upkeep:
    """Brings in the due tasks of one queue, and cleans up. Thread-safe.

    Attributes:
        delays: How often this process has delayed a task.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        lifecycle: Callable[[], Lifecycle],
        now: Callable[[], float],
        tell: Callable[[Sequence[Task], float], None],
    ) -> None:
        """Do nothing yet.

        Args:
            store: Home of the tasks.
            queue: Name of the queue.
            lifecycle: Returns the lifecycle that the queue follows now.
            now: Returns the queue's time in seconds.
            tell: Receives, after each portion, the tasks that became dead letters because their last
                lease had expired, and the time.
        """
        self._tell = tell
        self.delays = 0
        self._store = store
        self._queue = queue
        self._lifecycle = lifecycle
        self._now = now
        self._holder = new_token()
        self._busy = new_lock()
        self._holds = False
        self._check_at = 0.0
        self._tally = new_lock()
        self._exhausted = 0
        # When this process last checked for due tasks, and the shortest lease whose end no check has covered
        # yet.
        self._looked_at = -inf
        # Whether the last look left nothing that was due, and until when nothing will be.
        self._caught_up = False
        self._relied_until = -inf
        self._shortest_seconds = self._shortest_until = inf

    def take_exhausted(self) -> int:
        """Return the number of tasks whose last lease expired since the last call: now dead letters."""
        with self._tally:
            exhausted, self._exhausted = self._exhausted, 0
        return exhausted

    def look_is_due(self, lease_seconds: float, now: float) -> bool:
        """Return whether a claim must do its portion first: the last one was a quarter of a lease ago.

        The lease is the shortest that this process gave recently.

        Args:
            lease_seconds: Length of the leases of the claim.
            now: Current time in seconds.
        """
        due = not 0 <= now - self._looked_at < self._shortest_seconds / LOOKS_PER_LEASE
        expired = due and now >= self._shortest_until
        if expired or lease_seconds <= self._shortest_seconds:
            # A slow claim extends its leases: look until twice their length has passed.
            self._shortest_seconds, self._shortest_until = lease_seconds, now + 2 * lease_seconds
        return due

    def delayed(self) -> None:
        """Note that this process delayed a task, which may fall due soon."""
        self.delays += 1
        self._relied_until = -inf

    def rely(self, now: float, next_due: float | None, delays: int) -> None:
        """Rely on a reading of the next due time, if the last look began at `now` or later and left nothing.

        Args:
            now: Time before the last look, in seconds.
            next_due: When the first task after `now` is due, in seconds; None if there is none.
            delays: The count of `delays` before the reading.
        """
        if self._caught_up and self._looked_at >= now and delays == self.delays:
            self._relied_until = now + RELY_SECONDS if next_due is None else min(now + RELY_SECONDS, next_due)

    def nothing_is_due(self, now: float) -> bool:
        """Return whether the reading that this process relies on rules out due tasks at `now` (seconds)."""
        return self._looked_at <= now < self._relied_until

    def portion(self, limit: int, until: float | None = None) -> Portion:
        """Bring in up to `limit` due tasks, and tidy up to `limit` tasks.

        Args:
            limit: How many of each.
            until: Only tasks due by this time, in seconds; None: by now.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._portion(limit, self._now() if until is None else until, self._store.tidy)

    def portion_in_claim(self) -> Portion:
        """Do the small portion that a claim does, so that a queue without a sweep also works.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._portion(SMALL_PORTION, self._now(), self._store.tidy_in_claim)

    def _portion(self, limit: int, until: float, tidy: Callable[[str, float, int], int]) -> Portion:
        self._looked_at = until
        due = self._store.due(self._queue, until, limit)
        now = self._now()
        changes = [(self._brought_in(task, now), Guard.unchanged(task)) for task in due.tasks]
        stored = self._store.replace_many(changes) if changes else []
        self._store.notifier.changed(self._queue, stored)
        moved = [*filter(None, stored)]
        dead = [task for task in moved if task.status is TaskStatus.FAILURE]
        with self._tally:
            self._exhausted += len(dead)
        tidied = tidy(self._queue, until, limit)
        self._tell(dead, now)
        is_tidy = tidied < limit
        self._caught_up = is_tidy and not due.more
        # If nothing moved, another process is recovering the same tasks, or the index lags: the next call
        # handles the rest.
        return Portion(len(moved), more=not is_tidy or (due.more and bool(moved or not due.tasks)))

    def _brought_in(self, task: Task, now: float) -> Task:
        life = self._lifecycle()
        return (life.recovered if task.status is TaskStatus.TAKEN else life.promoted)(task, now)

    def run(self) -> int:
        """Run portions until no task is left that is due now; return how many tasks moved.

        Tasks that fall due meanwhile are left for the next run, so this one always terminates. It pauses
        after each portion for as long as the portion took, because SQLite has no queue of writers.

        Raises:
            StoreError: If the store did not answer.
        """
        moved, until = 0, self._now()
        while True:
            began = time.monotonic()
            portion = self.portion(LARGE_PORTION, until)
            moved += portion.moved
            if not portion.more:
                return moved
            time.sleep(min(time.monotonic() - began, MAX_PAUSE_SECONDS))

    def run_alone(self) -> Portion:
        """Run one portion, unless another thread or process does the upkeep.

        Raises:
            StoreError: If the store did not answer.
        """
        nothing = Portion(moved=0, more=False)
        if not self._busy.acquire(blocking=False):
            return nothing
        try:
            return self.portion(LARGE_PORTION) if self._has_lease() else nothing
        finally:
            self._busy.release()

    def _has_lease(self) -> bool:
        """Return whether this process does the upkeep; take or renew the lease when due."""
        now = self._now()
        if now >= self._check_at:
            self._take_lease(now)
        return self._holds

    def _take_lease(self, now: float) -> None:
        until = now + LEASE_SECONDS

        def take(values: Mapping[str, Any]) -> dict[str, Any] | None:
            # A lease that ends later than any possible lease comes from a wrong clock.
            held = now < values.get("until", 0.0) <= now + 2 * LEASE_SECONDS
            self._holds = not held or values["holder"] == self._holder
            self._check_at = now + LEASE_SECONDS / 2 if self._holds else min(values["until"], until)
            return {"holder": self._holder, "until": until} if self._holds else None

        if not change_record(self._store, self._queue, RECORD, take):
            self._holds = False
