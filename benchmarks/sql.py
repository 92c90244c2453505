"""Tasks a second through the SQL store, beside other queues on the same server, in turns.

    python -m benchmarks.sql [--rounds N] [--finished ROWS] [--peers PYTHON]

oban, procrastinate, litequeue and huey are measured by the interpreter that has them (oban needs Python 3.12
or newer), pgbench where it is on the PATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from local.servers import HOST, MariaDB, Postgres
from rich.console import Console
from rich.table import Table

from benchmarks import figures as results
from benchmarks import sql_contenders as contenders
from benchmarks import sql_page
from benchmarks.figures import rotated
from freshq import Queue
from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.sql_contenders import Server

LASTING_WORKERS: Final = 8


def steadily(server: contenders.Server, rows: int, minutes: int) -> list[int]:
    """Return the tasks a second in each of some minutes, one by one, beside finished rows."""
    contenders.fill_freshq(server, 0)
    contenders.add_finished(server, rows)
    per_minute = contenders.CONTEXT.Array("q", minutes)
    contenders.timed(contenders.keep_up, LASTING_WORKERS, server, minutes, per_minute)
    return [round(tasks / 60) for tasks in per_minute[:]]


def lasting_main() -> None:
    """Measure 8 workers on PostgreSQL minute by minute, beside many finished rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--finished", type=int, default=1_000_000)
    options = parser.parse_args()
    with Postgres(durable=True) as running:
        server = contenders.Server(running.url, HOST, running.port)
        found = steadily(server, options.finished, options.minutes)
    table = Table("minute", "tasks/s", title=f"{LASTING_WORKERS} workers, {options.finished:,} finished rows")
    for minute, tasks in enumerate(found, start=1):
        table.add_row(str(minute), f"{tasks:,}")
    Console().print(table)
    report = {
        "workers": LASTING_WORKERS,
        "finished_rows": options.finished,
        "tasks_per_second_by_minute": found,
    }
    results.write("sql_lasting", report, ("psycopg", "sqlalchemy"))


WITH_INDEX: Final = "with_index"
WITHOUT_INDEX: Final = "without_index"
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


def dead_index_ratios(server: MariaDB, rounds: int, tasks: int) -> list[tuple[float, float]]:
    """Return, for each round, the times with the index as parts of those without: of puts and of lives."""
    url = server.url
    with closing(Queue.sql(url, WITH_INDEX)) as indexed, closing(Queue.sql(url, WITHOUT_INDEX)) as plain:
        for queue in (indexed, plain):
            queue.create_table()
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP INDEX {WITHOUT_INDEX}_dead ON {WITHOUT_INDEX}"))
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


def dead_index_main() -> None:
    """Measure the cost of the index of dead letters on MariaDB, where it holds every task.

    Two tables on one server, one of them without the index, are worked in turns. The processor time of the
    server and of this process counts.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=300)
    given = parser.parse_args()
    with MariaDB() as server:
        ratios = dead_index_ratios(server, given.rounds, given.tasks)
    Console().print(printed(ratios))
    by_step = dict(zip(STEPS, map(list, zip(*ratios, strict=True)), strict=True))
    found = {step: [round(ratio, 3) for ratio in each] for step, each in by_step.items()}
    report = {"rounds": given.rounds, "tasks": given.tasks, "processor_ratios": found}
    results.write("sql_dead_index", report, ("sqlalchemy", "pymysql"))


WORKERS: Final = (1, 8, 32)
# Enough for some seconds of work.
TASKS: Final = {1: 1600, 8: 6400, 32: 6400}
SQLITE_TASKS: Final = 3000
PEERS: Final = ("oban", "procrastinate", "litequeue", "huey")
Figures = dict[str, list[float]]
# An interpreter, and the versions of the other queues that it has.
Peers = tuple[str, dict[str, str]]


def postgresql_contenders(
    server: Server, folder: Path, workers: int, peers: Peers
) -> dict[str, Callable[[], float]]:
    """Return what is measured at a number of workers: each a call that returns tasks a second."""
    tasks = TASKS[workers]

    def drained(limit: int) -> float:
        contenders.fill_freshq(server, tasks + workers)  # each begins with one that does not count
        return tasks / contenders.timed(contenders.drain_freshq, workers, server, limit)

    def driver() -> float:
        contenders.fill_freshq(server, tasks + workers)  # each begins with one that does not count
        return tasks / contenders.timed(contenders.drain_driver, workers, server)

    def put() -> float:
        contenders.fill_freshq(server, 0)
        return tasks / contenders.timed(contenders.put_freshq, workers, server, tasks // workers)

    measured: dict[str, Callable[[], float]] = {
        sql_page.PUT: put,
        sql_page.ONE_BY_ONE: lambda: drained(1),
        sql_page.BY_TEN: lambda: drained(10),
        sql_page.DRIVER: driver,
    }
    python, found = peers
    if "procrastinate" in found:
        measured[sql_page.PROCRASTINATE_PUT] = lambda: contenders.put_by_peer(
            server, python, "procrastinate", workers, tasks
        )
    for name in ("procrastinate", "oban"):
        if name in found:
            measured[f"{name}, run"] = partial(contenders.run_peer, server, python, name, workers, tasks)
    if shutil.which("pgbench"):
        measured[sql_page.PGBENCH] = lambda: contenders.drain_pgbench(server, folder, workers, tasks)
    return measured


def on_postgresql(server: Server, folder: Path, rounds: int, peers: Peers) -> dict[str, Figures]:
    """Measure on PostgreSQL, all in turns; return tasks a second by contender and workers."""
    figures: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for workers in WORKERS:
            measured = postgresql_contenders(server, folder, workers, peers)
            for name in rotated(list(measured), number):
                figures[name][str(workers)].append(round(measured[name](), 1))
    return {name: dict(by_workers) for name, by_workers in figures.items()}


def on_sqlite(rounds: int, peers: Peers) -> Figures:
    """Measure on SQLite, all in turns, each on a new file."""
    measured: dict[str, Callable[[Path], float]] = {}
    for durable in (False, True):
        kept = sql_page.DURABLE if durable else ""
        measured[sql_page.PUT + kept] = partial(contenders.sqlite_put, tasks=SQLITE_TASKS, durable=durable)
        for name, limit in ((sql_page.ONE_BY_ONE, 1), (sql_page.BY_TEN, 10)):
            measured[name + kept] = partial(
                contenders.sqlite_freshq, tasks=SQLITE_TASKS, limit=limit, durable=durable
            )
    python, found = peers
    for peer, name in sql_page.ON_SQLITE.items():
        if peer in found:
            measured[name] = partial(_of_file, python, peer)
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in rotated(list(measured), number):
            with tempfile.TemporaryDirectory() as folder:
                figures[name].append(round(measured[name](Path(folder)), 1))
    return dict(figures)


def _of_file(python: str, peer: str, folder: Path) -> float:
    return contenders.drain_file(python, peer, folder / f"{peer}.db", SQLITE_TASKS)


def with_finished_rows(server: Server, rows: int, rounds: int) -> Figures:
    """Measure whether finished tasks that are still kept slow the others down."""
    figures: defaultdict[str, list[float]] = defaultdict(list)
    tables = {0: replace(server, table="tasks_new"), rows: replace(server, table="tasks_kept")}
    for kept, table in tables.items():
        contenders.fill_freshq(table, 0)
        contenders.add_finished(table, kept)
    for number in range(rounds):
        for kept in rotated(list(tables), number):
            contenders.fill_freshq(tables[kept], TASKS[8] + 8, empty=False)
            seconds = contenders.timed(contenders.drain_freshq, 8, tables[kept], 1)
            figures[str(kept)].append(round(TASKS[8] / seconds, 1))
    return dict(figures)


def plan(server: Server) -> str:
    """Return how PostgreSQL carries out a claim of 10."""
    queue = Queue.sql(server.url)
    prepared = contenders.sql_store(queue).claim_sql.take_only_line[True]
    engine = open_engine(server.url)
    with engine.connect() as connection:
        connection.execute(sa.text("ANALYZE tasks"))
        rows = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {prepared.text}",
            contenders.taking_one(queue, limit=10),
        ).scalars()
        text = "\n".join(rows)
    engine.dispose()
    queue.close()
    return text


def show(title: str, figures: Figures) -> None:
    """Print medians and ranges."""
    table = Table("", "tasks/s, median", "lowest", "highest", title=title)
    for name, values in figures.items():
        table.add_row(
            name, *(f"{value:,.0f}" for value in (statistics.median(values), min(values), max(values)))
        )
    Console().print(table)


def missing(found: Mapping[str, str]) -> list[str]:
    """Return what is not installed, and so not measured, beside the queues whose versions are given."""
    names = [name for name in PEERS if name not in found]
    return names if shutil.which("pgbench") else [*names, "pgbench"]


def compared(options: argparse.Namespace) -> dict[str, object]:
    """Measure everything in turns; print and return it."""
    peers = (options.peers, contenders.versions(options.peers))
    report: dict[str, object] = {"rounds": options.rounds, "versions": peers[1]}
    report["missing"] = missing(peers[1])
    report["sqlite"] = sqlite = on_sqlite(options.rounds, peers)
    show("SQLite", sqlite)
    with Postgres(durable=True) as running, tempfile.TemporaryDirectory() as folder:
        server = contenders.Server(running.url, HOST, running.port)
        report["postgresql"] = figures = on_postgresql(server, Path(folder), options.rounds, peers)
        for name, by_workers in figures.items():
            show(f"PostgreSQL, {name}, by workers", by_workers)
        report["finished_rows"] = options.finished
        report["finished"] = kept = with_finished_rows(server, options.finished, options.rounds)
        show("PostgreSQL, 8 workers, one by one", kept)
        contenders.fill_freshq(server, TASKS[8], empty=False)
        report["plan"] = plan(server)
        Console().print(report["plan"], markup=False)
    return report


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--peers", metavar="PYTHON", default=sys.executable)
    results.write("sql", compared(parser.parse_args()), ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
