"""The claimable tasks: claim them, by conditional writes of candidates from the index, and count them."""

from __future__ import annotations

import heapq
import logging
import sys
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from freshq.errors import FreshqError, StoreError
from freshq.model.task import Task, TaskStatus
from freshq.stores.base import NO_VALUES, Stats, TooLarge
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.batches import BATCH_STATEMENTS
from freshq.stores.dynamodb.calls import (
    MAX_KEY_BYTES,
    ConditionFailed,
    InvalidUpdate,
    translated,
)
from freshq.stores.dynamodb.items import LEASE_PREFIX, claim_arguments, decode_if_task
from freshq.stores.dynamodb.leases import MAX_NAMED_BYTES, ahead_ids, is_lease_record, task_ids_of
from freshq.stores.dynamodb.line_records import QUIET_SECONDS
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.queries import LOOKAHEAD_KEYS
from freshq.stores.dynamodb.schema import described_table
from freshq.stores.lines import ALL_LINES, END, LineReader, WaitingReader, line_key, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.dynamodb.leases import Holding
    from freshq.stores.dynamodb.queries import KeysPage, KnownHeads, LinePlace, LivePartition
    from freshq.stores.dynamodb.schema import IndexEntry, Item
    from freshq.stores.lines import ClaimRequest, Line, Times

T = TypeVar("T")
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
NOT_COUNTED = ("success", "failure", "cancelled", "shed_by_reason", *NO_VALUES)
BYTES_A_READ_UNIT = 4096
# Maximum number of lines to count. If there are more, the counts are lower bounds.
MAX_LINES = 64
BOUNDS_OF_SOME_LINES = {
    "pending": "at least",
    "shed": "at least",
    "oldest_pending_seconds": "at least",
    "newest_pending_seconds": "at most",
}


@dataclass(eq=False)
class DynamoWaiting(WaitingReader):
    """Reads what waits in the lines of one queue, from the status index.

    Attributes:
        store: The store.
        queue: Name of the queue.
        clock: Returns the time in seconds since the epoch.
    """

    by_deadline = False

    store: DynamoCounts
    queue: str
    clock: Callable[[], float]
    # The oldest tasks of the line that was read last.
    _first: Sequence[IndexEntry] = ()

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        lines = self.store.line_records.all_lines(self.queue, self.clock())
        keys = sorted(line_key(*line) for line in lines)
        return [key for key in keys if after < key < until][:count]

    def _live(self, key: str, now: float, created_after: float) -> list[LivePartition]:
        """Return the live tasks of a line, by partition."""
        return self.store.partitions.live(self.queue, [parse_line(key)], created_after, now)

    @override
    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        number = sum(live.count(at_most) for live in self._live(key, now, created_after))
        return {parse_line(key).group: number}

    @override
    def newest(self, key: str, now: float, created_after: float, count: int) -> Times:
        """Return times, newest first in each partition. If time is not the order, those of its last tasks."""
        times: list[float] = []
        for live in self._live(key, now, created_after):
            entries = chain.from_iterable(page.entries for page in live.pages(count, newest_first=True))
            times += sorted((entry.created for entry in islice(entries, count)), reverse=True)
        return {parse_line(key).group: times}

    @override
    def oldest(self, key: str, now: float, created_after: float, count: int) -> Iterable[tuple[float, str]]:
        return heapq.merge(*(live.oldest(count) for live in self._live(key, now, created_after)))

    def _first_entries(self, key: str, now: float, created_after: float) -> list[IndexEntry]:
        return [entry for live in self._live(key, now, created_after) for entry in live.first()]

    @override
    def oldest_created(self, key: str, now: float, created_after: float) -> float | None:
        self._first = self._first_entries(key, now, created_after)
        return min((entry.created for entry in self._first), default=None)

    @override
    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        """Return times of the oldest tasks instead: of a line those that `oldest_created` read."""
        entries = self._first if key != ALL_LINES else self._first_of_lines(now, created_after)
        return [(entry.created, entry.deadline) for entry in entries]

    @override
    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        """Return times of the oldest tasks of each line."""
        entries = self._first_of_lines(now, created_after)
        return [entry.created for entry in entries if entry.deadline <= until]

    def _first_of_lines(self, now: float, created_after: float) -> list[IndexEntry]:
        keys = self.lines("", END, sys.maxsize)
        return [entry for key in keys for entry in self._first_entries(key, now, created_after)]

    @override
    def listed(self, task_ids: Sequence[str]) -> list[Task]:
        tasks = map(decode_if_task, self.store.calls.get_many(task_ids))
        return [task for task in tasks if task and task.status is TaskStatus.PENDING and not task.delayed]


class DynamoCounts(DynamoPart):
    """Counts and times of the claimable tasks of a queue, from the status index."""

    @override
    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        return work(DynamoWaiting(self, queue, lambda: now))

    @override
    def count_stale(self, queue: str, since: float, now: float, life_seconds: float) -> int:
        """Count on a page of each partition, of up to `MAX_LINES` lines."""
        lines = islice(self.line_records.all_lines(queue, now), MAX_LINES)
        partitions = self.partitions.live(queue, lines, now - life_seconds, now)
        return sum(queries.count_expired(each, since, life_seconds) for each in partitions)

    @override
    def exact_count_units(self) -> int:
        with translated(self.calls.table):
            found = described_table(self.calls.client, self.calls.table)
        size_bytes: int = found.get("TableSizeBytes", 0)
        return ceil(size_bytes / BYTES_A_READ_UNIT)

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        lines = self.line_records.all_lines(queue, now)
        return ApproximateCounts(self, queue).stats(lines, now, created_after)


class DynamoLines(DynamoCounts):
    """The claimable tasks of a queue, by priority level and group, and its pause."""

    takes_each = True

    @override
    def take_each(
        self, request: ClaimRequest, work: Callable[[LineReader[Any]], Iterator[Any]]
    ) -> list[Task]:
        reader = DynamoReader(self, request, self.known_heads)
        # Only plans use known lines.
        found = work(reader) if request.plan is None else _anew(reader, work)
        return Taking(self, request, reader).take(found)

    @override
    def paused(self, queue: str) -> bool:
        return self.control.read(queue).paused

    @override
    def set_paused(self, queue: str, *, paused: bool) -> None:
        expression = "SET #paused = :paused, #requestToken = :requestToken"
        self.control.update(queue, {":paused": {"BOOL": paused}}, expression)

    @override
    def look(self, request: ClaimRequest, work: Callable[[LineReader[Any]], T]) -> T:
        return work(DynamoReader(self, request))

    @override
    def reread_lines(self, queue: str) -> None:
        self.line_records.reread(queue)


def _anew(reader: DynamoReader, work: Callable[[LineReader[Any]], Iterator[T]]) -> Iterator[T]:
    """Yield the candidates of a claim; if known lines had too few, also what is in them now."""
    yield from work(reader)
    if reader.reads_anew():
        yield from work(reader)


def _is_live(entry: IndexEntry, moment: ClaimMoment) -> bool:
    return entry.deadline > moment.deadline_after and entry.created > moment.created_after


def _is_claimable(task: Task, moment: ClaimMoment) -> bool:
    is_in_time = task.created > moment.created_after and task.stale_at > moment.deadline_after
    return task.status is TaskStatus.PENDING and not task.delayed and is_in_time


@dataclass(slots=True)
class LineSearch:
    """The search of a claim in one line.

    Attributes:
        shards_left: Shards that have more pages.
        task_ids: The tasks that it showed.
        newest_created: When the newest of them was created.
    """

    shards_left: int
    task_ids: set[str] = field(default_factory=set)
    newest_created: float = 0.0


class DynamoReader(DynamoWaiting, LineReader["IndexEntry"]):
    """Reads the lines of one claim, each once, from the index.

    Attributes:
        moment: When it read the first page.
    """

    store: DynamoLines
    moment: ClaimMoment

    def __init__(self, store: DynamoLines, request: ClaimRequest, known: KnownHeads | None = None) -> None:
        """Read nothing yet.

        Args:
            store: The store.
            request: The claim.
            known: Lines that need not be read again; None for a peek.
        """
        super().__init__(store, request.queue, request.clock)
        # Keys of tasks without a group, and of lines found empty that are due for a check; ascending. The
        # lines of groups, if there are any, and their lock.
        self._more, self._lock, self._groups = store.line_records.view(request.queue, request.clock)
        self._request = request
        self.more_lines = request.limit
        # The ids on each page read so far.
        self._pages: list[list[str]] = []
        self._searches: dict[str, LineSearch] = {}
        self._heads = known
        # Keys of the lines that were not read because they are known.
        self._used: set[str] = set()
        # The lines of the tasks that `heads` returned, by their ids.
        self._places: dict[str, LinePlace] = {}
        # The highest level of which lines were left out, as a key; empty: none. Lower levels wait for it.
        self._left_level = ""

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        keys = [key for key in self._more if after < key < until]
        if self._groups is not None:
            with self._lock:
                keys += islice(self._groups.between(after, until), count)
            keys.sort()
        return keys[:count]

    @override
    def last_line(self, until: str) -> str | None:
        keys = [key for key in self._more if key < until]
        if self._groups is not None:
            with self._lock:
                keys += islice(self._groups.between("", until, reverse=True), 1)
        return max(keys, default=None)

    @override
    def begin(self, after: str, until: str) -> str:
        if self._groups is None:
            return after
        with self._lock:
            return self._groups.begin(after, until)

    @override
    def searches(self, key: str) -> bool:
        if key[0] < self._left_level:
            return False
        if len(key) > 1 and self._empty_lines_left() <= 0:
            self._request.search_incomplete, self._left_level = True, key[0]
            return False
        return key not in self._searches

    @override
    def page(
        self, key: str, moment: ClaimMoment, count: int, looked: int, *, newest_first: bool
    ) -> Iterable[IndexEntry]:
        if key in self._searches:
            return ()
        self.moment = moment
        request, lines = self._request, [parse_line(key)]
        partitions = self.store.partitions.live(
            request.queue, lines, moment.created_after, moment.deadline_after
        )
        search = self._searches[key] = LineSearch(len(partitions))
        shards = []
        for each in partitions:
            pages = each.pages(request.limit, newest_first=newest_first, resumes=not request.passes_over)
            shards.append(chain.from_iterable(map(partial(self._noted, search, each.name), pages)))
        return heapq.merge(*shards, key=attrgetter("position"), reverse=newest_first)

    def _noted(self, search: LineSearch, partition: str, page: KeysPage) -> list[IndexEntry]:
        """Note what a page of a partition shows; return its tasks."""
        request, task_ids = self._request, [entry.task_id for entry in page.entries]
        self._pages.append(task_ids)
        search.task_ids.update(task_ids)
        search.newest_created = max([search.newest_created, *[entry.created for entry in page.entries]])
        search.shards_left -= page.is_last
        if page.passed_over:
            self.store.stale_items.passed_over(request.queue, partition, request.max_age_seconds)
        request.search_incomplete |= not (page.is_last or page.pages_left)
        return page.entries

    def _empty_lines_left(self) -> int:
        of_groups = [search for key, search in self._searches.items() if len(key) > 1]
        found = sum(len(search.task_ids) for search in of_groups)
        empty = sum(not search.task_ids for search in of_groups)
        return MAX_EMPTY_LINES + MORE_EMPTY_LINES * found - empty

    @override
    def heads(self, key: str, moment: ClaimMoment, count: int, *, newest_first: bool) -> list[IndexEntry]:
        place, known = (self._request.queue, key, newest_first), self._heads
        entries = None if known is None else known.of(place, moment.now)
        if entries is None:
            entries = self._read_heads(place, moment, count)
        else:
            self.moment = moment
            self._used.add(key)
            self._pages.append([entry.task_id for entry in entries])
            entries = [entry for entry in entries if _is_live(entry, moment)]
        self._places |= dict.fromkeys([entry.task_id for entry in entries], place)
        return entries

    def _read_heads(self, place: LinePlace, moment: ClaimMoment, count: int) -> list[IndexEntry]:
        """Return the first tasks of a line; remember them if these are all."""
        _queue, key, newest_first = place
        # Further pages would cost further queries.
        first_page = min(count, self._request.limit + LOOKAHEAD_KEYS)
        line = None if self._heads is None else self._heads.begin(place, moment.now)
        page = self.page(key, moment, count, count, newest_first=newest_first)
        entries = [entry for entry in islice(page, first_page) if entry.task_id not in self._places]
        is_whole = len(entries) < first_page and not self._searches[key].shards_left
        if self._heads is not None and line is not None and is_whole and not self._request.passes_over:
            self._heads.keep(place, line, entries)
        return entries

    def reads_anew(self) -> bool:
        """Read every line from now on; return whether some were not read because they are known."""
        self._heads = None
        return bool(self._used)

    @override
    def found(self, heads: Sequence[IndexEntry]) -> Iterator[IndexEntry]:
        for head in heads:
            if self._heads is None or self._heads.try_to_take(self._places[head.task_id], head.task_id):
                yield head

    @override
    def tasks(self, found: Iterable[IndexEntry], count: int) -> list[Task]:
        moment = self._request.moment()
        best_first = islice(found, count + MAX_VAIN_READS)
        shown: list[Task] = []
        while len(shown) < count and (some := list(islice(best_first, count - len(shown)))):
            ids = [entry.task_id for entry in some]
            read = map(decode_if_task, self.store.calls.get_many(ids))
            tasks = {task.task_id: task for task in read if task and _is_claimable(task, moment)}
            shown += [tasks[task_id] for task_id in ids if task_id in tasks]
        return shown

    def ahead_of(self, wanted: Collection[str], count: int) -> list[str]:
        """Return the ids of up to `count` other tasks that were also read and may be claimed next."""
        # Some may already be lost to other claimers. Naming them again is harmless.
        by_rank = [task_id for rank in zip_longest(*self._pages) for task_id in rank if task_id is not None]
        return [task_id for task_id in by_rank if task_id not in wanted][: max(0, count)]

    def close(self, tried: set[str], taken: Collection[str]) -> None:
        """Note whether a claim left tasks in the lines of groups; close lines that are empty.

        Args:
            tried: Ids of the tasks that it tried to take.
            taken: Ids of the tasks that it took.
        """
        if self._groups is None:
            return
        now = time.monotonic()
        with self._lock:
            for key, search in self._searches.items():
                if len(key) == 1:  # only lines of groups have records
                    continue
                line = parse_line(key)
                if search.shards_left or search.task_ids - tried or self._request.passes_over:
                    self._groups.may_have_work(line)
                elif search.task_ids.isdisjoint(taken):
                    self._groups.found_empty(line, now)
                else:
                    quiet = self.moment.now - search.newest_created >= QUIET_SECONDS
                    self._groups.drained(line, now, quiet=quiet)
        least = MIN_CLOSING_LINES if len(taken) == self._request.limit else 1
        self.store.line_records.close_empty(self.queue, least)


@dataclass(eq=False)
class Taking:
    """Takes candidates of one claim, each by one conditional write.

    Attributes:
        store: The store.
        request: The claim.
        reader: Read the candidates.
        taken: The tasks that were taken.
        tried: Ids of the candidates that were tried.
    """

    store: DynamoLines
    request: ClaimRequest
    reader: DynamoReader
    taken: list[Task] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    # The last reading of the clock.
    _moment: ClaimMoment = field(init=False)
    # Whether another claimer took a candidate first.
    _lost_race: bool = False

    def take(self, best_first: Iterator[IndexEntry]) -> list[Task]:
        """Take up to `request.limit` of the candidates, best first.

        After a lost race the next round tries more candidates than it needs and starts somewhere among
        them, so that claimers which race each other part.

        Raises:
            StoreError: If the store failed before anything was taken.
        """
        limit = self.request.limit
        try:
            while (
                len(self.taken) < limit
                and len(self.tried) < limit + MAX_VAIN_TRIES
                and (entries := self._nameable(best_first))
            ):
                self._take_among(entries)
        except StoreError:
            if not self.taken:
                raise
            # The taken tasks must reach their worker. If the store still fails, the next claim will, too.
            logger.warning("claim cut short after %d of %d tasks", len(self.taken), limit, exc_info=True)
        self.request.search_incomplete |= len(self.tried) >= limit + MAX_VAIN_TRIES
        self.reader.close(self.tried, {task.task_id for task in self.taken})
        return self.taken

    def _nameable(self, best_first: Iterator[IndexEntry]) -> dict[str, IndexEntry]:
        """Return the candidates to try next, by id: up to the number that one lease record can name."""
        entries: dict[str, IndexEntry] = {}
        count = self.request.limit - len(self.taken) + (EXTRA_NAMES if self._lost_race else 0)
        left_bytes = MAX_NAMED_BYTES - MAX_KEY_BYTES
        for entry in islice(best_first, count):
            entries[entry.task_id] = entry
            left_bytes -= len(entry.task_id.encode())
            if left_bytes < 0:
                break
        if entries and not self.tried:
            self._moment = self.reader.moment
        return entries

    def _take_among(self, entries: dict[str, IndexEntry]) -> None:
        """Name tasks in the lease record, then claim them until there are enough.

        Args:
            entries: The tasks by their ids, best first; after a lost race more than are missing.
        """
        request, leases = self.request, self.store.lease_records
        wanted = [*entries]
        ahead = self.reader.ahead_of(wanted, MIN_NAMED - len(wanted))
        if len(wanted) > request.limit - len(self.taken):
            start = zlib.crc32(request.token.encode()) % len(wanted)
            wanted = [*wanted[start:], *wanted[:start]]
        named = dict(zip(wanted, request.tokens(len(wanted)), strict=True))
        covered = self._moment
        leases.cover(request.queue, [*named.items()], covered.lease_until, covered.now, ahead)
        while named and (missing := request.limit - len(self.taken)):
            self._moment = request.moment()
            if self._moment.now > covered.now + request.lease_seconds * MAX_LATENESS:
                covered = self._moment
                leases.cover(request.queue, [*named.items()], covered.lease_until, covered.now)
                self._moment = request.moment()
            together = min(missing, BATCH_STATEMENTS) if self.store.batches.are_allowed else 1
            some = [*islice(named.items(), together)]
            for task_id, _token in some:
                del named[task_id]
            self._take_some(some, entries)
        for holding in named.items():
            leases.of(request.queue).forget(holding)

    def _take_some(self, some: Sequence[Holding], entries: dict[str, IndexEntry]) -> None:
        """Claim tasks that are named in the lease record.

        Raises:
            StoreError: If it is not known whether one of them was claimed. The other answers are noted.
        """
        queue, store = self.request.queue, self.store
        self.tried.update([task_id for task_id, _token in some])
        answers = self._update(
            [
                claim_arguments(entries[task_id], token, queue, self._moment, store.keyspace)
                for task_id, token in some
            ]
        )
        errors: list[Any] = []
        for holding, answer in zip(some, answers, strict=True):
            if isinstance(answer, FreshqError) and self._is_failure(holding[0], answer):
                errors.append(answer)
            elif not self._is_taken(holding[0], answer):
                store.lease_records.of(queue).forget(holding)
        if errors:
            raise errors[0]

    def _update(self, updates: Sequence[Item]) -> Sequence[Item | FreshqError | None]:
        calls = self.store.calls
        repeats = calls.repeats
        try:
            if len(updates) > 1:
                return self.store.batches.update(updates, returning=True)
            return [calls.update(updates[0])]
        except FreshqError as error:
            return [error] * len(updates)
        finally:
            if calls.repeats != repeats:
                self.store.lease_records.of(self.request.queue).leave()

    def _is_failure(self, task_id: str, answer: FreshqError) -> bool:
        """Return whether the store failed; False if the task itself is the reason."""
        if not isinstance(answer, InvalidUpdate):
            return not isinstance(answer, ConditionFailed | TooLarge)
        try:
            return not self.store.unreadable.discard_if_invalid(task_id, self._moment.now)
        except StoreError:  # the caller raises the first failure, once it has noted the other answers
            return True

    def _is_taken(self, task_id: str, answer: Item | FreshqError | None) -> bool:
        """Return whether a task was claimed, and keep it; otherwise record why not."""
        moment, store = self._moment, self.store
        if isinstance(answer, TooLarge):
            store.unreadable.discard_if_large(task_id, self.request.queue, moment.now)
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
            self.taken.append(task)
        else:
            store.unreadable.discard_if_damaged(answer, moment.now)
        return task is not None


class ApproximateCounts:
    """Counts a queue by at most one page of each partition and kind, of up to `MAX_LINES` lines."""

    def __init__(self, store: DynamoCounts, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._bounded = dict.fromkeys(NOT_COUNTED, "not counted")
        # A task that was shed early, or before its queue's max age, is in no index.
        self._bounded |= {"shed": "at least", "taken": "at most"}

    def stats(self, lines: Iterable[Line], now: float, created_after: float) -> Stats:
        """Return the counts.

        Args:
            lines: Where tasks may wait.
            now: Current time in seconds.
            created_after: Tasks created at or before this time are stale.
        """
        counted_lines = [*islice(lines, MAX_LINES + 1)]
        if len(counted_lines) > MAX_LINES:
            self._bounded |= BOUNDS_OF_SOME_LINES
        partitions = self._store.partitions.live(self._queue, counted_lines[:MAX_LINES], created_after, now)
        ends = [end for partition in partitions for end in self._ends(partition)]
        delayed, lease_ids = self._due()
        pending, past_deadline = self._totals(
            self._count(("pending", "shed"), partition.query()) for partition in partitions
        )
        # If time is not the order, the filter has already counted the tasks past the queue's max age.
        too_old, _ = self._totals(
            self._count(("shed",), partition.query("<=", None))
            for partition in partitions
            if self._store.partitions.index.by_time
        )
        return Stats(
            pending=pending,
            delayed=delayed,
            taken=len(self._taken(lease_ids)),
            shed=past_deadline + too_old,
            oldest_pending_seconds=max(0.0, now - min(ends)) if ends else None,
            newest_pending_seconds=max(0.0, now - max(ends)) if ends else None,
            bounded=self._bounded,
        )

    def _ends(self, partition: LivePartition) -> list[float]:
        """Return creation times, including the oldest and the newest claimable task's.

        If time is not the order, these are the oldest and the newest at either end of the line.
        """
        created: list[float] = []
        for newest_first in (False, True):
            pages = partition.pages(1, newest_first=newest_first)
            page = next((page for page in pages if page.entries), None)
            if page is None:
                continue
            created += [entry.created for entry in page.entries]
            if not (self._store.partitions.index.by_time or page.is_last):
                self._bounded |= {
                    name: BOUNDS_OF_SOME_LINES[name]
                    for name in ("oldest_pending_seconds", "newest_pending_seconds")
                }
        return created

    @staticmethod
    def _totals(pages: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """Return the number of tasks counted, and the number filtered out, over all pages."""
        counted, left_out = zip((0, 0), *pages, strict=True)
        return sum(counted), sum(left_out)

    def _count(self, fields: Collection[str], arguments: Item) -> tuple[int, int]:
        """Return how many tasks are on one page of a query, and how many its filter left out.

        Args:
            fields: The counts that are lower bounds if there are more pages.
            arguments: Arguments of the query.
        """
        page = self._store.calls.query(arguments | {"Select": "COUNT"})
        if "LastEvaluatedKey" in page:
            self._bounded |= dict.fromkeys(fields, "at least")
        return int(page["Count"]), int(page["ScannedCount"] - page["Count"])

    def _due(self) -> tuple[int, list[str]]:
        """Return the number of delayed tasks, and the ids of the lease records."""
        delayed = 0
        lease_ids: list[str] = []
        for partition in self._store.keyspace.due_partitions(self._queue):
            page = self._store.calls.query(queries.due_query(partition))
            if "LastEvaluatedKey" in page:
                self._bounded["delayed"] = "at least"
            found = [item_id for item_id in queries.ids_of(page) if item_id.startswith(LEASE_PREFIX)]
            delayed += len(page["Items"]) - len(found)
            lease_ids += found
        return delayed, lease_ids

    def _taken(self, lease_ids: list[str]) -> set[str]:
        """Return the ids in lease records, except those named ahead that are not TAKEN."""
        records: list[Item] = list(filter(is_lease_record, self._store.calls.get_many(lease_ids)))
        ahead = {task_id for record in records for task_id in ahead_ids(record)}
        in_hand = {task_id for record in records for task_id in task_ids_of(record)} - ahead
        tasks = map(decode_if_task, self._store.calls.get_many(sorted(ahead)))
        return in_hand | {task.task_id for task in tasks if task and task.status is TaskStatus.TAKEN}
