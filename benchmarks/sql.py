"""Tasks a second through the SQL store, beside other queues on the same server, in turns.

    python -m benchmarks.sql [--rounds N] [--finished ROWS] [--peers PYTHON]

oban, procrastinate, litequeue and huey are measured by the interpreter that has them (oban needs Python 3.12
or newer), pgbench where it is on the PATH.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from local.servers import HOST, MariaDB, Postgres
from rich.console import Console
from rich.table import Table

from benchmarks import figures as results
from benchmarks import library_pages
from benchmarks.figures import rotated
from freshq import Queue
from freshq.stores.sql import SqlStore
from freshq.stores.sql.engine import open_engine
from freshq.stores.sql.lines import in_time, taken_parameters
from freshq.stores.sql.rows import end
from freshq.stores.sql.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableSequence, Sequence

    from freshq import Claim

DRAIN_SECONDS: Final = 300
POLL_SECONDS: Final = 0.2
PROGRAM: Final = str(Path(__file__).with_name("sql_peers.py"))
# What a peer has recorded of each verb: how many jobs, and the seconds from the first start to the last end.
RECORDS: Final = {
    ("oban", "work"): """
        SELECT count(*), extract(epoch FROM max(completed_at) - min(attempted_at)) FROM oban_jobs
        WHERE state = 'completed'""",
    ("procrastinate", "work"): """
        SELECT count(*) FILTER (WHERE type = 'succeeded'),
               extract(epoch FROM max(at) - min(at) FILTER (WHERE type = 'started'))
        FROM procrastinate_events""",
    ("procrastinate", "put"): """
        SELECT count(*), extract(epoch FROM max(at) - min(at)) FROM procrastinate_events
        WHERE type = 'deferred'""",
}
# The bare minimum that claims a job and finishes it, in two transactions.
PGBENCH_SCRIPT: Final = """\
UPDATE bare_jobs SET status = 1 WHERE id = (SELECT id FROM bare_jobs WHERE status = 0 ORDER BY id
 LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id AS job \\gset
UPDATE bare_jobs SET status = 2 WHERE id = :job;
"""
BARE_TABLE: Final = (
    "DROP TABLE IF EXISTS bare_jobs",
    "CREATE TABLE bare_jobs (id bigserial PRIMARY KEY, status smallint NOT NULL, payload text NOT NULL)",
    "CREATE INDEX bare_waiting ON bare_jobs (id) WHERE status = 0",
)


def versions(python: str) -> dict[str, str]:
    """Return the versions of the peers that an interpreter has."""
    found: dict[str, str] = json.loads(_output(python, "versions"))
    return found


def fill_peer(server: Server, python: str, peer: str, jobs: int) -> None:
    """Empty the tables of a peer, and fill them."""
    _output(python, "fill", peer, server.conninfo, str(jobs))


def run_peer(server: Server, python: str, peer: str, workers: int, jobs: int) -> float:
    """Return the jobs a second that a peer runs, in at most two processes, by its own record."""
    fill_peer(server, python, peer, jobs)
    each = [[str(share)] for share in shares(workers)]
    return jobs / _seconds(server, python, peer, "work", each, jobs)


def put_by_peer(server: Server, python: str, peer: str, workers: int, jobs: int) -> float:
    """Return the jobs a second that a peer puts one by one, in at most two processes, by its own record."""
    fill_peer(server, python, peer, 0)
    each = shares(workers)
    counts = [[str(share), str(part)] for share, part in zip(each, divided(jobs, len(each)), strict=True)]
    return jobs / _seconds(server, python, peer, "put", counts, jobs)


def drain_file(python: str, peer: str, file: Path, jobs: int) -> float:
    """Return the jobs a second that a peer takes from a file of SQLite, in one loop."""
    return jobs / float(_output(python, "drain", peer, str(file), str(jobs)))


def _output(python: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, PROGRAM, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DRAIN_SECONDS,
    )
    return done.stdout.splitlines()[-1] if done.stdout else ""


def _seconds(
    server: Server, python: str, peer: str, verb: str, arguments: list[list[str]], jobs: int
) -> float:
    """Start a process for each list of arguments, all at once; return the seconds that the peer recorded."""
    running = [
        subprocess.Popen(
            [python, PROGRAM, verb, peer, server.conninfo, *each],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    try:
        for process in running:
            _await_ready(process, peer)
        for process in running:
            _input(process, "go\n")
        return _recorded_seconds(server, peer, verb, jobs)
    finally:
        for process in running:
            process.communicate(timeout=60)


def _await_ready(process: subprocess.Popen[str], peer: str) -> None:
    if process.stdout is None or process.stdout.readline() != "ready\n":
        msg = f"{peer} did not start"
        raise RuntimeError(msg)


def _input(process: subprocess.Popen[str], text: str) -> None:
    if process.stdin is not None:
        process.stdin.write(text)
        process.stdin.flush()


def _recorded_seconds(server: Server, peer: str, verb: str, jobs: int) -> float:
    """Wait until all jobs are done; return the seconds from the first start to the last end."""
    query = sa.text(RECORDS[peer, verb])
    engine = open_engine(server.url)
    deadline = time.monotonic() + DRAIN_SECONDS
    try:
        while time.monotonic() < deadline:
            with engine.connect() as connection:
                done, seconds = connection.execute(query).one()
            if done == jobs:
                return float(seconds)
            time.sleep(POLL_SECONDS)
    finally:
        engine.dispose()
    msg = f"{peer}: {done} of {jobs} jobs after {DRAIN_SECONDS} s of {verb}"
    raise TimeoutError(msg)


def drain_pgbench(server: Server, folder: Path, workers: int, jobs: int) -> float:
    """Return the bare claims and finishes a second that pgbench gets through."""
    engine = open_engine(server.url)
    with engine.begin() as connection:
        for statement in BARE_TABLE:
            connection.execute(sa.text(statement))
        connection.execute(
            sa.text("INSERT INTO bare_jobs (status, payload) SELECT 0, :payload FROM generate_series(1, :n)"),
            {"payload": str(PAYLOAD), "n": jobs + workers},
        )
    engine.dispose()
    script = folder / "claim.sql"
    script.write_text(PGBENCH_SCRIPT)
    pgbench = shutil.which("pgbench") or "pgbench"
    options = ["--no-vacuum", "--protocol=prepared", f"--client={workers}", f"--jobs={min(2, workers)}"]
    where = [f"--host={server.host}", f"--port={server.port}", "--username=freshq", "postgres"]
    output = subprocess.run(
        [pgbench, *options, f"--transactions={jobs // workers}", f"--file={script}", *where],
        check=True,
        capture_output=True,
        text=True,
        timeout=DRAIN_SECONDS,
    ).stdout
    line = next(line for line in output.splitlines() if line.startswith("tps = "))
    return float(line.split()[2])


MAX_PROCESSES: Final = 2
LONGEST_RUN_SECONDS: Final = 3600
# Tasks that a process keeps waiting in a long run.
KEPT_WAITING: Final = 1000
FINISHED_A_STATEMENT: Final = 50_000
CONTEXT: Final = multiprocessing.get_context("spawn")
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}


@dataclass(frozen=True)
class Server:
    """A PostgreSQL to measure on.

    Attributes:
        url: Where it is, for SQLAlchemy.
        host: Its address.
        port: Its port.
        table: Name of the table of tasks.
    """

    url: str
    host: str
    port: int
    table: str = "tasks"

    @property
    def conninfo(self) -> str:
        """Where it is, for libpq."""
        return f"host={self.host} port={self.port} user=freshq dbname=postgres"


def shares(workers: int) -> list[int]:
    """Return how many workers each process has."""
    return divided(workers, min(workers, MAX_PROCESSES))


def divided(number: int, parts: int) -> list[int]:
    """Return a number in parts that are as equal as they can be."""
    return [number // parts + (part < number % parts) for part in range(parts)]


def timed(job: Callable[..., None], workers: int, *arguments: Any) -> float:
    """Run a job in its processes; return the seconds from the first start to the last end.

    Args:
        job: Called in each process with its number of workers, a function that waits for the others, and
            the arguments.
        workers: Workers in all.
        *arguments: Of the job.
    """
    each = shares(workers)
    barrier, results = CONTEXT.Barrier(len(each)), CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=_child, args=(job, number, barrier, results, arguments)) for number in each
    ]
    for process in processes:
        process.start()
    spans = [results.get(timeout=LONGEST_RUN_SECONDS) for _ in processes]
    for process in processes:
        process.join()
    return float(max(end for _start, end in spans) - min(start for start, _end in spans))


def _child(job: Any, workers: int, barrier: Any, results: Any, arguments: tuple[Any, ...]) -> None:
    started: list[float] = []

    def ready() -> None:
        barrier.wait()
        started.append(time.monotonic())

    job(workers, ready, *arguments)
    results.put((started[0], time.monotonic()))


# --- freshq


def sql_store(queue: Queue) -> SqlStore:
    """Return the store of a queue in a SQL database."""
    if not isinstance(queue.store, SqlStore):
        raise TypeError(type(queue.store))
    return queue.store


def fill_freshq(server: Server, tasks: int, *, empty: bool = True) -> None:
    """Fill the queue, emptied before."""
    queue = Queue.sql(server.url, server.table)
    queue.create_table()
    if empty:
        with sql_store(queue).database.engine.begin() as connection:
            connection.execute(sa.text(f"TRUNCATE {server.table}"))
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    queue.close()


def add_finished(server: Server, rows: int) -> None:
    """Add tasks that are done, some at a time: a statement may not take long."""
    statement = sa.text(  # the table's name is this script's own
        f"INSERT INTO {server.table} (task_id, queue, status, created_us, updated_us, deadline_us, expires,"  # noqa: S608 - see above
        " request_token, put_token, priority, attempts, agenda, due_us, payload)"
        " SELECT 'done-' || n, 'default', 'SUCCESS', t, t, t, t / 1000000 + 86400, md5(n::text),"
        " md5(n::text), 0, 1, 'over', t + 86400000000, '{}'"
        " FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n,"
        " (SELECT (extract(epoch FROM now()) * 1000000)::bigint AS t) AS moment"
    )
    engine = open_engine(server.url)
    for first in range(1, rows + 1, FINISHED_A_STATEMENT):
        last = min(rows, first + FINISHED_A_STATEMENT - 1)
        with engine.begin() as connection:
            connection.execute(statement, {"first": first, "last": last})
    engine.dispose()


def put_freshq(workers: int, ready: Callable[[], None], server: Server, tasks: int) -> None:
    """Put tasks one by one, in threads; `tasks` in each."""
    queue = Queue.sql(server.url)
    queue.put(PAYLOAD)
    _in_threads(workers, ready, lambda: [queue.put(PAYLOAD) for _ in range(tasks)])
    queue.close()


def settle(queue: Queue, claims: list[Claim]) -> None:
    """Complete claims, several at once as one would."""
    if len(claims) == 1:
        queue.complete(claims[0])
    else:
        queue.complete_many(claims)


def drain_freshq(workers: int, ready: Callable[[], None], server: Server, limit: int) -> None:
    """Claim and complete all there is, in threads."""
    queue = Queue.sql(server.url, server.table)
    connected = threading.Barrier(workers)

    def connect() -> None:
        connected.wait()
        claims = queue.claim()
        connected.wait()  # so that each has a connection of its own
        settle(queue, claims)

    _in_threads(workers, lambda: None, connect)

    def work() -> None:
        while claims := queue.claim(limit=limit):
            settle(queue, claims)

    _in_threads(workers, ready, work)
    queue.close()


def drain_driver(workers: int, ready: Callable[[], None], server: Server) -> None:
    """Run the statements of freshq, one by one, by the driver alone: what no queue in Python can pass."""
    psycopg = importlib.import_module("psycopg")
    queue = Queue.sql(server.url)
    store = sql_store(queue)
    (claim,) = queue.claim()
    done = queue.complete(claim)
    take, finish = store.claim_sql.take_only_line[True], store.settle_sql.finish
    taking = taking_one(queue)
    ending = end(done) | {"of_queue": done.queue, "of_lease_token": taking["token"]}
    connections = [psycopg.connect(server.conninfo, autocommit=True) for _ in range(workers)]
    free = list(connections)

    def work() -> None:
        cursor = free.pop().cursor()
        while row := cursor.execute(take.text, taking).fetchone():
            cursor.execute(finish.text, ending | {"of_task_id": row[0]})

    _in_threads(workers, ready, work)
    for connection in connections:
        connection.close()
    queue.close()


def taking_one(queue: Queue, limit: int = 1) -> dict[str, Any]:
    """Return the parameters of a claim, newest first, of a queue with no groups."""
    request = queue._request(limit, 60.0)  # noqa: SLF001 - what a claim asks for
    moment = request.moment()
    parameters = in_time(request.queue, moment) | taken_parameters(request, moment)
    parameters |= {"of_line": "0", "at_most": limit} | Window(0, [None], 0, 0.0).others
    return dict(sql_store(queue).claim_sql.take_only_line[True].arguments(parameters))


def keep_up(
    workers: int, ready: Callable[[], None], server: Server, minutes: int, per_minute: MutableSequence[int]
) -> None:
    """Claim and complete one by one for some minutes, with a backlog kept up; count what was done in each."""
    queue = Queue.sql(server.url)
    queue.stats(approximate=True)
    done, put = [0] * (minutes + 1), 0
    started = time.monotonic()
    lock = threading.Lock()

    def minute() -> int:
        return min(minutes, int((time.monotonic() - started) / 60))

    def work(number: int) -> None:
        nonlocal put
        while (now := minute()) < minutes:
            if number == 0 and put - sum(done) < KEPT_WAITING / 2:
                put += len(queue.put_many([{"payload": PAYLOAD} for _ in range(KEPT_WAITING)]))
            for claim in queue.claim():
                queue.complete(claim)
                with lock:
                    done[now] += 1

    numbers = itertools.count()
    _in_threads(workers, ready, lambda: work(next(numbers)))
    queue.close()
    with per_minute.get_lock():  # type: ignore[attr-defined] # a multiprocessing.Array
        for number in range(minutes):
            per_minute[number] += done[number]


def _in_threads(workers: int, ready: Callable[[], None], work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(workers)]
    ready()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def sqlite_put(folder: Path, tasks: int, *, durable: bool) -> float:
    """Return the puts a second, one by one."""
    queue = Queue.sql(f"sqlite:///{folder / 'freshq.db'}", durable=durable)
    queue.create_table()
    started = time.monotonic()
    for _ in range(tasks):
        queue.put(PAYLOAD)
    seconds = time.monotonic() - started
    queue.close()
    return tasks / seconds


def sqlite_freshq(folder: Path, tasks: int, limit: int, *, durable: bool) -> float:
    """Return the claims and completions a second."""
    queue = Queue.sql(f"sqlite:///{folder / 'freshq.db'}", durable=durable)
    queue.create_table()
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    started = time.monotonic()
    while claims := queue.claim(limit=limit):
        settle(queue, claims)
    seconds = time.monotonic() - started
    queue.close()
    return tasks / seconds


LASTING_WORKERS: Final = 8


def steadily(server: Server, rows: int, minutes: int) -> list[int]:
    """Return the tasks a second in each of some minutes, one by one, beside finished rows."""
    fill_freshq(server, 0)
    add_finished(server, rows)
    per_minute = CONTEXT.Array("q", minutes)
    timed(keep_up, LASTING_WORKERS, server, minutes, per_minute)
    return [round(tasks / 60) for tasks in per_minute[:]]


def lasting_main() -> None:
    """Measure 8 workers on PostgreSQL minute by minute, beside many finished rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--finished", type=int, default=1_000_000)
    options = parser.parse_args()
    with Postgres(durable=True) as running:
        server = Server(running.url, HOST, running.port)
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
        fill_freshq(server, tasks + workers)  # each begins with one that does not count
        return tasks / timed(drain_freshq, workers, server, limit)

    def driver() -> float:
        fill_freshq(server, tasks + workers)  # each begins with one that does not count
        return tasks / timed(drain_driver, workers, server)

    def put() -> float:
        fill_freshq(server, 0)
        return tasks / timed(put_freshq, workers, server, tasks // workers)

    measured: dict[str, Callable[[], float]] = {
        library_pages.PUT: put,
        library_pages.ONE_BY_ONE: lambda: drained(1),
        library_pages.BY_TEN: lambda: drained(10),
        library_pages.DRIVER: driver,
    }
    python, found = peers
    if "procrastinate" in found:
        measured[library_pages.PROCRASTINATE_PUT] = lambda: put_by_peer(
            server, python, "procrastinate", workers, tasks
        )
    for name in ("procrastinate", "oban"):
        if name in found:
            measured[f"{name}, run"] = partial(run_peer, server, python, name, workers, tasks)
    if shutil.which("pgbench"):
        measured[library_pages.PGBENCH] = lambda: drain_pgbench(server, folder, workers, tasks)
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
        kept = library_pages.DURABLE if durable else ""
        measured[library_pages.PUT + kept] = partial(sqlite_put, tasks=SQLITE_TASKS, durable=durable)
        for name, limit in ((library_pages.ONE_BY_ONE, 1), (library_pages.BY_TEN, 10)):
            measured[name + kept] = partial(sqlite_freshq, tasks=SQLITE_TASKS, limit=limit, durable=durable)
    python, found = peers
    for peer, name in library_pages.ON_SQLITE.items():
        if peer in found:
            measured[name] = partial(_of_file, python, peer)
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in rotated(list(measured), number):
            with tempfile.TemporaryDirectory() as folder:
                figures[name].append(round(measured[name](Path(folder)), 1))
    return dict(figures)


def _of_file(python: str, peer: str, folder: Path) -> float:
    return drain_file(python, peer, folder / f"{peer}.db", SQLITE_TASKS)


def with_finished_rows(server: Server, rows: int, rounds: int) -> Figures:
    """Measure whether finished tasks that are still kept slow the others down."""
    figures: defaultdict[str, list[float]] = defaultdict(list)
    tables = {0: replace(server, table="tasks_new"), rows: replace(server, table="tasks_kept")}
    for kept, table in tables.items():
        fill_freshq(table, 0)
        add_finished(table, kept)
    for number in range(rounds):
        for kept in rotated(list(tables), number):
            fill_freshq(tables[kept], TASKS[8] + 8, empty=False)
            seconds = timed(drain_freshq, 8, tables[kept], 1)
            figures[str(kept)].append(round(TASKS[8] / seconds, 1))
    return dict(figures)


def plan(server: Server) -> str:
    """Return how PostgreSQL carries out a claim of 10."""
    queue = Queue.sql(server.url)
    prepared = sql_store(queue).claim_sql.take_only_line[True]
    engine = open_engine(server.url)
    with engine.connect() as connection:
        connection.execute(sa.text("ANALYZE tasks"))
        rows = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {prepared.text}",
            taking_one(queue, limit=10),
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
    peers = (options.peers, versions(options.peers))
    report: dict[str, object] = {"rounds": options.rounds, "versions": peers[1]}
    report["missing"] = missing(peers[1])
    report["sqlite"] = sqlite = on_sqlite(options.rounds, peers)
    show("SQLite", sqlite)
    with Postgres(durable=True) as running, tempfile.TemporaryDirectory() as folder:
        server = Server(running.url, HOST, running.port)
        report["postgresql"] = figures = on_postgresql(server, Path(folder), options.rounds, peers)
        for name, by_workers in figures.items():
            show(f"PostgreSQL, {name}, by workers", by_workers)
        report["finished_rows"] = options.finished
        report["finished"] = kept = with_finished_rows(server, options.finished, options.rounds)
        show("PostgreSQL, 8 workers, one by one", kept)
        fill_freshq(server, TASKS[8], empty=False)
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
