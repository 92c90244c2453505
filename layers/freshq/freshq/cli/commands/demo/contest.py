"""The overload that `freshq demo` shows: the same tasks through two queues in memory, with real workers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from freshq.policy.order import Order
from freshq.queue.queue import Queue
from freshq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.task import Task

SERVERS: Final = 4
TASK_SECONDS: Final = 0.2
CAPACITY_PER_SECOND: Final = SERVERS / TASK_SECONDS
OVERLOAD: Final = 3
# Parts of the whole time: how long the load lasts, and the age at which a task has lost its value.
LOAD_SHARE: Final = 0.7
DEADLINE_SHARE: Final = 0.15
# The deadline of a queue without one: longer than any demonstration.
NEVER_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is offered, and for how long.

    Attributes:
        total_seconds: Duration of the whole contest.
    """

    total_seconds: float

    @property
    def load_seconds(self) -> float:
        """How long tasks are offered."""
        return self.total_seconds * LOAD_SHARE

    @property
    def deadline_seconds(self) -> float:
        """The age from which a task is of no use to anybody."""
        return self.total_seconds * DEADLINE_SHARE

    @property
    def rate_per_second(self) -> float:
        """The tasks offered in a second."""
        return OVERLOAD * CAPACITY_PER_SECOND

    @property
    def tasks(self) -> int:
        """The number of tasks offered."""
        return round(self.load_seconds * self.rate_per_second)


@dataclass(frozen=True, slots=True)
class Standing:
    """What became of the tasks of one queue so far.

    Attributes:
        in_time: Tasks done by their deadline.
        late: Tasks done after it.
        shed: Tasks that the queue did not start, since they were stale.
        waiting: Tasks that wait or run.
        wait_p50_seconds: Median wait of the tasks done; None if there is none.
        last_wait_seconds: Wait of the task that ended last; None if there is none.
    """

    in_time: int
    late: int
    shed: int
    waiting: int
    wait_p50_seconds: float | None
    last_wait_seconds: float | None


@dataclass(slots=True)
class Contestant:
    """A queue, its worker, and a separate downstream that does `CAPACITY_PER_SECOND`.

    Attributes:
        name: What people read.
        queue: The queue.
        deadline_seconds: The age from which a task is of no use.
    """

    name: str
    queue: Queue
    deadline_seconds: float
    _waits: list[float] = field(default_factory=list)
    _in_time: int = 0
    _worker: Worker = field(init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start the worker."""
        self._worker = Worker(self.queue, self._run, concurrency=SERVERS, poll_seconds=0.01)
        self._thread = threading.Thread(target=self._worker.run, name=f"worker {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker, and wait for the tasks that it runs."""
        self._worker.stop()
        self._thread.join()

    def standing(self) -> Standing:
        """Return what became of the tasks so far."""
        waits = list(self._waits)
        stats = self.queue.stats()
        return Standing(
            in_time=self._in_time,
            late=len(waits) - self._in_time,
            shed=stats.shed,
            waiting=stats.pending + stats.taken,
            wait_p50_seconds=median(waits) if waits else None,
            last_wait_seconds=waits[-1] if waits else None,
        )

    def _run(self, task: Task) -> None:
        wait_seconds = self.queue.now() - task.created
        time.sleep(TASK_SECONDS)
        self._waits.append(wait_seconds)
        self._in_time += wait_seconds + TASK_SECONDS <= self.deadline_seconds


def contestants(plan: Plan) -> tuple[Contestant, Contestant]:
    """Return freshq as it is, and a queue as most are: first in, first out, with no deadline."""
    deadline = plan.deadline_seconds
    return (
        Contestant("newest first (freshq)", Queue.memory(max_age_seconds=deadline), deadline),
        Contestant(
            "first in, first out", Queue.memory(max_age_seconds=NEVER_SECONDS, order=Order.FIFO), deadline
        ),
    )


def offer(plan: Plan, queues: Sequence[Queue], stopped: threading.Event) -> None:
    """Put the same tasks into all queues, evenly over the time of the load, unless stopped before its end."""
    began = time.monotonic()
    for number in range(plan.tasks):
        due = began + number / plan.rate_per_second
        if stopped.wait(max(0.0, due - time.monotonic())):
            return
        for queue in queues:
            queue.put(number)
