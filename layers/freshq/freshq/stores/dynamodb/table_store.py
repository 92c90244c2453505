"""What a store on a table of freshq's own and one on an application's table have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Store
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.approximate_counts import ApproximateCounts
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.candidates import Candidates
from freshq.stores.dynamodb.claims import Claims
from freshq.stores.dynamodb.control import ControlRecords
from freshq.stores.dynamodb.due import DueTasks
from freshq.stores.dynamodb.items import Keyspace, decode_if_task, replace_arguments, version_of
from freshq.stores.dynamodb.leases import LeaseRecords
from freshq.stores.dynamodb.line_records import LineRecords
from freshq.stores.dynamodb.puts import each_in_order
from freshq.stores.dynamodb.quarantine import Quarantine
from freshq.stores.dynamodb.shared_records import SharedRecords
from freshq.stores.dynamodb.waiting import WaitingTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.stores.base import Due, Guard, SharedRecord, Stats
    from freshq.stores.claim_request import ClaimRequest
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.puts import T

MAX_SHARDS: Final = 64


class TableStore(Store):
    """Tasks as items of a table; the claimable ones in a sparse index by creation time.

    Subclasses decide how tasks are put, read and deleted.
    """

    def __init__(self, calls: TableCalls, shards: int, *, has_deadlines: bool = True) -> None:
        """Use a table.

        Args:
            calls: Calls to it.
            shards: Partitions of each line and of the due index.
            has_deadlines: Whether its status index has the deadlines.

        Raises:
            ValueError: If the number of shards is wrong.
        """
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            msg = f"shards: must be a whole number from 1 to {MAX_SHARDS}, got {shards!r}"
            raise ValueError(msg)
        self._calls = calls
        self._keyspace = Keyspace(shards, is_attached=calls.names.is_attached, has_deadlines=has_deadlines)
        self._control = ControlRecords(calls)
        self._lines = LineRecords(calls, self._control)
        self._waiting = WaitingTasks(calls, self._keyspace, self._lines)
        self._leases = LeaseRecords(calls, self._keyspace)
        quarantine = Quarantine(calls, self._keyspace)
        self._claims = Claims(calls, self._keyspace, self._leases, quarantine)
        self._due = DueTasks(calls, self._keyspace, quarantine)
        self._records = SharedRecords(calls)

    def _announced(self, tasks: Sequence[Task], put: Callable[[Task], T]) -> list[T]:
        """Announce the lines of tasks, then put them, several at a time."""
        for task in {(task.queue, task.priority, task.group): task for task in tasks}.values():
            self._lines.announce(task)
        return each_in_order(tasks, put)

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        return self._claims.take(request, Candidates(request, request.moment(), self._lines, self._waiting))

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        if task.status is TaskStatus.PENDING and not task.delayed:
            self._lines.announce(task)
        try:
            with self._leases.following(task, guard):
                item = self._calls.update(replace_arguments(task, guard, self._keyspace))
        except ConditionFailed as failed:
            raise ConflictError(decode_if_task(failed.item)) from None
        return task if item is None else replace(task, version=version_of(item))

    @override
    def replace_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        guards = {id(task): guard for task, guard in changes}
        return each_in_order(
            [task for task, _guard in changes],
            lambda task: self._replaced_or_none(task, guards[id(task)]),
        )

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        return self._due.find(queue, now, limit)

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        tasks = map(decode_if_task, queries.all_tasks(self._calls, queue, start_after))
        return (task for task in tasks if task is not None)

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        lines = self._lines.all_lines(queue, now)
        return ApproximateCounts(self._calls, self._keyspace, queue).stats(lines, now, created_after)

    @override
    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        return self._waiting.count(queue, created_after, at_most)

    @override
    def oldest_created(self, queue: str, created_after: float) -> float | None:
        return self._waiting.oldest_created(queue, created_after)

    @override
    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        return self._waiting.oldest_tasks(queue, created_after, count, groups)

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        return self._records.read(queue, name)

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        return self._records.write(queue, name, values, version)

    @override
    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        self._records.add(queue, name, counts, expires)

    @override
    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        return self._records.counts(queue, name)

    @override
    def paused(self, queue: str) -> bool:
        return self._control.read(queue).paused

    @override
    def set_paused(self, queue: str, *, paused: bool) -> None:
        self._control.set_paused(queue, paused=paused)

    @override
    def close(self) -> None:
        self._leases.close()
