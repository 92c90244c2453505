"""The store on one DynamoDB table."""

from __future__ import annotations

import heapq
import logging
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.model.task import Task, TaskStatus
from freshq.policy.shedding import too_late
from freshq.stores.base import ConflictError, Guard, Stats, Store
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.calls import (
    ConditionFailed,
    TableCalls,
    check_table_name,
    default_client,
    translated,
)
from freshq.stores.dynamodb.control import ControlRecords
from freshq.stores.dynamodb.items import (
    Keyspace,
    claim_arguments,
    decode,
    decode_if_task,
    delete_condition,
    is_task,
    replace_arguments,
    version_of,
)
from freshq.stores.dynamodb.leases import LeaseRecords, due_at, is_lease_record, next_look, task_ids_of
from freshq.stores.dynamodb.line_records import LineRecords
from freshq.stores.dynamodb.puts import Puts, each_in_order
from freshq.stores.dynamodb.schema import create_table
from freshq.stores.dynamodb.shared_records import SharedRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.errors import FreshqError
    from freshq.stores.base import ClaimRequest, SharedRecord
    from freshq.stores.conflicts import OnConflict, PutResult
    from freshq.stores.dynamodb.names import Item, Names
    from freshq.stores.lines import Line

logger = logging.getLogger(__name__)

MAX_SHARDS: Final = 64
# Names beyond what a claim needs, at the most: as many as are read beyond it.
MOST_NAMED_BEYOND: Final = queries.LOOKAHEAD_KEYS
# Tasks in a lease record that is written: with fewer of them it would be written more often, with more
# a sweep, and the approximate count of what is taken, would read more.
NAMED_AT_LEAST: Final = 4


@dataclass
class _Claiming:
    """A claim under way.

    Attributes:
        request: What is asked for.
        free_tokens: Tokens that are left to claim with.
        taken: What was claimed.
        races_lost: Tasks that somebody else had taken since the index was read.
    """

    request: ClaimRequest
    free_tokens: list[str]
    taken: list[Task] = field(default_factory=list)
    races_lost: int = 0

    @property
    def width(self) -> int:
        """How many tasks to name next."""
        return len(self.free_tokens) + (MOST_NAMED_BEYOND if self.races_lost else 0)


class DynamoDBStore(Store):
    """Tasks as items of a table; claimable ones in a sparse index, newest first."""

    def __init__(
        self,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int = 1,
        names: Names | None = None,
    ) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions that each priority level is spread over.
            names: How freshq's attributes are called in it; None for its own names.

        Raises:
            ValueError: If the name is empty or the number of shards is wrong.
        """
        check_table_name(table)
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            msg = f"shards: must be a whole number from 1 to {MAX_SHARDS}, got {shards!r}"
            raise ValueError(msg)
        with translated(table):
            self._calls = TableCalls(client or default_client(), table, names)
        self._keyspace = Keyspace(shards, is_attached=self._calls.names.is_attached)
        self._control = ControlRecords(self._calls)
        self._puts = Puts(self._calls, self._keyspace)
        self._leases = LeaseRecords(self._calls, self._keyspace)
        self._lines = LineRecords(self._calls, self._control)
        self._records = SharedRecords(self._calls)

    def create_table(self) -> None:
        """Make the table unless it is there; return once it can be used."""
        with translated(self._calls.table):
            create_table(self._calls.client, self._calls.table)

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add the tasks whose ids are free, several at a time."""
        self._announce(tasks)
        return each_in_order(tasks, self._insert)

    def _insert(self, task: Task) -> bool | FreshqError:
        return self._puts.insert(task)

    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        """Put the tasks, each over the one of its id, several at a time."""
        self._announce(tasks)
        return each_in_order(tasks, lambda task: self._puts.over(task, on_conflict))

    def _announce(self, tasks: Sequence[Task]) -> None:
        for task in {(task.queue, task.priority, task.group): task for task in tasks}.values():
            self._lines.announce(task)

    def claim(self, request: ClaimRequest) -> list[Task]:
        """Take up to `request.limit` claimable tasks, best first, each by one conditional write.

        Where others were faster, the next round names more tasks than it needs, and begins somewhere
        among them: so claimers that lose to each other part.
        """
        pages: list[list[str]] = []
        candidates = self._candidates(request, pages)
        claiming = _Claiming(request, list(request.tokens))
        while wanted := list(islice(candidates, claiming.width)):
            try:
                self._take_among(wanted, claiming, _ahead(pages, wanted))
            except StoreError:
                if not claiming.taken:
                    raise
                # What was taken must reach its worker. A store that is still failing fails the next call.
                logger.warning(
                    "claim cut short after %d of %d tasks", len(claiming.taken), request.limit, exc_info=True
                )
                break
            if not claiming.free_tokens:
                break
        return claiming.taken

    def _take_among(self, wanted: Sequence[str], claiming: _Claiming, ahead: Sequence[str]) -> None:
        """Name tasks in the lease record, then claim them one by one while tokens are left.

        Args:
            wanted: Ids, best first; more than there are tokens if others were faster before.
            claiming: The claim so far; what is claimed is added to it.
            ahead: Tasks to name as well, for later claims.
        """
        tokens, queue = claiming.free_tokens, claiming.request.queue
        if len(wanted) > len(tokens):
            start = zlib.crc32(tokens[0].encode()) % len(wanted)
            wanted = [*wanted[start:], *wanted[:start]]
        named = {task_id: tokens[index % len(tokens)] for index, task_id in enumerate(wanted)}
        lease_until, now = claiming.request.lease_until, claiming.request.now
        self._leases.cover(queue, list(named.items()), lease_until, now, ahead)
        for task_id, named_token in named.items():
            if tokens and self._take(task_id, claiming):
                self._leases.change_token(queue, task_id, named_token, tokens.pop(0))
            else:
                self._leases.forget(queue, (task_id, named_token))

    def _candidates(self, request: ClaimRequest, pages: list[list[str]]) -> Iterator[str]:
        """Yield the ids of tasks that the index shows as claimable, best first, reading pages as needed."""
        lines = self._lines.lines(request.queue, request.now)
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for of, group in lines if of == level]
            yield from request.turns.interleave(
                level, {group: self._line(request, (level, group), pages) for group in groups}
            )

    def _line(self, request: ClaimRequest, line: Line, pages: list[list[str]]) -> Iterator[str]:
        """Yield the ids of the tasks of a line, best first."""
        newest_first = request.orders.newest_first(
            line, request.now, lambda: self._oldest_of(request.queue, [line], request.created_after)
        )
        sign = -1 if newest_first else 1
        shards = [
            queries.claimable(
                self._calls,
                partition,
                request.created_after,
                request.limit,
                newest_first=newest_first,
                pages=pages,
            )
            for partition in self._partitions(request.queue, [line])
        ]
        found = False
        for _created, task_id in heapq.merge(*shards, key=lambda entry: sign * entry[0]):
            found = True
            yield task_id
        if not found:
            self._lines.found_empty(request.queue, line)

    def _partitions(self, queue: str, lines: Iterable[Line]) -> list[str]:
        shards = range(self._keyspace.shards)
        return [self._keyspace.pending(queue, line, shard) for line in lines for shard in shards]

    def _oldest_of(self, queue: str, lines: Iterable[Line], created_after: float) -> float | None:
        """Return when the oldest claimable task of some lines was created."""
        first = (
            next(queries.claimable(self._calls, partition, created_after, 1, newest_first=False), None)
            for partition in self._partitions(queue, lines)
        )
        return min((entry[0] for entry in first if entry is not None), default=None)

    def _take(self, task_id: str, claiming: _Claiming) -> bool:
        """Claim one task with the first free token; return whether it was still there to be claimed."""
        try:
            token, request = claiming.free_tokens[0], claiming.request
            item = self._calls.update(claim_arguments(task_id, token, request, self._keyspace))
        except ConditionFailed as failed:
            if (found := decode_if_task(failed.item)) is not None:
                claiming.races_lost += found.status is TaskStatus.TAKEN
                self._leave_index_if_too_late(found, claiming.request)
            return False
        if (task := decode_if_task(item)) is not None:
            claiming.taken.append(task)
        return task is not None

    def _leave_index_if_too_late(self, task: Task, request: ClaimRequest) -> None:
        """Shed a task whose own deadline is too near, so that it is not in the way of later claims.

        The key condition of the query leaves out those that are too old by the queue's max age.
        """
        reason = too_late(request.now, task.deadline, request.deadline_after - request.now)
        if task.status is not TaskStatus.PENDING or reason is None:
            return
        shed = replace(task, status=TaskStatus.SHED, shed_reason=reason, updated=request.now)
        try:
            guard = Guard(TaskStatus.PENDING, request_token=task.request_token)
            self._calls.update(replace_arguments(shed, guard, self._keyspace))
        except ConditionFailed:
            logger.debug("task %s changed while it was taken out of the index", task.task_id)

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task if the guard holds."""
        if task.status is TaskStatus.PENDING and not task.delayed:
            self._lines.announce(task)
        hold = None if task.lease_token is None else (task.task_id, task.lease_token)
        if guard.lease_token is not None:
            hold = (task.task_id, guard.lease_token)
        if hold is not None and task.lease_until is not None:
            self._leases.extend(task.queue, hold, task.lease_until, task.updated)
        try:
            item = self._calls.update(replace_arguments(task, guard, self._keyspace))
        except ConditionFailed as failed:
            if hold is not None:
                self._leases.forget(task.queue, hold)
            raise ConflictError(decode_if_task(failed.item)) from None
        if hold is not None and task.lease_until is None:
            self._leases.forget(task.queue, hold)
        return task if item is None else replace(task, version=version_of(item))

    def delete(self, task: Task, guard: Guard) -> None:
        """Delete a task if the guard holds; one that is gone already is no error."""
        try:
            self._calls.delete(task.task_id, delete_condition(task, guard))
        except ConditionFailed as failed:
            if failed.item is not None:
                raise ConflictError(decode_if_task(failed.item)) from None

    def due(self, queue: str, now: float) -> list[Task]:
        """Return tasks whose delay is over or whose lease ran out, and tidy the lease records up."""
        for shard in range(self._keyspace.shards):
            for ids in queries.due(self._calls, self._keyspace.due(queue, shard), now):
                if due := self._due_among(ids, now):
                    return due
        return []

    def _due_among(self, ids: Sequence[str], now: float) -> list[Task]:
        items = self._calls.get_many(ids)
        found = [decode(item) for item in items if is_task(item)]
        due = [task for task in found if task.delayed and (task.not_before or 0.0) <= now]
        for record in items:
            if is_lease_record(record) and due_at(record) <= now:
                due += self._expired(record, now)
        return due

    def _expired(self, record: Item, now: float) -> list[Task]:
        """Return the tasks of a lease record whose lease ran out; if there is none, tidy it up."""
        named = [decode(item) for item in self._calls.get_many(task_ids_of(record)) if is_task(item)]
        held = [
            (task, task.lease_until) for task in named if task.status is TaskStatus.TAKEN and task.lease_until
        ]
        expired = [task for task, until in held if until <= now]
        if not expired:
            queries.tidy_lease_record(
                self._calls, record, next_look(record, [until for _, until in held], now)
            )
        return expired

    def get(self, task_id: str) -> Task | None:
        """Return a task by its id, strongly consistent."""
        return decode_if_task(self._calls.get(task_id))

    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        """Yield every task of the queue."""
        return map(decode, queries.all_tasks(self._calls, queue, start_after))

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        """Return counts that cost at most a page per shard and line whatever the backlog."""
        lines = self._lines.lines(queue, now, all_of_them=True)
        return queries.ApproximateCounts(self._calls, self._keyspace, queue).stats(lines, now, created_after)

    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, reading at most `at_most` keys of each partition."""
        counts: Counter[str | None] = Counter()
        for line in self._lines.lines(queue, created_after, all_of_them=True):
            for partition in self._partitions(queue, [line]):
                counts[line[1]] += queries.count_live(self._calls, partition, created_after, at_most)
        return dict(counts)

    def oldest_created(self, queue: str, created_after: float) -> float | None:
        """Return when the oldest claimable task was created; None if there is none."""
        lines = self._lines.lines(queue, created_after, all_of_them=True)
        return self._oldest_of(queue, lines, created_after)

    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first."""
        lines = [
            line
            for line in self._lines.lines(queue, created_after, all_of_them=True)
            if groups is None or line[1] in groups
        ]
        found: list[str] = []
        for level in sorted({level for level, _group in lines}):
            shards = [
                queries.claimable(self._calls, partition, created_after, count, newest_first=False)
                for partition in self._partitions(queue, [line for line in lines if line[0] == level])
            ]
            found += [task_id for _created, task_id in islice(heapq.merge(*shards), count - len(found))]
        tasks = [decode(item) for item in self._calls.get_many(found) if is_task(item)]
        return [task for task in tasks if task.status is TaskStatus.PENDING and not task.delayed]

    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        """Return a shared record; None if there is none."""
        return self._records.read(queue, name)

    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a shared record unless it changed since it was read."""
        return self._records.write(queue, name, values, version)

    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a shared record of counts."""
        self._records.add(queue, name, counts, expires)

    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""
        return self._records.counts(queue, name)

    def purge(self, queue: str) -> int:
        """Delete every task of the queue."""
        ids = [item["taskId"]["S"] for item in queries.all_tasks(self._calls, queue)]
        self._calls.delete_many(ids)
        return len(ids)

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended."""
        return self._control.read(queue).paused

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""
        self._control.set_paused(queue, paused=paused)

    def close(self) -> None:
        """Delete this process's lease record if it names nothing held."""
        self._leases.close()


def _ahead(pages: Sequence[Sequence[str]], wanted: Sequence[str]) -> list[str]:
    """Return what to name for later claims, out of pages that were read anyway: nothing if much is wanted."""
    in_turn = (task_id for row in zip_longest(*pages) for task_id in row if task_id is not None)
    unwanted = (task_id for task_id in in_turn if task_id not in wanted)
    # Those before the wanted ones were tried, and lost; to name a few of them in vain does no harm.
    return list(islice(unwanted, max(0, NAMED_AT_LEAST - len(wanted))))
