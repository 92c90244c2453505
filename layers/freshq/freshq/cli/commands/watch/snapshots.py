"""What `freshq watch` knows of a queue, each look bounded in cost whatever the backlog."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.output import fields
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats

AGES_SECONDS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0)
# Waiting tasks counted below each age; beyond it the picture says "at least".
MOST_COUNTED: Final = 2000
# Claims are told from what is held and what is done, over so long.
CLAIM_WINDOW_SECONDS: Final = 10.0
# Dead letters are in no index: each look reads so many tasks of the table, where the last one stopped.
LOOK_TASKS: Final = 500
LOOK_EVERY_SECONDS: Final = 5.0
MOST_DEAD_LETTERS: Final = 50


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment.

    Attributes:
        at: When, in seconds since the epoch.
        queue: Its name.
        paused: Whether claims are suspended.
        stats: Approximate counts by state.
        pressure: Rates, and a new task's chance.
        claimed_per_second: Estimate; None until there is something to compare with.
        backlog: For each age in seconds, how many waiting tasks are younger; up to `MOST_COUNTED`.
        dead_letters: Those that were found, the latest first.
        searched_all: Whether every task was looked at for dead letters by now.
    """

    at: float
    queue: str
    paused: bool
    stats: Stats
    pressure: Pressure
    claimed_per_second: float | None
    backlog: tuple[tuple[float, int], ...]
    dead_letters: tuple[Task, ...]
    searched_all: bool

    def as_json(self) -> dict[str, Any]:
        """Return what JSON tells."""
        return asdict(self) | {
            "backlog": [
                {"younger_than_seconds": None if math.isinf(age) else age, "tasks": tasks}
                for age, tasks in self.backlog
            ],
            "dead_letters": [fields(task, self.at) for task in self.dead_letters],
        }


class DeadLetters:
    """Dead letters, found a part of the table at a time, round and round."""

    def __init__(self, queue: BaseQueue) -> None:
        """Know of none yet."""
        self._queue = queue
        self._found: dict[str, Task] = {}
        self._met: set[str] = set()
        self._cursor: str | None = None
        self._next_look = 0.0
        self.searched_all = False

    def latest(self) -> tuple[Task, ...]:
        """Return those that are known, the latest first, after another look if it is time for one."""
        if self._queue.now() >= self._next_look:
            self._look()
            self._next_look = self._queue.now() + LOOK_EVERY_SECONDS
        ranked = sorted(self._found.values(), key=lambda task: task.updated, reverse=True)
        self._found = {task.task_id: task for task in ranked[:MOST_DEAD_LETTERS]}
        return tuple(self._found.values())

    def _look(self) -> None:
        page = self._queue.list(limit=LOOK_TASKS, cursor=self._cursor)
        for task in page:
            self._found.pop(task.task_id, None)
            if task.status is TaskStatus.FAILURE:
                self._found[task.task_id] = task
                self._met.add(task.task_id)
        self._cursor = page.cursor
        if page.cursor is None:
            # Once round: what was not met again is deleted.
            self._found = {task_id: task for task_id, task in self._found.items() if task_id in self._met}
            self._met.clear()
            self.searched_all = True


class Watcher:
    """Looks at a queue again and again."""

    def __init__(self, queue: BaseQueue) -> None:
        """Look at a queue."""
        self._queue = queue
        self._dead_letters = DeadLetters(queue)
        self._taken: deque[tuple[float, int]] = deque()

    def look(self) -> Snapshot:
        """Return the queue as it is now.

        Raises:
            StoreError: If the store did not answer.
        """
        queue = self._queue
        now = queue.now()
        stats = queue.stats(approximate=True)
        pressure = queue.pressure()
        return Snapshot(
            at=now,
            queue=queue.name,
            paused=queue.paused,
            stats=stats,
            pressure=pressure,
            claimed_per_second=self._claimed_per_second(now, stats.taken, pressure.served_per_second),
            backlog=self._backlog(now, stats),
            dead_letters=self._dead_letters.latest(),
            searched_all=self._dead_letters.searched_all,
        )

    def _claimed_per_second(self, now: float, taken: int, served_per_second: float) -> float | None:
        """Return what is done a second, and what more is held than a while ago."""
        self._taken.append((now, taken))
        while now - self._taken[0][0] > CLAIM_WINDOW_SECONDS:
            self._taken.popleft()
        since, taken_then = self._taken[0]
        if now <= since:
            return None
        return max(0.0, served_per_second + (taken - taken_then) / (now - since))

    def _backlog(self, now: float, stats: Stats) -> tuple[tuple[float, int], ...]:
        """Count the waiting tasks below each age, as far as there are any."""
        oldest_seconds = stats.oldest_pending_seconds
        if oldest_seconds is None:
            return ()
        ages = [age for age in AGES_SECONDS if age < oldest_seconds]
        younger = [(age, min(stats.pending, self._younger(now - age))) for age in ages]
        last = next((age for age in AGES_SECONDS if age >= oldest_seconds), math.inf)
        return (*younger, (last, stats.pending))

    def _younger(self, created_after: float) -> int:
        return sum(self._queue.store.count_waiting(self._queue.name, created_after, MOST_COUNTED).values())


def bands(backlog: Sequence[tuple[float, int]]) -> list[tuple[float, float, int]]:
    """Return how many tasks wait between two ages, from counts of those below each age."""
    found = []
    below_seconds, below = 0.0, 0
    for age_seconds, younger in backlog:
        found.append((below_seconds, age_seconds, max(0, younger - below)))
        below_seconds, below = age_seconds, max(below, younger)
    return found
