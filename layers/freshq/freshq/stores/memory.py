"""Store tasks in the memory of this process."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from copy import deepcopy
from itertools import filterfalse, groupby, islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

from sortedcontainers import SortedDict, SortedList
from typing_extensions import override

from freshq.errors import RefusedError
from freshq.model.answers import PutOutcome
from freshq.model.forks import new_rlock
from freshq.model.lifecycle import claimed, new_token, put_over
from freshq.model.task import LIVE, Task, TaskStatus, changed
from freshq.policy.groups import RunningCounts
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.stores.base import (
    NO_VALUES,
    Conflict,
    DeadLetters,
    DeadPlace,
    Due,
    Guard,
    SharedRecord,
    Stats,
    Store,
    place_of,
)
from freshq.stores.lines import ALL_LINES, END, Head, LimitedLines, Stored, line_key, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from freshq.errors import FreshqError
    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.base import OnConflict, PutResult
    from freshq.stores.lines import Choice, ClaimRequest, LineReader, Range, Times, WaitingReader

T = TypeVar("T")

# Deadline, task id, creation time, group.
_CountedEntry: TypeAlias = tuple[float, str, float, str | None]
# Tasks looked at for the oldest and the newest one, and for groups beyond the requested ones.
LOOKED_TASKS: Final = 1_000
# Tasks of a chunk: small enough to be read whole in microseconds, large enough for a million tasks.
CHUNK_TASKS: Final = 256
# Chunks without a claimable task that one claim reads in a line: their tasks are within the reserve.
MAX_FRUITLESS: Final = 64
# Chunks of stale tasks whose memory one claim frees, within tens of microseconds.
FREED_CHUNKS: Final = 1
# Comes after every task id.
LAST_ID: Final = chr(0x10FFFF)
# Creation time, task id, deadline.
_Entry: TypeAlias = tuple[float, str, float]
# Counts are dropped this long after they expire.
EXPIRY_MARGIN_SECONDS: Final = 60
# Number of ends of leases and delays that a look for delayed or held tasks searches.
COMING_PAGE: Final = 1000
DEAD_PAGE: Final = 100


def copied(task: Task) -> Task:
    """Return a copy of a task with a payload that the caller may change."""
    return changed(task, payload=deepcopy(task.payload))


def is_due(task: Task, now: float) -> bool:
    """Return whether the lease or the delay of a task has ended."""
    due_at = task.lease_until if task.status is TaskStatus.TAKEN else task.not_before
    return task.status in LIVE and due_at is not None and due_at <= now


class StateCounts:
    """The tasks of one queue by state, which `MemoryQueue` keeps up to date.

    Attributes:
        statuses: How many tasks have each stored status.
        in_line: The tasks in lines, stale or not, by deadline.
        in_line_since: When the same tasks were created.
        delayed: The delayed tasks, by deadline.
    """

    def __init__(self) -> None:
        self.statuses: Counter[TaskStatus] = Counter()
        self.in_line: SortedList = SortedList()
        self.in_line_since: SortedList = SortedList()
        self.delayed: SortedList = SortedList()

    def newest_by_group(
        self, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        """Return the creation times of the claimable tasks by group.

        These are the `at_most` tasks with the latest deadlines, and a few more.
        """
        times: defaultdict[str | None, list[float]] = defaultdict(list)
        for _deadline, _id, created, group in islice(self._live(now, reverse=True), at_most + LOOKED_TASKS):
            if created > created_after:
                times[group].append(created)
        return dict(times)

    def oldest_created(self, now: float, created_after: float) -> float | None:
        """Return when the oldest of the first tasks to become stale was created; None if there is none."""
        return min(self._created(now, created_after, reverse=False), default=None)

    def first_to_expire(self, now: float, created_after: float) -> list[_CountedEntry]:
        """Return the claimable tasks with the nearest deadlines."""
        first = islice(self._live(now, reverse=False), FIRST_TO_EXPIRE)
        return [entry for entry in first if entry[2] > created_after]

    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        """Return when the first claimable tasks to become stale were created, of those stale at `until`."""
        nearest = self.first_to_expire(now, created_after)
        return [created for deadline, _id, created, _group in nearest if deadline <= until]

    def count_stale(self, since: float, now: float) -> int:
        """Count the tasks in the lines whose deadline has passed since a time."""
        stale: int = self.in_line.bisect_right((now, LAST_ID)) - self.in_line.bisect_right((since, LAST_ID))
        return stale

    def stats(self, now: float, created_after: float) -> Stats:
        """Return the counts; ages of the oldest and newest task are bounds if there are many.

        Pending tasks are those before their deadline, or those younger than the queue's max age, if they are
        fewer.
        """
        young = len(self.in_line_since) - self.in_line_since.bisect_right(created_after)
        pending = min(self._live_count(self.in_line, now), young)
        delayed = self._live_count(self.delayed, now)
        counts = self.statuses
        oldest = self.oldest_created(now, created_after)
        newest = max(self._created(now, created_after, reverse=True), default=None)
        bounded = {"shed_by_reason": "not counted", **NO_VALUES}
        if pending > LOOKED_TASKS:
            bounded |= {"oldest_pending_seconds": "at least", "newest_pending_seconds": "at most"}
        return Stats(
            pending=pending,
            delayed=delayed,
            taken=counts[TaskStatus.TAKEN],
            success=counts[TaskStatus.SUCCESS],
            failure=counts[TaskStatus.FAILURE],
            cancelled=counts[TaskStatus.CANCELLED],
            shed=counts[TaskStatus.SHED] + counts[TaskStatus.PENDING] - pending - delayed,
            oldest_pending_seconds=None if oldest is None else max(0.0, now - oldest),
            newest_pending_seconds=None if newest is None else max(0.0, now - newest),
            bounded=bounded,
        )

    def _created(self, now: float, created_after: float, *, reverse: bool) -> Iterator[float]:
        some = islice(self._live(now, reverse=reverse), LOOKED_TASKS)
        return (created for _deadline, _id, created, _group in some if created > created_after)

    def _live(self, now: float, *, reverse: bool) -> Iterator[_CountedEntry]:
        """Yield the claimable tasks, the first to become stale first, or last."""
        live: Iterator[_CountedEntry] = self.in_line.irange(minimum=(now, LAST_ID), reverse=reverse)
        return live

    @staticmethod
    def _live_count(tasks: SortedList, now: float) -> int:
        stale: int = tasks.bisect_right((now, LAST_ID))
        return len(tasks) - stale


class _Chunk:
    """Consecutive tasks of a line, with bounds of their deadlines."""

    __slots__ = ("earliest", "entries", "latest")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        deadlines = [deadline for _created, _id, deadline in entries]
        self.earliest = min(deadlines, default=inf)
        self.latest = max(deadlines, default=-inf)

    def insert(self, entry: _Entry) -> None:
        self.entries.insert(bisect_left(self.entries, entry), entry)
        self.earliest = min(self.earliest, entry[2])
        self.latest = max(self.latest, entry[2])


class WaitingLine:
    """The claimable tasks of one line, by creation time, in chunks.

    It is not a `SortedList`, because each of these chunks knows when its last task goes stale: a claim
    passes, or drops, a whole chunk of stale tasks in one step. A `SortedList` does not expose its chunks.
    """

    __slots__ = ("_chunks", "_dropped", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        # For each chunk a key that none of its tasks precedes; the first chunk takes all earlier tasks.
        self._firsts: list[tuple[float, str]] = []
        # Chunks of stale tasks that are no longer in the line. Their memory is freed in portions.
        self._dropped: list[_Chunk] = []

    def __bool__(self) -> bool:
        """Return whether any task is in the line, stale or not."""
        return bool(self._chunks)

    def _index(self, created: float, task_id: str) -> int:
        """Return the place of the chunk for a task."""
        return max(0, bisect_right(self._firsts, (created, task_id)) - 1)

    def _insert(self, index: int, entries: list[_Entry]) -> None:
        self._chunks.insert(index, _Chunk(entries))
        self._firsts.insert(index, entries[0][:2])

    def add(self, created: float, task_id: str, deadline: float) -> None:
        """Add a task."""
        entry = (created, task_id, deadline)
        if not self._chunks:
            self._insert(0, [entry])
            return
        index = self._index(created, task_id)
        chunk = self._chunks[index]
        if len(chunk.entries) < CHUNK_TASKS:
            chunk.insert(entry)
        elif entry > chunk.entries[-1]:
            self._insert(index + 1, [entry])
        else:
            half = CHUNK_TASKS // 2
            self._chunks[index] = _Chunk(chunk.entries[:half])
            self._insert(index + 1, chunk.entries[half:])
            self._chunks[self._index(created, task_id)].insert(entry)

    def remove(self, created: float, task_id: str) -> None:
        """Remove a task, unless it was dropped as stale."""
        if not self._chunks:
            return
        index = self._index(created, task_id)
        entries = self._chunks[index].entries
        place = bisect_left(entries, (created, task_id))
        if place < len(entries) and entries[place][:2] == (created, task_id):
            del entries[place]
            if not entries:
                del self._chunks[index], self._firsts[index]

    def claimable(self, moment: ClaimMoment, *, newest_first: bool) -> Iterator[str]:
        """Yield the ids of the tasks that may be claimed, best first; drop the stale ones on the way.

        The line must not change before the caller is done.
        """
        created_after, deadline_after = moment.created_after, moment.deadline_after
        fruitless = 0
        for chunk in self._unstale_chunks(moment, newest_first=newest_first):
            found = False
            if chunk.latest > deadline_after and chunk.entries[-1][0] > created_after:
                for created, task_id, deadline in reversed(chunk.entries) if newest_first else chunk.entries:
                    if deadline > deadline_after and created > created_after:
                        found = True
                        yield task_id
            fruitless += not found
            if fruitless == MAX_FRUITLESS:
                return

    def _unstale_chunks(self, moment: ClaimMoment, *, newest_first: bool) -> Iterator[_Chunk]:
        """Yield the chunks with a task that is not stale; drop the stale tasks on the way."""
        del self._dropped[-FREED_CHUNKS:]
        step = -1 if newest_first else 1
        index = len(self._chunks) - 1 if newest_first else 0
        while True:
            index = self._drop_stale_chunks(index, step, moment.now)
            if not newest_first:
                index = max(index, self._index(moment.created_after, LAST_ID))
            if not 0 <= index < len(self._chunks):
                return
            chunk = self._chunks[index]
            if chunk.earliest <= moment.now:
                chunk = _Chunk([entry for entry in chunk.entries if entry[2] > moment.now])
                self._chunks[index] = chunk
            if chunk.entries:
                yield chunk
                index += step

    def _drop_stale_chunks(self, index: int, step: int, now: float) -> int:
        """Drop the chunks from `index` on in which every task is stale; return the place of the next one."""
        chunks, end = self._chunks, index
        while 0 <= end < len(chunks) and chunks[end].latest <= now:
            end += step
        first, last = (index, end) if step == 1 else (end + 1, index + 1)
        if first < last:
            self._dropped += chunks[first:last]
            del chunks[first:last], self._firsts[first:last]
        return first if step == 1 else end

    def waiting(self, created_after: float, deadline_after: float) -> Iterator[tuple[float, str]]:
        """Yield the creation times and ids of the tasks that are not stale, oldest first."""
        for chunk in islice(self._chunks, self._index(created_after, LAST_ID), None):
            if chunk.latest > deadline_after:
                for created, task_id, deadline in chunk.entries:
                    if created > created_after and deadline > deadline_after:
                        yield created, task_id

    def newest(self, created_after: float, deadline_after: float) -> Iterator[float]:
        """Yield the creation times of the tasks that are not stale, newest first."""
        for chunk in reversed(self._chunks):
            if chunk.entries[-1][0] <= created_after:
                return
            if chunk.latest > deadline_after:
                for created, _id, deadline in reversed(chunk.entries):
                    if created > created_after and deadline > deadline_after:
                        yield created

    def count(self, created_after: float, deadline_after: float, at_most: int) -> int:
        """Count the tasks that are not stale, reading little more than `at_most`."""
        total = 0
        for chunk in islice(self._chunks, self._index(created_after, LAST_ID), None):
            if total >= at_most:
                break
            if chunk.earliest > deadline_after and chunk.entries[0][0] > created_after:
                total += len(chunk.entries)
            elif chunk.latest > deadline_after:
                total += sum(
                    created > created_after and deadline > deadline_after
                    for created, _id, deadline in chunk.entries
                )
        return total


# Whether to leave a task out, by its id; None: leave out none.
LeavesOut: TypeAlias = "Callable[[str], bool] | None"


class MemoryQueue:
    """The indexes of the tasks of one queue, which every change of a task keeps up to date.

    Attributes:
        agenda: When leases and delays end, with task ids.
        retention: When retentions end, with task ids.
        dead: When tasks died, with their ids.
        states: The tasks by state.
        running: The running tasks by group.
        starts: By group: times and numbers of the recent starts.
    """

    def __init__(self) -> None:
        # The lines that have tasks, by their keys.
        self._lines: SortedDict = SortedDict()
        self.agenda: SortedList = SortedList()
        self.retention: SortedList = SortedList()
        self.dead: SortedList = SortedList()
        self.states = StateCounts()
        self.running = RunningCounts()
        self.starts: Mapping[str, Any] = {}

    def add(self, task: Task) -> None:
        """Add a task."""
        self._count(task, SortedList.add, 1)
        if task.status is TaskStatus.PENDING and task.not_before is None:
            key = line_key(task.priority, task.group, task.line_class)
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = WaitingLine()
            line.add(task.created, task.task_id, task.stale_at)

    def remove(self, task: Task) -> None:
        """Remove a task; its line may have dropped it as stale."""
        self._count(task, SortedList.remove, -1)
        if task.status is TaskStatus.PENDING and task.not_before is None:
            key = line_key(task.priority, task.group, task.line_class)
            line = self._lines.get(key)
            if line is not None:
                line.remove(task.created, task.task_id)
                if not line:
                    del self._lines[key]

    def _count(self, task: Task, change: Callable[[SortedList, Any], None], number: int) -> None:
        """Add a task to all indexes but its line, or remove it from them: `number` is then negative."""
        status, states = task.status, self.states
        states.statuses[status] += number
        change(self.retention, (task.expires, task.task_id))
        if status is TaskStatus.PENDING:
            entry: _CountedEntry = (task.stale_at, task.task_id, task.created, task.group)
            if task.not_before is None:
                change(states.in_line, entry)
                change(states.in_line_since, task.created)
            else:
                change(states.delayed, entry)
                change(self.agenda, (task.not_before, task.task_id))
        elif status is TaskStatus.TAKEN:
            change(self.agenda, (task.lease_until, task.task_id))
            self.running.add(task.group, number)
        elif status is TaskStatus.FAILURE:
            change(self.dead, place_of(task))

    def claimable(
        self, key: str, moment: ClaimMoment, count: int, leaves_out: LeavesOut = None, *, newest_first: bool
    ) -> list[str]:
        """Return the ids of the best tasks of a line; forget the line if all of its tasks were stale."""
        line: WaitingLine | None = self._lines.get(key)
        if line is None:
            return []
        ids = line.claimable(moment, newest_first=newest_first)
        found = list(islice(ids if leaves_out is None else filterfalse(leaves_out, ids), count))
        if not line:
            del self._lines[key]
        return found

    def between(self, after: str, until: str, *, reverse: bool = False) -> Iterator[str]:
        """Yield the keys between two keys, without these."""
        keys: Iterator[str] = self._lines.irange(after, until, (False, False), reverse=reverse)
        return keys

    def any_in(self, ranges: Sequence[Range]) -> bool:
        """Return whether a line is in one of some ranges."""
        firsts, untils = zip(*ranges, strict=True)
        lines_before = self._lines.bisect_left
        return [*map(lines_before, firsts)] != [*map(lines_before, untils)]

    def line(self, key: str) -> WaitingLine:
        """Return a line, an empty one if it has no task."""
        line: WaitingLine = self._lines.get(key) or WaitingLine()
        return line


STORES: Final[WeakSet[MemoryPart]] = WeakSet()


class MemoryPart(Store):
    """The base of the parts: the tasks, with the indexes that every change of a task keeps up to date."""

    counts_groups = True
    # In a process of a run: the tasks are in the process of the worker, so that nobody would claim a put.
    is_copy = False

    def __init__(self) -> None:
        self.place = object()
        STORES.add(self)
        self._lock = new_rlock()
        self._tasks: dict[str, Task] = {}
        self._queues: defaultdict[str, MemoryQueue] = defaultdict(MemoryQueue)

    def _store(self, task: Task) -> None:
        self._forget(task.task_id)
        self._tasks[task.task_id] = task
        self._queues[task.queue].add(task)

    def _forget(self, task_id: str) -> None:
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._queues[task.queue].remove(task)


class MemoryTasks(MemoryPart):
    """Put, read, change and delete tasks by their ids."""

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        self._refuse_copy()
        with self._lock:
            return [self._insert(task) for task in tasks]

    def _refuse_copy(self) -> None:
        if self.is_copy:
            msg = "a queue in memory is in the process of its worker, and this run in another; use a database"
            raise RefusedError(msg)

    def _insert(self, task: Task) -> bool:
        if task.task_id in self._tasks:
            return False
        self._store(task)
        return True

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        self._refuse_copy()
        with self._lock:
            return [self._put_over(task, on_conflict) for task in tasks]

    def _put_over(self, task: Task, on_conflict: OnConflict) -> PutOutcome:
        current = self._tasks.get(task.task_id)
        if current is not None and current.queue != task.queue:
            return PutOutcome.DUPLICATE
        outcome = PutOutcome.CREATED
        if current is not None:
            outcome, task = put_over(current, task, on_conflict)
        if outcome is not PutOutcome.DUPLICATE:
            self._store(task)
        return outcome

    @override
    def get(self, task_id: str) -> Task | None:
        with self._lock:
            return self._tasks.get(task_id)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        with self._lock:
            current = self._tasks.get(task.task_id)
            if current is None or not guard.admits(current):
                return self.replace_followed(task, guard, current)
            self._store(changed(task, payload=current.payload, group=current.group, queue=current.queue))
            return task

    @override
    def succeed(self, current: Task, ended: Task, entered: Task) -> None:
        with self._lock:
            stored = self._tasks.get(current.task_id)
            if stored is None or not Guard.exact(current).admits(stored):
                raise Conflict(stored)
            self._store(ended)
            self._store(entered)

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        with self._lock:
            current = self._tasks.get(task.task_id)
            if current is not None and not guard.admits(current):
                raise Conflict(current)
            self._forget(task.task_id)

    @override
    def purge(self, queue: str) -> int:
        with self._lock:
            task_ids = [task.task_id for task in self._tasks.values() if task.queue == queue]
            for task_id in task_ids:
                self._forget(task_id)
            return len(task_ids)

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
                newest = self._queues[queue].dead.irange(maximum=place, inclusive=(True, False), reverse=True)
                page = [self._tasks[task_id] for _dead_at, task_id in islice(newest, DEAD_PAGE)]
            yield from page
            if len(page) < DEAD_PAGE:
                return
            place = place_of(page[-1])

    @override
    def count_dead(self, queue: str) -> DeadLetters:
        with self._lock:
            places = self._queues[queue].dead
            return DeadLetters(len(places), more=False, oldest_at=places[0].dead_at if places else None)


class MemoryReader(LimitedLines):
    """Reads and takes from the lines of one queue."""

    def __init__(self, store: MemoryLines, queue: MemoryQueue, token: str | None = None) -> None:
        """Read nothing yet.

        Args:
            store: The store.
            queue: The indexes of the queue.
            token: The token of a claim; None for a look, whose tasks the caller may change.
        """
        self._store = store
        self._queue = queue
        self._token = token

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        with self._store.lock:
            return list(islice(self._queue.between(after, until), count))

    @override
    def last_line(self, until: str) -> str | None:
        with self._store.lock:
            return next(self._queue.between("", until, reverse=True), None)

    @override
    def page(
        self, key: str, moment: ClaimMoment, count: int, looked: int, *, newest_first: bool
    ) -> list[Stored]:
        found = self._claimable(key, moment, count, newest_first=newest_first)
        return [Stored(task if self._token else copied(task), None) for task in found]

    def _claimable(self, key: str, moment: ClaimMoment, count: int, *, newest_first: bool) -> list[Task]:
        def is_left_out(task_id: str) -> bool:
            return any(task.kind in self.full_kinds for task in self._store.tasks([task_id]))

        leaves_out = is_left_out if self.full_kinds else None
        ids = self._queue.claimable(key, moment, count, leaves_out, newest_first=newest_first)
        return self._store.tasks(ids)

    @override
    def heads(self, key: str, moment: ClaimMoment, count: int, *, newest_first: bool) -> list[Head]:
        found = self._claimable(key, moment, count, newest_first=newest_first)
        return [Head(task.task_id, task.created, task.deadline) for task in found]

    @override
    def found(self, heads: Sequence[Head]) -> list[Stored]:
        tasks = self._store.tasks(head.task_id for head in heads)
        return [Stored(task if self._token else copied(task), None) for task in tasks]

    @override
    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        if key == ALL_LINES:
            newest = self._queue.states.newest_by_group(now, created_after, at_most)
            return {group: len(times) for group, times in newest.items()}
        return {parse_line(key).group: self._queue.line(key).count(created_after, now, at_most)}

    @override
    def newest(self, key: str, now: float, created_after: float, count: int) -> Times:
        if key == ALL_LINES:
            return self._queue.states.newest_by_group(now, created_after, count)
        return {parse_line(key).group: [*islice(self._queue.line(key).newest(created_after, now), count)]}

    @override
    def oldest(self, key: str, now: float, created_after: float, count: int) -> Iterator[tuple[float, str]]:
        keys = self.lines("", END, sys.maxsize) if key == ALL_LINES else [key]
        for _level, of_level in groupby(keys, key=itemgetter(0)):
            yield from heapq.merge(*(self._queue.line(key).waiting(created_after, now) for key in of_level))

    @override
    def oldest_created(self, key: str, now: float, created_after: float) -> float | None:
        with self._store.lock:
            if key == ALL_LINES:
                return self._queue.states.oldest_created(now, created_after)
            return next((created for created, _id in self._queue.line(key).waiting(created_after, now)), None)

    @override
    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        with self._store.lock:
            nearest = self._queue.states.first_to_expire(now, created_after)
            if key != ALL_LINES:
                tasks = self._store.tasks(entry[1] for entry in nearest)
                keys = (line_key(task.priority, task.group, task.line_class) for task in tasks)
                nearest = [entry for entry, of in zip(nearest, keys, strict=True) if of == key]
        return [(created, deadline) for deadline, _id, created, _group in nearest]

    @override
    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        with self._store.lock:
            return self._queue.states.expiring(now, created_after, until)

    @override
    def listed(self, task_ids: Sequence[str]) -> list[Task]:
        return self._store.tasks(task_ids)

    @override
    def take(self, found: Sequence[Stored], moment: ClaimMoment) -> list[Stored]:
        tasks = self._store.taken([each.task for each in found], moment, str(self._token))
        return [Stored(task, None) for task in tasks]

    @override
    def running(self, names: Collection[str]) -> dict[str, int]:
        return {name: self._queue.running.of(name, None) for name in names}

    @override
    def running_below(self, name: str, separator: str) -> int:
        return self._queue.running.of(name, separator)

    @override
    def running_by_group(self) -> dict[str, int]:
        return self._queue.running.by_group()

    @override
    def starts(self) -> Mapping[str, Any]:
        return self._queue.starts

    @override
    def keep_starts(self, values: Mapping[str, Any]) -> None:
        self._queue.starts = values


class MemoryLines(MemoryPart):
    """Take tasks from their lines, and count waiting tasks."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of everything in the store; the thread that holds it may take it again."""
        return self._lock

    def tasks(self, ids: Iterable[str]) -> list[Task]:
        """Return tasks that are in the store."""
        return [self._tasks[task_id] for task_id in ids]

    @override
    def line_reader(self, queue: str) -> MemoryReader:
        return MemoryReader(self, self._queues[queue])

    @override
    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        with self._lock:
            queue, moment = self._queues[request.queue], request.moment()
            if choice.unless and queue.any_in(choice.unless):
                return []
            found: list[str] = []
            for key, count in choice.lines.items():
                wanted = min(count, choice.limit - len(found))
                found += queue.claimable(key, moment, wanted, newest_first=choice.newest_first)
                if len(found) == choice.limit:
                    break
            return self.taken([self._tasks[task_id] for task_id in found], moment, request.token)

    def taken(self, tasks: Sequence[Task], moment: ClaimMoment, token: str) -> list[Task]:
        """Store tasks as claimed under a token, and return them with payloads that the caller may change."""
        version = new_token()
        taken = [claimed(task, moment, token, version) for task in tasks]
        for task in taken:
            self._store(task)
        return list(map(copied, taken))

    @override
    def take_locked(self, request: ClaimRequest, work: Callable[[LimitedLines], list[Stored]]) -> list[Task]:
        with self._lock:
            return [
                each.task for each in work(MemoryReader(self, self._queues[request.queue], request.token))
            ]

    @override
    def look(self, request: ClaimRequest, work: Callable[[LineReader[Any]], T]) -> T:
        with self._lock:
            return work(MemoryReader(self, self._queues[request.queue]))

    @override
    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        with self._lock:
            return work(MemoryReader(self, self._queues[queue]))

    @override
    def count_stale(self, queue: str, since: float, now: float, life_seconds: float) -> int:
        with self._lock:
            return self._queues[queue].states.count_stale(since, now)

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        with self._lock:
            return self._queues[queue].states.stats(now, created_after)


class MemoryAgenda(MemoryPart):
    """Find tasks that are due or will be, and delete tasks past their retention."""

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        with self._lock:
            past = self._queues[queue].agenda.irange(maximum=(now, LAST_ID))
            tasks = [self._tasks[task_id] for _due_at, task_id in islice(past, limit + 1)]
            return Due(tasks[:limit], more=len(tasks) > limit)

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        with self._lock:
            coming = self._queues[queue].agenda.irange(minimum=(now, LAST_ID))
            return next((due_at for due_at, _task_id in coming), None)

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.PENDING, limit)

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.TAKEN, limit)

    def _coming(self, queue: str, status: TaskStatus, limit: int) -> list[Task]:
        with self._lock:
            coming = (
                self._tasks[task_id] for _due_at, task_id in islice(self._queues[queue].agenda, COMING_PAGE)
            )
            found = (task for task in coming if task.status is status)
            return [copied(task) for task in islice(found, limit)]

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        with self._lock:
            past = self._queues[queue].retention.irange(maximum=(now, LAST_ID))
            # Due tasks are brought in first.
            over = (task_id for _expires, task_id in past if not is_due(self._tasks[task_id], now))
            to_delete = list(islice(over, limit))
            waited = (self._tasks[task_id] for task_id in to_delete)
            self.expired.note(queue, [task.stale_at for task in waited if task.status is TaskStatus.PENDING])
            for task_id in to_delete:
                self._forget(task_id)
            return len(to_delete)


class MemoryRecords(MemoryPart):
    """Keep shared records, counts and the pause of each queue."""

    def __init__(self) -> None:
        super().__init__()
        self._paused: set[str] = set()
        self._records: dict[tuple[str, str], SharedRecord] = {}
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._expiring: list[tuple[int, tuple[str, str]]] = []

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


class MemoryStore(MemoryTasks, MemoryLines, MemoryAgenda, MemoryRecords):
    """Tasks in a dictionary, with indexes of tasks to claim, to bring in and to delete."""

    def __repr__(self) -> str:
        return "memory://"

    @override
    def queue_names(self) -> list[str]:
        with self._lock:
            return sorted({task.queue for task in self._tasks.values()})

    @override
    def create_table(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass
