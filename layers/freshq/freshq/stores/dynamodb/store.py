"""Assemble the store of tasks in a DynamoDB table."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import FreshqError, quoted
from freshq.model.settlement import rounds
from freshq.model.storable_options import MAX_SHARDS
from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard, Store
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.agenda import DueTasks, StaleTasks
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.dynamodb.calls import (
    ConditionFailed,
    TableCalls,
    check_table_name,
    default_client,
    translated,
)
from freshq.stores.dynamodb.claim import Candidates, Claimer, peek
from freshq.stores.dynamodb.clock import compared, table_time
from freshq.stores.dynamodb.counts import ApproximateCounts, WaitingTasks
from freshq.stores.dynamodb.dead_letters import DeadLetters, Quarantine
from freshq.stores.dynamodb.items import (
    decode,
    decode_if_task,
    delete_condition,
    is_task,
    replace_arguments,
    version_of,
)
from freshq.stores.dynamodb.keyspace import Keyspace, StatusIndex, create_table
from freshq.stores.dynamodb.leases import LeaseRecords
from freshq.stores.dynamodb.lines import LineRecords
from freshq.stores.dynamodb.put import Puts, each_in_order, each_within
from freshq.stores.dynamodb.shared_records import ControlRecords, SharedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.task import Task
    from freshq.stores.base import DeadPlace, Due, OldestRequest, OnConflict, PutResult, SharedRecord, Stats
    from freshq.stores.claim_request import ClaimRequest
    from freshq.stores.dynamodb.keyspace import Item
    from freshq.stores.dynamodb.put import T

# Tasks whose lines are announced at a time: they are put within a second, or their records are read again.
ANNOUNCED_TASKS: Final = 100
# Lines that share the two calls that close them, after a claim that found enough.
MIN_CLOSING_LINES: Final = 2


class TableStore(Store):
    """Tasks as items of a table; the claimable ones in a sparse index by creation time.

    Subclasses decide how tasks are put, read and deleted.
    """

    def __init__(self, calls: TableCalls, shards: int, status_index: StatusIndex | None = None) -> None:
        """Use a table.

        Args:
            calls: Calls to it.
            shards: Partitions of each line and of the due index.
            status_index: Its index of the claimable tasks; None for that of freshq's own tables.

        Raises:
            ValueError: If the number of shards is wrong.
        """
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            msg = f"shards: must be a whole number from 1 to {MAX_SHARDS}, got {quoted(shards)}"
            raise ValueError(msg)
        self._calls = calls
        # Another client may have another account, with a table of the same name.
        self.place = (calls.client, calls.table)
        self._keyspace = Keyspace(shards, calls.names.is_attached, status_index or StatusIndex())
        self._control = ControlRecords(calls)
        self._lines = LineRecords(calls, self._control, self._keyspace)
        self._waiting = WaitingTasks(calls, self._keyspace, self._lines)
        self._leases = LeaseRecords(calls, self._keyspace)
        self._stale = StaleTasks(calls, self._keyspace)
        self._quarantine = quarantine = Quarantine(calls, self._keyspace)
        self._batches = batches = Batches(calls)
        self._claimer = Claimer(calls, batches, self._keyspace, self._leases, quarantine, self._stale)
        self._dead = DeadLetters(calls, self._keyspace)
        self._due = DueTasks(calls, self._keyspace, quarantine)
        self._records = SharedRecords(calls)
        self._time = table_time(calls)
        self.clock = compared(self._time)

    def _announced(
        self,
        tasks: Sequence[Task],
        put: Callable[[Task], T],
        put_many: Callable[[Sequence[Task]], Sequence[T | FreshqError]] | None = None,
    ) -> list[T | FreshqError]:
        """Announce the lines of tasks and put them, several at a time.

        Args:
            tasks: The tasks.
            put: Puts one.
            put_many: Puts several with different ids in few calls; None if there is no such way.
        """

        def announced_put(task: Task) -> T | FreshqError:
            if not _waits(task):
                return put(task)
            try:
                with self._lines.announcing(task):
                    return put(task)
            except FreshqError as error:
                return error  # the caller reports it with the outcomes of the others

        answers: list[T | FreshqError] = []
        for start in range(0, len(tasks), ANNOUNCED_TASKS):
            some = tasks[start : start + ANNOUNCED_TASKS]
            try:
                self._lines.announce(filter(_waits, some))
            except FreshqError as error:
                if not answers:
                    raise
                answers += [error] * len(some)
            else:
                if put_many is not None and self._batches.serve(len(some)):
                    answers += self._put_together(some, put_many)
                else:
                    answers += each_in_order(some, announced_put)
        return answers

    def _put_together(
        self, tasks: Sequence[Task], put_many: Callable[[Sequence[Task]], Sequence[T | FreshqError]]
    ) -> list[T | FreshqError]:
        """Put tasks whose lines are announced, those of the same id one after the other."""
        answers: dict[int, T | FreshqError] = {}
        for now in rounds([task.task_id for task in tasks]):
            put = each_within(
                [tasks[index] for index in now],
                lambda task: self._lines.announcing(task) if _waits(task) else nullcontext(),
                put_many,
            )
            answers |= dict(zip(now, put, strict=True))
        return [answers[index] for index in range(len(tasks))]

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        moment = request.moment()
        candidates = Candidates(request, moment, self._lines, self._waiting, self._stale)
        tasks = self._claimer.take(request, candidates)
        least = MIN_CLOSING_LINES if len(tasks) == request.limit else 1
        self._lines.close_empty(request.queue, request.moment().now, least)
        return tasks

    @override
    def peek(self, request: ClaimRequest) -> list[Task]:
        moment = request.moment()
        candidates = Candidates(request, moment, self._lines, self._waiting, self._stale)
        return peek(self._calls, candidates)

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        return self._due.delayed(queue, limit)

    @contextmanager
    def _replacing(self, task: Task, guard: Guard) -> Iterator[None]:
        """Keep line and lease records correct while the block stores a new version of a task."""
        announcing = self._lines.announcing(task) if _waits(task) else nullcontext()
        with announcing, self._leases.following(task, guard):
            yield

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        return self._due.leased(queue, limit)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        return self._replace(task, guard, replace_arguments(task, guard, self._keyspace))

    def _replace(self, task: Task, guard: Guard, arguments: Item) -> Task:
        """Store a new version of a task by an UpdateItem, whose condition is the guard or more.

        Raises:
            ConflictError: If the condition did not hold.
        """
        try:
            with self._replacing(task, guard):
                item = self._calls.update(arguments)
        except ConditionFailed as failed:
            raise ConflictError(decode_if_task(failed.item)) from None
        return task if item is None else replace(task, version=version_of(item))

    @override
    def replace_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        guards = {id(task): guard for task, guard in changes}
        self._lines.announce(filter(_waits, (task for task, _guard in changes)))
        return each_in_order(
            [task for task, _guard in changes],
            lambda task: self._replaced_or_none(task, guards[id(task)]),
        )

    @override
    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        lease_tokens = {task.task_id: lease_token for task, lease_token in settled}
        tasks = [task for task, _lease_token in settled]
        if not self._batches.serve(len(tasks)):
            return each_in_order(tasks, lambda task: self._settled(task, lease_tokens[task.task_id]))
        guards = {
            task_id: Guard(TaskStatus.TAKEN, lease_token=lease_token)
            for task_id, lease_token in lease_tokens.items()
        }
        answers = each_within(
            tasks,
            lambda task: self._replacing(task, guards[task.task_id]),
            lambda some: self._batches.update(
                [replace_arguments(task, guards[task.task_id], self._keyspace) for task in some]
            ),
        )
        return [_settled_by(task, answer) for task, answer in zip(tasks, answers, strict=True)]

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        return self._due.find(queue, now, limit)

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        done = self._lines.tidy(queue, now, limit)
        return done + self._stale.shed_passed_over(queue, now, limit - done)

    @override
    def tidy_in_claim(self, queue: str, now: float, limit: int) -> int:
        return self._lines.tidy_in_claim(queue, now)

    @override
    def take_quarantined(self) -> int:
        return self._quarantine.take_admitted()

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        items = self._dead.reported(queue, queries.all_tasks(self._calls, queue, start_after))
        return (task for task in map(decode_if_task, items) if task is not None)

    @override
    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        return self._dead.newest_first(queue, start_after)

    @override
    def index_dead(self, queue: str) -> int:
        unlisted, indexed = self._dead.unlisted(queue), 0
        while some := list(islice(unlisted, ANNOUNCED_TASKS)):
            indexed += sum(task is not None for task in self.replace_many(some))
        return indexed

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        lines = self._lines.all_lines(queue, now)
        return ApproximateCounts(self._calls, self._keyspace, queue).stats(lines, now, created_after)

    @override
    def count_waiting(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, int]:
        return self._waiting.count(queue, now, created_after, at_most)

    @override
    def newest_created(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        return self._waiting.newest(queue, now, created_after, at_most)

    @override
    def oldest_created(self, queue: str, now: float, created_after: float) -> float | None:
        return self._waiting.oldest_created(queue, now, created_after)

    @override
    def oldest_tasks(self, request: OldestRequest) -> list[Task]:
        return self._waiting.oldest_tasks(request)

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


def _settled_by(task: Task, answer: Item | FreshqError) -> Task | FreshqError:
    """Return what `settle_many` answers for a task."""
    if not isinstance(answer, ConditionFailed):
        return answer if isinstance(answer, FreshqError) else task
    return ConflictError(decode_if_task(answer.item))


def _waits(task: Task) -> bool:
    """Return whether a task is to be claimable."""
    return task.status is TaskStatus.PENDING and not task.delayed


class DynamoDBStore(TableStore):
    """Tasks as whole items of a table."""

    def __init__(self, table: str, client: DynamoDBClient | None = None, *, shards: int = 1) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of each line and of the due index.

        Raises:
            ValueError: If the table name or the number of shards is wrong.
        """
        check_table_name(table)
        with translated(table):
            calls = TableCalls(client or default_client(), table)
        super().__init__(calls, shards)
        self._puts = Puts(calls, self._batches, self._keyspace)

    @override
    def create_table(self) -> None:
        with translated(self._calls.table):
            create_table(self._calls.client, self._calls.table)

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        return self._announced(tasks, self._puts.insert, self._puts.insert_many)

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        return self._announced(tasks, lambda task: self._puts.over(task, on_conflict))

    @override
    def get(self, task_id: str) -> Task | None:
        item = self._calls.get(task_id)
        return decode(item) if item is not None and is_task(item) else None

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        try:
            self._calls.delete(task.task_id, delete_condition(task, guard))
        except ConditionFailed as failed:
            if failed.item is not None:
                raise ConflictError(decode_if_task(failed.item)) from None

    @override
    def purge(self, queue: str) -> int:
        ids = [item["taskId"]["S"] for item in queries.all_tasks(self._calls, queue)]
        self._calls.delete_many(ids)
        return len(ids)
