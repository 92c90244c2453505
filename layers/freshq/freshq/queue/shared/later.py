"""Make deferred writes in a thread: a verb must not make them while its caller's transaction is open.

That transaction may hold the only write lock, or its process all connections of the pool. A verb that waited
for the store would wait for its caller, who waits for the verb.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.policy.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)
# Pauses before the work and between failed tries: most transactions end soon.
PAUSES: Final = Backoff(base_seconds=0.1, cap_seconds=5.0)
# The next verb tries again.
MAX_TRIES: Final = 10
# A call to the store may still run when the queue is closed.
STOP_SECONDS: Final = 20.0


class Later:
    """The work that verbs defer while their caller's transaction is open. Thread-safe.

    Needs no lock, which a forked child could inherit locked: a second thread would only find nothing to do.
    """

    def __init__(self, queue: str, work: Callable[[], object]) -> None:
        """Do nothing yet.

        Args:
            queue: Name of the queue.
            work: Does all that was left; called in a thread, and again after a StoreError.
        """
        self._queue = queue
        self._work = work
        self._here = threading.local()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_left = False

    @property
    def is_beside(self) -> bool:
        """Whether this thread is in a verb while its caller's transaction is open."""
        return getattr(self._here, "beside", False)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """In this block, this thread is in such a verb."""
        before, self._here.beside = self.is_beside, True
        try:
            yield
        finally:
            self._here.beside = before

    def leave(self) -> None:
        """Note that there is work, and start the thread that does it unless it runs."""
        self._is_left = True
        before = self._thread
        if before is not None and before.is_alive():
            return
        if before is not None or self._stopped.is_set():  # stopped, or this is a forked child
            self._stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=[self._stopped], name="freshq-later", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # no more threads now; the next verb tries again
            logger.info("queue %r: cannot start a thread, and tries again later: %s", self._queue, error)

    def _run(self, stopped: threading.Event) -> None:
        failures = 0
        while failures < MAX_TRIES and not stopped.wait(PAUSES.delay_seconds(failures + 1, 1.0)):
            self._is_left = False
            failures = 0 if self._is_done() else failures + 1
            if self._has_ended():
                return

    def _has_ended(self) -> bool:
        """Return whether the thread should end."""
        # A verb that defers a write now sees that no thread runs, or this thread sees the write.
        self._thread = None
        has_ended = not self._is_left
        if not has_ended:
            self._thread = threading.current_thread()
        return has_ended

    def _is_done(self) -> bool:
        """Do the work; return whether all of it is done."""
        try:
            self._work()
        except StoreError as error:
            self._is_left = True
            logger.debug("queue %r: tries again later: %s", self._queue, error)
            return False
        except Exception:
            logger.exception("queue %r: could not do what its verbs left beside transactions", self._queue)
        return True

    def stop(self) -> None:
        """End the thread. The caller then writes what is left."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)
