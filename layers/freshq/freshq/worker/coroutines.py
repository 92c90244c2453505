"""Runs the coroutines of handlers on one event loop, whichever thread starts them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeAlias

# Makes a coroutine.
Coroutines: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


class OwnLoop:
    """An event loop in a separate thread, which its first coroutine starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs.

        Raises:
            RuntimeError: If the system has no thread left for it; the next call tries again.
        """
        with self._lock:
            if self._loop is None:
                self._loop = _started_loop()
            return self._loop


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    try:
        threading.Thread(target=loop.run_forever, name="freshq-handlers", daemon=True).start()
    except RuntimeError:
        loop.close()
        raise
    return loop


def started_on(get_loop: Callable[[], asyncio.AbstractEventLoop], make: Coroutines) -> Future[Any]:
    """Start a coroutine on a loop, beside those of other threads; return the future of its result.

    If it cannot be started, the future has the error.
    """
    coroutine = make()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, get_loop())
    except RuntimeError as error:  # no thread is left for the loop, or it is closed
        coroutine.close()
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed
