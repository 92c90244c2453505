"""Snapshots of a queue for `freshq watch`. Each has a bounded cost, whatever the backlog."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.facts import fields
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats

AGES_SECONDS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0)
# Most waiting tasks that are counted below each age; the frame marks higher counts as "at least".
MAX_COUNTED: Final = 2000
# Window for estimating the claim rate.
CLAIM_WINDOW_SECONDS: Final = 10.0
# Tasks are read this often, and this many: a frame has no room for more. Progress changes no faster.
TASKS_EVERY_SECONDS: Final = 5.0
MAX_DEAD_LETTERS: Final = 50
MAX_HELD: Final = 50


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment.

    Attributes:
        at: Time in seconds since the epoch.
        queue: Name of the queue.
        paused: Whether claims are suspended.
        stats: Approximate counts by state.
        pressure: Rates, and the chance of a new task to be served in time.
        claimed_per_second: Estimated claim rate; None in the first snapshot.
        backlog: Pairs of an age in seconds and the number of waiting tasks younger than that, up to
            `MAX_COUNTED`.
        dead_letters: The last to die, the latest first.
        in_work: Tasks in work that reported progress, of those whose leases end first.
    """

    at: float
    queue: str
    paused: bool
    stats: Stats
    pressure: Pressure
    claimed_per_second: float | None
    backlog: tuple[tuple[float, int], ...]
    dead_letters: tuple[Task, ...]
    in_work: tuple[Task, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON has it."""
        return asdict(self) | {
            "backlog": [
                {"younger_than_seconds": None if math.isinf(age) else age, "tasks": tasks}
                for age, tasks in self.backlog
            ],
            "dead_letters": [fields(task, self.at) for task in self.dead_letters],
            "in_work": [fields(task, self.at) for task in self.in_work],
        }


class Watcher:
    """Takes snapshots of a queue."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._dead_letters: tuple[Task, ...] = ()
        self._in_work: tuple[Task, ...] = ()
        self._next_read = float("-inf")
        self._taken: deque[tuple[float, int]] = deque()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the queue.

        Raises:
            StoreError: If the store did not answer.
        """
        queue = self._queue
        now = queue.now()
        stats = queue.stats(approximate=True)
        pressure = queue.pressure()
        self._read_tasks(now)
        return Snapshot(
            at=now,
            queue=queue.name,
            paused=queue.paused,
            stats=stats,
            pressure=pressure,
            claimed_per_second=self._claimed_per_second(now, stats.taken, pressure.served_per_second),
            backlog=self._backlog(now, stats),
            dead_letters=self._dead_letters,
            in_work=self._in_work,
        )

    def _read_tasks(self, now: float) -> None:
        """Read the tasks that a frame shows, unless that was done a few seconds ago."""
        if now < self._next_read:
            return
        self._dead_letters = self._queue.list(TaskStatus.FAILURE, MAX_DEAD_LETTERS).tasks
        held = self._queue.store.leased(self._queue.name, MAX_HELD)
        self._in_work = tuple(task for task in held if task.progress_fraction is not None)
        self._next_read = now + TASKS_EVERY_SECONDS

    def _claimed_per_second(self, now: float, taken: int, served_per_second: float) -> float | None:
        """Return the rate of settled tasks plus the growth rate of the tasks held."""
        self._taken.append((now, taken))
        while now - self._taken[0][0] > CLAIM_WINDOW_SECONDS:
            self._taken.popleft()
        since, taken_then = self._taken[0]
        if now <= since:
            return None
        return max(0.0, served_per_second + (taken - taken_then) / (now - since))

    def _backlog(self, now: float, stats: Stats) -> tuple[tuple[float, int], ...]:
        """Count the waiting tasks below each age, up to that of the oldest."""
        oldest_seconds = stats.oldest_pending_seconds
        if oldest_seconds is None:
            return ()
        ages = [age for age in AGES_SECONDS if age < oldest_seconds]
        younger = [(age, min(stats.pending, self._younger(now, now - age))) for age in ages]
        last = next((age for age in AGES_SECONDS if age >= oldest_seconds), math.inf)
        return (*younger, (last, stats.pending))

    def _younger(self, now: float, created_after: float) -> int:
        store, name = self._queue.store, self._queue.name
        return sum(store.count_waiting(name, now, created_after, MAX_COUNTED).values())


def bands(backlog: Sequence[tuple[float, int]]) -> list[tuple[float, float, int]]:
    """Return the number of tasks in each age band as (from, to, tasks), from the counts below each age."""
    counts = []
    below_seconds, below = 0.0, 0
    for age_seconds, younger in backlog:
        counts.append((below_seconds, age_seconds, max(0, younger - below)))
        below_seconds, below = age_seconds, max(below, younger)
    return counts
