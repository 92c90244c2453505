"""The lines of the memory store: finds the tasks to claim without looking at those that wait behind them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.stores.claim_request import ClaimMoment
    from freshq.stores.lines import Line

# Tasks of a chunk: small enough to be read whole in microseconds, large enough for a million tasks.
CHUNK_TASKS: Final = 256
# Chunks without a claimable task that one claim reads in a line: their tasks are within the reserve.
MAX_FRUITLESS: Final = 64
# Chunks of stale tasks whose memory one claim frees: tens of microseconds.
FREED_CHUNKS: Final = 1
# Groups of a level that one claim looks at: enough for fair turns, few enough for a claim of a millisecond.
MAX_GROUPS: Final = 64
# Comes after every task id.
LAST_ID: Final = chr(0x10FFFF)

# Creation time, task id, deadline.
_Entry: TypeAlias = tuple[float, str, float]


class _Chunk:
    """Consecutive tasks of a line, with bounds of their deadlines."""

    __slots__ = ("earliest", "entries", "latest")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self._measure()

    def _measure(self) -> None:
        self.earliest = min((deadline for _created, _id, deadline in self.entries), default=inf)
        self.latest = max((deadline for _created, _id, deadline in self.entries), default=-inf)

    def insert(self, entry: _Entry) -> None:
        self.entries.insert(bisect_left(self.entries, entry), entry)
        self.earliest = min(self.earliest, entry[2])
        self.latest = max(self.latest, entry[2])

    def drop_stale(self, now: float) -> None:
        """Drop the tasks whose deadline has passed."""
        if self.earliest <= now:
            self.entries = [entry for entry in self.entries if entry[2] > now]
            self._measure()


class WaitingLine:
    """The claimable tasks of one line, by creation time, in chunks.

    It is no `SortedList`, because a chunk knows when its last task goes stale: a claim passes, or drops, a
    whole chunk of stale tasks in one step. The chunks of a `SortedList` are its own affair.
    """

    __slots__ = ("_chunks", "_dropped", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        # For each chunk a key that none of its tasks precedes; the first chunk takes what precedes all.
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

    def _delete(self, index: int) -> None:
        del self._chunks[index]
        del self._firsts[index]

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
                self._delete(index)

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
            chunk.drop_stale(moment.now)
            if chunk.entries:
                yield chunk
                index += step

    def _drop_stale_chunks(self, index: int, step: int, now: float) -> int:
        """Drop the chunks from `index` on in which every task is stale; return the place of the next one."""
        chunks, end = self._chunks, index
        while 0 <= end < len(chunks) and chunks[end].latest <= now:
            end += step
        first, last = (index, end) if step > 0 else (end + 1, index + 1)
        if first < last:
            self._dropped += chunks[first:last]
            del chunks[first:last], self._firsts[first:last]
        return first if step > 0 else end

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


class QueueLines:
    """The lines of one queue that have tasks."""

    def __init__(self) -> None:
        self._levels: defaultdict[int, OrderedDict[str | None, WaitingLine]] = defaultdict(OrderedDict)

    def line(self, line: Line) -> WaitingLine:
        """Return a line, which is added if there is none."""
        groups = self._levels[line[0]]
        found = groups.get(line[1])
        if found is None:
            found = groups[line[1]] = WaitingLine()
        return found

    def remove(self, line: Line, created: float, task_id: str) -> None:
        """Remove a task from its line, unless it was dropped as stale."""
        found = self._levels[line[0]].get(line[1])
        if found is not None:
            found.remove(created, task_id)
            if not found:
                del self._levels[line[0]][line[1]]

    def all(self) -> Iterator[tuple[Line, WaitingLine]]:
        """Yield every line, the lowest level first."""
        for level in sorted(self._levels):
            yield from (((level, group), line) for group, line in self._levels[level].items())

    def few(self) -> list[tuple[Line, WaitingLine]] | None:
        """Return every line, the lowest level first; None if there are more than `MAX_GROUPS`."""
        few = sum(map(len, self._levels.values())) <= MAX_GROUPS
        return list(self.all()) if few else None

    def windows(self) -> Iterator[tuple[int, dict[str | None, WaitingLine]]]:
        """Yield the first `MAX_GROUPS` groups of each level with tasks, the highest level first."""
        for level in sorted(self._levels, reverse=True):
            if self._levels[level]:
                yield level, dict(islice(self._levels[level].items(), MAX_GROUPS))

    def looked_at(self, line: Line) -> None:
        """Forget a line that is empty; of more than `MAX_GROUPS`, let the others come first next time."""
        level, group = line
        groups = self._levels[level]
        if group in groups and not groups[group]:
            del groups[group]
        elif group in groups and len(groups) > MAX_GROUPS:
            groups.move_to_end(group)
