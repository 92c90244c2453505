"""The store in this process's memory: for tests, trials and simulations."""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from freshq.stores.base import ConflictError, Guard, Stats
from freshq.tally import tally
from freshq.task import Task, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.errors import FreshqError
    from freshq.stores.base import ClaimRequest


class MemoryStore:
    """Tasks in a dictionary, with the claimable ones of each level kept sorted by creation time."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._claimable: defaultdict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
        # When to look at which task again; an entry may be out of date, the task itself decides.
        self._agenda: list[tuple[float, str]] = []
        self._paused: set[str] = set()

    def create_table(self) -> None:
        """Do nothing: there is nothing to make."""

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add the tasks whose ids are free."""
        with self._lock:
            return [self._insert(task) for task in tasks]

    def _insert(self, task: Task) -> bool:
        if task.task_id in self._tasks:
            return False
        self._store(task)
        return True

    def _store(self, task: Task) -> None:
        self._forget(task.task_id)
        self._tasks[task.task_id] = task
        if task.status is TaskStatus.PENDING and not task.delayed:
            insort(self._claimable[task.queue, task.priority], (task.created, task.task_id))
        for moment in (task.lease_until, task.not_before, float(task.expires)):
            if moment is not None:
                heapq.heappush(self._agenda, (moment, task.task_id))

    def _forget(self, task_id: str) -> None:
        task = self._tasks.pop(task_id, None)
        if task is not None and task.status is TaskStatus.PENDING and not task.delayed:
            level = self._claimable[task.queue, task.priority]
            del level[bisect_left(level, (task.created, task_id))]

    def claim(self, request: ClaimRequest) -> list[Task]:
        """Take up to `request.limit` claimable tasks, best first."""
        with self._lock:
            candidates = (self._tasks[task_id] for task_id in self._candidates(request))
            live = (task for task in candidates if task.deadline > request.now)
            chosen = list(islice(live, request.limit))
            return [
                self._take(task, token, request) for task, token in zip(chosen, request.tokens, strict=False)
            ]

    def _candidates(self, request: ClaimRequest) -> Iterator[str]:
        levels = sorted((level for queue, level in self._claimable if queue == request.queue), reverse=True)
        for level in levels:
            waiting = self._claimable[request.queue, level]
            first = bisect_right(waiting, (request.created_after, chr(0x10FFFF)))
            fresh = range(first, len(waiting))
            for index in reversed(fresh) if request.order.newest_first else fresh:
                yield waiting[index][1]

    def _take(self, task: Task, token: str, request: ClaimRequest) -> Task:
        taken = replace(
            task,
            status=TaskStatus.TAKEN,
            updated=request.now,
            attempts=task.attempts + 1,
            lease_token=token,
            lease_until=request.lease_until,
            expires=request.expires,
            request_token=token,
        )
        self._store(taken)
        return replace(taken, payload=deepcopy(taken.payload))

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task if the guard holds."""
        with self._lock:
            current = self._tasks.get(task.task_id)
            if current is None or not guard.admits(current):
                raise ConflictError(current)
            self._store(replace(task, payload=current.payload, group=current.group, queue=current.queue))
            return task

    def due(self, queue: str, now: float) -> list[Task]:
        """Return the tasks whose lease ran out or whose delay is over; drop those past retention."""
        with self._lock:
            ready: dict[str, Task] = {}
            while self._agenda and self._agenda[0][0] <= now:
                task = self._tasks.get(heapq.heappop(self._agenda)[1])
                if task is None:
                    continue
                if _is_due(task, now):
                    ready[task.task_id] = task
                elif task.expires <= now:
                    self._forget(task.task_id)
            for task in ready.values():  # due until it is changed, which makes a new entry
                heapq.heappush(self._agenda, (now, task.task_id))
            return [task for task in ready.values() if task.queue == queue]

    def get(self, task_id: str) -> Task | None:
        """Return a task by its id."""
        with self._lock:
            return self._tasks.get(task_id)

    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        """Yield the tasks of the queue by id."""
        with self._lock:
            tasks = sorted(
                (task for task in self._tasks.values() if task.queue == queue), key=lambda t: t.task_id
            )
        return (task for task in tasks if start_after is None or task.task_id > start_after)

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:  # noqa: ARG002 - exact here
        """Return exact counts: here they cost nothing."""
        return tally(self.scan(queue), now)

    def purge(self, queue: str) -> int:
        """Delete every task of the queue."""
        with self._lock:
            doomed = [task.task_id for task in self._tasks.values() if task.queue == queue]
            for task_id in doomed:
                self._forget(task_id)
            return len(doomed)

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended."""
        return queue in self._paused

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""
        (self._paused.add if paused else self._paused.discard)(queue)

    def close(self) -> None:
        """Do nothing: nothing is held outside this process."""


def _is_due(task: Task, now: float) -> bool:
    if task.status is TaskStatus.TAKEN:
        return task.lease_until is not None and task.lease_until <= now
    return task.delayed and task.not_before is not None and task.not_before <= now
