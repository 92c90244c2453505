"""Throughput of handlers that take a batch, in turns with handlers of one task, at a fixed time a call."""

from __future__ import annotations

import itertools
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from local.servers import Postgres

from benchmarks import figures
from benchmarks.figures import PAYLOAD, in_turns
from freshq import Handlers, Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq import Task

    Open = Callable[[], Queue]

SIZE: Final = 32
CALL_SECONDS: Final = 0.05
SLOTS: Final = (1, 4)
# Calls of each slot in a round.
CALLS: Final = 25


class Calls:
    """Handlers of one kind, whose calls take `CALL_SECONDS`."""

    def __init__(self, size: int) -> None:
        """Take one task a call if the size is 1, otherwise a batch."""
        self.handlers, self.began = Handlers(), 0.0
        if size == 1:
            self.handlers.on("embed")(self._one)
        else:
            self.handlers.on("embed", batch=size)(self._batch)

    def _one(self, _task: Task[Any]) -> None:
        self._take_time()

    def _batch(self, tasks: list[Task[Any]]) -> list[None]:
        self._take_time()
        return [None] * len(tasks)

    def _take_time(self) -> None:
        self.began = self.began or time.monotonic()
        time.sleep(CALL_SECONDS)


def tasks_per_second(opened: Open, size: int, slots: int) -> float:
    """Return the tasks that a worker runs per second, from the first run until all tasks are settled."""
    queue, calls = opened(), Calls(size)
    count = size * slots * CALLS
    queue.put_many({"payload": PAYLOAD, "kind": "embed"} for _ in range(count))
    worker = Worker(queue, calls.handlers, concurrency=slots)
    worker.run(until=lambda: sum(worker.status().outcomes.values()) >= count)
    ended = time.monotonic()
    assert queue.stats().success == count
    queue.close()
    return count / (ended - calls.began)


@contextmanager
def stores() -> Iterator[dict[str, Open]]:
    """Yield, by store, a function that opens an empty queue."""
    numbers = itertools.count()

    def in_sql(url: str) -> Queue:
        queue = Queue.sql(url, f"batches_{next(numbers)}")
        queue.create_table()
        return queue

    with tempfile.TemporaryDirectory(prefix="freshq-batches-") as folder, Postgres(durable=True) as server:
        sqlite = f"sqlite:///{Path(folder) / 'batches.db'}"
        yield {
            "memory": Queue.memory,
            "SQLite": partial(in_sql, sqlite),
            "PostgreSQL": partial(in_sql, server.url),
        }


def main(rounds: int = 3) -> None:
    """Measure each store."""
    with stores() as opened:
        contenders = {
            (store, slots, size): partial(tasks_per_second, way, size, slots)
            for store, way in opened.items()
            for slots in SLOTS
            for size in (1, SIZE)
        }
        found = in_turns(contenders, rounds)
    rows = [
        {
            "store": store,
            "slots": slots,
            "single": found[store, slots, 1],
            "batches": found[store, slots, SIZE],
        }
        for store, slots, size in contenders
        if size == 1
    ]
    figures.write("batches", {"size": SIZE, "call_seconds": CALL_SECONDS, "rows": rows})
