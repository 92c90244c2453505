"""Put tasks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from freshq.errors import FreshqError, LostRace, Unreachable
from freshq.model.answers import PutOutcome
from freshq.model.task import LIVE, TaskStatus
from freshq.policy.retry import until_committed
from freshq.stores.base import put_over
from freshq.stores.dynamodb.batches import IF_FREE
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import decode_if_task, encode
from freshq.stores.dynamodb.keyspace import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from freshq.model.task import Task
    from freshq.stores.base import OnConflict, PutResult
    from freshq.stores.dynamodb.batches import Batches
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Item, Keyspace

T = TypeVar("T")
# Concurrent puts of one batch: a batch of 25 takes about four round trips.
PUT_THREADS: Final = 8
# Tries to put over a task that keeps changing.
MAX_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Puts:
    """Puts tasks into a table of freshq's own.

    Attributes:
        calls: Calls to the table.
        batches: Writes of several items in one call.
        keyspace: Names of its index partitions.
    """

    calls: TableCalls
    batches: Batches
    keyspace: Keyspace

    def insert(self, task: Task) -> bool | FreshqError:
        """Add a task if its id is free; return whether it was, or the error that prevented the put."""
        try:
            self.calls.put(encode(task, self.keyspace), IF_FREE)
        except ConditionFailed:
            return False
        except FreshqError as error:
            return error  # the caller reports it with the outcomes of the others
        return True

    def insert_many(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free, no id twice; return for each what `insert` does."""
        answers = self.batches.insert([encode(task, self.keyspace) for task in tasks])
        return [_inserted(answer) for answer in answers]

    def over(self, task: Task, on_conflict: OnConflict) -> PutResult:
        """Put a task under its id, live or not; return the outcome, or the error that prevented it.

        If the id is free, or its task is over, this takes one write. Otherwise the failed condition
        returns the live task. An update is conditional on that version, so the task it replaces is known
        even if the reply is lost.
        """
        try:
            return until_committed(lambda: self._over(task, on_conflict), ConditionFailed, MAX_TRIES)
        except ConditionFailed:
            return LostRace(task.task_id, MAX_TRIES)
        except FreshqError as error:
            return error

    def _over(self, task: Task, on_conflict: OnConflict) -> PutOutcome:
        """Put a task once.

        Raises:
            ConditionFailed: If the task changed before it was updated.
        """
        item = encode(task, self.keyspace)
        try:
            self.calls.put(item, _if_nothing_lives(task))
        except ConditionFailed as failed:
            current = decode_if_task(failed.item)
        else:
            return PutOutcome.CREATED
        if current is None or current.queue != task.queue:
            return PutOutcome.DUPLICATE
        outcome = put_over(current, task, on_conflict)
        if outcome is not PutOutcome.DUPLICATE:
            self.calls.put(item, _if_still(current))
        return outcome


def each_in_order(tasks: Sequence[Task], put: Callable[[Task], T]) -> list[T]:
    """Put tasks concurrently, those of the same id one after the other; return the answers in order.

    Once a put was never answered, the remaining puts get the same error. So all end with the puts that are
    under way, rather than each after its own timeout.
    """
    unanswered: list[Callable[[], T]] = []

    def put_one(task: Task) -> T:
        if unanswered:
            return unanswered[0]()
        try:
            answer = put(task)
        except Unreachable as error:
            unanswered.append(partial(_raise, error))
            raise
        if isinstance(answer, Unreachable):
            unanswered.append(lambda: answer)
        return answer

    by_id: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        by_id.setdefault(task.task_id, []).append(index)
    answers: dict[int, T] = {}

    def put_all(indexes: list[int]) -> None:
        for index in indexes:
            answers[index] = put_one(tasks[index])

    if len(by_id) == 1:
        put_all(*by_id.values())
    else:
        with ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="freshq-put") as pool:
            list(pool.map(put_all, by_id.values()))  # raises the error of a put
    return [answers[index] for index in range(len(tasks))]


def each_within(
    tasks: Sequence[Task],
    context_of: Callable[[Task], AbstractContextManager[None]],
    write: Callable[[Sequence[Task]], Sequence[T | FreshqError]],
) -> list[T | FreshqError]:
    """Write tasks together, each within its own context, which ends with the task's own answer.

    Args:
        tasks: The tasks.
        context_of: Returns the context of a task.
        write: Writes tasks, and returns for each its answer, or its error.
    """
    answers: dict[int, T | FreshqError] = {}
    entered: dict[int, ExitStack] = {}
    for index, task in enumerate(tasks):
        stack = ExitStack()
        try:
            stack.enter_context(context_of(task))
        except FreshqError as error:
            answers[index] = error  # the caller reports it with the answers for the others
        else:
            entered[index] = stack
    written = write([tasks[index] for index in entered])
    for (index, stack), answer in zip(entered.items(), written, strict=True):
        try:
            with stack:
                if isinstance(answer, FreshqError):
                    raise answer
                answers[index] = answer
        except FreshqError as error:
            answers[index] = error
    return [answers[index] for index in range(len(tasks))]


def _inserted(answer: Item | FreshqError) -> bool | FreshqError:
    if isinstance(answer, ConditionFailed):
        return False
    return answer if isinstance(answer, FreshqError) else True


def _raise(error: Exception) -> NoReturn:
    raise error


def _if_nothing_lives(task: Task) -> Item:
    """Return the condition that an id is free, or its task is over: done, dead, cancelled or stale.

    The task must not be this very put's: after a lost reply, a worker may complete the task before the
    put is repeated.
    """
    over = [status for status in TaskStatus if status not in LIVE]
    values: Item = {f":over{index}": {"S": status.value} for index, status in enumerate(over)}
    ended = f"#taskStatus IN ({', '.join(values)}) OR (#taskStatus = :pending AND #deadline <= :now)"
    return {
        "ConditionExpression": "attribute_not_exists(#taskId) "
        f"OR (#taskQueue = :queue AND #putToken <> :ownToken AND ({ended}))",
        "ExpressionAttributeValues": values
        | {
            ":pending": {"S": TaskStatus.PENDING.value},
            ":now": milliseconds(task.updated),
            ":queue": {"S": task.queue},
            ":ownToken": {"S": task.request_token},
        },
    }


def _if_still(current: Task) -> Item:
    """Return the condition that a task has not changed since it was read."""
    return {
        "ConditionExpression": "#taskQueue = :queue AND #requestToken = :seen",
        "ExpressionAttributeValues": {
            ":queue": {"S": current.queue},
            ":seen": {"S": current.request_token},
        },
    }
