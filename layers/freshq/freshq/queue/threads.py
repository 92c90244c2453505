"""A bounded number of threads for the calls of coroutines, so that no event loop waits for a store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Threads:
    """Runs calls in threads for coroutines. Each thread is started when it is first needed."""

    def __init__(self, max_threads: int, name: str) -> None:
        """Start no thread yet.

        Args:
            max_threads: Most calls at a time; others wait for their turn, in order.
            name: First part of the threads' names.
        """
        self._max_threads = max_threads
        self._name = name
        self._pool = self._new_pool()

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._max_threads, self._name)

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Return what a call returns, in a thread, with the context variables of the caller.

        If the caller is cancelled, a call that has not begun never does. One that has begun goes on to its
        end, because a thread cannot be stopped.

        Args:
            call: What to call.
            undo: Called with the result if nobody awaits it any more, in a thread too.

        Raises:
            Exception: What the call raises.
        """
        pool = self._pool
        job = pool.submit(contextvars.copy_context().run, call)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if undo is not None:
                job.add_done_callback(partial(_undo, undo, pool))
            raise

    async def run_to_end(self, call: Callable[[], T]) -> T:
        """Return what a call returns, in a thread; it is made also if the caller is cancelled before.

        Raises:
            Exception: What the call raises.
        """
        job = self._pool.submit(contextvars.copy_context().run, call)
        return await asyncio.shield(asyncio.wrap_future(job))

    async def finish(self, last: Callable[[], object] = lambda: None) -> None:
        """Wait for all calls, end the threads, and make a last call. Later calls have new threads."""
        pool, self._pool = self._pool, self._new_pool()
        await asyncio.shield(asyncio.to_thread(_finish, pool, last))


def _undo(undo: Callable[[T], object], pool: ThreadPoolExecutor, job: Future[T]) -> None:
    """Undo what a call did, if it did anything."""
    if job.cancelled() or job.exception() is not None:
        return
    call = partial(_logged, partial(undo, job.result()))
    try:
        pool.submit(call)
    except RuntimeError:  # the pool is closing; this is one of its threads, for which it waits
        call()


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("could not undo a call that is no longer awaited")


def _finish(pool: ThreadPoolExecutor, last: Callable[[], object]) -> None:
    pool.shutdown(wait=True)
    last()
