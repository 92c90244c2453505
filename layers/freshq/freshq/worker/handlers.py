"""Handlers: one runner that chooses a function by the kind of a task, and passes it a typed payload."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from pickle import PicklingError
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    cast,
    overload,
)

from typing_extensions import TypeVar, override

from freshq.errors import RefusedError, quoted
from freshq.model.answers import Busy, Receipt, Reject, Retry, RunnerExit, UnknownKind, error_text
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.codec import JSON, checked_codec, field_problem
from freshq.model.new_task import parse_new_task
from freshq.model.task import PayloadT, Task, TaskStatus, changed, handle_of, keep_run
from freshq.policy.retry import QUEUES, Backoff
from freshq.queue.base import blocking_queue
from freshq.worker.batches import BatchInput, checked_batch, only_answer
from freshq.worker.executor import OwnLoop, result_of, started_on
from freshq.worker.runner import NEEDS_TRANSACTION, CoroutineRunner, hint, imported, is_async
from freshq.worker.signatures import (
    MAX_PARAMETERS,
    Signature,
    checked_function,
    provider_of,
    result_type,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from datetime import datetime
    from typing import TypeAlias, Unpack

    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.policy.batching import BatchRule
    from freshq.policy.retry import AttemptLimit
    from freshq.policy.value import Decay
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Connection, OnConflict
    from freshq.worker.batches import BatchBy, BatchOptions

    # Takes `call`, which runs everything inside it, and the task, or the tasks of a batch; returns the result
    # of `call()`.
    Middleware: TypeAlias = Callable[[Callable[[], Any], Any], Any]
    # Decodes and returns the positional arguments of a call.
    Arguments: TypeAlias = Callable[[], tuple[Any, ...]]
ResultT = TypeVar("ResultT")
if TYPE_CHECKING:
    # The tasks that a batch handler takes, and its answers: for each a result, or the exception that ends its
    # attempt.
    Tasks: TypeAlias = list[Task[PayloadT]]
    Answers: TypeAlias = Sequence[ResultT | Exception]
    Later: TypeAlias = Coroutine[Any, Any, Answers[ResultT]]
# A function's result; for an `async def`, a coroutine of its result.
ReturnT_co = TypeVar("ReturnT_co", default=Any, covariant=True)

# The treatment of a task whose kind has no function.
UNKNOWN: Final = ("retry", "reject")


class KindDefaults(TypedDict, total=False):
    """The arguments of `Queue.put` that may have a default for each kind."""

    priority: int
    max_age_seconds: float | None
    group: str | None
    value: float | None
    decay: Decay | str | None
    cost: float | None


class PutOptions(KindDefaults, total=False):
    """The arguments of `Queue.put` besides the payload and the kind."""

    task_id: str | None
    delay_seconds: float
    at: datetime | float | None
    trace_context: str | None
    parent: Task[Any] | Claim | Mapping[str, Any] | None
    on_conflict: OnConflict | None
    debounce_max_seconds: float | None
    connection: Any


def checked_defaults(defaults: KindDefaults) -> KindDefaults:
    """Return the defaults of a kind.

    Raises:
        ValueError: If one is wrong, or no argument that may have a default.
    """
    for name in defaults.keys() - KindDefaults.__annotations__.keys():
        known = ", ".join(KindDefaults.__annotations__)
        msg = f"{name}: has no default for a kind; use one of {known}"
        raise ValueError(msg)
    parse_new_task({"payload": None, **defaults})
    return defaults


@dataclass(frozen=True, slots=True)
class TypedReceipt(Receipt, Generic[ReturnT_co]):
    """The answer to the put of a handler, which knows the type of the result.

    Attributes:
        handler: The handler of the task.
    """

    handler: Handler[Any, ReturnT_co] = field(repr=False)

    @overload
    def wait(
        self: TypedReceipt[Coroutine[Any, Any, ResultT]],
        queue: BaseQueue,
        timeout_seconds: float | None = None,
    ) -> ResultT: ...

    @overload
    def wait(
        self: TypedReceipt[Coroutine[Any, Any, ResultT]],
        queue: AsyncQueue,
        timeout_seconds: float | None = None,
    ) -> Awaitable[ResultT]: ...

    @overload
    def wait(self, queue: BaseQueue, timeout_seconds: float | None = None) -> ReturnT_co: ...

    @overload
    def wait(self, queue: AsyncQueue, timeout_seconds: float | None = None) -> Awaitable[ReturnT_co]: ...

    def wait(self, queue: BaseQueue | AsyncQueue, timeout_seconds: float | None = None) -> Any:
        """Return the result of the task once it has ended.

        Args:
            queue: The queue that the task was put into. With an `AsyncQueue`, await the answer.
            timeout_seconds: Stop waiting after this time; None: never.

        Raises:
            ValueError: If `queue` is no queue.
            RefusedError: If the task ended without a result; `status` says how.
            WaitTimeout: If the task is not over after `timeout_seconds`.
            NotFound: If the queue has no such task.
            StoreError: If the store did not answer.
        """
        blocking_queue(queue)
        answer = queue.wait(self.task_id, timeout_seconds=timeout_seconds)
        return self._result(answer) if isinstance(answer, Task) else self._result_later(answer)

    async def _result_later(self, answer: Awaitable[Task]) -> Any:
        return self._result(await answer)

    def _result(self, task: Task) -> Any:
        if task.status is not TaskStatus.SUCCESS:
            why = f": {task.error}" if task.error else ""
            msg = f"task {task.task_id!r}: has no result, it ended as {task.status}{why}"
            raise RefusedError(msg, task_id=task.task_id, status=task.status)
        return self.handler.decode_result(task.result)


class Handler(Generic[PayloadT, ReturnT_co]):
    """The function of one kind of task, which also puts such tasks. `Handlers.on` returns it.

    Calling it calls the function.

    Attributes:
        kind: The kind.
        function: The function.
        connection: Its parameter for the connection of a transaction; None if it has none.
    """

    def __init__(
        self,
        handlers: Handlers,
        kind: str,
        function: Callable[..., Any],
        *,
        max_attempts: AttemptLimit,
        max_run_seconds: float | None,
        backoff: Backoff | None,
        defaults: PutOptions,
        batch: BatchOptions | None,
    ) -> None:
        """Read the signature of a function; its handlers provide the rest.

        Raises:
            ValueError: If it cannot be called with a task, or with a task and a payload; or, with `batch`,
                with a list of each.
        """
        self.kind = kind
        self.batch = batch
        self.function = function
        self.max_attempts = max_attempts
        self.max_run_seconds = max_run_seconds
        self.backoff = backoff
        self.defaults = defaults
        self._codec = handlers.codec
        self._loop = handlers.loop
        self._middleware = handlers.middleware
        self._awaits_function = is_async(function)
        self.is_async = self._awaits_function or any(map(is_async, handlers.middleware))
        signature = Signature(kind, function, handlers.provided, many=batch is not None)
        self._provided = signature.provided(is_async=self.is_async)
        self.connection = signature.connection
        self._takes_payload = len(signature.own) == MAX_PARAMETERS
        self._types_task = signature.payload_of_task is not None
        payload = signature.payload()
        self._decode = signature.decoder(payload, self._codec)
        if batch is not None:
            batch.check_field(kind, payload)
        update_wrapper(self, function)

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Return where other processes find it: under the name of its function."""
        return imported, (self.function.__module__, self.function.__name__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function, without middleware."""
        return self.function(*arguments, **named)

    @overload
    def put(
        self, queue: BaseQueue, payload: PayloadT, **options: Unpack[PutOptions]
    ) -> TypedReceipt[ReturnT_co]: ...

    @overload
    def put(
        self, queue: AsyncQueue, payload: PayloadT, **options: Unpack[PutOptions]
    ) -> Awaitable[TypedReceipt[ReturnT_co]]: ...

    def put(
        self, queue: BaseQueue | AsyncQueue, payload: PayloadT, **options: Unpack[PutOptions]
    ) -> TypedReceipt[ReturnT_co] | Awaitable[TypedReceipt[ReturnT_co]]:
        """Put a task of this kind.

        Args:
            queue: The queue. With an `AsyncQueue`, await the answer.
            payload: The payload, of the type that the function takes.
            **options: As in `Queue.put`, before the defaults of the kind.

        Raises:
            ValueError: If the payload does not fit the type, or another argument is wrong, such as the queue.
            Overloaded: If admission control rejected the task; nothing was written.
        """
        blocking_queue(queue)
        self._check(payload, "payload")
        given: Any = {**self.defaults, **options}
        answer = queue.put(payload, kind=self.kind, **given)
        return self._receipt(answer) if isinstance(answer, Receipt) else self._receipt_later(answer)

    @overload
    def put_many(
        self, queue: BaseQueue, payloads: Iterable[PayloadT], **options: Unpack[PutOptions]
    ) -> list[TypedReceipt[ReturnT_co]]: ...

    @overload
    def put_many(
        self, queue: AsyncQueue, payloads: Iterable[PayloadT], **options: Unpack[PutOptions]
    ) -> Awaitable[list[TypedReceipt[ReturnT_co]]]: ...

    def put_many(
        self, queue: BaseQueue | AsyncQueue, payloads: Iterable[PayloadT], **options: Unpack[PutOptions]
    ) -> list[TypedReceipt[ReturnT_co]] | Awaitable[list[TypedReceipt[ReturnT_co]]]:
        """Put several tasks of this kind.

        Args:
            queue: The queue. With an `AsyncQueue`, await the answer.
            payloads: Their payloads.
            **options: As in `Queue.put`, before the defaults of the kind; the same for all tasks, and no
                `task_id`.

        Returns:
            One receipt per task, in order.

        Raises:
            ValueError: If a payload or an option is wrong; nothing was written.
            PutIncomplete: If some tasks were rejected or not written.
        """
        blocking_queue(queue)
        if "task_id" in options:
            raise ValueError("task_id: several tasks cannot have one id; put them one by one")
        connection, on_conflict = options.pop("connection", None), options.pop("on_conflict", None)
        payloads = list(payloads)
        for index, payload in enumerate(payloads):
            self._check(payload, f"payloads[{index}]")
        tasks = [{**self.defaults, **options, "payload": payload, "kind": self.kind} for payload in payloads]
        answer = queue.put_many(tasks, connection=connection, on_conflict=on_conflict)
        if isinstance(answer, list):
            return [*map(self._receipt, answer)]
        return self._receipts_later(answer)

    @overload
    def call(
        self: Handler[PayloadT, Coroutine[Any, Any, ResultT]], payload: PayloadT, task: Task | None = None
    ) -> ResultT: ...

    @overload
    def call(
        self, payload: PayloadT, task: Task | None = None, *, connection: Connection | None = None
    ) -> ReturnT_co: ...

    def call(
        self, payload: PayloadT, task: Task | None = None, *, connection: Connection | None = None
    ) -> Any:
        """Run the function as a worker does, middleware and provided arguments included, for tests.

        Args:
            payload: The payload; the function gets it as a store returns it.
            task: The task to run, with other attributes; None for one at its first attempt.
            connection: The connection that it gets, if it takes that of a transaction.

        Returns:
            The result of the function, even of an `async def`, which runs in another thread.

        Raises:
            ValueError: If the payload does not fit its type.
            Exception: Any exception of the function.
        """
        stored = self._check(payload, "payload")
        if task is None:
            now = time.time()
            task = Task(
                task_id="call",
                queue="default",
                status=TaskStatus.TAKEN,
                created=now,
                updated=now,
                deadline=None,
                expires=math.ceil(now),
                request_token="",
                kind=self.kind,
                attempts=1,
            )
        task = _with_payload(task, stored)
        if not self.is_async:
            return self.run(task, connection)
        return result_of(started_on(self._loop.get, partial(self.run_async, task)))

    def check(self, stored: Any) -> None:
        """Check a payload in its stored form.

        Raises:
            ValueError: If it does not fit; names the field.
        """
        if self._decode is not None:
            try:
                self._decode(stored)
            except ValueError as error:
                raise ValueError(field_problem("payload", error)) from None

    def decode_result(self, stored: Any) -> Any:
        """Return a result of the type that the function returns.

        Raises:
            ValueError: If it does not fit, or the annotation cannot be read.
        """
        annotation = hint(self.function, "return", inspect.signature(self.function).return_annotation)
        if self.batch is not None:
            annotation = result_type(annotation)
        return self._codec.decoder(annotation)(stored)

    def batch_key(self, task: Task) -> Hashable:
        """Return the key of a task for `batch_by`; None for a payload that `run_batch` rejects.

        Raises:
            Exception: Any exception of the application's function.
        """
        if self.batch is None or self.batch.by is None:
            return None
        try:
            payload = task.payload if self._decode is None else self._decode(task.payload)
        except ValueError:
            return None
        return self.batch.key(_with_payload(task, payload))

    def run_batch(self, tasks: Sequence[Task]) -> list[Any]:
        """Run tasks in one call, in this thread; return the result or the exception of each.

        Raises:
            ValueError: If the function does not return a list with one element for each task.
        """
        for task in tasks:
            self.rule(task)
        batch = BatchInput(self.kind, tasks, self._arguments)
        if not batch.arguments:
            return batch.answers([])
        return batch.answers(self._wrapped(self._called, lambda: batch.arguments, batch.arguments[0])())

    async def run_batch_async(self, tasks: Sequence[Task]) -> list[Any]:
        """Run tasks in one call, in this coroutine, as `run_batch` does.

        Raises:
            ValueError: As in `run_batch`.
            Retry: If the function took longer than `max_run_seconds`.
        """
        for task in tasks:
            self.rule(task)
        batch = BatchInput(self.kind, tasks, self._arguments)
        if not batch.arguments:
            return batch.answers([])
        call = self._wrapped(self._called_async, lambda: batch.arguments, batch.arguments[0])
        return batch.answers(await _limited(call, self.max_run_seconds))

    def run(self, task: Task, connection: Connection | None = None) -> Any:
        """Run a task in this thread; of a batch handler, as a batch of one.

        Args:
            task: The task.
            connection: The connection of the transaction that holds it; None under a lease.

        Raises:
            Reject: If the payload does not fit.
            ValueError: If the function needs a connection, and there is none.
        """
        if self.batch is not None:
            return only_answer(self.run_batch([task]))
        self.rule(task)
        called = partial(self._called, connection=connection)
        return self._wrapped(called, partial(self._arguments, task), task)()

    async def run_async(self, task: Task) -> Any:
        """Run a task in this coroutine.

        Raises:
            Reject: As in `run`.
            Retry: If the function took longer than `max_run_seconds`.
        """
        if self.batch is not None:
            return only_answer(await self.run_batch_async([task]))
        self.rule(task)
        call = self._wrapped(self._called_async, partial(self._arguments, task), task)
        return await _limited(call, self.max_run_seconds)

    def _wrapped(
        self, called: Callable[[Arguments], Any], arguments: Arguments, given: Task | list[Task]
    ) -> Callable[[], Any]:
        """Return a call of the function inside its middleware, which gets the task or the tasks."""
        call: Callable[[], Any] = partial(called, arguments)
        for around in reversed(self._middleware):
            call = partial(_awaited, around, call, given) if self.is_async else partial(around, call, given)
        return call

    def _called(self, arguments: Arguments, connection: Connection | None = None) -> Any:
        fitting = arguments()
        given: dict[str, Any] = {}
        if self.connection is not None:
            if connection is None:
                msg = f"handler of {quoted(self.kind)}: {NEEDS_TRANSACTION}"
                raise ValueError(msg)
            given[self.connection] = connection
        if not self._provided:
            return self.function(*fitting, **given)
        with ExitStack() as stack:
            for name, provider in self._provided.items():
                given[name] = stack.enter_context(cast("AbstractContextManager[Any]", provider.open()))
            return self.function(*fitting, **given)

    async def _called_async(self, arguments: Arguments) -> Any:
        fitting = arguments()
        async with AsyncExitStack() as stack:
            given = {name: await provider.enter(stack) for name, provider in self._provided.items()}
            if self._awaits_function:
                return await self.function(*fitting, **given)
            return await asyncio.to_thread(self.function, *fitting, **given)

    def _arguments(self, task: Task) -> tuple[Any, ...]:
        """Return the positional arguments of the function.

        Raises:
            Reject: If the payload does not fit its type; the reason names the field, not its value.
        """
        if self._decode is None:
            return (task,)
        try:
            payload = self._decode(task.payload)
        except ValueError as error:
            raise Reject(field_problem("payload", error)) from None
        if self._types_task:
            task = _with_payload(task, payload)
        return (task, payload) if self._takes_payload else (task,)

    def rule(self, task: Task) -> None:
        """Tell the worker the rules of this kind for a failed run."""
        if (handle := handle_of(task)) is not None:
            handle.backoff, handle.max_attempts = self.backoff, self.max_attempts

    def _check(self, payload: PayloadT, name: str) -> Any:
        """Return a payload in its stored form.

        Raises:
            ValueError: If it does not fit the type of the function.
        """
        try:
            stored = None if payload is None else self._codec.encode(payload)
            if self._decode is not None:
                self._decode(stored)
        except ValueError as error:
            raise ValueError(field_problem(name, error)) from None
        return stored

    def _receipt(self, receipt: Receipt) -> TypedReceipt[ReturnT_co]:
        return TypedReceipt(receipt.task_id, receipt.outcome, self)

    async def _receipt_later(self, answer: Awaitable[Receipt]) -> TypedReceipt[ReturnT_co]:
        return self._receipt(await answer)

    async def _receipts_later(self, answer: Awaitable[list[Receipt]]) -> list[TypedReceipt[ReturnT_co]]:
        return [*map(self._receipt, await answer)]


class Registers(Protocol):
    """The decorator that `Handlers.on` returns.

    Its overloads take functions of a task and a payload, of only a task, and of provided arguments as well.
    """

    @overload
    def __call__(
        self, function: Callable[[Task[Any], PayloadT], ReturnT_co]
    ) -> Handler[PayloadT, ReturnT_co]: ...

    @overload
    def __call__(self, function: Callable[[Task[PayloadT]], ReturnT_co]) -> Handler[PayloadT, ReturnT_co]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Task[Any], PayloadT, ...], ReturnT_co]
    ) -> Handler[PayloadT, ReturnT_co]: ...

    def __call__(self, function: Callable[..., Any]) -> Handler[Any, Any]:
        """Register a function.

        Raises:
            ValueError: If its kind already has a function, or its parameters do not fit.
        """


class RegistersBatch(Protocol):
    """The decorator that `Handlers.on(..., batch=...)` returns, for functions of lists, async or not."""

    @overload
    def __call__(
        self, function: Callable[[Tasks[Any], list[PayloadT]], Later[ResultT]]
    ) -> Handler[PayloadT, Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(
        self, function: Callable[[Tasks[PayloadT]], Later[ResultT]]
    ) -> Handler[PayloadT, Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(
        self, function: Callable[[Tasks[Any], list[PayloadT]], Answers[ResultT]]
    ) -> Handler[PayloadT, ResultT]: ...

    @overload
    def __call__(
        self, function: Callable[[Tasks[PayloadT]], Answers[ResultT]]
    ) -> Handler[PayloadT, ResultT]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Tasks[Any], list[PayloadT], ...], Later[ResultT]]
    ) -> Handler[PayloadT, Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Tasks[Any], list[PayloadT], ...], Answers[ResultT]]
    ) -> Handler[PayloadT, ResultT]: ...

    def __call__(self, function: Callable[..., Any]) -> Handler[Any, Any]:
        """Register a function, as `Registers` does."""


class Handlers(CoroutineRunner):
    """A runner that calls the function of each task's kind. Pass it to a `Worker`, or to `freshq work`.

    A function takes the task, or the task and its payload. The annotation of the second parameter is the
    type of the payload: a pydantic model, a dataclass, or any type that pydantic knows. A payload that does
    not fit makes a dead letter. Functions may be `async def`: all of them share one event loop, in a separate
    thread. In a worker with `transaction`, a parameter after the payload whose type is
    `sqlalchemy.Connection` gets the connection of the transaction.

    Attributes:
        codec: Decodes payloads and encodes results.
        middleware: Functions that wrap each run, the outermost first.
        provided: Opens arguments by their type.
        loop: Runs the coroutines, unless the worker has a loop.

    Examples:
        >>> from freshq.testing import drain
        >>> handlers = Handlers()
        >>> @handlers.on("double")
        ... def double(task, number: int) -> int:
        ...     return 2 * number
        >>> receipt = double.put(queue, 21)
        >>> [fate.task.result for fate in drain(queue, handlers)]
        [42]
    """

    def __init__(
        self,
        *,
        codec: Codec = JSON,
        unknown: Literal["retry", "reject"] = "retry",
        middleware: Iterable[Middleware] = (),
        provide: Mapping[type, Callable[[], Any]] | None = None,
    ) -> None:
        """Begin without functions.

        Args:
            codec: Decodes payloads and encodes results: the codec of the queue that the tasks are put into.
            unknown: The treatment of a task whose kind has no function. "retry": it returns to its place
                after a delay that grows to a minute, and the attempt is not counted, so a producer may be
                deployed before its workers. "reject": it is a dead letter.
            middleware: Functions that run around every run, the first one outermost. Each takes `call` and
                the task, and returns `call()`. Around an `async def` handler that is an awaitable. An `async
                def` around a plain function runs that in a thread.
            provide: By type, a function without arguments that creates the arguments of that type, for
                handlers with such a parameter after the task and the payload. A generator function yields the
                argument, and goes on after the run, which raises there if it failed. Either may be async, for
                handlers that are.

        Raises:
            ValueError: If an argument is wrong.
        """
        self.codec = checked_codec(codec, "codec: ")
        if unknown not in UNKNOWN:
            msg = f"unknown: must be one of {', '.join(UNKNOWN)}, got {quoted(unknown)}"
            raise ValueError(msg)
        self._rejects_unknown = unknown == "reject"
        self.middleware = tuple(middleware)
        wrong = [type(around).__name__ for around in self.middleware if not callable(around)]
        if wrong:
            msg = f"middleware: must be functions of call and task, got {wrong[0]}"
            raise ValueError(msg)
        self.provided = {provided: provider_of(provided, make) for provided, make in (provide or {}).items()}
        self.loop = OwnLoop()
        self._handlers: dict[str, Handler[Any, Any]] = {}

    @overload
    def on(
        self,
        kind: str,
        *,
        max_attempts: AttemptLimit = ...,
        max_run_seconds: float | None = ...,
        backoff: Backoff | None = ...,
        **defaults: Unpack[KindDefaults],
    ) -> Registers: ...

    @overload
    def on(
        self,
        kind: str,
        *,
        batch: int,
        within_seconds: float | None = ...,
        batch_by: BatchBy | None = ...,
        max_attempts: AttemptLimit = ...,
        max_run_seconds: float | None = ...,
        backoff: Backoff | None = ...,
        **defaults: Unpack[KindDefaults],
    ) -> RegistersBatch: ...

    def on(
        self,
        kind: str,
        *,
        batch: int | None = None,
        within_seconds: float | None = None,
        batch_by: BatchBy | None = None,
        max_attempts: AttemptLimit = QUEUES,
        max_run_seconds: float | None = None,
        backoff: Backoff | None = None,
        **defaults: Unpack[KindDefaults],
    ) -> Registers | RegistersBatch:
        """Return a decorator that registers a function for the tasks of a kind.

        Args:
            kind: The kind, as in `put(..., kind=...)`.
            batch: The function takes a list of up to this many tasks, and returns a list with a result for
                each, in order, or a `Retry`, a `Reject`, a `Busy` or another exception, which ends the
                attempt of that task only. An exception that it raises ends the attempt of each. None for a
                function of one task.
            within_seconds: With `batch`: how long a task waits for others at most, 0 or more; None for 0.05.
                It never waits for longer than its deadline leaves after the usual time of a run.
            batch_by: With `batch`: only tasks with the same key share a call. A function that returns the key
                of a task, or the name of a field of the payload. None: all tasks of the kind.
            max_attempts: Attempts after which a failed task is a dead letter, instead of the queue's limit;
                "queue" for that limit, None to try until it succeeds or goes stale. Where a lease expires,
                because a worker died, the queue's limit counts.
            max_run_seconds: Cancel an `async def` after this time, and try again later.
            backoff: Delays before its next attempts; None for the queue's. `Retry(delay_seconds=...)`
                counts more.
            **defaults: Arguments of `Queue.put` for the tasks that the handler puts without them: priority,
                max_age_seconds, group, value or decay.

        Raises:
            ValueError: If an argument is wrong, the kind has a function, or the function cannot be called
                with a task, or with a task and a payload; with `batch`, with lists of them.
        """
        rules = _checked_rules(kind, max_attempts, max_run_seconds, backoff)
        rules["batch"] = checked_batch(batch, within_seconds, batch_by)
        return partial(self._add, kind, rules | {"defaults": checked_defaults(defaults)})

    def _add(self, kind: str, rules: dict[str, Any], function: Callable[..., Any]) -> Handler[Any, Any]:
        if isinstance(function, Handler):  # of another kind, too
            function = function.function
        if kind in self._handlers:
            msg = f"kind: {quoted(kind)} has a function already; give each kind one"
            raise ValueError(msg)
        if rules["max_run_seconds"] is not None and not (callable(function) and is_async(function)):
            raise ValueError(
                "max_run_seconds: only an async function can be cancelled; for others, set the worker's"
            )
        handler: Handler[Any, Any] = Handler(self, kind, checked_function(kind, function), **rules)
        self._handlers[kind] = handler
        return handler

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Return where other processes find these handlers: a module, and their name in it.

        Raises:
            PicklingError: If no module has them.
        """
        modules = dict.fromkeys(each.function.__module__ for each in self._handlers.values())
        modules |= dict.fromkeys(sys.modules)
        modules.pop("__mp_main__", None)  # what multiprocessing calls "__main__" in other processes
        for module in sorted(modules, key=lambda name: name == "__main__"):
            for name, value in list(vars(sys.modules.get(module, self)).items()):
                if value is self:
                    return imported, (module, name)
        raise PicklingError("these handlers are not a global variable of a module")

    @property
    @override
    def kinds(self) -> list[str]:
        return sorted(self._handlers)

    @property
    @override
    def connected_kinds(self) -> list[str]:
        return sorted(kind for kind, each in self._handlers.items() if each.connection is not None)

    @override
    def __call__(self, task: Task, connection: Connection | None = None) -> Any:
        """Run a task, as `Worker` calls its runner.

        Raises:
            UnknownKind: If no function has the task's kind, unless these handlers reject such tasks.
            Reject: If the payload does not fit, or its kind is unknown.
            ValueError: If its function needs the connection of a transaction, and there is none.
        """
        if (coroutine := self.start(task)) is not None:
            return result_of(coroutine)
        handler = self._handlers.get(task.kind or "")
        if handler is None:
            raise self.unknown_kind(task) or Reject(self._unknown(task.kind))
        return handler.run(task, connection)

    def check(self, kind: str | None, payload: Any) -> None:
        """Check a payload in its stored form; a queue with `kinds=` these handlers does so at each put.

        Raises:
            ValueError: If no function has the kind, or the payload does not fit; names the field.
        """
        handler = self._handlers.get(kind or "")
        if handler is None:
            raise ValueError(self._unknown(kind))
        handler.check(payload)

    def _unknown(self, kind: str | None) -> str:
        known = ", ".join(self.kinds) or "none"
        return f"kind: no handler for {quoted(kind)}; there are {known}"

    @override
    def unknown_kind(self, task: Task) -> Busy | None:
        if self._rejects_unknown or (task.kind or "") in self._handlers:
            return None
        return UnknownKind(self._unknown(task.kind), task)

    @override
    def note_rules(self, task: Task) -> None:
        handler = self._handlers.get(task.kind or "")
        if handler is not None:
            handler.rule(task)

    @override
    def has_coroutine(self, task: Task) -> bool:
        handler = self._handlers.get(task.kind or "")
        return handler is not None and handler.is_async

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        handler = self._handlers.get(task.kind or "")
        if handler is None or not handler.is_async:
            return None
        return started_on(self.loop.get if loop is None else lambda: loop, partial(handler.run_async, task))

    @property
    @override
    def batch_rules(self) -> Mapping[str, BatchRule]:
        given = ((kind, handler.batch) for kind, handler in self._handlers.items())
        return {kind: batch.rule for kind, batch in given if batch is not None}

    @override
    def batch_key(self, task: Task) -> Hashable:
        return self._handlers[task.kind or ""].batch_key(task)

    @override
    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        if (coroutine := self.start_batch(tasks)) is not None:
            answers: Sequence[Any] = result_of(coroutine)
            return answers
        return self._handlers[tasks[0].kind or ""].run_batch(tasks)

    @override
    def start_batch(
        self, tasks: Sequence[Task], loop: asyncio.AbstractEventLoop | None = None
    ) -> Future[Any] | None:
        handler = self._handlers[tasks[0].kind or ""]
        if not handler.is_async:
            return None
        run = partial(handler.run_batch_async, tasks)
        return started_on(self.loop.get if loop is None else lambda: loop, run)


def _checked_rules(
    kind: str, max_attempts: AttemptLimit, max_run_seconds: float | None, backoff: object
) -> dict[str, Any]:
    """Return the rules of a kind by name.

    Raises:
        ValueError: If one is wrong.
    """
    if not isinstance(kind, str) or not kind:
        msg = f"kind: must be a non-empty string, got {quoted(kind)}"
        raise ValueError(msg)
    if max_attempts is not None and max_attempts != QUEUES:
        checked_count("max_attempts", max_attempts)
    if max_run_seconds is not None:
        checked_seconds("max_run_seconds", max_run_seconds, above_zero=True)
    if not isinstance(backoff, Backoff | None):
        msg = f"backoff: must be a freshq.Backoff, got {type(backoff).__name__}"
        raise ValueError(msg)
    return {"max_attempts": max_attempts, "max_run_seconds": max_run_seconds, "backoff": backoff}


async def _awaited(around: Middleware, call: Callable[[], Any], task: Any) -> Any:
    """Return the result of a middleware around a coroutine; the middleware may be async or not."""
    result = around(call, task)
    return await result if inspect.isawaitable(result) else result


async def _limited(call: Callable[[], Awaitable[Any]], max_run_seconds: float | None) -> Any:
    try:
        if max_run_seconds is None:
            return await call()
        async with asyncio.timeout(max_run_seconds) as limit:
            return await call()
    except (SystemExit, KeyboardInterrupt) as exits:  # they would end the loop of all runs
        msg = f"{type(exits).__name__}: {error_text(exits)}"
        raise RunnerExit(msg) from exits
    except TimeoutError:
        if max_run_seconds is None or not limit.expired():
            raise
        msg = f"the handler took longer than {max_run_seconds:g} s"
        raise Retry(msg) from None


def _with_payload(task: Task, payload: Any) -> Task:
    """Return a copy of a task with another payload, whose function still reports on the same run."""
    copy = changed(task, payload=payload)
    keep_run(copy, task)
    return copy
