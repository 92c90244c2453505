"""How long a lone task takes through an idle Worker in a SQL database: from its put until it is settled.

    python -m benchmarks.lone [--tasks N]

The worker has 8 slots and looks for tasks every 10 ms, so that half of that is waiting for its next look.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Final

from local.servers import Postgres
from rich.console import Console

from benchmarks import figures
from benchmarks.worker import opened
from benchmarks.worker_peers import PAYLOAD
from freshq import Worker
from freshq.worker.report import LoggingObserver

if TYPE_CHECKING:
    from freshq import Claim, Outcome, Queue, Task

SLOTS: Final = 8
POLL_SECONDS: Final = 0.01
LONGEST_SECONDS: Final = 60
Figures = dict[str, list[float]]


class _Watch(LoggingObserver):
    """Notes when a run began and when it was settled."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.over = threading.Event()

    def run(self, _task: Task) -> None:
        """Do nothing."""
        self.began = time.monotonic()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note the time."""
        super().settled(claim, outcome, run_seconds, error)
        self.ended = time.monotonic()
        self.over.set()


def measured(queue: Queue, tasks: int) -> Figures:
    """Put tasks one by one, each while the worker is idle; return milliseconds from the put of each."""
    watch, found = _Watch(), Figures(run_ms=[], settled_ms=[])
    worker = Worker(queue, watch.run, concurrency=SLOTS, poll_seconds=POLL_SECONDS, observer=watch)
    working = threading.Thread(target=worker.run)
    working.start()
    pauses = random.Random("lone")
    for _ in range(tasks):
        time.sleep(pauses.uniform(2, 3) * POLL_SECONDS)  # the worker waits at another moment each time
        watch.over.clear()
        put_at = time.monotonic()
        queue.put(PAYLOAD)
        if not watch.over.wait(LONGEST_SECONDS):
            msg = f"a task was not settled within {LONGEST_SECONDS} s"
            raise TimeoutError(msg)
        found["run_ms"].append(round(1000 * (watch.began - put_at), 2))
        found["settled_ms"].append(round(1000 * (watch.ended - put_at), 2))
    worker.stop()
    working.join()
    return found


def on(url: str, tasks: int) -> Figures:
    """Measure on a database."""
    queue = opened(url)
    queue.create_table()
    try:
        return measured(queue, tasks)
    finally:
        queue.close()


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300)
    tasks = parser.parse_args().tasks
    logging.disable(logging.WARNING)
    with Postgres(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        stores = {name: on(url, tasks) for name, url in (
            ("postgresql", server.url), ("sqlite", f"sqlite:///{folder}/tasks.db")
        )}  # fmt: skip
    for name, found in stores.items():
        medians = {what: statistics.median(each) for what, each in found.items()}
        Console().print(f"{name}: {medians}")
    report = {"slots": SLOTS, "poll_ms": 1000 * POLL_SECONDS, "stores": stores}
    figures.write("lone", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
