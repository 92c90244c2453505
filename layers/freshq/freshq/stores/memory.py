"""The store in this process's memory: for tests and trials."""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.lifecycle import new_token
from freshq.model.task import Task, TaskStatus
from freshq.policy.reserve import ReserveSpans
from freshq.policy.shedding import too_late
from freshq.stores.base import ConflictError, Due, Guard, SharedRecord, Stats, Store
from freshq.stores.conflicts import CREATED, DUPLICATE, put_over
from freshq.stores.tally import tally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from freshq.errors import FreshqError
    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.conflicts import OnConflict, PutResult
    from freshq.stores.lines import Line

# Counts are dropped this long after they expire.
EXPIRY_MARGIN_SECONDS: Final = 60
# Entries of finished tasks that one look drops from an agenda: a few milliseconds.
MAX_OUTDATED: Final = 10_000


class MemoryStore(Store):
    """Tasks in a dictionary, with the claimable ones of each line kept sorted by creation time."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._claimable: defaultdict[str, dict[Line, list[tuple[float, str]]]] = defaultdict(dict)
        # By queue, (time, task id): when a lease or a delay ends, and when a retention is over. Entries may
        # be out of date; the task decides.
        self._agenda: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        self._retention: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
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

    def _put_over(self, task: Task, on_conflict: OnConflict) -> str:
        current = self._tasks.get(task.task_id)
        if current is not None and current.queue != task.queue:
            return DUPLICATE
        outcome = CREATED if current is None else put_over(current, task, on_conflict)
        if outcome != DUPLICATE:
            self._store(task)
        return outcome

    def _store(self, task: Task) -> None:
        self._forget(task.task_id)
        self._tasks[task.task_id] = task
        if task.status is TaskStatus.PENDING and not task.delayed:
            line = self._claimable[task.queue].setdefault((task.priority, task.group), [])
            insort(line, (task.created, task.task_id))
        for moment in (task.lease_until, task.not_before):
            if moment is not None:
                heapq.heappush(self._agenda[task.queue], (moment, task.task_id))
        heapq.heappush(self._retention[task.queue], (float(task.expires), task.task_id))

    def _forget(self, task_id: str) -> None:
        task = self._tasks.pop(task_id, None)
        if task is not None and task.status is TaskStatus.PENDING and not task.delayed:
            lines = self._claimable[task.queue]
            line = lines[task.priority, task.group]
            del line[bisect_left(line, (task.created, task_id))]
            if not line:
                del lines[task.priority, task.group]

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        with self._lock:
            moment = request.moment()
            chosen = list(islice(self._candidates(request, moment), request.limit))
            return [
                self._take(task, token, moment) for task, token in zip(chosen, request.tokens, strict=False)
            ]

    def _candidates(self, request: ClaimRequest, moment: ClaimMoment) -> Iterator[Task]:
        lines = self._claimable[request.queue]
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for line_level, group in lines if line_level == level]
            yield from request.turns.interleave(
                level, {group: self._line(request, moment, (level, group)) for group in groups}
            )

    def _line(self, request: ClaimRequest, moment: ClaimMoment, line: Line) -> Iterator[Task]:
        """Yield the claimable tasks of a line, best first; shed those that are too late."""
        live = self._live(request.queue, line, moment.created_after)
        newest_first = request.orders.newest_first(line, moment.now, lambda: live[0][0] if live else None)
        for _created, task_id in reversed(live) if newest_first else live:
            task = self._tasks[task_id]
            reason = too_late(moment.now, task.deadline, moment.deadline_after - moment.now)
            if reason is None:
                yield task
            else:  # its own max age is shorter than the queue's
                shed = replace(task, status=TaskStatus.SHED, shed_reason=reason, updated=moment.now)
                self._store(replace(shed, request_token=new_token()))

    def _live(self, queue: str, line: Line, created_after: float) -> list[tuple[float, str]]:
        """Return (created, task id) of the live tasks of a line, oldest first."""
        waiting = self._claimable[queue].get(line, [])
        return waiting[bisect_right(waiting, (created_after, chr(0x10FFFF))) :]

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
        )
        self._store(taken)
        return replace(taken, payload=deepcopy(taken.payload))

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
            agenda = self._agenda[queue]
            found = self._popped(agenda, queue, now, limit, _is_due)
            more = bool(agenda) and agenda[0][0] <= now
            for task in found:  # due until it changes, which adds a new entry
                heapq.heappush(agenda, (now, task.task_id))
            return Due(found, more)

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        with self._lock:
            over = self._popped(self._retention[queue], queue, now, limit, _is_over)
            for task in over:
                self._forget(task.task_id)
            return len(over)

    def _popped(
        self,
        entries: list[tuple[float, str]],
        queue: str,
        now: float,
        limit: int,
        wanted: Callable[[Task, float], bool],
    ) -> list[Task]:
        """Take entries of the past off a heap; return up to `limit` tasks that are wanted."""
        found: dict[str, Task] = {}
        for _ in range(limit + MAX_OUTDATED):
            if len(found) == limit or not entries or entries[0][0] > now:
                break
            task = self._tasks.get(heapq.heappop(entries)[1])
            if task is not None and task.queue == queue and wanted(task, now):
                found[task.task_id] = task
        return [*found.values()]

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
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        return tally(self.scan(queue), now, ReserveSpans())

    @override
    def purge(self, queue: str) -> int:
        with self._lock:
            doomed = [task.task_id for task in self._tasks.values() if task.queue == queue]
            for task_id in doomed:
                self._forget(task_id)
            return len(doomed)

    @override
    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        with self._lock:
            counts: Counter[str | None] = Counter()
            for line in self._claimable[queue]:
                counts[line[1]] += len(self._live(queue, line, created_after))
            return dict(counts)

    @override
    def oldest_created(self, queue: str, created_after: float) -> float | None:
        with self._lock:
            lines = [self._live(queue, line, created_after) for line in self._claimable[queue]]
            return min((line[0][0] for line in lines if line), default=None)

    @override
    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        with self._lock:
            ranked = sorted(
                (level, created, task_id)
                for level, group in self._claimable[queue]
                if groups is None or group in groups
                for created, task_id in self._live(queue, (level, group), created_after)
            )
            return [self._tasks[task_id] for _level, _created, task_id in ranked[:count]]

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


def _is_over(task: Task, now: float) -> bool:
    return task.expires <= now and not _is_due(task, now)


def _is_due(task: Task, now: float) -> bool:
    if task.status is TaskStatus.TAKEN:
        return task.lease_until is not None and task.lease_until <= now
    return task.delayed and task.not_before is not None and task.not_before <= now
