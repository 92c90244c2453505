"""What the history of a SQL queue costs: the same tasks with and without it, in turns, on each database.

    python -m benchmarks.history [--rounds N] [--tasks N]

One worker puts, claims and completes, one by one and by tens. Turns are short, so that the noise of the
machine is the same for all. "of another queue" is a queue without a history in a table whose triggers write
that of another one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from local.servers import MariaDB, Postgres, Unavailable
from rich.console import Console
from rich.table import Table

from benchmarks import figures as results_file
from benchmarks.figures import rotated
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

OFF: Final = "off"
OTHER: Final = "of another queue"
ON: Final = "on"
# Each in a table of its own.
TABLES: Final = {OFF: "tasks_off", OTHER: "tasks_other", ON: "tasks_on"}
BATCHES: Final = (1, 10)
Figures = dict[str, dict[str, list[tuple[float, float]]]]
WALL: Final = 0
PROCESSOR: Final = 1
QUARTILES: Final = 4


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


def processed(queue: Queue, tasks: int, batch: int) -> tuple[float, float]:
    """Put, claim and complete tasks; return the time and this process's processor time of each, in µs."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(0, tasks, batch):
        if batch == 1:
            queue.put({"n": 1})
            (claim,) = queue.claim()
            queue.complete(claim)
        else:
            queue.put_many([{"payload": {"n": 1}}] * batch)
            queue.complete_many(queue.claim(limit=batch))
    ended = time.perf_counter() - start, time.process_time() - busy
    return round(ended[0] / tasks * 1e6, 1), round(ended[1] / tasks * 1e6, 1)


def measured(url: str, rounds: int, tasks: int) -> Figures:
    """Measure in turns; return the times of a task by batch and by kind of history."""
    prepare(url)
    figures: defaultdict[str, defaultdict[str, list[tuple[float, float]]]]
    figures = defaultdict(lambda: defaultdict(list))
    queues = {name: Queue.sql(url, table) for name, table in TABLES.items()}
    for name in TABLES:  # opens the connections
        processed(queues[name], 20, 10)
    for number, batch in product(range(rounds), BATCHES):
        for name in rotated(list(TABLES), number):
            figures[str(batch)][name].append(processed(queues[name], tasks, batch))
    for queue in queues.values():
        queue.close()
    return {batch: dict(by_name) for batch, by_name in figures.items()}


def median(figures: dict[str, list[tuple[float, float]]], name: str, kind: int) -> float:
    """Return the median time of a task in µs."""
    return statistics.median(times[kind] for times in figures[name])


def ratio(figures: dict[str, list[tuple[float, float]]], name: str, kind: int = WALL) -> str:
    """Return the median time of a task as a multiple of that without a history."""
    return f"x {median(figures, name, kind) / median(figures, OFF, kind):.2f}"


def summary(figures: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, Any]]:
    """Return by kind of history a task's median times, and quartiles of the ratios to none within a round."""
    found = {}
    for name, times in figures.items():
        each: dict[str, Any] = {}
        for kind, title in ((WALL, "wall"), (PROCESSOR, "processor")):
            each[f"{title}_us"] = round(median(figures, name, kind), 1)
            pairs = zip(times, figures[OFF], strict=True)
            ratios = [one[kind] / other[kind] for one, other in pairs]
            each[f"{title}_ratios"] = [
                round(ratio, 3) for ratio in statistics.quantiles(ratios, n=QUARTILES, method="inclusive")
            ]
        found[name] = each
    return found


def show(results: dict[str, Figures]) -> None:
    """Print how much longer a task takes with a history."""
    columns = (
        "database",
        "at a time",
        "ms without",
        f"time, {OTHER}",
        "time with a history",
        "processor time",
    )
    table = Table(*columns)
    for database, by_batch in results.items():
        for batch, figures in by_batch.items():
            wall_ms = f"{median(figures, OFF, WALL) / 1000:.1f}"
            # A server's processor time is its own.
            busy = ratio(figures, ON, PROCESSOR) if database == "SQLite" else "-"
            table.add_row(database, batch, wall_ms, ratio(figures, OTHER), ratio(figures, ON), busy)
    Console().print(table)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=20)
    options = parser.parse_args()
    with ExitStack() as stack:
        results = {name: measured(url, options.rounds, options.tasks) for name, url in databases(stack)}
    show(results)
    report = {
        "rounds": options.rounds,
        "tasks": options.tasks,
        "databases": {
            name: {batch: summary(figures) for batch, figures in by_batch.items()}
            for name, by_batch in results.items()
        },
    }
    results_file.write("history", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
