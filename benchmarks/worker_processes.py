"""What `benchmarks.worker` measures of freshq, in processes that begin together."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.worker_page import HAND, WORKER
from benchmarks.worker_peers import PAYLOAD, Span
from freshq import Queue, Worker
from freshq.worker.report import LoggingObserver

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    from freshq import Claim, Outcome, Task

BY_HAND: Final = 10
LONGEST_SECONDS: Final = 300
CONTEXT: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Job:
    """What the processes are to do together.

    Attributes:
        contender: By hand, or by a worker.
        url: Where the queue is.
        tasks: How many there are.
        concurrency: Slots of the worker in each process.
        settled: How many each process has settled; each writes its own number only.
        barrier: All wait there once they are connected.
    """

    contender: str
    url: str
    tasks: int
    concurrency: int
    settled: MutableSequence[int]
    barrier: Any


def opened(url: str) -> Queue:
    """Return a queue; on SQLite it does not wait for the disk, as no contender does there."""
    return Queue.sql(url, durable=not url.startswith("sqlite"))


def fill(url: str, tasks: int) -> None:
    """Leave nothing in a queue but some new tasks."""
    queue = opened(url)
    queue.create_table()
    queue.purge(confirm="default")
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    queue.close()


def processor_seconds() -> float:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def together(contender: str, url: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
    """Fill a queue, and work it off in some processes; return the span of each.

    Raises:
        queue.Empty: If a process died.
    """
    fill(url, tasks)
    settled = CONTEXT.RawArray("q", processes)
    job = Job(contender, url, tasks, concurrency, settled, CONTEXT.Barrier(processes))
    spans = CONTEXT.Queue()
    running = [CONTEXT.Process(target=_process, args=(job, each, spans)) for each in range(processes)]
    for process in running:
        process.start()
    found = [spans.get(timeout=LONGEST_SECONDS) for _ in running]
    for process in running:
        process.join()
    return [Span(*each) for each in found if each]


def _process(job: Job, number: int, spans: Any) -> None:
    """Work in a process of its own, which logs no task, and tell the span; nothing if it had no task."""
    logging.disable(logging.WARNING)
    queue = opened(job.url)
    queue.contains("none")  # connects
    spans.put({HAND: _by_hand, WORKER: _by_worker}[job.contender](queue, job, number))
    queue.close()


def _by_hand(queue: Queue, job: Job, _number: int) -> tuple[float, float, float] | None:
    """Claim ten and complete them together, in one thread, until nothing is left."""
    job.barrier.wait(LONGEST_SECONDS)
    claims = queue.claim(BY_HAND)
    ended = began = (time.monotonic(), processor_seconds())
    while claims:
        queue.complete_many(claims)
        ended = (time.monotonic(), processor_seconds())
        claims = queue.claim(BY_HAND)
    return (began[0], ended[0], ended[1] - began[1]) if ended != began else None


def _by_worker(queue: Queue, job: Job, number: int) -> tuple[float, float, float] | None:
    """Run a worker until all is settled, in all processes."""
    watch = _Watch()

    def all_settled() -> bool:
        job.settled[number] = len(watch.settlements)
        return sum(job.settled) >= job.tasks

    worker = Worker(queue, watch.run, concurrency=job.concurrency, observer=watch)
    job.barrier.wait(LONGEST_SECONDS)
    worker.run(until=all_settled)
    return watch.span()


class _Watch(LoggingObserver):
    """Notes when the first run began, and each settlement."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self.settlements: list[tuple[float, float]] = []

    def run(self, _task: Task) -> None:
        """Do nothing."""
        if self._began is None:
            self._began = time.monotonic(), processor_seconds()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note the time."""
        super().settled(claim, outcome, run_seconds, error)
        self.settlements.append((time.monotonic(), processor_seconds()))

    def span(self) -> tuple[float, float, float] | None:
        """Return the first start, the last settlement and the processor time between; None without a task."""
        if self._began is None:
            return None
        ended, processor = self.settlements[-1]
        return self._began[0], ended, processor - self._began[1]
