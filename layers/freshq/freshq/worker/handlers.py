"""Handlers: one runner that chooses a function by the kind of a task, and gives it a typed payload."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_type_hints

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.answers import Busy, Reject, Retry, RunnerExit, UnknownKind, error_text
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.codec import JSON, checked_codec, field_problem
from freshq.worker.crew import OwnLoop, started_on
from freshq.worker.runner import CoroutineRunner, is_async, is_async_generator, is_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from freshq.model.codec import Codec
    from freshq.model.task import Task

Function = TypeVar("Function", bound="Callable[..., Any]")

# A handler takes the task, and its payload if it has a second parameter.
MAX_PARAMETERS: Final = 2
# What may happen to a task whose kind has no function.
UNKNOWN: Final = ("retry", "reject")


@dataclass(frozen=True, slots=True)
class _KindHandler:
    """The function of one kind, and how it is called."""

    function: Callable[..., Any]
    is_async: bool
    decode: Callable[[Any], Any] | None
    max_attempts: int | None
    max_run_seconds: float | None

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Return the arguments of the function.

        Raises:
            Reject: If the payload does not fit its type; the reason names the field, not its value.
        """
        if self.decode is None:
            return (task,)
        try:
            return (task, self.decode(task.payload))
        except ValueError as error:
            raise Reject(field_problem("payload", error)) from None


class Handlers(CoroutineRunner):
    """A runner that calls the function of each task's kind. Pass it to a `Worker`, or to `freshq work`.

    A function takes the task, or the task and its payload. The annotation of the second parameter is the
    type of the payload: a pydantic model, a dataclass, or any type that pydantic knows. A payload that does
    not fit makes a dead letter. Functions may be `async def`: all of them share one event loop, in a thread
    of its own.
    """

    def __init__(self, *, codec: Codec = JSON, unknown: Literal["retry", "reject"] = "retry") -> None:
        """Begin without functions.

        Args:
            codec: Decodes payloads and encodes results: the codec of the queue that the tasks are put into.
            unknown: What happens to a task whose kind has no function. "retry": it returns to its place after
                a delay that grows to a minute, and the attempt is not counted, so a producer may be deployed
                before its workers. "reject": it is a dead letter.

        Raises:
            ValueError: If an argument is wrong.
        """
        self.codec = checked_codec(codec, "codec: ")
        if unknown not in UNKNOWN:
            msg = f"unknown: must be one of {', '.join(UNKNOWN)}, got {quoted(unknown)}"
            raise ValueError(msg)
        self._rejects_unknown = unknown == "reject"
        self._handlers: dict[str, _KindHandler] = {}
        self._loop = OwnLoop()

    def on(
        self, kind: str, *, max_attempts: int | None = None, max_run_seconds: float | None = None
    ) -> Callable[[Function], Function]:
        """Return a decorator that registers a function for the tasks of a kind.

        Args:
            kind: The kind, as in `put(..., kind=...)`.
            max_attempts: Claims after which a failed task is a dead letter; None for the queue's
                limit, which a larger number does not raise.
            max_run_seconds: Cancel an `async def` after this time, and try again later.

        Raises:
            ValueError: If an argument is wrong, the kind has a function, or the function cannot be called
                with a task, or with a task and a payload.
        """
        if not isinstance(kind, str) or not kind:
            msg = f"kind: must be a non-empty string, got {quoted(kind)}"
            raise ValueError(msg)
        if max_attempts is not None:
            checked_count("max_attempts", max_attempts)
        if max_run_seconds is not None:
            checked_seconds("max_run_seconds", max_run_seconds, above_zero=True)

        def add(function: Function) -> Function:
            if kind in self._handlers:
                msg = f"kind: {quoted(kind)} has a function already; give each kind one"
                raise ValueError(msg)
            runs_async = callable(function) and is_async(function)
            if max_run_seconds is not None and not runs_async:
                raise ValueError(
                    "max_run_seconds: only an async function can be cancelled; for others, set the worker's"
                )
            decode = _decoder(kind, function, self.codec)
            self._handlers[kind] = _KindHandler(function, runs_async, decode, max_attempts, max_run_seconds)
            return function

        return add

    @override
    def __call__(self, task: Task) -> Any:
        """Run a task, as `Worker` calls its runner.

        Raises:
            UnknownKind: If no function has the task's kind, unless these handlers reject such tasks.
            Reject: If the payload does not fit, its attempts are spent, or nothing knows its kind.
        """
        if (coroutine := self.start(task)) is not None:
            return coroutine.result()
        handler = self._handlers.get(task.kind or "")
        if handler is None:
            raise self.unknown_kind(task) or Reject(self._unknown(task.kind))
        with _last_attempt_rejects(handler, task):
            return handler.function(*handler.arguments(task))

    def check(self, kind: str | None, payload: Any) -> None:
        """Check a payload as it is stored; a queue with `kinds=` these handlers does so at each put.

        Raises:
            ValueError: If no function has the kind, or the payload does not fit; names the field.
        """
        handler = self._handlers.get(kind or "")
        if handler is None:
            raise ValueError(self._unknown(kind))
        if handler.decode is not None:
            try:
                handler.decode(payload)
            except ValueError as error:
                raise ValueError(field_problem("payload", error)) from None

    def _unknown(self, kind: str | None) -> str:
        known = ", ".join(sorted(self._handlers)) or "none"
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
        return started_on(
            self._loop.get if loop is None else lambda: loop, partial(_run_async, handler, task)
        )


@contextmanager
def _last_attempt_rejects(handler: _KindHandler, task: Task) -> Iterator[None]:
    """Turn a failure of the handler's last attempt into a dead letter.

    Raises:
        Reject: If the block failed, and the handler's attempts are spent.
    """
    try:
        yield
    except (Busy, Reject):
        raise
    except Exception as error:
        if handler.max_attempts is None or task.attempts < handler.max_attempts:
            raise
        name = "" if isinstance(error, Retry) else f"{type(error).__name__}: "
        msg = f"{name}{error_text(error)}; that was attempt {task.attempts} of {handler.max_attempts}"
        raise Reject(msg) from error


async def _run_async(handler: _KindHandler, task: Task) -> Any:
    with _last_attempt_rejects(handler, task):
        return await _limited(handler, handler.arguments(task))


async def _limited(handler: _KindHandler, arguments: tuple[Any, ...]) -> Any:
    try:
        async with asyncio.timeout(handler.max_run_seconds) as limit:
            return await handler.function(*arguments)
    except (SystemExit, KeyboardInterrupt) as exits:  # they would end the loop, and every run on it wait on
        msg = f"{type(exits).__name__}: {error_text(exits)}"
        raise RunnerExit(msg) from exits
    except TimeoutError:
        if not limit.expired():
            raise
        msg = f"the handler took longer than {handler.max_run_seconds:g} s"
        raise Retry(msg) from None


def _decoder(kind: str, function: object, codec: Codec) -> Callable[[Any], Any] | None:
    """Return the decoder of a function's payload; None if the function takes only the task.

    Raises:
        ValueError: If it takes neither one nor two arguments, or its annotation cannot be read.
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
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    try:
        signature.bind(*parameters)
    except TypeError:
        parameters = []
    if not 1 <= len(parameters) <= MAX_PARAMETERS:
        msg = f"handler of {quoted(kind)}: must take a task, or a task and a payload"
        raise ValueError(msg)
    if len(parameters) == 1:
        return None
    annotation = parameters[1].annotation
    # Other annotations may name imports for type checkers only.
    only = SimpleNamespace(
        __annotations__={} if annotation is inspect.Parameter.empty else {"it": annotation}
    )
    try:
        hints = get_type_hints(only, getattr(function, "__globals__", {}), include_extras=True)
        return codec.decoder(hints.get("it", Any))
    except Exception as error:
        msg = f"handler of {quoted(kind)}: the type of its payload cannot be read ({error})"
        raise ValueError(msg) from error
