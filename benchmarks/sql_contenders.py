"""What `benchmarks.sql` measures of freshq, and how: each job drains a queue that was filled before.

On PostgreSQL a job runs in at most two processes, which share its workers as threads or coroutines. All
start at once; the time counts from the first start to the last end.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq import Queue
from freshq.stores.sql import SqlStore
from freshq.stores.sql.engine import open_engine
from freshq.stores.sql.lines import in_time, taken_parameters
from freshq.stores.sql.rows import end
from freshq.stores.sql.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

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
        " md5(n::text), 0, 1, 'over', t + 86400000000, '{}' FROM generate_series(:first, :last) AS n,"
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
