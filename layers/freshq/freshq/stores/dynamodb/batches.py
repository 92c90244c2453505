"""Write several items: in one call if the table permits it, otherwise by several calls at a time."""

from __future__ import annotations

import logging
import random
import re
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from freshq.errors import FreshqError, Throttled, Unreachable
from freshq.model.forks import drained, fulfil
from freshq.stores.dynamodb.calls import (
    BATCH_RETRY,
    ConditionFailed,
    InvalidUpdate,
    error_code,
    is_too_large,
    made_by,
)
from freshq.stores.dynamodb.schema import EXPRESSIONS_CACHED, KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.schema import Item

_CLAUSE: Final = re.compile(r"(SET|REMOVE|ADD) (.*?)(?= (?:SET|REMOVE|ADD) |$)")
_MARK: Final = re.compile(r"attribute_not_exists\(#(?P<missing>\w+)\)|#(?P<name>\w+)|(?P<value>:\w+)")
A = TypeVar("A")
T = TypeVar("T")
logger = logging.getLogger(__name__)
# Concurrent calls: a batch of 25 puts takes about four round trips.
PUT_THREADS: Final = 8
# Service quota of BatchExecuteStatement.
BATCH_STATEMENTS: Final = 25
IF_FREE: Final = {"ConditionExpression": f"attribute_not_exists(#{KEY})"}
# Error codes of statements to resend.
TRANSIENT_CODES: Final = frozenset(
    {
        "InternalServerError",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
    }
)
# Error codes of a statement whose condition did not hold.
REFUSING_CODES: Final = frozenset({"ConditionalCheckFailed", "DuplicateItem"})
# Error codes of a call or a statement that the role or the endpoint does not permit, perhaps only in this
# form.
ACCESS_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException"})
CALL_NOT_ALLOWED: Final = ACCESS_DENIED | {"UnknownOperationException", "ValidationException"}
STATEMENT_NOT_ALLOWED: Final = ACCESS_DENIED | {"ValidationError"}


def update_statement(table: str, arguments: Item, *, returning: bool) -> Item:
    """Return the statement equivalent to an UpdateItem with these arguments.

    Both forms come from one set of expressions, so that they cannot diverge. PartiQL has no ADD: the
    attribute that is added to must exist.

    Args:
        table: Name of the table.
        arguments: Arguments of a conditional UpdateItem, with a `#` in front of each name.
        returning: Whether the statement returns the item.
    """
    text, names = _partiql(arguments["UpdateExpression"], arguments["ConditionExpression"])
    values = arguments["ExpressionAttributeValues"] | {":ownKey": arguments["Key"][KEY]}
    returned = " RETURNING ALL NEW *" if returning else ""
    return _statement(f'UPDATE "{table}" {text}{returned}', [values[name] for name in names])


@lru_cache(maxsize=EXPRESSIONS_CACHED)
def _partiql(update: str, condition: str) -> tuple[str, list[str]]:
    """Return an update and its condition with PartiQL's names and question marks, and the values of these."""
    actions = [
        _action(keyword, action)
        for keyword, clause in _CLAUSE.findall(update)
        for action in clause.split(", ")
    ]
    values: list[str] = []

    def fill_in(mark: re.Match[str]) -> str:
        if mark["missing"]:
            return f'"{mark["missing"]}" IS MISSING'
        if mark["name"]:
            return f'"{mark["name"]}"'
        values.append(mark["value"])
        return "?"

    text = _MARK.sub(fill_in, f"{' '.join(actions)} WHERE #{KEY} = :ownKey AND {condition}")
    return text, values


def insert_statement(table: str, item: Item) -> Item:
    """Return the statement that adds an item if its id is free."""
    attributes = ", ".join(f"'{name}': ?" for name in item)
    return _statement(f'INSERT INTO "{table}" VALUE {{{attributes}}}', list(item.values()))


def _statement(text: str, parameters: list[Item]) -> Item:
    return {"Statement": text, "Parameters": parameters, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _action(keyword: str, action: str) -> str:
    if keyword == "ADD":
        name, value = action.split()
        return f"SET {name} = {name} + {value}"
    return f"{keyword} {action}"


class _NotAllowed(Exception):
    """A batch cannot be sent here."""


class _Left(Throttled):
    """Statements of a batch were not carried out."""

    def __init__(self, table: str, codes: Sequence[str]) -> None:
        super().__init__(
            f"table {table!r}: {len(codes)} writes were not carried out ({codes[0]}); "
            "try again later or raise its limits"
        )


@dataclass(frozen=True, slots=True)
class _Write:
    """A write in both of its forms.

    Attributes:
        item_id: Id of the item.
        token: Its request token.
        statement: The write in a batch.
        alone: Writes it by a separate call, and returns the item.
        item: The item after the write, empty if it is not needed; None if only the answer has it.
    """

    item_id: str
    token: str
    statement: Item
    alone: Callable[[], Item | None]
    item: Item | None = None


class Batches:
    """Writes items of a table of freshq's own, up to 25 in a call. Thread-safe.

    Attributes:
        are_allowed: Whether several writes should be sent together.
    """

    def __init__(self, calls: TableCalls) -> None:
        self._calls = calls
        # Not on an application's table: its IAM policies may forbid PartiQL, and its records have no version
        # before the first put. PartiQL accepts no table ARN.
        self.are_allowed = not calls.names.is_attached and not calls.table.startswith("arn:")
        self._has_worked = False

    def update(self, updates: Sequence[Item], *, returning: bool) -> list[Item | FreshqError]:
        """Change items, no item twice.

        Args:
            updates: For each the arguments of a conditional UpdateItem, which set a requestToken.
            returning: Whether the new versions of the items are needed.

        Returns:
            For each, in order: the new version of the item if it is needed, ConditionFailed, or the error if
            it is unknown whether it was written.
        """
        own, table = self._calls.names, self._calls.table
        writes = [
            _Write(
                arguments["Key"][KEY]["S"],
                arguments["ExpressionAttributeValues"][":requestToken"]["S"],
                update_statement(table, own.arguments(arguments), returning=returning),
                partial(self._calls.update, arguments),
                None if returning else {},
            )
            for arguments in updates
        ]
        return self._write(writes)

    def insert(self, items: Sequence[Item]) -> list[Item | FreshqError]:
        """Add items whose ids are free, no id twice.

        Returns:
            For each, in order: the item, ConditionFailed, or the error if it is unknown whether it was
            written.
        """
        writes = [
            _Write(
                item[KEY]["S"],
                item["requestToken"]["S"],
                insert_statement(self._calls.table, self._calls.names.to_table(item)),
                partial(self._put, item),
                item,
            )
            for item in items
        ]
        return self._write(writes)

    def _put(self, item: Item) -> Item:
        self._calls.put(item, IF_FREE)
        return item

    def _write(self, writes: Sequence[_Write]) -> list[Item | FreshqError]:
        """Send batch by batch. Once a call was never answered, the remaining writes get the same error."""
        answers: list[Item | FreshqError] = []
        for start in range(0, len(writes), BATCH_STATEMENTS):
            some = writes[start : start + BATCH_STATEMENTS]
            unanswered = next((each for each in answers if isinstance(each, Unreachable)), None)
            answers += [unanswered] * len(some) if unanswered else self._batch(some)
        return answers

    def _batch(self, writes: Sequence[_Write]) -> list[Item | FreshqError]:
        answers: dict[int, Item | FreshqError] = {}

        def send_rest() -> None:
            left = [index for index in range(len(writes)) if index not in answers]
            responses = self._send([writes[index].statement for index in left])
            found = self._found([writes[index] for index in left], responses)
            codes = []
            for index, response in zip(left, responses, strict=True):
                code = response.get("Error", {}).get("Code")
                if code in TRANSIENT_CODES:
                    codes.append(code)
                else:
                    answers[index] = self._answer(writes[index], response, found)
            if codes:
                raise _Left(self._calls.table, codes)

        failure: FreshqError | None = None
        try:
            BATCH_RETRY.run(send_rest, _Left, sleep=time.sleep, uniform=random.random)
        except _NotAllowed:
            pass  # logged once; each write is sent alone below
        except FreshqError as error:
            failure = error
        for index, write in enumerate(writes):
            if index not in answers:
                answer = answers[index] = failure or self._alone(write)
                if isinstance(answer, Unreachable):
                    failure = answer
        return [answers[index] for index in range(len(writes))]

    def _send(self, statements: list[Item]) -> list[Item]:
        """Return the response for each statement.

        Raises:
            FreshqError: If DynamoDB did not carry the call out.
        """
        client: Any = self._calls.client
        try:
            sent = {"Statements": statements}
            answer = self._calls.send(client.batch_execute_statement, sent, is_write=True)
        except FreshqError as error:
            if error_code(error) not in CALL_NOT_ALLOWED:
                raise
            self._forbid(error_code(error), str(error))
            raise _NotAllowed from error
        except Exception as error:  # an emulator within this process may raise anything
            if self._has_worked:
                raise
            self._forbid(None, f"the endpoint raised {type(error).__name__}", logging.WARNING)
            logger.debug("the error of BatchExecuteStatement", exc_info=True)
            raise _NotAllowed from error
        responses: list[Item] = answer["Responses"]
        self._has_worked |= any("Error" not in response for response in responses)
        return responses

    def _found(self, writes: Sequence[_Write], responses: Sequence[Item]) -> dict[str, Item] | FreshqError:
        """Return the items that made DynamoDB refuse a write, if its response lacks them.

        DynamoDB returns the item if a condition failed, but not if the id is taken.
        """
        unknown = []
        for write, response in zip(writes, responses, strict=True):
            error = response.get("Error", {})
            if error.get("Code") in REFUSING_CODES and "Item" not in error:
                unknown.append(write.item_id)
        try:
            return {item[KEY]["S"]: item for item in self._calls.get_many(unknown)}
        except FreshqError as error:
            return error

    def _answer(
        self, write: _Write, response: Item, found: dict[str, Item] | FreshqError
    ) -> Item | FreshqError:
        """Return the answer to one write, from the response to its statement."""
        if "Error" not in response:
            made = response.get("Item")
            if made:
                return self._calls.own(made)
            return self._alone(write) if write.item is None else write.item
        error: Item = response["Error"]
        if error["Code"] not in REFUSING_CODES:
            return self._answer_alone(write, error)
        item: Item | None = error.get("Item")
        if item is not None:
            item = self._calls.own(item)
        else:
            if isinstance(found, FreshqError):
                return found
            item = found.get(write.item_id)
        # An earlier try may have been carried out, and its reply was lost.
        return item if item is not None and made_by(item, write.token) else ConditionFailed(item)

    def _answer_alone(self, write: _Write, error: Item) -> Item | FreshqError:
        answer = self._alone(write)
        # An item with an attribute of another type refuses both forms.
        if error["Code"] in STATEMENT_NOT_ALLOWED and not isinstance(answer, InvalidUpdate):
            self._forbid(error["Code"], f"{error['Code']}: {error.get('Message', '')}")
        return answer

    def _alone(self, write: _Write) -> Item | FreshqError:
        try:
            return write.alone() or {}
        except FreshqError as error:
            return error

    def _forbid(self, code: str | None, reason: str, level: int = logging.INFO) -> None:
        """Send no further batch, and say so once: as a warning if it can be fixed, or may be a defect."""
        if not self.are_allowed or is_too_large(reason):
            return
        self.are_allowed = False
        logger.log(
            logging.WARNING if code in ACCESS_DENIED else level,
            "table %r: tasks are written one by one, because BatchExecuteStatement does not work here (%s); "
            "on AWS allow dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate",
            self._calls.table,
            reason,
        )


def each_in_threads(call: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
    """Make calls in this thread and a few more, as many as the system has left; return the answers in order.

    Raises:
        Exception: The first exception of a call, once all have been made.
    """
    waiting = deque((each, Future[T]()) for each in arguments)
    answers = [answer for _argument, answer in waiting]

    def work() -> None:
        for argument, answer in drained(waiting):
            fulfil(answer, partial(call, argument))
            if not isinstance(answer.exception(), Exception | None):
                answer.result()  # raises an interrupt

    with ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="freshq-calls") as pool:
        with suppress(RuntimeError):  # the system has no thread left
            for _ in range(min(PUT_THREADS, len(answers)) - 1):
                pool.submit(work)
        try:
            work()
        finally:
            waiting.clear()  # after an interrupt, the other threads begin no more
    return [answer.result() for answer in answers]


def each_in_order(tasks: Sequence[Task], put: Callable[[Task], T]) -> list[T]:
    """Put tasks concurrently, tasks of the same id one after the other; return the answers in order.

    Once a put was never answered, the remaining puts get the same error. So all end with the puts under way,
    rather than each after its own timeout.
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

    each_in_threads(put_all, by_id.values())
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
            answers[index] = error  # the caller reports it with the other answers
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


def _raise(error: Exception) -> NoReturn:
    raise error
