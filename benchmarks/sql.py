"""Tasks a second through the SQL store, beside other queues on the same server, in turns.

    python -m benchmarks.sql [--rounds N] [--finished ROWS] [--peers PYTHON]

oban, procrastinate, litequeue and huey are measured by the interpreter that has them (oban needs Python 3.12
or newer), pgbench where it is on the PATH.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from local.servers import HOST, Postgres
from rich.console import Console
from rich.table import Table

from benchmarks import figures as results
from benchmarks import sql_contenders as contenders
from benchmarks import sql_page
from benchmarks.figures import rotated
from freshq import Queue
from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.sql_contenders import Server

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
