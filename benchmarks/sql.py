"""Tasks a second through a SQL queue by hand: puts, claims and completions, in turns."""

from __future__ import annotations

import tempfile
import threading
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from local.servers import Postgres

from benchmarks import figures
from benchmarks.figures import PAYLOAD, in_processes, in_turns
from benchmarks.library_pages import BY_TEN, DURABLE, ONE_BY_ONE, PUT
from freshq import Queue, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PROCESSES: Final = 2
# Enough for several seconds of work.
TASKS: Final = {1: 1600, 8: 6400, 32: 6400}
SQLITE_TASKS: Final = 3000


def divided(number: int, parts: int) -> list[int]:
    """Split a number into parts that differ by at most one."""
    return [number // parts + (part < number % parts) for part in range(parts)]


def fill(url: str, tasks: int, payload: Any = PAYLOAD, *, durable: bool = True) -> None:
    """Leave only a number of new tasks in a queue."""
    queue = Queue.sql(url, durable=durable)
    queue.create_table()
    queue.purge(confirm="default")
    queue.put_many([{"payload": payload} for _ in range(tasks)])
    queue.close()


def put_all(queue: Queue, tasks: int) -> None:
    """Put tasks one by one."""
    for _ in range(tasks):
        queue.put(PAYLOAD)


def complete_all(queue: Queue, limit: int) -> None:
    """Claim and complete tasks until none is left."""
    while claims := queue.claim(limit=limit):
        if limit == 1:
            queue.complete(claims[0])
        else:
            queue.settle_many([Settlement.complete(claim) for claim in claims])


def in_threads(threads: int, work: Callable[[], object]) -> None:
    """Run the same work in a number of threads."""
    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def by_hand(ready: Callable[[], object], workers: int, url: str, work: partial[None]) -> tuple[float, float]:
    """Work in threads of this process; return when they began and ended.

    Args:
        ready: Waits until every process is connected.
        workers: Number of threads.
        url: The queue.
        work: Called with the queue in each thread.
    """
    queue = Queue.sql(url)
    queue.stats(approximate=True)  # connects
    ready()
    began = time.monotonic()
    in_threads(workers, partial(work, queue))
    ended = time.monotonic()
    queue.close()
    return began, ended


def rate(url: str, workers: int, tasks: int, work: partial[None], filled: int) -> float:
    """Return the tasks a second of workers in at most two processes.

    Args:
        url: The queue.
        workers: Threads in all.
        tasks: Tasks that they put, or complete.
        work: Called with the queue in each thread.
        filled: Tasks in the queue beforehand.
    """
    fill(url, filled)
    processes = divided(workers, min(workers, MAX_PROCESSES))
    spans = in_processes(by_hand, [(threads, url, work) for threads in processes])
    return round(tasks / (max(ended for _, ended in spans) - min(began for began, _ in spans)), 1)


def on_postgresql(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the tasks a second of each contender by number of workers."""
    measured: dict[tuple[str, int], Callable[[], float]] = {}
    with Postgres(durable=True) as server:
        for workers, tasks in TASKS.items():
            puts = partial(put_all, tasks=tasks // workers)
            measured[PUT, workers] = partial(rate, server.url, workers, tasks, puts, 0)
            for name, limit in ((ONE_BY_ONE, 1), (BY_TEN, 10)):
                work = partial(complete_all, limit=limit)
                measured[name, workers] = partial(rate, server.url, workers, tasks, work, tasks)
        found = in_turns(measured, rounds)
    by_name: dict[str, dict[str, list[float]]] = {}
    for (name, workers), rates in found.items():
        by_name.setdefault(name, {})[str(workers)] = rates
    return by_name


def on_sqlite(tasks: int, limit: int | None, *, durable: bool) -> float:
    """Return the claims and completions a second in a new file, or the puts a second if there is no limit."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'freshq.db'}"
        fill(url, tasks if limit else 0, durable=durable)
        queue = Queue.sql(url, durable=durable)
        queue.stats(approximate=True)  # connects
        began = time.monotonic()
        if limit:
            complete_all(queue, limit)
        else:
            put_all(queue, tasks)
        seconds = time.monotonic() - began
        queue.close()
    return round(tasks / seconds, 1)


def main(rounds: int = 3, tasks: int = SQLITE_TASKS) -> None:
    """Measure on SQLite and PostgreSQL.

    Args:
        rounds: How often each contender runs.
        tasks: Tasks of a run on SQLite.
    """
    ways = {PUT: None, ONE_BY_ONE: 1, BY_TEN: 10}
    sqlite = in_turns(
        {
            name + DURABLE * durable: partial(on_sqlite, tasks, limit, durable=durable)
            for durable, (name, limit) in product((False, True), ways.items())
        },
        rounds,
    )
    figures.write("sql", {"rounds": rounds, "sqlite": sqlite, "postgresql": on_postgresql(rounds)})
