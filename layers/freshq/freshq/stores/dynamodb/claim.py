"""Claim tasks: find candidates through the index, take them by conditional writes."""

from __future__ import annotations

import heapq
import logging
import zlib
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from freshq.errors import FreshqError, StoreError
from freshq.model.task import Task, TaskStatus
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.batches import BATCH_STATEMENTS
from freshq.stores.dynamodb.calls import ConditionFailed, TableCalls
from freshq.stores.dynamodb.items import claim_arguments, decode_if_task
from freshq.stores.dynamodb.leases import MAX_NAMED_BYTES
from freshq.stores.dynamodb.lines import QUIET_SECONDS
from freshq.stores.dynamodb.queries import LOOKAHEAD_KEYS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.claim_request import ClaimRequest
    from freshq.stores.dynamodb.agenda import StaleTasks
    from freshq.stores.dynamodb.batches import Batches
    from freshq.stores.dynamodb.counts import WaitingTasks
    from freshq.stores.dynamodb.dead_letters import Quarantine
    from freshq.stores.dynamodb.keyspace import Entry, Item, Keyspace, LiveTasks
    from freshq.stores.dynamodb.leases import Holding, LeaseRecords
    from freshq.stores.dynamodb.lines import LineRecords
    from freshq.stores.lines import Line

# Lines of groups that a claim finds empty before it gives up, and more for each task that it finds.
MAX_EMPTY_LINES: Final = 3
MORE_EMPTY_LINES: Final = 2
# Candidates that a look reads in vain: taken by others since the index showed them, or stale.
MAX_VAIN_READS: Final = 50
logger = logging.getLogger(__name__)
# After a lost race a round names this many more tasks than it can claim: as many as are read in advance.
EXTRA_NAMES: Final = LOOKAHEAD_KEYS
# The minimum number of tasks that a lease record names. With fewer it would be written more often; with
# more, a sweep and the approximate count of TAKEN tasks would read more.
MIN_NAMED: Final = 4
# Limit of the hash key of a table, an application's included.
MAX_KEY_BYTES: Final = 2048
# Candidates that a claim tries beyond those it wants: taken by others, or stale. Each costs up to two calls;
# what is stale is out of the way of the next claim.
MAX_VAIN_TRIES: Final = 50
# A claim that has been under way for this share of a lease names its tasks again: otherwise the sweep could
# see the lease record expire, find nothing taken, and delete it.
MAX_LATENESS: Final = 0.1


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


def peek(calls: TableCalls, candidates: Candidates) -> list[Task]:
    """Return the candidates of a claim that may be claimed, best first."""
    limit, moment = candidates.request.limit, candidates.moment
    best_first = islice(candidates.best_first(), limit + MAX_VAIN_READS)
    found: list[Task] = []
    while len(found) < limit and (ids := list(islice(best_first, limit - len(found)))):
        tasks = {task.task_id: task for task in map(decode_if_task, calls.get_many(ids)) if task is not None}
        found += [tasks[task_id] for task_id in ids if task_id in tasks and _may_go(tasks[task_id], moment)]
    return found


def _may_go(task: Task, moment: ClaimMoment) -> bool:
    is_in_time = task.created > moment.created_after and task.deadline > moment.deadline_after
    return task.status is TaskStatus.PENDING and not task.delayed and is_in_time


@dataclass
class _Round:
    """The state of a claim.

    Attributes:
        request: The claim.
        free_tokens: Lease tokens not used yet.
        taken: The tasks claimed so far.
        lost_race: Whether another claimer took a candidate first.
        tried: Ids of the candidates that were tried.
    """

    request: ClaimRequest
    free_tokens: list[str]
    taken: list[Task] = field(default_factory=list)
    lost_race: bool = False
    tried: set[str] = field(default_factory=set)

    @property
    def width(self) -> int:
        """How many candidates to try next."""
        return len(self.free_tokens) + (EXTRA_NAMES if self.lost_race else 0)


@dataclass(frozen=True, slots=True)
class Claimer:
    """Claims tasks, each by one conditional write.

    Attributes:
        calls: Calls to the table.
        batches: Writes of several items in one call.
        keyspace: Names of its index partitions.
        leases: The lease records of this process.
        quarantine: Where damaged tasks go.
        stale: Sheds stale tasks.
    """

    calls: TableCalls
    batches: Batches
    keyspace: Keyspace
    leases: LeaseRecords
    quarantine: Quarantine
    stale: StaleTasks

    def take(self, request: ClaimRequest, candidates: Candidates) -> list[Task]:
        """Take up to `request.limit` of the candidates, best first.

        After a lost race the next round tries more candidates than it needs and starts somewhere among
        them, so that claimers which race each other part.

        Raises:
            StoreError: If the store failed before anything was taken.
        """
        state = _Round(request, list(request.tokens))
        best_first = candidates.best_first()
        try:
            while (
                state.free_tokens
                and len(state.tried) < request.limit + MAX_VAIN_TRIES
                and (wanted := list(_nameable(best_first, state.width)))
            ):
                ahead = candidates.ahead_of(wanted, MIN_NAMED - len(wanted))
                self._take_among(wanted, ahead, state)
        except StoreError:
            if not state.taken:
                raise
            # What was taken must reach its worker. If the store still fails, so does the next claim.
            logger.warning(
                "claim cut short after %d of %d tasks", len(state.taken), request.limit, exc_info=True
            )
        candidates.close(state.tried, {task.task_id for task in state.taken})
        return state.taken

    def _take_among(self, wanted: Sequence[str], ahead: Sequence[str], state: _Round) -> None:
        """Name tasks in the lease record, then claim them while tokens are left.

        Args:
            wanted: Ids, best first; more than there are tokens after a lost race.
            ahead: Tasks to name as well, for later claims.
            state: The claim so far; claimed tasks are added to it.
        """
        tokens, request = state.free_tokens, state.request
        if len(wanted) > len(tokens):
            start = zlib.crc32(tokens[0].encode()) % len(wanted)
            wanted = [*wanted[start:], *wanted[:start]]
        named = {task_id: tokens[index % len(tokens)] for index, task_id in enumerate(wanted)}
        covered = request.moment()
        self.leases.cover(request.queue, [*named.items()], covered.lease_until, covered.now, ahead)
        while named:
            moment = request.moment()
            if moment.now > covered.now + request.lease_seconds * MAX_LATENESS:
                self.leases.cover(request.queue, [*named.items()], moment.lease_until, moment.now)
                covered, moment = moment, request.moment()
            together = len(tokens) if self.batches.serve(min(len(tokens), len(named))) else 1
            some = list(islice(named.items(), max(1, min(together, BATCH_STATEMENTS))))
            for task_id, _token in some:
                del named[task_id]
            if tokens:
                self._take_some(some, moment, state)
            else:
                self._forget(request.queue, some)

    def _take_some(self, some: Sequence[Holding], moment: ClaimMoment, state: _Round) -> None:
        """Claim tasks that are named in the lease record, one for each of the first free tokens.

        Raises:
            StoreError: If it is not known whether one of them was claimed. The others are in the state.
        """
        queue = state.request.queue
        tokens = [state.free_tokens.pop(0) for _ in some]
        state.tried.update(task_id for task_id, _token in some)
        answers = self._update(
            [
                claim_arguments(task_id, token, queue, moment, self.keyspace)
                for (task_id, _named), token in zip(some, tokens, strict=True)
            ]
        )
        errors = []
        for (task_id, named_token), token, answer in zip(some, tokens, answers, strict=True):
            if isinstance(answer, FreshqError) and not isinstance(answer, ConditionFailed):
                errors.append(answer)
            elif self._is_taken(answer, moment, state):
                self.leases.change_token(queue, task_id, named_token, token)
            else:
                self.leases.forget(queue, (task_id, named_token))
                state.free_tokens.append(token)
        if errors:
            raise errors[0]

    def _update(self, updates: Sequence[Item]) -> Sequence[Item | FreshqError | None]:
        if len(updates) > 1:
            return self.batches.update(updates)
        try:
            return [self.calls.update(arguments) for arguments in updates]
        except FreshqError as error:
            return [error]

    def _forget(self, queue: str, some: Sequence[Holding]) -> None:
        for holding in some:
            self.leases.forget(queue, holding)

    def _is_taken(self, answer: Item | FreshqError | None, moment: ClaimMoment, state: _Round) -> bool:
        """Return whether a task was claimed, and keep it; otherwise note why it was not."""
        if isinstance(answer, ConditionFailed):
            if (found := decode_if_task(answer.item)) is not None:
                state.lost_race |= found.status is TaskStatus.TAKEN
                # Tasks past their own deadline no longer delay the next claim.
                self.stale.shed(found, moment.now, moment.deadline_after - moment.now)
            return False
        if isinstance(answer, FreshqError):
            return False
        if (task := decode_if_task(answer)) is not None:
            state.taken.append(task)
        elif answer is not None:
            self.quarantine.admit(answer, moment.now)
        return task is not None


def _nameable(best_first: Iterator[str], count: int) -> Iterator[str]:
    """Yield up to `count` ids, as many as one lease record can name."""
    left_bytes = MAX_NAMED_BYTES - MAX_KEY_BYTES
    for task_id in islice(best_first, count):
        yield task_id
        left_bytes -= len(task_id.encode())
        if left_bytes < 0:
            return
