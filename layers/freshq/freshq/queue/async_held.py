"""A task held in a database transaction, for coroutines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.queue.threads import Threads
    from freshq.stores.transactions import Connection, HeldTask

T = TypeVar("T")


class AsyncHeldTask:
    """A task held by the lock of its row, for coroutines.

    Attributes:
        task: The task, as if it had been claimed.
    """

    def __init__(self, held: HeldTask, threads: Threads, lock: Lock) -> None:
        """Use a held task.

        Args:
            held: The task.
            threads: Where the connection is used.
            lock: Held while a thread uses the connection. Only one may, also when the coroutine that it
                works for was cancelled.
        """
        self.task: Task = held.task
        self._held = held
        self._threads = threads
        self._lock = lock

    async def run(self, function: Callable[[Connection], T]) -> T:
        """Return what a function returns for the connection of the transaction, in a thread."""

        def call() -> T:
            with self._lock:
                return function(self._held.connection)

        return await self._threads.run(call)

    @property
    def result(self) -> Any:  # noqa: ANN401 - any JSON value
        """A JSON value to keep with the task; set it in the block."""
        return self._held.result

    @result.setter
    def result(self, value: Any) -> None:  # noqa: ANN401 - any JSON value
        self._held.result = value


@asynccontextmanager
async def held_for_coroutine(
    queue: BaseQueue, threads: Threads, held_threads: Threads
) -> AsyncIterator[AsyncHeldTask | None]:
    """Hold the next task of a queue in a transaction, as long as the block lasts.

    Args:
        queue: The queue.
        threads: Where it is looked for a task, with a connection that may have to be waited for.
        held_threads: Where the connection is used afterwards.

    Raises:
        ValueError: If the queue is not in a SQL database.
    """
    block = queue.transaction()
    held = await threads.run(
        block.__enter__, undo=lambda _held: _leave(block, Lock(), asyncio.CancelledError())
    )
    lock = Lock()
    try:
        yield None if held is None else AsyncHeldTask(held, held_threads, lock)
    except BaseException as error:
        if not await held_threads.run_to_end(partial(_leave, block, lock, error)):
            raise
    else:
        await held_threads.run_to_end(partial(_leave, block, lock))


def _leave(
    block: AbstractContextManager[object], lock: Lock, error: BaseException | None = None
) -> bool | None:
    """Leave a transaction, once no thread uses its connection; return whether the error is dealt with.

    Under a CancelledError it ends as if the process had died.
    """
    with lock:
        return block.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
