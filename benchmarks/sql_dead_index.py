"""What the index of dead letters costs tasks that never fail, on MariaDB, where it is not a partial one.

    python -m benchmarks.sql_dead_index [--rounds N] [--tasks N]

Two tables on one server, one of them without the index, are worked in turns: puts of one task each, and then
claims of ten, completed together. Measured is the processor time of the server and of this process together:
what else the machine does changes it little. The figures are ratios, round by round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from local.servers import MariaDB
from rich.console import Console
from rich.table import Table

from benchmarks import figures
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

WITH: Final = "with_index"
WITHOUT: Final = "without_index"
CLAIM_TASKS: Final = 10
STEPS: Final = ("put", "put, claim, complete")


def processor_seconds(server: MariaDB) -> float:
    """Return the processor time that the server and this process have used."""
    # After the name of the command in brackets, the 12th and 13th fields are those of user and system time.
    fields = Path(f"/proc/{server.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def put_and_work(queue: Queue, tasks: int, server: MariaDB) -> tuple[float, float]:
    """Put tasks one by one and complete them; return the seconds of the puts, and of their whole lives."""
    began = processor_seconds(server)
    for number in range(tasks):
        queue.put(number)
    put_seconds = processor_seconds(server) - began
    done = 0
    while claims := queue.claim(CLAIM_TASKS):
        done += len(queue.complete_many(claims))
    if done != tasks:
        msg = f"{done} of {tasks} tasks were done"
        raise AssertionError(msg)
    return put_seconds, processor_seconds(server) - began


def measured(server: MariaDB, rounds: int, tasks: int) -> list[tuple[float, float]]:
    """Return, for each round, the times with the index as parts of those without: of puts and of lives."""
    url = server.url
    with closing(Queue.sql(url, WITH)) as indexed, closing(Queue.sql(url, WITHOUT)) as plain:
        for queue in (indexed, plain):
            queue.create_table()
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP INDEX {WITHOUT}_dead ON {WITHOUT}"))
        engine.dispose()
        for queue in (indexed, plain):
            put_and_work(queue, CLAIM_TASKS, server)
        ratios = []
        for number in range(rounds):
            both = (indexed, plain) if number % 2 else (plain, indexed)
            times = {id(queue): put_and_work(queue, tasks, server) for queue in both}
            ours, theirs = times[id(indexed)], times[id(plain)]
            ratios.append((ours[0] / theirs[0], ours[1] / theirs[1]))
    return ratios


def printed(ratios: Sequence[tuple[float, float]]) -> Table:
    """Return the medians and the range of the ratios."""
    table = Table("step", "median", "least", "greatest")
    for step, found in zip(STEPS, zip(*ratios, strict=True), strict=True):
        table.add_row(
            step, *(f"{figure:.2f}" for figure in (statistics.median(found), min(found), max(found)))
        )
    return table


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=300)
    given = parser.parse_args()
    with MariaDB() as server:
        ratios = measured(server, given.rounds, given.tasks)
    Console().print(printed(ratios))
    by_step = dict(zip(STEPS, map(list, zip(*ratios, strict=True)), strict=True))
    found = {step: [round(ratio, 3) for ratio in each] for step, each in by_step.items()}
    report = {"rounds": given.rounds, "tasks": given.tasks, "processor_ratios": found}
    figures.write("sql_dead_index", report, ("sqlalchemy", "pymysql"))


if __name__ == "__main__":
    main()
