"""The upkeep of a queue by its workers: due tasks become claimable soon, however busy the claims are."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.worker.runs import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Self

    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# Between two portions that leave nothing to do: a delayed task is claimable within a second of its time.
PAUSE_SECONDS: Final = 0.5


class BackgroundUpkeep:
    """Runs portions of upkeep in a thread, as long as the block of this context manager lasts.

    Of all workers of a queue one does so at a time. During an outage it tries again after each pause.

    Attributes:
        failing: Whether the store did not answer the last portion.
    """

    def __init__(self, queue: BaseQueue, is_held_back: Callable[[], bool]) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            is_held_back: Returns whether no portion may run now.
        """
        self._queue = queue
        self._is_held_back = is_held_back
        self._stopped = threading.Event()
        self.failing = False
        self._thread: Future[None] | None = None

    def __enter__(self) -> Self:
        self._thread = in_thread("freshq-upkeep", self._run_until_stopped)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        if self._thread is not None and wait([self._thread], self._queue.lease_seconds).done:
            self._thread.result()

    def check(self) -> None:
        """Raise the thread's error if it failed."""
        if self._thread is not None and self._thread.done():
            self._thread.result()

    def _run_until_stopped(self) -> None:
        while not self._stopped.wait(PAUSE_SECONDS):
            while not self._stopped.is_set() and self.portion():
                pass

    def portion(self) -> bool:
        """Run one portion, unless it is held back; return whether another can follow at once."""
        if self._is_held_back():
            return False
        try:
            more = self._queue.upkeep().more
        except StoreError as error:
            if not self.failing:
                logger.warning("the upkeep of queue %r waits for its store: %s", self._queue.name, error)
            self.failing = True
            return False
        self.failing = False
        return more
