"""Tasks a second through the SQL store, beside other queues on the same server, in turns.

    python -m benchmarks.sql [--rounds N] [--finished ROWS] [--peers PYTHON] [--minutes N]

procrastinate, litequeue and huey are measured where they are installed, pgbench where it is on the PATH,
oban by the interpreter that has it (Python 3.12 or newer). With --minutes there is one run only: 8 workers
for this time, beside the finished rows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table
from tests.support.databases import HOST, Postgres

from benchmarks import figures as results
from benchmarks import sql_contenders as contenders
from benchmarks import sql_rivals as rivals
from freshq import Queue
from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.sql_contenders import Server

WORKERS: Final = (1, 8, 32)
# Enough for some seconds of work.
TASKS: Final = {1: 1600, 8: 6400, 32: 6400}
SQLITE_TASKS: Final = 3000
Figures = dict[str, list[float]]


def postgresql_contenders(
    server: Server, folder: Path, workers: int, oban: str | None
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
        return tasks / contenders.timed(contenders.put_freshq, workers, server, tasks)

    measured: dict[str, Callable[[], float]] = {
        "freshq put": put,
        "freshq claim, complete": lambda: drained(1),
        "freshq claims of 10": lambda: drained(10),
        "its statements, driver alone": driver,
    }
    if find_spec("procrastinate"):

        def rival_drained() -> float:
            rivals.fill_procrastinate(server, tasks)
            return tasks / contenders.timed(rivals.drain_procrastinate, workers, server)

        def rival_put() -> float:
            rivals.fill_procrastinate(server, 1)
            return tasks / contenders.timed(rivals.put_procrastinate, workers, server, tasks)

        measured |= {"procrastinate put": rival_put, "procrastinate run": rival_drained}
    if oban is not None:
        measured["oban run"] = lambda: rivals.drain_oban(server, oban, workers, tasks)
    if shutil.which("pgbench"):
        measured["pgbench, bare SQL"] = lambda: rivals.drain_pgbench(server, folder, workers, tasks)
    return measured


def on_postgresql(server: Server, folder: Path, rounds: int, oban: str | None) -> Figures:
    """Measure on PostgreSQL, all in turns."""
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for workers in WORKERS:
            for name, measure in postgresql_contenders(server, folder, workers, oban).items():
                figures[f"{name} @ {workers}"].append(measure())
    return dict(figures)


def on_sqlite(rounds: int) -> Figures:
    """Measure on SQLite, all in turns, each on a new file."""
    measured: dict[str, Callable[[Path], float]] = {
        "freshq claim, complete": lambda folder: contenders.sqlite_freshq(folder, SQLITE_TASKS, 1),
        "freshq claims of 10": lambda folder: contenders.sqlite_freshq(folder, SQLITE_TASKS, 10),
    }
    if find_spec("litequeue"):
        measured["litequeue pop, done"] = lambda folder: rivals.sqlite_litequeue(folder, SQLITE_TASKS)
    if find_spec("huey"):
        measured["SqliteHuey dequeue"] = lambda folder: rivals.sqlite_huey(folder, SQLITE_TASKS)
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, measure in measured.items():
            with tempfile.TemporaryDirectory() as folder:
                figures[name].append(measure(Path(folder)))
    return dict(figures)


def with_finished_rows(server: Server, rows: int, rounds: int) -> Figures:
    """Measure whether finished tasks that are still kept slow the others down."""
    figures: defaultdict[str, list[float]] = defaultdict(list)
    contenders.fill_freshq(server, 0)
    for kept in (0, rows):
        add_finished(server, kept)
        for _ in range(rounds):
            contenders.fill_freshq(server, TASKS[8] + 8, empty=False)
            seconds = contenders.timed(contenders.drain_freshq, 8, server, 1)
            figures[f"with {kept:,} finished rows"].append(TASKS[8] / seconds)
    return dict(figures)


def add_finished(server: Server, rows: int) -> None:
    """Add tasks that are done."""
    engine = open_engine(server.url)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO tasks (task_id, queue, status, created_us, updated_us, deadline_us, expires,"
                " request_token, put_token, priority, attempts, agenda, due_us, payload)"
                " SELECT 'done-' || n, 'default', 'SUCCESS', t, t, t, t / 1000000 + 86400, md5(n::text),"
                " md5(n::text), 0, 1, 'over', t + 86400000000, '{}' FROM generate_series(1, :rows) AS n,"
                " (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS t) AS moment"
            ),
            {"rows": rows},
        )
    engine.dispose()


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


def steadily(server: Server, rows: int, minutes: int) -> list[int]:
    """Return the tasks a second in each of some minutes, 8 workers one by one, beside finished rows."""
    contenders.fill_freshq(server, 0)
    add_finished(server, rows)
    per_minute = contenders.CONTEXT.Array("q", minutes)
    contenders.timed(contenders.keep_up, 8, server, minutes, per_minute)
    return [round(tasks / 60) for tasks in per_minute[:]]


def compared(options: argparse.Namespace) -> dict[str, object]:
    """Measure everything in turns; print and return it."""
    report: dict[str, object] = {"sqlite": (sqlite := on_sqlite(options.rounds))}
    show("SQLite", sqlite)
    with Postgres(durable=True) as running, tempfile.TemporaryDirectory() as folder:
        server = contenders.Server(running.url, HOST, running.port)
        report["postgresql"] = figures = on_postgresql(server, Path(folder), options.rounds, options.peers)
        show("PostgreSQL", figures)
        report["finished"] = kept = with_finished_rows(server, options.finished, options.rounds)
        show("PostgreSQL, 8 workers, one by one", kept)
        contenders.fill_freshq(server, TASKS[8], empty=False)
        report["plan"] = plan(server)
        Console().print(report["plan"], markup=False)
    return report


def lasting(options: argparse.Namespace) -> dict[str, object]:
    """Measure one long run; print and return it."""
    with Postgres(durable=True) as running:
        server = contenders.Server(running.url, HOST, running.port)
        figures = steadily(server, options.finished, options.minutes)
    table = Table("minute", "tasks/s", title=f"8 workers, one by one, {options.finished:,} finished rows")
    for minute, tasks in enumerate(figures, start=1):
        table.add_row(str(minute), f"{tasks:,}")
    Console().print(table)
    return {"finished_rows": options.finished, "tasks_per_second_by_minute": figures}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--peers", metavar="PYTHON", default=sys.executable if find_spec("oban") else None)
    parser.add_argument("--minutes", type=int, default=0)
    options = parser.parse_args()
    report = lasting(options) if options.minutes else compared(options)
    results.write("sql_lasting" if options.minutes else "sql", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
