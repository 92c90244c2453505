"""What the history of a SQL queue costs: the same tasks with and without it, in turns, on each database.

    python -m benchmarks.history [--rounds N] [--tasks N]

One worker puts, claims and completes, one by one and by tens. "of another queue" is a queue without a history
in a table whose triggers write that of another one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from tests.support.databases import MariaDB, Postgres, Unavailable

from benchmarks import figures as results_file
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

OFF: Final = "off"
OTHER: Final = "of another queue"
ON: Final = "on"
# Each in a table of its own.
TABLES: Final = {OFF: "tasks_off", OTHER: "tasks_other", ON: "tasks_on"}
BATCHES: Final = (1, 10)
Figures = dict[str, dict[str, list[float]]]


def databases(stack: ExitStack) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each database that runs here; servers stop with the stack."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    yield "SQLite", f"sqlite:///{folder}/tasks.db"
    for name, server in (("PostgreSQL", Postgres(durable=True)), ("MariaDB", MariaDB())):
        try:
            yield name, stack.enter_context(server).url
        except Unavailable as missing:
            Console(stderr=True).print(f"{name}: {missing}")


def prepare(url: str) -> None:
    """Create the tables, with and without histories."""
    for name, table in TABLES.items():
        with_history = {OFF: None, OTHER: "other", ON: "default"}[name]
        for queue_name in ("default", with_history):
            if queue_name is not None:
                history = True if queue_name == with_history else None
                queue = Queue.sql(url, table, name=queue_name, history=history)
                queue.create_table()
                queue.close()


def processed(queue: Queue, tasks: int, batch: int) -> float:
    """Put, claim and complete tasks; return how many a second."""
    start = time.perf_counter()
    for _ in range(0, tasks, batch):
        if batch == 1:
            queue.put({"n": 1})
            (claim,) = queue.claim()
            queue.complete(claim)
        else:
            queue.put_many([{"payload": {"n": 1}}] * batch)
            queue.complete_many(queue.claim(limit=batch))
    return tasks / (time.perf_counter() - start)


def measured(url: str, rounds: int, tasks: int) -> Figures:
    """Measure in turns; return tasks a second by batch and by kind of history."""
    prepare(url)
    figures: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    queues = {name: Queue.sql(url, table) for name, table in TABLES.items()}
    for name in TABLES:  # opens the connections
        processed(queues[name], 20, 10)
    for _, batch, name in product(range(rounds), BATCHES, TABLES):
        figures[str(batch)][name].append(round(processed(queues[name], tasks, batch), 1))
    for queue in queues.values():
        queue.close()
    return {batch: dict(by_name) for batch, by_name in figures.items()}


def ratio(figures: dict[str, list[float]], name: str) -> float:
    """Return the median over the rounds of the time without a history, as a multiple of it."""
    return statistics.median(
        without / given for without, given in zip(figures[OFF], figures[name], strict=True)
    )


def show(results: dict[str, Figures]) -> None:
    """Print the medians, and how much longer a task takes with a history."""
    table = Table("database", "at a time", "tasks/s without", f"time, {OTHER}", "time with a history")
    for database, by_batch in results.items():
        for batch, figures in by_batch.items():
            ratios = [f"x {ratio(figures, name):.2f}" for name in (OTHER, ON)]
            table.add_row(database, batch, f"{statistics.median(figures[OFF]):,.0f}", *ratios)
    Console().print(table)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=400)
    options = parser.parse_args()
    with ExitStack() as stack:
        results = {name: measured(url, options.rounds, options.tasks) for name, url in databases(stack)}
    show(results)
    report = {"rounds": options.rounds, "tasks": options.tasks, "tasks_per_second": results}
    results_file.write("history", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
