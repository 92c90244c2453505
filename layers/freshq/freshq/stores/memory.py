"""The store in this process's memory: for tests and trials."""

from __future__ import annotations

import heapq
import threading
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList
from typing_extensions import override

from freshq.model.answers import PutOutcome
from freshq.model.lifecycle import claim_times, new_token
from freshq.model.task import Task, TaskStatus
from freshq.stores.base import ConflictError, Due, Guard, SharedRecord, Store
from freshq.stores.conflicts import put_over
from freshq.stores.dead_letters import DeadPlace, place_of
from freshq.stores.memory_counts import StateCounts
from freshq.stores.memory_lines import LAST_ID, QueueLines
from freshq.stores.memory_tasks import copied, due_time, is_due, when_needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq.errors import FreshqError
    from freshq.stores.base import Stats
    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.conflicts import OnConflict, PutResult
    from freshq.stores.lines import Line
    from freshq.stores.memory_lines import WaitingLine
    from freshq.stores.oldest_request import OldestRequest

# Counts are dropped this long after they expire.
EXPIRY_MARGIN_SECONDS: Final = 60
# Ends of leases and delays among which a look finds delayed or held tasks.
COMING_PAGE: Final = 1000
DEAD_PAGE: Final = 100


class MemoryStore(Store):
    """Tasks in a dictionary, with indexes of what to claim, to bring in and to delete."""

    def __init__(self) -> None:
        self.place = object()
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._lines: defaultdict[str, QueueLines] = defaultdict(QueueLines)
        # By queue, (time, task id): when a lease or a delay ends, when a retention is over, when a task died.
        self._agenda: defaultdict[str, SortedList] = defaultdict(SortedList)
        self._retention: defaultdict[str, SortedList] = defaultdict(SortedList)
        self._dead: defaultdict[str, SortedList] = defaultdict(SortedList)
        self._states: defaultdict[str, StateCounts] = defaultdict(StateCounts)
        self._paused: set[str] = set()
        self._records: dict[tuple[str, str], SharedRecord] = {}
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._expiring: list[tuple[int, tuple[str, str]]] = []

    @override
    def create_table(self) -> None:
        pass

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        with self._lock:
            return [self._insert(task) for task in tasks]

    def _insert(self, task: Task) -> bool:
        if task.task_id in self._tasks:
            return False
        self._store(task)
        return True

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        with self._lock:
            return [self._put_over(task, on_conflict) for task in tasks]

    def _put_over(self, task: Task, on_conflict: OnConflict) -> PutOutcome:
        current = self._tasks.get(task.task_id)
        if current is not None and current.queue != task.queue:
            return PutOutcome.DUPLICATE
        outcome = PutOutcome.CREATED if current is None else put_over(current, task, on_conflict)
        if outcome is not PutOutcome.DUPLICATE:
            self._store(task)
        return outcome

    def _store(self, task: Task) -> None:
        self._forget(task.task_id)
        self._tasks[task.task_id] = task
        if task.status is TaskStatus.PENDING and not task.delayed:
            line = self._lines[task.queue].line((task.priority, task.group))
            line.add(task.created, task.task_id, task.deadline)
        due_at = due_time(task)
        if due_at is not None:
            self._agenda[task.queue].add((due_at, task.task_id))
        if task.status is TaskStatus.FAILURE:
            self._dead[task.queue].add(place_of(task))
        self._retention[task.queue].add((task.expires, task.task_id))
        self._states[task.queue].add(task)

    def _forget(self, task_id: str) -> None:
        task = self._tasks.pop(task_id, None)
        if task is None:
            return
        if task.status is TaskStatus.PENDING and not task.delayed:
            self._lines[task.queue].remove((task.priority, task.group), task.created, task_id)
        due_at = due_time(task)
        if due_at is not None:
            self._agenda[task.queue].remove((due_at, task_id))
        if task.status is TaskStatus.FAILURE:
            self._dead[task.queue].remove(place_of(task))
        self._retention[task.queue].remove((task.expires, task_id))
        self._states[task.queue].remove(task)

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        with self._lock:
            moment = request.moment()
            looked_at: list[Line] = []
            chosen = list(islice(self._candidates(request, moment, looked_at), request.limit))
            taken = [
                self._take(self._tasks[task_id], token, moment)
                for task_id, token in zip(chosen, request.tokens, strict=False)
            ]
            for line in looked_at:
                self._lines[request.queue].looked_at(line)
            return taken

    @override
    def peek(self, request: ClaimRequest) -> list[Task]:
        with self._lock:
            chosen = islice(self._candidates(request, request.moment(), []), request.limit)
            return [copied(self._tasks[task_id]) for task_id in chosen]

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.PENDING, limit)

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.TAKEN, limit)

    def _coming(self, queue: str, status: TaskStatus, limit: int) -> list[Task]:
        with self._lock:
            coming = (self._tasks[task_id] for _due_at, task_id in islice(self._agenda[queue], COMING_PAGE))
            found = (task for task in coming if task.status is status)
            return [copied(task) for task in islice(found, limit)]

    def _candidates(self, request: ClaimRequest, moment: ClaimMoment, looked_at: list[Line]) -> Iterator[str]:
        """Yield the ids of claimable tasks, best first; note the lines that were looked at."""

        def candidates(line: Line, waiting: WaitingLine) -> Iterator[str]:
            looked_at.append(line)
            oldest = waiting.waiting(moment.created_after, moment.deadline_after)
            newest_first = request.orders.newest_first(
                line, moment.now, lambda: next((created for created, _id in oldest), None)
            )
            return waiting.claimable(moment, newest_first=newest_first)

        for level, lines in self._lines[request.queue].windows():
            yield from request.turns.interleave(
                level,
                {
                    group: when_needed(partial(candidates, (level, group), line))
                    for group, line in lines.items()
                },
            )

    def _take(self, task: Task, token: str, moment: ClaimMoment) -> Task:
        taken = replace(
            task,
            status=TaskStatus.TAKEN,
            updated=moment.now,
            attempts=task.attempts + 1,
            lease_token=token,
            lease_until=moment.lease_until,
            expires=moment.expires,
            request_token=token,
            **claim_times(task, moment.now),
        )
        self._store(taken)
        return copied(taken)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        with self._lock:
            current = self._tasks.get(task.task_id)
            if current is None or not guard.admits(current):
                raise ConflictError(current)
            self._store(replace(task, payload=current.payload, group=current.group, queue=current.queue))
            return task

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        with self._lock:
            current = self._tasks.get(task.task_id)
            if current is not None and not guard.admits(current):
                raise ConflictError(current)
            self._forget(task.task_id)

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        with self._lock:
            past = self._agenda[queue].irange(maximum=(now, LAST_ID))
            tasks = [self._tasks[task_id] for _due_at, task_id in islice(past, limit + 1)]
            return Due(tasks[:limit], more=len(tasks) > limit)

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        with self._lock:
            past = self._retention[queue].irange(maximum=(now, LAST_ID))
            # What is due is brought in first.
            over = (task_id for _expires, task_id in past if not is_due(self._tasks[task_id], now))
            doomed = list(islice(over, limit))
            for task_id in doomed:
                self._forget(task_id)
            return len(doomed)

    @override
    def get(self, task_id: str) -> Task | None:
        with self._lock:
            return self._tasks.get(task_id)

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        with self._lock:
            tasks = sorted(
                (task for task in self._tasks.values() if task.queue == queue), key=lambda t: t.task_id
            )
        return (task for task in tasks if start_after is None or task.task_id > start_after)

    @override
    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        place = start_after
        while True:
            with self._lock:
                newest = self._dead[queue].irange(maximum=place, inclusive=(True, False), reverse=True)
                page = [self._tasks[task_id] for _dead_at, task_id in islice(newest, DEAD_PAGE)]
            yield from page
            if len(page) < DEAD_PAGE:
                return
            place = place_of(page[-1])

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        with self._lock:
            return self._states[queue].stats(now, created_after)

    @override
    def purge(self, queue: str) -> int:
        with self._lock:
            doomed = [task.task_id for task in self._tasks.values() if task.queue == queue]
            for task_id in doomed:
                self._forget(task_id)
            return len(doomed)

    @override
    def count_waiting(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, int]:
        with self._lock:
            lines = self._lines[queue].few()
            if lines is None:
                return self._states[queue].by_group(now, created_after, at_most)
            counts: Counter[str | None] = Counter()
            for (_level, group), line in lines:
                counts[group] += line.count(created_after, now, at_most)
            return dict(counts)

    @override
    def newest_created(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        with self._lock:
            lines = self._lines[queue].few()
            if lines is None:
                return self._states[queue].newest_by_group(now, created_after, at_most)
            times: defaultdict[str | None, list[float]] = defaultdict(list)
            for (_level, group), line in lines:
                times[group] += islice(line.newest(created_after, now), at_most)
            return dict(times)

    @override
    def oldest_created(self, queue: str, now: float, created_after: float) -> float | None:
        with self._lock:
            lines = self._lines[queue].few()
            if lines is None:
                return self._states[queue].oldest_created(now, created_after)
            oldest = (next(line.waiting(created_after, now), None) for _, line in lines)
            return min((first[0] for first in oldest if first is not None), default=None)

    @override
    def oldest_tasks(self, request: OldestRequest) -> list[Task]:
        with self._lock:
            levels: defaultdict[int, list[Iterator[tuple[float, str]]]] = defaultdict(list)
            for (level, group), line in self._lines[request.queue].all():
                if request.asks(level, group):
                    levels[level].append(line.waiting(request.created_after, request.now))
            ranked = chain.from_iterable(heapq.merge(*levels[level]) for level in sorted(levels))
            return [self._tasks[task_id] for _created, task_id in islice(ranked, request.count)]

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        return self._records.get((queue, name))

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        with self._lock:
            current = self._records.get((queue, name))
            if (None if current is None else current.version) != version:
                return False
            self._records[queue, name] = SharedRecord(deepcopy(dict(values)), new_token())
            return True

    @override
    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        with self._lock:
            self._counts[queue, name].update(counts)
            if expires is not None:
                heapq.heappush(self._expiring, (expires, (queue, name)))
                self._drop_expired(expires)

    def _drop_expired(self, latest: int) -> None:
        """Drop counts that expired well before `latest`, as a TTL would."""
        while self._expiring[0][0] < latest - EXPIRY_MARGIN_SECONDS:
            self._counts.pop(heapq.heappop(self._expiring)[1], None)

    @override
    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        with self._lock:
            return dict(self._counts.get((queue, name), {}))

    @override
    def paused(self, queue: str) -> bool:
        return queue in self._paused

    @override
    def set_paused(self, queue: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)

    @override
    def close(self) -> None:
        pass
