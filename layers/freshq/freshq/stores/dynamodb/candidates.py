"""Reads the candidates of a claim: the tasks that the status index shows as claimable."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING

from freshq.stores.dynamodb import queries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.dynamodb.line_records import LineRecords
    from freshq.stores.dynamodb.queries import LiveTasks
    from freshq.stores.dynamodb.waiting import WaitingTasks
    from freshq.stores.lines import Line


@dataclass(slots=True)
class Candidates:
    """The candidates of one claim.

    Attributes:
        request: The claim.
        moment: When the candidates are read.
        lines: The lines of the table's queues.
        waiting: What waits in them.
        pages: The ids on each page read so far.
    """

    request: ClaimRequest
    moment: ClaimMoment
    lines: LineRecords
    waiting: WaitingTasks
    pages: list[list[str]] = field(default_factory=list)

    def best_first(self) -> Iterator[str]:
        """Yield the ids of the candidates, reading pages as needed."""
        request = self.request
        lines = self.lines.lines(request.queue, self.moment.now)
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for of, group in lines if of == level]
            yield from request.turns.interleave(
                level, {group: self._line((level, group)) for group in groups}
            )

    def ahead_of(self, wanted: Collection[str], count: int) -> list[str]:
        """Return the ids of up to `count` other tasks that were read anyway and may be claimed next."""
        # Some were tried already and lost to others. To name those does no harm.
        by_rank = (task_id for rank in zip_longest(*self.pages) for task_id in rank if task_id is not None)
        return list(islice((task_id for task_id in by_rank if task_id not in wanted), max(0, count)))

    def _line(self, line: Line) -> Iterator[str]:
        """Yield the ids of the tasks of a line, best first."""
        request = self.request
        newest_first = request.orders.newest_first(
            line,
            self.moment.now,
            lambda: self.waiting.oldest(request.queue, self._live(), [line]),
        )
        sign = -1 if newest_first else 1
        shards = [
            self._shard(partition, newest_first=newest_first)
            for partition in self.waiting.keyspace.pending_partitions(request.queue, [line])
        ]
        found = False
        for _created, task_id in heapq.merge(*shards, key=lambda entry: sign * entry[0]):
            found = True
            yield task_id
        if not found:
            self.lines.found_empty(request.queue, line)

    def _live(self) -> LiveTasks:
        return self.waiting.live(self.moment.created_after, self.moment.deadline_after)

    def _shard(self, partition: str, *, newest_first: bool) -> Iterator[tuple[float, str]]:
        pages = queries.claimable_pages(
            self.waiting.calls,
            partition,
            self._live(),
            self.request.limit,
            newest_first=newest_first,
            resume_at=self.waiting.resume_at,
        )
        for page in pages:
            self.pages.append([task_id for _created, task_id in page])
            yield from page
