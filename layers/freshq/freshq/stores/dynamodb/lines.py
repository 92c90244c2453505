"""Claim tasks: find candidates through the index, take them by conditional writes."""

from __future__ import annotations

import heapq
import logging
import zlib
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from freshq.errors import FreshqError, StoreError
from freshq.model.task import Task, TaskStatus
from freshq.stores.base import TooLarge
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.batches import BATCH_STATEMENTS
from freshq.stores.dynamodb.calls import MAX_KEY_BYTES, ConditionFailed, TableCalls
from freshq.stores.dynamodb.counts import DynamoCounts
from freshq.stores.dynamodb.items import claim_arguments, decode_if_task
from freshq.stores.dynamodb.leases import MAX_NAMED_BYTES
from freshq.stores.dynamodb.line_records import QUIET_SECONDS
from freshq.stores.dynamodb.queries import LOOKAHEAD_KEYS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.dynamodb.leases import Holding
    from freshq.stores.dynamodb.queries import StatusIndex
    from freshq.stores.dynamodb.schema import IndexEntry, Item
    from freshq.stores.lines import ClaimRequest, Line

logger = logging.getLogger(__name__)
# Empty lines of groups that a claim may meet before it gives up, plus more for each task that it finds.
MAX_EMPTY_LINES: Final = 3
MORE_EMPTY_LINES: Final = 2
# Unusable candidates that a peek may read: taken since the index showed them, or stale.
MAX_VAIN_READS: Final = 50
# After a lost race a round names this many more tasks than it can claim: as many as are read in advance.
EXTRA_NAMES: Final = LOOKAHEAD_KEYS
# The minimum number of tasks that a lease record names. With fewer it would be written more often; with
# more, a sweep and the approximate count of TAKEN tasks would read more.
MIN_NAMED: Final = 4
# Candidates that a claim may try in vain: taken by other claimers, or stale. Each costs up to two calls; a
# stale one is shed, so the next claim does not meet it.
MAX_VAIN_TRIES: Final = 50
# A claim names its tasks again after this share of a lease: otherwise the sweep could see the lease record
# expire, find nothing taken, and delete it.
MAX_LATENESS: Final = 0.1
# Lines that share the two calls that close them, after a claim that found enough.
MIN_CLOSING_LINES: Final = 2


class DynamoLines(DynamoCounts):
    """The claimable tasks of a queue, by priority level and group."""

    def __init__(self, calls: TableCalls, shards: int = 1, status_index: StatusIndex | None = None) -> None:
        super().__init__(calls, shards, status_index)
        # Where claims ran out of pages, with nothing but stale tasks up to there.
        self.resume_at: queries.ResumeAt = {}

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        candidates = Candidates(self, request, request.moment())
        tasks = Taking(self, candidates).take()
        request.effort.bounded &= len(tasks) < request.limit
        least = MIN_CLOSING_LINES if len(tasks) == request.limit else 1
        self.line_records.close_empty(request.queue, request.clock, least)
        return tasks

    @override
    def peek(self, request: ClaimRequest) -> list[Task]:
        candidates = Candidates(self, request, request.moment())
        best_first = islice(candidates.best_first(), request.limit + MAX_VAIN_READS)
        found: list[Task] = []
        while len(found) < request.limit and (some := list(islice(best_first, request.limit - len(found)))):
            ids = [entry.task_id for entry in some]
            tasks = {task.task_id: task for task in map(decode_if_task, self.calls.get_many(ids)) if task}
            shown = [tasks[task_id] for task_id in ids if task_id in tasks]
            found += [task for task in shown if _is_claimable(task, candidates.moment)]
        return found


def _is_claimable(task: Task, moment: ClaimMoment) -> bool:
    is_in_time = task.created > moment.created_after and task.stale_at > moment.deadline_after
    return task.status is TaskStatus.PENDING and not task.delayed and is_in_time


@dataclass(slots=True)
class GroupSearch:
    """The search of a claim in the line of a group.

    Attributes:
        line: The line.
        shards_left: Shards of which there are more pages.
        task_ids: The tasks that it showed.
        newest_created: When the newest of them was created.
    """

    line: Line
    shards_left: int
    task_ids: set[str] = field(default_factory=set)
    newest_created: float = 0.0

    def add(self, page: queries.KeysPage) -> None:
        """Note a page of one of the shards."""
        self.task_ids.update([entry.task_id for entry in page.entries])
        self.newest_created = max([self.newest_created, *[entry.created for entry in page.entries]])
        self.shards_left -= page.is_last


class Candidates:
    """The candidates of one claim.

    Attributes:
        request: The claim.
        moment: When the candidates are read.
    """

    def __init__(self, store: DynamoLines, request: ClaimRequest, moment: ClaimMoment) -> None:
        self.request = request
        self.moment = moment
        self._store = store
        self._live = store.status_index.live(moment.created_after, moment.deadline_after)
        # The ids on each page read so far.
        self._pages: list[list[str]] = []
        self._searches: list[GroupSearch] = []
        self._windowed: Sequence[Line] = ()

    def best_first(self) -> Iterator[IndexEntry]:
        """Yield the candidates, reading pages as needed."""
        request = self.request
        lines = self._store.line_records.window(request.queue, self.moment.now, request.limit)
        self._windowed = lines
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for of, group in lines if of == level]
            yield from request.turns.interleave(
                level, {group: self._line((level, group)) for group in groups}, request.room
            )

    def ahead_of(self, wanted: Collection[str], count: int) -> list[str]:
        """Return the ids of up to `count` other tasks that were read anyway and may be claimed next."""
        # Some may already be lost to other claimers. Naming them again is harmless.
        by_rank = [task_id for rank in zip_longest(*self._pages) for task_id in rank if task_id is not None]
        return [task_id for task_id in by_rank if task_id not in wanted][: max(0, count)]

    def close(self, tried: set[str], taken: Sequence[Task]) -> None:
        """Note whether the claim left tasks in the lines of groups.

        Args:
            tried: Ids of the tasks that it tried to take.
            taken: The tasks that it took.
        """
        queue, lines = self.request.queue, self._store.line_records
        full = () if self.request.room is None else self.request.room.full
        for line in self._windowed:
            if line[1] in full:  # so that the next claim looks into others
                lines.served(queue, line)
        for search in self._searches:
            if search.shards_left or search.task_ids - tried or self.request.passes_over:
                lines.served(queue, search.line)
            elif not search.task_ids.isdisjoint([task.task_id for task in taken]):
                quiet = self.moment.now - search.newest_created >= QUIET_SECONDS
                lines.drained(queue, search.line, quiet=quiet)
            else:
                lines.found_empty(queue, search.line)

    def _line(self, line: Line) -> Iterator[IndexEntry]:
        """Yield the tasks of a line, best first."""
        request, store = self.request, self._store
        partitions = store.keyspace.pending_partitions(request.queue, [line])
        search = None
        if line[1] is not None:
            if self._empty_lines_left() <= 0:
                request.effort.bounded = True
                return
            search = GroupSearch(line, len(partitions))
            self._searches.append(search)
        newest_first = request.orders.newest_first(
            line,
            self.moment.now,
            lambda: store.oldest_of(request.queue, self._live, [line]),
        )
        shards = [self._shard(partition, search, newest_first=newest_first) for partition in partitions]
        yield from heapq.merge(*shards, key=attrgetter("position"), reverse=newest_first)

    def _empty_lines_left(self) -> int:
        found = sum(len(search.task_ids) for search in self._searches)
        empty = sum(not search.task_ids for search in self._searches)
        return MAX_EMPTY_LINES + MORE_EMPTY_LINES * found - empty

    def _shard(
        self, partition: str, search: GroupSearch | None, *, newest_first: bool
    ) -> Iterator[IndexEntry]:
        request, store = self.request, self._store
        pages = queries.claimable_pages(
            store.calls,
            partition,
            self._live,
            request.limit,
            newest_first=newest_first,
            resume_at=None if request.passes_over else store.resume_at,
        )
        is_last = True
        for page in pages:
            is_last = page.is_last
            self._pages.append([entry.task_id for entry in page.entries])
            if search is not None:
                search.add(page)
            if page.passed_over:
                store.stale_items.passed_over(request.queue, partition, request.max_age_seconds)
            yield from page.entries
        request.effort.bounded |= not is_last


class Taking:
    """Takes candidates of one claim, each by one conditional write."""

    def __init__(self, store: DynamoLines, candidates: Candidates) -> None:
        self._store = store
        self._candidates = candidates
        self._request = candidates.request
        # The last reading of the clock.
        self._moment = candidates.moment
        self._free_tokens = list(candidates.request.tokens)
        self._taken: list[Task] = []
        self._entries: dict[str, IndexEntry] = {}
        # Ids of the candidates that were tried.
        self._tried: set[str] = set()
        # Whether another claimer took a candidate first.
        self._lost_race = False

    def take(self) -> list[Task]:
        """Take up to `request.limit` of the candidates, best first.

        After a lost race the next round tries more candidates than it needs and starts somewhere among
        them, so that claimers which race each other part.

        Raises:
            StoreError: If the store failed before anything was taken.
        """
        limit, best_first = self._request.limit, self._candidates.best_first()
        try:
            while (
                self._free_tokens
                and len(self._tried) < limit + MAX_VAIN_TRIES
                and (wanted := self._nameable(best_first))
            ):
                self._take_among(wanted)
        except StoreError:
            if not self._taken:
                raise
            # The taken tasks must reach their worker. If the store still fails, so does the next claim.
            logger.warning("claim cut short after %d of %d tasks", len(self._taken), limit, exc_info=True)
        self._request.effort.bounded |= len(self._tried) >= limit + MAX_VAIN_TRIES
        self._candidates.close(self._tried, self._taken)
        return self._taken

    def _nameable(self, best_first: Iterator[IndexEntry]) -> list[str]:
        """Return the ids of the candidates to try next, as many as one lease record can name."""
        self._entries = {}
        left_bytes = MAX_NAMED_BYTES - MAX_KEY_BYTES
        for entry in islice(best_first, len(self._free_tokens) + (EXTRA_NAMES if self._lost_race else 0)):
            self._entries[entry.task_id] = entry
            left_bytes -= len(entry.task_id.encode())
            if left_bytes < 0:
                break
        return [*self._entries]

    def _take_among(self, wanted: Sequence[str]) -> None:
        """Name tasks in the lease record, then claim them while tokens are left.

        Args:
            wanted: Ids, best first; more than there are tokens after a lost race.
        """
        tokens, request, leases = self._free_tokens, self._request, self._store.lease_records
        ahead = self._candidates.ahead_of(wanted, MIN_NAMED - len(wanted))
        if len(wanted) > len(tokens):
            start = zlib.crc32(tokens[0].encode()) % len(wanted)
            wanted = [*wanted[start:], *wanted[:start]]
        named = {task_id: tokens[index % len(tokens)] for index, task_id in enumerate(wanted)}
        covered = self._moment
        leases.cover(request.queue, [*named.items()], covered.lease_until, covered.now, ahead)
        while named:
            self._moment = request.moment()
            if self._moment.now > covered.now + request.lease_seconds * MAX_LATENESS:
                covered = self._moment
                leases.cover(request.queue, [*named.items()], covered.lease_until, covered.now)
                self._moment = request.moment()
            together = len(tokens) if self._store.batches.serve(min(len(tokens), len(named))) else 1
            some = list(islice(named.items(), max(1, min(together, BATCH_STATEMENTS))))
            for task_id, _token in some:
                del named[task_id]
            if tokens:
                self._take_some(some)
            else:
                for holding in some:
                    leases.of(request.queue).forget(holding)

    def _take_some(self, some: Sequence[Holding]) -> None:
        """Claim tasks that are named in the lease record, one for each of the first free tokens.

        Raises:
            StoreError: If it is not known whether one of them was claimed. The other answers are noted.
        """
        queue = self._request.queue
        lease_record = self._store.lease_records.of(queue)
        tokens = [self._free_tokens.pop(0) for _ in some]
        self._tried.update([task_id for task_id, _token in some])
        answers = self._update(
            [
                claim_arguments(self._entries[task_id], token, queue, self._moment, self._store.keyspace)
                for (task_id, _named), token in zip(some, tokens, strict=True)
            ]
        )
        errors = []
        for (task_id, named_token), token, answer in zip(some, tokens, answers, strict=True):
            if isinstance(answer, FreshqError) and not isinstance(answer, ConditionFailed | TooLarge):
                errors.append(answer)
            elif not self._is_taken(task_id, answer):
                lease_record.forget((task_id, named_token))
                self._free_tokens.append(token)
            elif token != named_token:
                lease_record.change_token(task_id, named_token, token)
        if errors:
            raise errors[0]

    def _update(self, updates: Sequence[Item]) -> Sequence[Item | FreshqError | None]:
        calls = self._store.calls
        repeats = calls.repeats
        try:
            if len(updates) > 1:
                return self._store.batches.update(updates)
            return [calls.update(updates[0])]
        except FreshqError as error:
            return [error] * len(updates)
        finally:
            if calls.repeats != repeats:
                self._store.lease_records.of(self._request.queue).leave()

    def _is_taken(self, task_id: str, answer: Item | FreshqError | None) -> bool:
        """Return whether a task was claimed, and keep it; otherwise note why it was not."""
        moment, store = self._moment, self._store
        if isinstance(answer, TooLarge):
            store.quarantine.admit_large(task_id, self._request.queue, moment.now)
            return False
        if isinstance(answer, ConditionFailed):
            if (found := decode_if_task(answer.item)) is not None:
                self._lost_race |= found.status is TaskStatus.TAKEN
                # Tasks past their own deadline no longer delay the next claim.
                store.stale_items.shed(found, moment.now, moment.deadline_after - moment.now)
            return False
        if answer is None or isinstance(answer, FreshqError):
            return False
        if (task := decode_if_task(answer)) is not None:
            self._taken.append(task)
        else:
            store.quarantine.admit(answer, moment.now)
        return task is not None
