"""Handlers: one runner that chooses a function by the kind of a task, and passes it a typed payload."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Hashable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial, update_wrapper
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
    get_args,
    get_origin,
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
from freshq.worker.executor import OwnLoop, result_of, started_on
from freshq.worker.runner import CoroutineRunner, hint, is_async, is_async_generator, is_class, misses_task

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime
    from typing import TypeAlias, Unpack

    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.policy.retry import AttemptLimit
    from freshq.policy.value import Decay
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import OnConflict

    # Takes `call`, which runs everything inside it, and the task; returns the result of `call()`.
    Middleware: TypeAlias = Callable[[Callable[[], Any], Task], Any]
    Opened: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]

ResultT = TypeVar("ResultT")
# A function's result; for an `async def`, a coroutine of its result.
ReturnT_co = TypeVar("ReturnT_co", default=Any, covariant=True)

# A handler takes the task, and its payload if it has a second parameter.
MAX_PARAMETERS: Final = 2
# The treatment of a task whose kind has no function.
UNKNOWN: Final = ("retry", "reject")


class KindDefaults(TypedDict, total=False):
    """The arguments of `Queue.put` that may have a default for each kind."""

    priority: int
    max_age_seconds: float | None
    group: str | None
    value: float | None
    decay: Decay | str | None


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
class _Provider:
    """Opens an argument of a handler for one run.

    Attributes:
        open: Returns a context of the argument.
        is_async: Whether the context is asynchronous.
    """

    open: Callable[[], Opened]
    is_async: bool

    async def enter(self, stack: AsyncExitStack) -> Any:
        """Open the argument until the stack is left; return it."""
        if self.is_async:
            return await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", self.open()))
        return stack.enter_context(cast("AbstractContextManager[Any]", self.open()))


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
    ) -> None:
        """Read the signature of a function; its handlers provide the rest.

        Raises:
            ValueError: If it cannot be called with a task, or with a task and a payload.
        """
        self.kind = kind
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
        parameters, self._provided = _parameters(kind, function, handlers.provided)
        for name, provider in self._provided.items():
            if provider.is_async and not self.is_async:
                msg = f"handler of {quoted(kind)}: is not async, but the provider of {name!r} is"
                raise ValueError(msg)
        self._takes_payload = len(parameters) == MAX_PARAMETERS
        self._types_task = _payload_of_task(function, parameters[0]) is not None
        self._decode = _decoder(kind, function, parameters, self._codec)
        update_wrapper(self, function)

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
    def call(self, payload: PayloadT, task: Task | None = None) -> ReturnT_co: ...

    def call(self, payload: PayloadT, task: Task | None = None) -> Any:
        """Run the function as a worker does, middleware and provided arguments included, for tests.

        Args:
            payload: The payload; the function gets it as a store returns it.
            task: The task to run, with other attributes; None for one at its first attempt.

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
            return self.run(task)
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
        return self._codec.decoder(annotation)(stored)

    def run(self, task: Task) -> Any:
        """Run a task in this thread.

        Raises:
            Reject: If the payload does not fit.
        """
        call: Callable[[], Any] = partial(self._call, task)
        for around in reversed(self._middleware):
            call = partial(around, call, task)
        self._rule(task)
        return call()

    async def run_async(self, task: Task) -> Any:
        """Run a task in this coroutine.

        Raises:
            Reject: As in `run`.
            Retry: If the function took longer than `max_run_seconds`.
        """
        call: Callable[[], Awaitable[Any]] = partial(self._call_async, task)
        for around in reversed(self._middleware):
            call = partial(_awaited, around, call, task)
        self._rule(task)
        return await _limited(call, self.max_run_seconds)

    def _call(self, task: Task) -> Any:
        arguments = self._arguments(task)
        if not self._provided:
            return self.function(*arguments)
        with ExitStack() as stack:
            given = {
                name: stack.enter_context(cast("AbstractContextManager[Any]", provider.open()))
                for name, provider in self._provided.items()
            }
            return self.function(*arguments, **given)

    async def _call_async(self, task: Task) -> Any:
        arguments = self._arguments(task)
        async with AsyncExitStack() as stack:
            given = {name: await provider.enter(stack) for name, provider in self._provided.items()}
            if self._awaits_function:
                return await self.function(*arguments, **given)
            return await asyncio.to_thread(self.function, *arguments, **given)

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

    def _rule(self, task: Task) -> None:
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


class Handlers(CoroutineRunner):
    """A runner that calls the function of each task's kind. Pass it to a `Worker`, or to `freshq work`.

    A function takes the task, or the task and its payload. The annotation of the second parameter is the
    type of the payload: a pydantic model, a dataclass, or any type that pydantic knows. A payload that does
    not fit makes a dead letter. Functions may be `async def`: all of them share one event loop, in a separate
    thread.

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
        self.provided = {provided: _provider(provided, make) for provided, make in (provide or {}).items()}
        self.loop = OwnLoop()
        self._handlers: dict[str, Handler[Any, Any]] = {}

    def on(
        self,
        kind: str,
        *,
        max_attempts: AttemptLimit = QUEUES,
        max_run_seconds: float | None = None,
        backoff: Backoff | None = None,
        **defaults: Unpack[KindDefaults],
    ) -> Registers:
        """Return a decorator that registers a function for the tasks of a kind.

        Args:
            kind: The kind, as in `put(..., kind=...)`.
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
                with a task, or with a task and a payload.
        """
        if not isinstance(kind, str) or not kind:
            msg = f"kind: must be a non-empty string, got {quoted(kind)}"
            raise ValueError(msg)
        if max_attempts is not None and max_attempts != QUEUES:
            checked_count("max_attempts", max_attempts)
        if max_run_seconds is not None:
            checked_seconds("max_run_seconds", max_run_seconds, above_zero=True)
        given: object = backoff
        if not isinstance(given, Backoff | None):
            msg = f"backoff: must be a freshq.Backoff, got {type(given).__name__}"
            raise ValueError(msg)
        rules: dict[str, Any] = {"max_attempts": max_attempts, "max_run_seconds": max_run_seconds}
        rules |= {"backoff": backoff, "defaults": checked_defaults(defaults)}
        return partial(self._add, kind, rules)

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
        handler: Handler[Any, Any] = Handler(self, kind, _checked_function(kind, function), **rules)
        self._handlers[kind] = handler
        return handler

    @property
    @override
    def kinds(self) -> list[str]:
        return sorted(self._handlers)

    @override
    def __call__(self, task: Task) -> Any:
        """Run a task, as `Worker` calls its runner.

        Raises:
            UnknownKind: If no function has the task's kind, unless these handlers reject such tasks.
            Reject: If the payload does not fit, or its kind is unknown.
        """
        if (coroutine := self.start(task)) is not None:
            return result_of(coroutine)
        handler = self._handlers.get(task.kind or "")
        if handler is None:
            raise self.unknown_kind(task) or Reject(self._unknown(task.kind))
        return handler.run(task)

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
    def has_coroutine(self, task: Task) -> bool:
        handler = self._handlers.get(task.kind or "")
        return handler is not None and handler.is_async

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        handler = self._handlers.get(task.kind or "")
        if handler is None or not handler.is_async:
            return None
        return started_on(self.loop.get if loop is None else lambda: loop, partial(handler.run_async, task))


async def _awaited(around: Middleware, call: Callable[[], Any], task: Task) -> Any:
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


def _provider(provided: type, make: Callable[[], Any]) -> _Provider:
    """Return the opener for arguments of a type.

    Raises:
        ValueError: If `make` is not a function without arguments.
    """
    name = getattr(provided, "__name__", provided)
    try:
        inspect.signature(make).bind()
    except TypeError:
        msg = f"provide: {name}: must be a function without arguments"
        raise ValueError(msg) from None
    if is_async_generator(make):
        return _Provider(asynccontextmanager(make), is_async=True)
    if inspect.isgeneratorfunction(make):
        return _Provider(contextmanager(make), is_async=False)

    @contextmanager
    def made() -> Iterator[Any]:
        yield make()

    @asynccontextmanager
    async def awaited() -> AsyncIterator[Any]:
        yield await make()

    return _Provider(awaited, is_async=True) if is_async(make) else _Provider(made, is_async=False)


def _checked_function(kind: str, function: object) -> Callable[..., Any]:
    """Return a function.

    Raises:
        ValueError: If it is not a function, or is an async generator.
    """
    if not callable(function):
        msg = f"handler of {quoted(kind)}: must be a function, got {type(function).__name__}"
        raise ValueError(msg)
    if is_class(function):
        msg = f"handler of {quoted(kind)}: must be a function, got the class {function!r}"
        raise ValueError(msg)
    if is_async_generator(function):
        msg = f"handler of {quoted(kind)}: is an async generator; return a value, do not yield"
        raise ValueError(msg)
    return function


def _parameters(
    kind: str, function: Callable[..., Any], provided: Mapping[type, _Provider]
) -> tuple[list[inspect.Parameter], dict[str, _Provider]]:
    """Return the parameters of a function for the task and its payload, and the provided ones by name.

    Raises:
        ValueError: If there are neither one nor two parameters besides the provided ones.
    """
    parameters = list(inspect.signature(function).parameters.values())
    opened = {each.name: _provider_of(function, each, provided) for each in parameters[1:] if provided}
    by_name = {name: provider for name, provider in opened.items() if provider is not None}
    own = _positional([each for each in parameters if each.name not in by_name])
    problem = _problem_of(function, own, provides=bool(by_name))
    if problem is not None:
        msg = f"handler of {quoted(kind)}: {problem}"
        raise ValueError(msg)
    return own, by_name


def _problem_of(function: Callable[..., Any], own: list[inspect.Parameter], *, provides: bool) -> str | None:
    """Return what is wrong with the parameters besides the provided ones; None if nothing is."""
    if own and (problem := misses_task(function, own)):
        return problem
    if provides and len(own) != MAX_PARAMETERS:
        return "must take a task and a payload before its provided arguments"
    if not 1 <= len(own) <= MAX_PARAMETERS:
        return "must take a task, or a task and a payload"
    return None


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters if they can be passed by position, otherwise none."""
    try:
        inspect.Signature(parameters).bind(*parameters)
    except TypeError:
        return []
    return parameters


def _provider_of(
    function: Callable[..., Any], parameter: inspect.Parameter, provided: Mapping[type, _Provider]
) -> _Provider | None:
    try:
        annotation = hint(function, parameter.name, parameter.annotation)
    except Exception:  # noqa: BLE001 - for the payload's parameter, it is raised later
        return None
    is_hashable = isinstance(annotation, Hashable)
    return (
        provided.get(annotation) if is_hashable and parameter.kind is not parameter.POSITIONAL_ONLY else None
    )


def _payload_of_task(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type in the annotation `Task[...]` of a first parameter; None if there is none."""
    try:
        annotation = hint(function, parameter.name, parameter.annotation)
    except Exception:  # noqa: BLE001 - it may name imports for type checkers only
        return None
    return get_args(annotation)[0] if get_origin(annotation) is Task else None


def _decoder(
    kind: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter], codec: Codec
) -> Callable[[Any], Any] | None:
    """Return the decoder of a function's payload; None if its type is unknown.

    Raises:
        ValueError: If its annotation cannot be read, or `Task[...]` names another type.
    """
    of_task = _payload_of_task(function, parameters[0])
    if len(parameters) == 1:
        return None if of_task is None else codec.decoder(of_task)
    try:
        annotation = hint(function, parameters[1].name, parameters[1].annotation)
        decode = codec.decoder(annotation)
    except Exception as error:
        msg = f"handler of {quoted(kind)}: the type of its payload cannot be read ({error})"
        raise ValueError(msg) from error
    if of_task not in (None, annotation):
        types = f"{of_task} in the task's annotation and {annotation} in the payload's"
        msg = f"handler of {quoted(kind)}: has two types of payload, {types}"
        raise ValueError(msg)
    return decode
