"""Reads the candidates of a claim: the tasks that the status index shows as claimable."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.line_rules import QUIET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from collections.abc import Set as AbstractSet

    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.dynamodb.line_records import LineRecords
    from freshq.stores.dynamodb.stale_tasks import StaleTasks
    from freshq.stores.dynamodb.status_index import Entry, LiveTasks
    from freshq.stores.dynamodb.waiting import WaitingTasks
    from freshq.stores.lines import Line

# Lines of groups that a claim finds empty before it gives up, and more for each task that it finds.
MAX_EMPTY_LINES: Final = 3
MORE_EMPTY_LINES: Final = 2


@dataclass(slots=True)
class _LineSearch:
    """The search of a claim in a line.

    Attributes:
        line: The line.
        task_ids: The tasks that it showed.
        newest_created: When the newest of them was created.
        shards_left: Shards of which there are more pages.
    """

    line: Line
    shards_left: int
    task_ids: set[str] = field(default_factory=set)
    newest_created: float = 0.0

    def add(self, page: queries.KeysPage) -> None:
        """Note a page of one of its shards."""
        self.task_ids.update(entry.task_id for entry in page.entries)
        self.newest_created = max([self.newest_created, *(entry.created for entry in page.entries)])
        self.shards_left -= page.is_last


@dataclass(slots=True)
class Candidates:
    """The candidates of one claim.

    Attributes:
        request: The claim.
        moment: When the candidates are read.
        lines: The lines of the table's queues.
        waiting: What waits in them.
        stale: What claims passed over.
        pages: The ids on each page read so far.
        searches: The searches into lines of groups.
    """

    request: ClaimRequest
    moment: ClaimMoment
    lines: LineRecords
    waiting: WaitingTasks
    stale: StaleTasks
    pages: list[list[str]] = field(default_factory=list)
    searches: list[_LineSearch] = field(default_factory=list)

    def best_first(self) -> Iterator[str]:
        """Yield the ids of the candidates, reading pages as needed."""
        request = self.request
        lines = self.lines.window(request.queue, self.moment.now, request.limit)
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for of, group in lines if of == level]
            yield from request.turns.interleave(
                level, {group: self._line((level, group)) for group in groups}
            )

    def ahead_of(self, wanted: Collection[str], count: int) -> list[str]:
        """Return the ids of up to `count` other tasks that were read anyway and may be claimed next."""
        # Some were tried already and lost to others. Naming those again is harmless.
        by_rank = (task_id for rank in zip_longest(*self.pages) for task_id in rank if task_id is not None)
        return list(islice((task_id for task_id in by_rank if task_id not in wanted), max(0, count)))

    def close(self, tried: AbstractSet[str], taken: AbstractSet[str]) -> None:
        """Note what the claim left in the lines of groups.

        Args:
            tried: Ids of the tasks that it tried to take.
            taken: Ids of those that it took.
        """
        queue = self.request.queue
        for search in self.searches:
            if search.shards_left or search.task_ids - tried or self.request.passes_over:
                self.lines.served(queue, search.line)
            elif search.task_ids & taken:
                quiet = self.moment.now - search.newest_created >= QUIET_SECONDS
                self.lines.drained(queue, search.line, quiet=quiet)
            else:
                self.lines.found_empty(queue, search.line)

    def _line(self, line: Line) -> Iterator[str]:
        """Yield the ids of the tasks of a line, best first."""
        request = self.request
        partitions = self.waiting.keyspace.pending_partitions(request.queue, [line])
        search = _LineSearch(line, len(partitions))
        if line[1] is not None:
            if self._empty_lines_left() <= 0:
                return
            self.searches.append(search)
        newest_first = request.orders.newest_first(
            line,
            self.moment.now,
            lambda: self.waiting.oldest(request.queue, self._live(), [line]),
        )
        shards = [self._shard(partition, search, newest_first=newest_first) for partition in partitions]
        merged = heapq.merge(*shards, key=lambda entry: entry.position, reverse=newest_first)
        yield from (entry.task_id for entry in merged)

    def _empty_lines_left(self) -> int:
        found = sum(len(search.task_ids) for search in self.searches)
        empty = sum(not search.task_ids for search in self.searches)
        return MAX_EMPTY_LINES + MORE_EMPTY_LINES * found - empty

    def _live(self) -> LiveTasks:
        return self.waiting.live(self.moment.created_after, self.moment.deadline_after)

    def _shard(self, partition: str, search: _LineSearch, *, newest_first: bool) -> Iterator[Entry]:
        pages = queries.claimable_pages(
            self.waiting.calls,
            partition,
            self._live(),
            self.request.limit,
            newest_first=newest_first,
            resume_at=None if self.request.passes_over else self.waiting.resume_at,
        )
        for page in pages:
            self.pages.append([entry.task_id for entry in page.entries])
            search.add(page)
            if page.passed_over:
                self.stale.passed_over(self.request.queue, partition, self.request.max_age_seconds)
            yield from page.entries
