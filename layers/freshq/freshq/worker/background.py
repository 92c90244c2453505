"""Renew leases and do upkeep, in the background."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from freshq.errors import LeaseLost, StoreError, is_shortage
from freshq.worker.report import log_fields, task_logger
from freshq.worker.run import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Self

    from freshq.queue.base import BaseQueue
    from freshq.worker.run import TaskRun, TaskRuns

logger = task_logger(__name__)
# A lease is extended when less than this part of it is left, and checked at least twice within that time.
RENEW_BELOW: Final = 0.5
CHECK_EVERY: Final = RENEW_BELOW / 2
# Concurrent extensions: one slow call must not cost the other runs their leases.
MAX_EXTENSIONS: Final = 16
NOT_EXTENDED: Final = "could not extend the lease of task %s"
# Pause when nothing is left to do: a delayed task becomes claimable within a second of its due time.
PAUSE_SECONDS: Final = 0.5
# The same while the worker is at rest: its claims bring in due tasks.
REST_SECONDS: Final = 60.0


class BackgroundThread(ABC):
    """A thread that lives as long as the block of this context manager."""

    def __init__(self, queue: BaseQueue, name: str) -> None:
        """Start nothing yet.

        Args:
            queue: The queue; the end of the block waits for the thread for at most one lease.
            name: The thread's name.
        """
        self._queue = queue
        self._name = name
        self._stopped = threading.Event()
        self._thread: Future[None] | None = None

    def __enter__(self) -> Self:
        self._thread = in_thread(self._name, self._work_until_stopped)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        if self._thread is not None and wait([self._thread], self._queue.admin.config.lease_seconds).done:
            self._raise_error(self._thread)

    def check(self) -> None:
        """Raise the thread's error if it failed; start it again if the system lacked a resource."""
        if self._thread is not None and self._thread.done() and not self._stopped.is_set():
            self._raise_error(self._thread)
            self._thread = in_thread(self._name, self._work_until_stopped)

    def _raise_error(self, thread: Future[None]) -> None:
        if not is_shortage(thread.exception()):
            thread.result()

    @abstractmethod
    def _work_until_stopped(self) -> None:
        """Do the work of the thread until `_stopped` is set."""


class LeaseRenewal(BackgroundThread):
    """Extends the leases of running tasks; abandons runs that exceed their time limit.

    The thread looks for leases to extend, earliest expiry first; each extension has a thread of its own, up
    to `MAX_EXTENSIONS` at a time.
    """

    def __init__(
        self,
        queue: BaseQueue,
        runs: TaskRuns,
        poll_seconds: float,
        max_run_seconds: float | None,
        on_overrun: Callable[[TaskRun, float], None],
    ) -> None:
        """Prepare the renewal of all runs.

        Args:
            queue: The queue.
            runs: The runs.
            poll_seconds: Maximum time between checks.
            max_run_seconds: Time limit of a run; None for no limit.
            on_overrun: Called with an abandoned run and its time so far in seconds.
        """
        super().__init__(queue, "freshq-leases")
        self._runs = runs
        self._poll_seconds = poll_seconds
        self._max_run_seconds = max_run_seconds
        self._on_overrun = on_overrun
        self._free = threading.Semaphore(MAX_EXTENSIONS)
        self._extensions: dict[TaskRun, Future[None]] = {}

    @property
    def _pause_seconds(self) -> float:
        return min(self._poll_seconds, PAUSE_SECONDS, CHECK_EVERY * self._queue.admin.config.lease_seconds)

    @override
    def _work_until_stopped(self) -> None:
        while not self._stopped.wait(self._pause_seconds):
            self.renew()
        self.wait()

    def renew(self) -> None:
        """Check every run once, in the order in which their leases expire."""
        self._extensions = {run: ended for run, ended in self._extensions.items() if not ended.done()}
        for run in sorted(self._runs.running, key=lambda run: run.claim.lease_until):
            if self._stopped.is_set():
                return
            now = self._queue.admin.now()
            run_seconds = now - run.started_at
            if self._is_too_long(run, run_seconds):
                if self._runs.abandon(run):
                    run.cancel(f"it took longer than {self._max_run_seconds:g} s")
                    self._on_overrun(run, run_seconds)
            elif self._needs_extension(run, now):
                self._begin_extension(run)

    def _is_too_long(self, run: TaskRun, run_seconds: float) -> bool:
        # During an outage, a finished run waits for the store, however long it takes.
        limit_seconds = self._max_run_seconds
        return limit_seconds is not None and run_seconds >= limit_seconds and run.runs

    def _needs_extension(self, run: TaskRun, now: float) -> bool:
        is_due = run.claim.lease_until - now < RENEW_BELOW * self._queue.admin.config.lease_seconds
        return run.is_held and (is_due or run.has_news(now))

    def wait(self) -> None:
        """Wait for the extensions under way, for at most one lease."""
        wait(self._extensions.values(), self._queue.admin.config.lease_seconds)

    def _begin_extension(self, run: TaskRun) -> None:
        """Extend a lease in a thread, unless it is under way; wait while `MAX_EXTENSIONS` are."""
        if run in self._extensions:
            return
        while not self._free.acquire(timeout=self._pause_seconds):
            if self._stopped.is_set():
                return
        ended = self._extensions[run] = in_thread("freshq-extend", lambda: self._extend(run))
        ended.add_done_callback(lambda _ended: self._free.release())
        if ended.done() and (error := ended.exception()):
            task = run.claim.task
            logger.error(NOT_EXTENDED, task.task_id, exc_info=error, extra=log_fields(task))

    def _extend(self, run: TaskRun) -> None:
        reported = run.handle.reported
        fraction, step = (None, None) if reported is None else (reported.fraction, reported.step)
        run.stored_at = self._queue.admin.now()
        task = run.claim.task
        try:
            lease_seconds = self._queue.admin.config.lease_seconds
            run.extended(
                self._queue.extend(run.claim, lease_seconds=lease_seconds, progress=fraction, step=step)
            )
            run.stored = reported
        except LeaseLost as lost:
            run.lose(lost)  # the run reports it at its end
        except StoreError as error:
            logger.warning(f"{NOT_EXTENDED}: %s", task.task_id, error, extra=log_fields(task))
        except Exception:
            logger.exception(NOT_EXTENDED, task.task_id, extra=log_fields(task))


class BackgroundUpkeep(BackgroundThread):
    """Runs portions of upkeep.

    One worker of a queue does this at a time. During an outage it tries again after each pause.

    Attributes:
        failing: Whether the store did not answer the last portion.
    """

    def __init__(
        self,
        queue: BaseQueue,
        is_held_back: Callable[[], bool],
        is_at_rest: Callable[[], bool] = lambda: False,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            is_held_back: Returns whether upkeep is suspended.
            is_at_rest: Returns whether the worker has nothing to do.
            also: Called in each round; raises no StoreError.
        """
        super().__init__(queue, "freshq-upkeep")
        self._is_held_back = is_held_back
        self._is_at_rest = is_at_rest
        self._also = also
        self._last_portion = time.monotonic()
        self.failing = False

    @override
    def _work_until_stopped(self) -> None:
        while not self._stopped.wait(PAUSE_SECONDS):
            self._also()
            rested_seconds = time.monotonic() - self._last_portion
            if self._is_at_rest() and rested_seconds < REST_SECONDS and not self.failing:
                continue
            while not self._stopped.is_set() and self.portion():
                pass
            self._last_portion = time.monotonic()

    def portion(self) -> bool:
        """Run one portion unless it is suspended; return whether another one can follow immediately."""
        if self._is_held_back():
            return False
        try:
            more = self._queue.admin.upkeep().more
        except StoreError as error:
            if not self.failing:
                logger.warning("the upkeep of queue %r waits for its store: %s", self._queue.name, error)
            self.failing = True
            return False
        self.failing = False
        return more
