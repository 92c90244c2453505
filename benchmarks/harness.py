"""Cells of the public harness for queues on PostgreSQL 18, with the driver of this module.

The harness is github.com/hardbyte/postgresql-job-queue-benchmarking. Each run has a new database on one
durable server, a worker in a process, and if tasks are put at a rate, a producer in another one. Contenders
take turns. Every run counts its tasks: a task that was put and did not run, or did not end in its table,
is an error, except in the cells in which processes are killed, where it is the figure.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final

import psycopg
import typer
from local.servers import HOST, Postgres, packaged_postgres_programs
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import LONGEST_SECONDS, in_turns
from benchmarks.harness_peers import ADAPTERS, RESCUE_SECONDS
from benchmarks.peers import NOT_INSTALLED
from benchmarks.worker import PeerProcess, Working, conninfo, new_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Figures = dict[str, float | None]
    Measure = Callable[["ContenderServer", str], Figures]
    Disturb = Callable[["Running"], None]

MODULE: Final = ("-m", "benchmarks.harness_peers")
FUNCTIONS: Final = "freshq@functions"
CONTENDERS: Final = ("freshq", *(name for name in ADAPTERS if name != "freshq"))
SLOTS: Final = (8, 64, 256)
# Tasks of a full queue: some seconds of work at each contender's speed with so many slots.
TASKS: Final = {
    "freshq": (6000, 10_000, 10_000), FUNCTIONS: (6000, 10_000, 10_000), "awa": (2500, 8000, 12_000),
    "oban": (4000, 5000, 5000), "procrastinate": (700, 700, 700),
}  # fmt: skip
POLL_SECONDS: Final = 0.05
STEADY_SECONDS: Final = 10.0
# A worker's first tasks do not count.
WARM_SECONDS: Final = 2.0
KILLS_PER_SECOND: Final = 2.0
KILLED_SECONDS: Final = 8.0
CRASHES: Final = 3
CRASH_EVERY_SECONDS: Final = 3.0
DOWN_SECONDS: Final = 1.0
END_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 30.0
BURST_SLOTS: Final = 8
BURST_TASK_SECONDS: Final = 0.1
BURST_FACTOR: Final = 3
BURST_SECONDS: Final = 6.0
RESCUED_SECONDS: Final = RESCUE_SECONDS + 40.0
BACKENDS: Final = (
    "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' ORDER BY pid"
)
UPDATES: Final = "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables"


class ContenderFailed(RuntimeError):
    """A program of a contender failed."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load at a steady rate.

    Attributes:
        rate_per_second: Puts a second.
        seconds: How long tasks are put.
        slots: Slots of the worker.
        task_seconds: Duration of each task.
        drain_seconds: Longest wait for the tasks that have not ended.
    """

    rate_per_second: float
    seconds: float
    slots: int = 64
    task_seconds: float = 0.0
    drain_seconds: float = DRAIN_SECONDS

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return round(self.rate_per_second * self.seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task, with times of the machine's monotonic clock."""

    put_at: float
    began: float
    ended: float


class Program(PeerProcess):
    """A process of a contender that ends in any case."""

    program = MODULE

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        super().end()

    @override
    def end(self) -> None:
        self._input.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        super().end()


@contextmanager
def ended(program: Program) -> Iterator[None]:
    """End a program after the block."""
    try:
        yield
    finally:
        program.end()


class ServingWorker(Program):
    """A worker whose runs are added to a list of each task's runs."""

    def __init__(self, runs: dict[int, list[Run]], *arguments: Any) -> None:
        """Start it with the arguments of a `PeerProcess`."""
        self._runs = runs
        super().__init__(*arguments)

    @override
    def hear(self, line: str) -> None:
        number, *times = line.split()
        if len(times) == len(Run.__slots__):  # a killed process may have begun a line
            self._runs.setdefault(int(number), []).append(Run(*map(float, times)))


class Producer(Program):
    """A producer.

    Attributes:
        put: How many tasks it has put, once all are stored.
        failures: How many calls failed and were repeated.
    """

    put = 0
    failures = 0

    @override
    def hear(self, line: str) -> None:
        _, put, failures = line.split()
        self.failures, self.put = int(failures), int(put)


class FullQueueWorker(Program, Working):
    """A worker that counts its runs."""


@dataclass
class Running:
    """A load that is being served.

    Attributes:
        server: The server of its database.
        peer: The contender.
        where: Its database's URL.
        load: The load.
        runs: The runs of each task.
        began: When the first task was put.
    """

    server: ContenderServer
    peer: str
    where: str
    load: Load
    runs: dict[int, list[Run]] = field(default_factory=dict)
    began: float = 0.0

    def __post_init__(self) -> None:
        """Start the worker."""
        self.start_worker()

    def start_worker(self) -> None:
        """Start a worker."""
        arguments = (self.server.interpreter(self.peer), "serve", self.peer, self.where, self.load.slots)
        self.worker = ServingWorker(self.runs, *arguments)

    def end_worker(self) -> None:
        """End the current worker."""
        self.worker.end()

    def wait_until(self, seconds: float) -> None:
        """Wait until a number of seconds after the first put."""
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def ended_within(self, first: float, last: float) -> int:
        """Return how many tasks ended first in a span, in seconds from the first put."""
        ends = (min(run.ended for run in of_task) - self.began for of_task in [*self.runs.values()])
        return sum(first <= end < last for end in ends)

    def share_done(self, first: float, last: float) -> float:
        """Return the tasks that ended first in a span as a share, at most 1, of those put in such a span."""
        put = self.load.rate_per_second * (last - first)
        return round(min(1.0, self.ended_within(first, last) / put), 4)


@dataclass(frozen=True, slots=True)
class Served:
    """A load that was served.

    Attributes:
        running: What ran.
        left: Tasks that have not ended in their table.
        log: What the server logged and updated for a task.
    """

    running: Running
    left: int
    log: Figures

    @property
    def lost_or_stuck(self) -> int:
        """Tasks that did not run, or if that is more, that have not ended in their table."""
        return max(self.running.load.tasks - len(self.running.runs), self.left)

    @property
    def repeated(self) -> int:
        """Runs of tasks that had run before."""
        return sum(len(runs) - 1 for runs in self.running.runs.values())


class ContenderServer:
    """A PostgreSQL for the contenders.

    Attributes:
        postgres: The server.
        pressure_seconds: How long a snapshot stays open.
    """

    def __init__(self, postgres: Postgres, python: str, pressure_seconds: float) -> None:
        """Measure nothing yet, with an interpreter in which other queues are installed."""
        self.postgres, self.pressure_seconds = postgres, pressure_seconds
        self._python, self._numbers = python, count()

    def interpreter(self, peer: str) -> str:
        """Return the interpreter of a contender."""
        return sys.executable if peer.startswith("freshq") else self._python

    def ask(self, verb: str, peer: str, where: str, number: int = 0) -> str | None:
        """Return the last word of a program of a contender; None if it is not installed.

        Raises:
            ContenderFailed: If the program fails.
        """
        done = subprocess.run(
            [self.interpreter(peer), *MODULE, verb, peer, where, str(number)],
            capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode == NOT_INSTALLED:
            return None
        if done.returncode != 0:
            msg = f"{verb} {peer}: {done.stderr.strip()[-400:]}"
            raise ContenderFailed(msg)
        return done.stdout.split()[-1]

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of a new database, dropped at the end: its vacuum would disturb the next run."""
        name = f"run{next(self._numbers)}"
        new_database(self.postgres, name)
        self.execute("CHECKPOINT")
        try:
            yield f"postgresql://freshq@{HOST}:{self.postgres.port}/{name}"
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Execute a statement outside a transaction."""
        with psycopg.connect(conninfo(self.postgres), autocommit=True) as connection:
            connection.execute(statement.encode())

    def number(self, query: str, *, where: str = "") -> tuple[float, ...]:
        """Return the numbers of a query's only row."""
        with psycopg.connect(where or conninfo(self.postgres)) as connection:
            row = connection.execute(query.encode()).fetchone()
        return tuple(float(each or 0) for each in row or ())

    @contextmanager
    def logging(self, where: str, tasks: int) -> Iterator[Figures]:
        """Yield figures that name, after the block, the log bytes and the updates of a task."""
        found: Figures = {}
        query = "SELECT pg_current_wal_lsn() - '0/0'"
        (before,) = self.number(query)
        yield found
        (after,) = self.number(query)
        updates, hot_updates = self.number(UPDATES, where=where)
        found["log_bytes"] = round((after - before) / tasks, 1)
        found["updates"], found["hot_updates"] = round(updates / tasks, 2), round(hot_updates / tasks, 2)

    def serve(self, peer: str, load: Load, disturb: Disturb = lambda _running: None) -> Served:
        """Serve a load, and disturb it, in a new database.

        Raises:
            ContenderFailed: If the producer does not put all tasks.
        """
        with self.database() as where, ExitStack() as stack:
            self.ask("install", peer, where)
            log = stack.enter_context(self.logging(where, load.tasks))
            running = Running(self, peer, where, load)
            stack.callback(running.end_worker)
            numbers = load.tasks, load.rate_per_second, load.task_seconds
            producer = Producer(self.interpreter(peer), "offer", peer, where, *numbers)
            stack.callback(producer.end)
            running.began = time.monotonic()
            producer.tell("go")
            disturb(running)
            running.wait_until(load.seconds)
            left = self._drain(running, producer)
        return Served(running, left, log)

    def _drain(self, running: Running, producer: Producer) -> int:
        """Wait until all tasks have run and ended; return how many have not ended.

        Raises:
            ContenderFailed: If the producer did not put all.
        """
        load, until = running.load, time.monotonic() + running.load.drain_seconds
        while len(running.runs) < load.tasks and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        producer.end()
        if producer.put < load.tasks:
            msg = f"{running.peer} did not put all {load.tasks} tasks"
            raise ContenderFailed(msg)
        while left := int(self.ask("left", running.peer, running.where) or 0):
            if time.monotonic() >= until:
                break
        return left


def full_queue(slots: int, server: ContenderServer, peer: str) -> Figures:
    """Fill a queue by `put_many` and work it off.

    Raises:
        ContenderFailed: If not all tasks end.
    """
    tasks = TASKS[peer][SLOTS.index(slots)]
    with server.database() as where:
        server.ask("install", peer, where)
        with server.logging(where, tasks) as log:
            seconds = float(server.ask("fill", peer, where, tasks) or 0)
            worker = FullQueueWorker(server.interpreter(peer), "work", peer, where, slots)
            with ended(worker):
                worker.tell("go")
                until = time.monotonic() + LONGEST_SECONDS
                while worker.runs < tasks and worker.is_alive() and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
        left = server.ask("left", peer, where)
    if worker.runs != tasks or left != "0" or worker.span is None:
        msg = f"{peer} ran {worker.runs} of {tasks} tasks, and {left} have not ended"
        raise ContenderFailed(msg)
    rate = (tasks - 1) / (worker.span.last - worker.span.first)
    return {"jobs_per_second": round(rate, 1), "put_per_second": round((tasks - 1) / seconds, 1), **log}


def all_done(served: Served) -> Served:
    """Return what was served.

    Raises:
        ContenderFailed: If a task did not run, or did not end.
    """
    if served.lost_or_stuck:
        msg = f"{served.running.peer} lost {served.lost_or_stuck} of {served.running.load.tasks} tasks"
        raise ContenderFailed(msg)
    return served


def steady(server: ContenderServer, peer: str) -> Figures:
    """Measure put to start, and the log."""
    load = Load(200, WARM_SECONDS + STEADY_SECONDS, drain_seconds=2 * DRAIN_SECONDS)
    served = all_done(server.serve(peer, load))
    firsts = [runs[0] for runs in served.running.runs.values()]
    warm = served.running.began + WARM_SECONDS
    waits_ms = [1000 * (run.began - run.put_at) for run in firsts if run.put_at >= warm]
    cuts = quantiles(waits_ms, n=100, method="inclusive")
    named = {f"p{which}_ms": round(cuts[which - 1], 2) for which in (50, 95, 99)}
    return {**named, **served.log}


def kill_backends(running: Running) -> None:
    """Kill one connection after the other, of the worker or the producer."""
    rng, database = random.Random(1), running.where.rpartition("/")[2]
    with psycopg.connect(conninfo(running.server.postgres), autocommit=True) as connection:
        for number in range(round(KILLED_SECONDS * KILLS_PER_SECOND)):
            running.wait_until(WARM_SECONDS + number / KILLS_PER_SECOND)
            if backends := connection.execute(BACKENDS, [database]).fetchall():
                connection.execute("SELECT pg_terminate_backend(%s)", rng.choice(backends))


def kills(server: ContenderServer, peer: str) -> Figures:
    """Measure the throughput kept while connections are killed."""
    load = Load(100, WARM_SECONDS + KILLED_SECONDS)
    served = server.serve(peer, load, kill_backends)
    return {
        "kept": served.running.share_done(WARM_SECONDS, load.seconds),
        "lost_or_stuck": served.lost_or_stuck,
        "repeated": served.repeated,
    }


def crash_worker(running: Running) -> None:
    """Kill the worker several times, and start another one each time."""
    for number in range(CRASHES):
        running.wait_until(WARM_SECONDS + number * CRASH_EVERY_SECONDS)
        running.worker.kill()
        running.start_worker()


def crashes(server: ContenderServer, peer: str) -> Figures:
    """Count the tasks that are lost or stuck after workers were killed."""
    seconds = WARM_SECONDS + CRASHES * CRASH_EVERY_SECONDS
    load = Load(50, seconds, slots=32, task_seconds=0.2, drain_seconds=RESCUED_SECONDS)
    served = server.serve(peer, load, crash_worker)
    took = [runs[0].ended - runs[0].put_at for runs in served.running.runs.values()]
    return {
        "lost_or_stuck": served.lost_or_stuck,
        "longest_seconds": round(max(took), 1) if took else None,
        "repeated": served.repeated,
    }


def restart(server: ContenderServer, peer: str) -> Figures:
    """Measure how long after the server answers again a task starts."""
    answered = 0.0

    def stop_and_start(running: Running) -> None:
        nonlocal answered
        running.wait_until(WARM_SECONDS)
        server.postgres.stop()
        time.sleep(DOWN_SECONDS)
        server.postgres.start()
        answered = time.monotonic()

    served = server.serve(peer, Load(50, WARM_SECONDS + END_SECONDS), stop_and_start)
    starts = [run.began for runs in served.running.runs.values() for run in runs if run.began > answered]
    return {
        "resumes_seconds": round(min(starts) - answered, 2) if starts else None,
        "lost_or_stuck": served.lost_or_stuck,
    }


def pressure(server: ContenderServer, peer: str) -> Figures:
    """Measure the throughput kept at the end of a snapshot that stays open, idle in a transaction."""
    load = Load(200, WARM_SECONDS + server.pressure_seconds)

    def hold(running: Running) -> None:
        running.wait_until(WARM_SECONDS)
        with psycopg.connect(conninfo(server.postgres)) as connection:
            connection.execute("SELECT txid_current()")
            running.wait_until(load.seconds)

    served = server.serve(peer, load, hold)
    last = max(WARM_SECONDS, load.seconds - END_SECONDS)
    return {
        "kept": served.running.share_done(WARM_SECONDS, load.seconds),
        "kept_end": served.running.share_done(last, load.seconds),
        "snapshot_seconds": server.pressure_seconds,
        "lost_or_stuck": served.lost_or_stuck,
    }


def burst(server: ContenderServer, peer: str) -> Figures:
    """Count the tasks done while three times the capacity arrives; the rest is left."""
    capacity_per_second = BURST_SLOTS / BURST_TASK_SECONDS
    load = Load(
        BURST_FACTOR * capacity_per_second, BURST_SECONDS, BURST_SLOTS, BURST_TASK_SECONDS, drain_seconds=0.0
    )
    served = server.serve(peer, load)
    done = served.running.ended_within(0.0, load.seconds)
    return {"done": done, "possible": round(capacity_per_second * load.seconds)}


@dataclass(frozen=True, slots=True)
class Cell:
    """Some figures of each contender.

    Attributes:
        measure: Measures them once.
        contenders: The contenders.
        is_repeated: Whether it runs in rounds, or once because it takes long.
    """

    measure: Measure
    contenders: Sequence[str] = CONTENDERS
    is_repeated: bool = True


CELLS: Final = {
    **{f"full-{slots}": Cell(partial(full_queue, slots), tuple(TASKS)) for slots in SLOTS},
    "steady": Cell(steady),
    "kills": Cell(kills),
    "crashes": Cell(crashes, is_repeated=False),
    "restart": Cell(restart),
    "pressure": Cell(pressure, is_repeated=False),
    "burst": Cell(burst),
}


def installed(server: ContenderServer) -> dict[str, str]:
    """Return the versions of the contenders that are installed."""
    versions = {}
    for peer in CONTENDERS:
        with server.database() as where:
            if version := server.ask("install", peer, where):
                versions[peer] = version
    return versions


def attempted(measure: Measure, server: ContenderServer, peer: str, failures: list[str]) -> Figures:
    """Measure once; if a contender fails, note that and return no figures, so that the others go on."""
    try:
        return measure(server, peer)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as failed:
        failures.append(f"{peer}: {failed}")
        print(failures[-1], file=sys.stderr)
        return {}


def chosen(cells: str) -> list[str]:
    """Return the names in a comma-separated option, by default all.

    Raises:
        typer.BadParameter: If there is no such cell.
    """
    names = cells.split(",") if cells else [*CELLS]
    if unknown := [name for name in names if name not in CELLS]:
        msg = f"unknown cell: {', '.join(unknown)}; there are {', '.join(CELLS)}"
        raise typer.BadParameter(msg)
    return names


def main(
    rounds: int = 3, cells: str = "", pressure_seconds: float = 60.0, peers: str = sys.executable
) -> None:
    """Measure the cells, all or by name; the others keep their results."""
    names, failures = chosen(cells), list[str]()
    measured = figures.figures_of("harness")["cells"] if cells and figures.is_measured("harness") else {}
    with Postgres(durable=True, programs=packaged_postgres_programs()) as postgres:
        server = ContenderServer(postgres, peers, pressure_seconds)
        (number,) = server.number("SHOW server_version_num")
        versions = installed(server)
        report = {
            "rounds": rounds,
            "postgresql": f"{number // 10_000:.0f}.{number % 10_000:.0f}",
            "versions": versions,
            "failures": failures,
        }
        for name in names:
            cell = CELLS[name]
            turns = {
                peer: partial(attempted, cell.measure, server, peer, failures)
                for peer in cell.contenders
                if peer.partition("@")[0] in versions
            }
            runs = in_turns(turns, rounds if cell.is_repeated else 1)
            measured[name] = {"commit": figures.commit(), "runs": runs}
            # After each cell, so that an interruption loses only one.
            in_order = {name: measured[name] for name in CELLS if name in measured}
            figures.write("harness", report | {"cells": in_order})
