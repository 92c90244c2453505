"""Put, read, change and delete tasks, each an item of a table of freshq's own; list dead letters."""

from __future__ import annotations

import heapq
import logging
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from typing_extensions import override

from freshq.errors import FreshqError, LostRace
from freshq.model.answers import PutOutcome
from freshq.model.fields import plain_token
from freshq.model.lifecycle import put_over, rounds
from freshq.model.task import LIVE, Task, TaskStatus
from freshq.policy.retry import until_committed
from freshq.stores.base import Conflict, DeadLetters, DeadPlace, Guard, TooLarge
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.batches import IF_FREE, each_in_order, each_within
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import (
    FOLLOWED_FIELDS,
    attributes,
    condition,
    decode,
    decode_if_task,
    encode,
    ended_attributes,
    guarded,
    is_task,
    milliseconds,
    remembering,
    replace_arguments,
    update_arguments,
    version_of,
    without_spare,
)
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.schema import KEY
from freshq.stores.dynamodb.unfit import NO_ROOM
from freshq.stores.lines import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.stores.base import OnConflict, PutResult
    from freshq.stores.dynamodb.schema import Item

T = TypeVar("T")
logger = logging.getLogger(__name__)
# Attempts to put over a task that keeps changing.
MAX_TRIES: Final = 10
# Number of tasks whose lines are announced at a time: they are put within a second, or their records are read
# again.
ANNOUNCED_TASKS: Final = 100
# Number of dead letters read at a time: at first a page of a listing, then the limit of BatchGetItem.
FIRST_TASKS: Final = 25
MORE_TASKS: Final = 100
# A dead letter without room keeps this much of its own error.
SHORT_ERROR_CHARS: Final = 30
# Dead letters of a shard that are counted.
COUNTED_DEAD: Final = 1_000


class DynamoTasks(DynamoPart):
    """Tasks by their ids."""

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        return self._announced(tasks, self._insert, self._insert_many)

    def _insert(self, task: Task) -> bool | FreshqError:
        """Add a task if its id is free; return whether it was, or the error that prevented the put."""
        try:
            self.calls.put(encode(task, self.keyspace), IF_FREE)
        except ConditionFailed:
            return False
        except FreshqError as error:
            return error  # the caller reports it with the other outcomes
        return True

    def _insert_many(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free, no id twice; return the answer of `_insert` for each."""
        answers = self.batches.insert([encode(task, self.keyspace) for task in tasks])
        return [_inserted(answer) for answer in answers]

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> Sequence[PutResult]:
        return self._announced(tasks, lambda task: self._put_over(task, on_conflict))

    def _put_over(self, task: Task, on_conflict: OnConflict) -> PutResult:
        """Put a task under its id, live or not; return the outcome, or the error that prevented it.

        It takes one write if the id is free or its task has ended. Otherwise the failed condition returns
        the live task. An update is conditional on that version, so the replaced task is known even if the
        reply is lost.
        """
        try:
            return until_committed(lambda: self._put_over_once(task, on_conflict), ConditionFailed, MAX_TRIES)
        except ConditionFailed:
            return LostRace.of_task(task.task_id, MAX_TRIES)
        except FreshqError as error:
            return error

    def _put_over_once(self, task: Task, on_conflict: OnConflict) -> PutOutcome:
        """Put a task once.

        Raises:
            ConditionFailed: If the task changed before it was updated.
        """
        item = encode(task, self.keyspace)
        try:
            self.calls.put(item, _if_nothing_lives(task))
        except ConditionFailed as failed:
            found = failed.item
        else:
            return PutOutcome.CREATED
        current = decode_if_task(found)
        if found is None or current is None or current.queue != task.queue:
            return PutOutcome.DUPLICATE
        outcome, version = put_over(current, task, on_conflict)
        if outcome is PutOutcome.DUPLICATE:
            return outcome
        unchanged = guarded(task.queue, Guard.exact(current))
        if version.status is TaskStatus.TAKEN:
            self._follow(version, remembering(item, found)["putToken"], unchanged)
        else:
            with nullcontext() if version is task else self._announcing(version):
                self.calls.put(remembering(encode(version, self.keyspace), found), unchanged)
        return outcome

    def _follow(self, held: Task, put_token: Item, unchanged: Item) -> None:
        """Store the successor of a held task.

        The version of the held task stays, so that a claim whose reply was lost recognizes it.

        Raises:
            ConditionFailed: If the task has changed, and not by an earlier try of this.
        """
        changes: dict[str, Item | None] = attributes(held, FOLLOWED_FIELDS) | {"putToken": put_token}
        try:
            self.calls.update(update_arguments(held.task_id, changes, unchanged, self.keyspace))
        except ConditionFailed as failed:
            if failed.item is None or failed.item.get("successorRecord") != changes["successorRecord"]:
                raise

    def _announced(
        self,
        tasks: Sequence[Task],
        put: Callable[[Task], T | FreshqError],
        put_many: Callable[[Sequence[Task]], Sequence[T | FreshqError]] | None = None,
    ) -> list[T | FreshqError]:
        """Announce the lines of tasks and put them, several at a time.

        Args:
            tasks: The tasks.
            put: Puts one.
            put_many: Puts several with different ids in few calls; None if there is no such call.
        """
        if len(tasks) == 1:
            with self._announcing(tasks[0]):
                return [put(tasks[0])]

        def announced_put(task: Task) -> T | FreshqError:
            try:
                with self._announcing(task):
                    return put(task)
            except FreshqError as error:
                return error  # the caller reports it with the other outcomes

        answers: list[T | FreshqError] = []
        for start in range(0, len(tasks), ANNOUNCED_TASKS):
            some = tasks[start : start + ANNOUNCED_TASKS]
            try:
                self.line_records.announce(filter(_waits, some))
            except FreshqError as error:
                if not answers:
                    raise
                answers += [error] * len(some)
            else:
                if put_many is not None and self.batches.are_allowed and len(some) > 1:
                    answers += self._put_together(some, put_many)
                else:
                    answers += each_in_order(some, announced_put)
        return answers

    def _put_together(
        self, tasks: Sequence[Task], put_many: Callable[[Sequence[Task]], Sequence[T | FreshqError]]
    ) -> list[T | FreshqError]:
        """Put tasks whose lines are announced, tasks of the same id one after the other."""
        answers: dict[int, T | FreshqError] = {}
        for now in rounds([task.task_id for task in tasks]):
            put = each_within([tasks[index] for index in now], self._announcing, put_many)
            answers |= dict(zip(now, put, strict=True))
        return [answers[index] for index in range(len(tasks))]

    def _announcing(self, task: Task) -> AbstractContextManager[None]:
        """Return the context in which a task is stored: its line is announced if the task is claimable."""
        if not _waits(task):
            return nullcontext()
        return self._entering(task) if task.line_class else self.line_records.announcing(task)

    @contextmanager
    def _entering(self, task: Task) -> Iterator[None]:
        """Announce the line of a task that has a class; afterwards have it read again."""
        try:
            with self.line_records.announcing(task):
                yield
        finally:
            self.known_heads.forget(task.queue, Line.of(task).key)

    @override
    def get(self, task_id: str) -> Task | None:
        item = self.calls.get(task_id)
        return decode(item) if item is not None and is_task(item) else None

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        return self._replace(task, guard, replace_arguments(task, guard, self.keyspace))

    def _replace(self, task: Task, guard: Guard, arguments: Item) -> Task:
        """Store a new version of a task by an UpdateItem, whose condition is the guard or more.

        Raises:
            Conflict: If the condition did not hold.
        """
        try:
            with self._announcing(task), self.lease_records.following(task, guard):
                item = self._updated(arguments)
        except ConditionFailed as failed:
            return self.replace_followed(task, guard, decode_if_task(failed.item))
        except TooLarge as too_large:
            if guard.status not in LIVE or task.status is TaskStatus.TAKEN:
                msg = f"task {task.task_id!r}: {too_large}"
                raise TooLarge(msg) from None
            return self._buried(task, guard)
        # Only the changes of an application's record are counted.
        return replace(task, version=version_of(item)) if item and self.keyspace.is_attached else task

    def _updated(self, arguments: Item) -> Item | None:
        try:
            return self.calls.update(arguments)
        except TooLarge:
            return self.calls.update(without_spare(arguments))

    def _buried(self, task: Task, guard: Guard) -> Task:
        """Make a dead letter of a task whose new version does not fit into an item.

        Raises:
            Conflict: If the guard does not hold.
        """
        error = NO_ROOM if task.result is None else f"result: {NO_ROOM}"
        if task.error is not None:
            error = f"{task.error:.{SHORT_ERROR_CHARS}}; {error}"
        unchanged = guarded(task.queue, guard)
        dead = replace(task, status=TaskStatus.FAILURE, lease_token=None, lease_until=None)
        try:
            with self.lease_records.following(dead, guard):
                item = self.unreadable.discard_unreadable(
                    task.task_id, task.queue, task.updated, error, task.request_token, unchanged
                )
        except ConditionFailed as failed:
            raise Conflict(decode_if_task(failed.item)) from None
        logger.error("task %s is a dead letter now: %s", task.task_id, error)
        return decode(item)

    @override
    def _replaced_or_none(self, task: Task, guard: Guard) -> Task | None:
        try:
            return super()._replaced_or_none(task, guard)
        except TooLarge as error:
            logger.warning("left as it is: %s", error)  # the other tasks are not held up
            return None

    @contextmanager
    def _replacing(self, task: Task, guard: Guard) -> Iterator[None]:
        """Keep line and lease records correct while the block stores a new version of a task."""
        with self._announcing(task), self.lease_records.following(task, guard):
            yield

    @override
    def replace_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        guards = {id(task): guard for task, guard in changes}
        tasks = [task for task, _guard in changes]
        self.line_records.announce(filter(_waits, tasks))
        return each_in_order(tasks, lambda task: self._replaced_or_none(task, guards[id(task)]))

    @override
    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        tasks = [task for task, _lease_token in settled]
        lease_tokens = {task.task_id: lease_token for task, lease_token in settled}
        if not self.batches.are_allowed or len(tasks) <= 1:
            return each_in_order(tasks, lambda task: self._settled(task, lease_tokens[task.task_id]))

        def guard_of(task: Task) -> Guard:
            return Guard(TaskStatus.TAKEN, lease_token=lease_tokens[task.task_id])

        answers = each_within(
            tasks,
            lambda task: self._replacing(task, guard_of(task)),
            lambda some: self.batches.update(
                [replace_arguments(task, guard_of(task), self.keyspace) for task in some], returning=False
            ),
        )
        return [
            self._settled(task, lease_tokens[task.task_id])
            if isinstance(answer, TooLarge) or _is_followed(answer)
            else _settled_by(task, answer)
            for task, answer in zip(tasks, answers, strict=True)
        ]

    @override
    def succeed(self, current: Task, ended: Task, entered: Task) -> None:
        token = plain_token(current.lease_token)
        stored = self.calls.get(current.task_id)
        if stored is None or stored.get("leaseToken") != {"S": current.lease_token}:
            raise Conflict(decode_if_task(stored))
        # With the token of the settlement: after a lost reply, a worker may claim the successor before the
        # settlement is repeated.
        item = remembering(encode(entered, self.keyspace), stored)
        item |= {"endedToken": {"S": token}, "endedTask": {"M": ended_attributes(ended)}}
        try:
            with self._announcing(entered), self.lease_records.following(entered, Guard.held(token)):
                self.calls.put(item, guarded(current.queue, Guard.exact(current)))
        except ConditionFailed as failed:
            raise Conflict(decode_if_task(failed.item)) from None

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        try:
            self.calls.delete(task.task_id, guarded(task.queue, guard))
        except ConditionFailed as failed:
            if failed.item is not None:
                raise Conflict(decode_if_task(failed.item)) from None

    @override
    def purge(self, queue: str) -> int:
        ids = [item[KEY]["S"] for item in queries.all_tasks(self.calls, queue)]
        self.calls.delete_many(ids)
        return len(ids)

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        return filter(None, map(decode_if_task, queries.all_tasks(self.calls, queue, start_after)))

    @override
    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        """Yield dead letters, the last to die first, and simultaneous deaths in the order of their shards."""
        shards = (self._dead_places(queue, shard, start_after) for shard in range(self.keyspace.shards))
        places = heapq.merge(*shards, key=lambda place: place.dead_at, reverse=True)
        size = FIRST_TASKS
        while ids := [place.task_id for place in islice(places, size)]:
            tasks = map(decode_if_task, self.calls.get_many(ids))
            # The index lags behind the table.
            found = {task.task_id: task for task in tasks if task and task.status is TaskStatus.FAILURE}
            yield from (found[task_id] for task_id in ids if task_id in found)
            size = MORE_TASKS

    def _dead_places(self, queue: str, shard: int, start_after: DeadPlace | None) -> Iterator[DeadPlace]:
        """Yield the places of one shard, the last to die first, reading pages as needed."""
        partition = self.keyspace.dead(queue, shard)
        arguments = queries.due_query(partition)
        if start_after is not None:
            own_shard = self.keyspace.shard_of(start_after.task_id)
            if shard == own_shard:
                due = {"dueShard": {"S": partition}, "dueAt": milliseconds(start_after.dead_at)}
                arguments["ExclusiveStartKey"] = {KEY: {"S": start_after.task_id}} | due
            else:
                relation = "<" if shard < own_shard else "<="
                arguments = queries.due_query(partition, relation, start_after.dead_at)
        arguments |= {"ScanIndexForward": False, "Limit": FIRST_TASKS}
        for page in queries.pages_of(self.calls, arguments, MORE_TASKS):
            yield from (DeadPlace(dead_at, task_id) for task_id, dead_at in queries.due_entries(page))

    @override
    def count_dead(self, queue: str) -> DeadLetters:
        pages = [
            self.calls.query(queries.due_query(self.keyspace.dead(queue, shard)) | {"Limit": COUNTED_DEAD})
            for shard in range(self.keyspace.shards)
        ]
        died = [dead_at for page in pages for _task_id, dead_at in queries.due_entries(page)]
        more = any("LastEvaluatedKey" in page for page in pages)
        return DeadLetters(len(died), more, min(died, default=None))


def _waits(task: Task) -> bool:
    """Return whether a task should be claimable."""
    return task.status is TaskStatus.PENDING and task.not_before is None


def _inserted(answer: Item | FreshqError) -> bool | FreshqError:
    if isinstance(answer, ConditionFailed):
        return False
    return answer if isinstance(answer, FreshqError) else True


def _settled_by(task: Task, answer: Item | FreshqError) -> Task | FreshqError:
    """Return the answer of `settle_many` for a task."""
    if not isinstance(answer, ConditionFailed):
        return answer if isinstance(answer, FreshqError) else task
    return Conflict(decode_if_task(answer.item))


def _if_nothing_lives(task: Task) -> Item:
    """Return the condition that an id is free, or its task has ended: done, dead, cancelled or stale.

    A task of this same put does not count as ended: after a lost reply, a worker may complete the task
    before the put is repeated.
    """
    over: Item = {f"over{status}": {"S": status.value} for status in TaskStatus if status not in LIVE}
    statuses = ", ".join([f":{name}" for name in over])
    ended = f"#taskStatus IN ({statuses}) OR (#taskStatus = :pending AND #deadline <= :now)"
    return condition(
        "attribute_not_exists(#taskId) "
        f"OR (#taskQueue = :queue AND NOT contains(#putToken, :ownToken) AND ({ended}))",
        **over,
        pending={"S": TaskStatus.PENDING.value},
        now=milliseconds(task.updated),
        queue={"S": task.queue},
        ownToken={"S": task.request_token},
    )


def _is_followed(answer: Item | FreshqError) -> bool:
    """Return whether a write failed on a held task with a successor."""
    return isinstance(answer, ConditionFailed) and "successorRecord" in (answer.item or {})
