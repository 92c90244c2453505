"""Where the coroutines of handlers run: on one event loop, whichever thread starts them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from freshq.model.task import Task

# Makes the coroutine, on the loop.
Coroutines: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


@runtime_checkable
class CoroutineRunner(Protocol):
    """A runner that runs some of its tasks in coroutines, so that they need no thread while they wait."""

    def coroutine(self, task: Task) -> Coroutines | None:
        """Return what makes the coroutine that runs a task; None for a task that needs a thread."""


class CoroutineLoop:
    """An event loop: a given one, or one in a thread of its own, which its first coroutine starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Use a loop.

        Args:
            loop: A loop that runs already; None for one of its own.
        """
        self._lock = threading.Lock()
        self._loop = loop

    def start(self, coroutine: Coroutines) -> Future[Any]:
        """Start a coroutine beside those of other threads; return the future of its result.

        Raises:
            RuntimeError: If the system has no thread left for the loop; the next call tries again.
        """
        with self._lock:
            if self._loop is None:
                self._loop = _started_loop()
        return asyncio.run_coroutine_threadsafe(_awaited(coroutine), self._loop)


async def _awaited(coroutine: Coroutines) -> Any:  # noqa: ANN401 - what it returns
    return await coroutine()


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    try:
        threading.Thread(target=loop.run_forever, name="freshq-handlers", daemon=True).start()
    except RuntimeError:
        loop.close()
        raise
    return loop
