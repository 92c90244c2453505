"""The tasks that a worker runs, each in its own thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.worker.report import Outcome

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class TaskRun:
    """One run of a task.

    Attributes:
        claim: The claim, with the lease as last extended.
        started: When the run started, in seconds by the queue's clock.
        unsettled: Whether it is over, and the store has not answered its settlement.
        acknowledged: Whether it was settled before it started, and so has no lease.
        ended: How it ended.
    """

    claim: Claim
    started: float
    unsettled: bool = False
    acknowledged: bool = False
    ended: Future[Outcome] = field(default_factory=Future)


class TaskRuns:
    """The runs that have not ended. Thread-safe: claim loop and lease renewal share it."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """Begin without runs.

        Args:
            on_end: Called when a run ends, from its thread.
        """
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running: list[TaskRun] = []
        self._overrunning: list[TaskRun] = []

    @property
    def running(self) -> list[TaskRun]:
        """The runs within their time limit, which occupy a slot."""
        with self._lock:
            return list(self._running)

    @property
    def overrunning(self) -> list[TaskRun]:
        """The runs past their time limit."""
        with self._lock:
            return list(self._overrunning)

    def start(self, claim: Claim, now: float, work: Callable[[TaskRun], Outcome]) -> None:
        """Run a task in a new thread."""
        run = TaskRun(claim, now)
        with self._lock:
            self._running.append(run)
        in_thread(f"freshq-run-{claim.task.task_id}", lambda: work(run), run.ended)
        run.ended.add_done_callback(lambda _ended: self._on_end())

    def abandon(self, run: TaskRun) -> bool:
        """Free the slot of a run past its time limit; return False if it has just ended."""
        with self._lock:
            if run.ended.done() or run not in self._running:
                return False
            self._running.remove(run)
            self._overrunning.append(run)
            return True

    def take_ended(self) -> list[TaskRun]:
        """Remove the runs that ended, and return them."""
        with self._lock:
            ended = [run for run in (*self._running, *self._overrunning) if run.ended.done()]
            self._running = [run for run in self._running if run not in ended]
            self._overrunning = [run for run in self._overrunning if run not in ended]
        return ended


def in_thread(name: str, function: Callable[[], T], ended: Future[T] | None = None) -> Future[T]:
    """Call a function in a new daemon thread, which does not keep the process alive if it never returns."""
    future = Future() if ended is None else ended

    def call() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised where the future is read
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError as error:  # the system has no thread left: whoever waits for this one must know
        future.set_exception(error)
    return future
