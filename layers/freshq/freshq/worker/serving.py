"""Run a worker alongside an asyncio program, for the duration of a block."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from freshq.worker.run import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Future

    from freshq.worker.report import WorkerStatus


logger = logging.getLogger(__name__)
# How long the block waits for the store's first answer to the worker. In an outage it begins without one.
START_SECONDS: Final = 2.0
START_CHECK_SECONDS: Final = 0.01


class Stoppable(Protocol):
    """A worker, as its block sees it."""

    def status(self) -> WorkerStatus:
        """Return its status."""

    def stop(self) -> None:
        """Begin to drain."""

    def stop_at_once(self) -> None:
        """Give back the running tasks, and end."""


S = TypeVar("S", bound=Stoppable)


@asynccontextmanager
async def served(
    worker: S, run_on: Callable[[asyncio.AbstractEventLoop], None], drain_seconds: float | None
) -> AsyncIterator[S]:
    """Run a worker in a thread, and its coroutines on this loop, for the duration of the block.

    Args:
        worker: The worker.
        run_on: Runs it until it is stopped, with its coroutines on a loop.
        drain_seconds: How long to wait for running tasks at the end; None: until they are done.

    Raises:
        StoreError: If an error ended the worker: before the block if it came immediately, otherwise at the
            end of a block without an error of its own.
    """
    run = in_thread("freshq-worker", partial(copy_context().run, run_on, asyncio.get_running_loop()))
    run.add_done_callback(_log_error)
    try:
        await _begun(worker, run)
        yield worker
    finally:
        worker.stop()
        await _drained(worker, run, drain_seconds)
    run.result()


async def _begun(worker: Stoppable, run: Future[None]) -> None:
    """Wait a little until the store has answered the worker.

    Raises:
        StoreError: If an error ended the worker in the meantime: a table is missing.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while not (run.done() or worker.status().store_answers):
                await asyncio.sleep(START_CHECK_SECONDS)
    if run.done():
        run.result()


def _log_error(run: Future[None]) -> None:
    if error := run.exception():
        logger.error("the worker ended: %s", error, exc_info=error)


async def _drained(worker: Stoppable, run: Future[None], drain_seconds: float | None) -> None:
    """Wait for a drain; after `drain_seconds`, give back the tasks that still run."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    run.add_done_callback(lambda _run: loop.call_soon_threadsafe(ended.set))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await ended.wait()
    finally:
        if not run.done():
            worker.stop_at_once()
            await ended.wait()
