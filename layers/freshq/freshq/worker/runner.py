"""The user's runner, named as ``module:function``."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from freshq.errors import quoted
from freshq.model.codec import JSON, Codec
from freshq.model.task import Task
from freshq.worker.loading import load_object

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from freshq.queue.base import BaseQueue
    from freshq.stores.transactions import Connection

# Takes a task; returns any JSON value, or raises Retry, Reject or Busy.
Runner: TypeAlias = Callable[[Task], Any]
# Takes also the SQLAlchemy connection of the transaction that holds the task.
TransactionRunner: TypeAlias = "Callable[[Task, Connection], Any]"


class CoroutineRunner(ABC):
    """A runner that runs some tasks in coroutines: while they wait, they need no thread.

    Attributes:
        codec: Encodes what it returns.
    """

    codec: Codec = JSON

    @abstractmethod
    def __call__(self, task: Task) -> Any:  # noqa: ANN401 - any value
        """Run a task to its end, in this thread."""

    @abstractmethod
    def has_coroutine(self, task: Task) -> bool:
        """Return whether a coroutine runs a task, not a thread."""

    @abstractmethod
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        """Start the coroutine that runs a task.

        Args:
            task: The task.
            loop: A loop that runs in another thread; None for the runner's own.

        Returns:
            The future of its result; None if the task needs a thread, and nothing was started.
        """


def codec_of(queue: BaseQueue, runner: object) -> Codec:
    """Return the codec for the results of a runner: its own, if it has one, or that of the queue.

    Raises:
        ValueError: If the queue has one, and handlers could not read what it encodes.
    """
    given = getattr(runner, "codec", None)
    own = given if isinstance(given, Codec) else queue.codec
    if own is JSON and queue.codec is not JSON:
        name = type(queue.codec).__name__
        msg = f"codec: the queue has {name}, and its handlers have none; pass the same to Handlers(codec=...)"
        raise ValueError(msg)
    return own


def load_runner(name: str, advice: str = "") -> Runner:
    """Import the function that a name such as ``orders.runner:run`` refers to.

    Args:
        name: The module and the function.
        advice: What to do if there is no such module, for the error.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    runner = load_object("runner", name, advice, what="function", example="orders.runner:run")
    if not callable(runner):
        module_name, _, object_name = name.partition(":")
        problem = f"has a {type(runner).__name__}, not a function, as {object_name!r}"
        msg = f"runner: module {quoted(module_name)} {problem}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    found: Runner = runner
    return found


def checked_runner(runner: object, *, transaction: bool = False) -> Runner:
    """Return a runner that a worker can call.

    Args:
        runner: What was given.
        transaction: Whether it is called with a connection besides the task.

    Raises:
        ValueError: If it is not callable, cannot take its arguments, or is `async def`, whose coroutine
            nobody would await.
    """
    takes = "a task and a connection" if transaction else "a task"
    if not callable(runner):
        msg = f"runner: must be a function that takes {takes}, got {type(runner).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    if is_async(runner) or is_async_generator(runner):
        msg = "runner: is an async function; register it with freshq.Handlers, or pass one that is not async"
        raise ValueError(msg)
    try:
        signature = inspect.signature(runner)
    except (TypeError, ValueError):  # some functions in C have none
        return runner
    try:
        signature.bind(*(object(), object())[: 1 + transaction])
    except TypeError as error:
        msg = f"runner: must take {takes}, but its arguments are {signature} ({error})"
        raise ValueError(msg) from None
    return runner


def is_async(function: Any) -> bool:  # noqa: ANN401 - anything that can be called
    """Return whether a call makes a coroutine."""
    # An object with an async `__call__` is not a coroutine function itself.
    return any(inspect.iscoroutinefunction(each) for each in (function, function.__call__))


def is_async_generator(function: Any) -> bool:  # noqa: ANN401 - anything that can be called
    """Return whether a call makes an asynchronous generator."""
    return any(inspect.isasyncgenfunction(each) for each in (function, function.__call__))
