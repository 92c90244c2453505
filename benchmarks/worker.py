"""What a Worker gets through in a SQL database, beside claims of ten by hand and other queues, in turns.

    python -m benchmarks.worker [--rounds N] [--peers PYTHON] [--processes N]

Handlers are empty, payloads have 1 KB; each contender is one process, or two with as many slots each. A
figure counts from the first run, or the first claim by hand, to the last; of freshq until all is settled.
With --peers an interpreter is named that has other queues (oban needs Python 3.12 or newer); those that it
lacks are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from local.servers import HOST, Postgres
from rich.console import Console

from benchmarks import figures
from benchmarks.figures import rotated
from benchmarks.worker_page import FILES, HAND, WORKER
from benchmarks.worker_peers import NOT_INSTALLED, PAYLOAD, PEERS, Span
from freshq import Queue, Worker
from freshq.worker.report import LoggingObserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableSequence, Sequence

    from freshq import Claim, Outcome, Task

LONE_SLOTS: Final = 8
LONE_POLL_SECONDS: Final = 0.01
LONE_LONGEST_SECONDS: Final = 60
Figures = dict[str, list[float]]


class _LoneWatch(LoggingObserver):
    """Notes when a run began and when it was settled."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.over = threading.Event()

    def run(self, _task: Task) -> None:
        """Do nothing."""
        self.began = time.monotonic()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note the time."""
        super().settled(claim, outcome, run_seconds, error)
        self.ended = time.monotonic()
        self.over.set()


def lone_figures(queue: Queue, tasks: int) -> Figures:
    """Put tasks one by one, each while the worker is idle; return milliseconds from the put of each."""
    watch, found = _LoneWatch(), Figures(run_ms=[], settled_ms=[])
    worker = Worker(queue, watch.run, concurrency=LONE_SLOTS, poll_seconds=LONE_POLL_SECONDS, observer=watch)
    working = threading.Thread(target=worker.run)
    working.start()
    pauses = random.Random("lone")
    for _ in range(tasks):
        time.sleep(pauses.uniform(2, 3) * LONE_POLL_SECONDS)  # the worker waits at another moment each time
        watch.over.clear()
        put_at = time.monotonic()
        queue.put(PAYLOAD)
        if not watch.over.wait(LONE_LONGEST_SECONDS):
            msg = f"a task was not settled within {LONE_LONGEST_SECONDS} s"
            raise TimeoutError(msg)
        found["run_ms"].append(round(1000 * (watch.began - put_at), 2))
        found["settled_ms"].append(round(1000 * (watch.ended - put_at), 2))
    worker.stop()
    working.join()
    return found


def on(url: str, tasks: int) -> Figures:
    """Measure on a database."""
    queue = opened(url)
    queue.create_table()
    try:
        return lone_figures(queue, tasks)
    finally:
        queue.close()


def lone_main() -> None:
    """Measure a lone task through an idle worker: from its put until it is settled.

    The worker has 8 slots and looks for tasks every 10 ms, so half of the time is waiting for its next look.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300)
    tasks = parser.parse_args().tasks
    logging.disable(logging.WARNING)
    with Postgres(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        stores = {name: on(url, tasks) for name, url in (
            ("postgresql", server.url), ("sqlite", f"sqlite:///{folder}/tasks.db")
        )}  # fmt: skip
    for name, found in stores.items():
        medians = {what: statistics.median(each) for what, each in found.items()}
        Console().print(f"{name}: {medians}")
    report = {"slots": LONE_SLOTS, "poll_ms": 1000 * LONE_POLL_SECONDS, "stores": stores}
    figures.write("lone", report, ("psycopg", "sqlalchemy"))


BY_HAND: Final = 10
LONGEST_SECONDS: Final = 300
CONTEXT: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Job:
    """What the processes are to do together.

    Attributes:
        contender: By hand, or by a worker.
        url: Where the queue is.
        tasks: How many there are.
        concurrency: Slots of the worker in each process.
        settled: How many each process has settled; each writes its own number only.
        barrier: All wait there once they are connected.
    """

    contender: str
    url: str
    tasks: int
    concurrency: int
    settled: MutableSequence[int]
    barrier: Any


def opened(url: str) -> Queue:
    """Return a queue; on SQLite it does not wait for the disk, as no contender does there."""
    return Queue.sql(url, durable=not url.startswith("sqlite"))


def fill(url: str, tasks: int) -> None:
    """Leave nothing in a queue but some new tasks."""
    queue = opened(url)
    queue.create_table()
    queue.purge(confirm="default")
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    queue.close()


def processor_seconds() -> float:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def together(contender: str, url: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
    """Fill a queue, and work it off in some processes; return the span of each.

    Raises:
        queue.Empty: If a process died.
    """
    fill(url, tasks)
    settled = CONTEXT.RawArray("q", processes)
    job = Job(contender, url, tasks, concurrency, settled, CONTEXT.Barrier(processes))
    spans = CONTEXT.Queue()
    running = [CONTEXT.Process(target=_process, args=(job, each, spans)) for each in range(processes)]
    for process in running:
        process.start()
    found = [spans.get(timeout=LONGEST_SECONDS) for _ in running]
    for process in running:
        process.join()
    return [Span(*each) for each in found if each]


def _process(job: Job, number: int, spans: Any) -> None:
    """Work in a process of its own, which logs no task, and tell the span; nothing if it had no task."""
    logging.disable(logging.WARNING)
    queue = opened(job.url)
    queue.contains("none")  # connects
    spans.put({HAND: _by_hand, WORKER: _by_worker}[job.contender](queue, job, number))
    queue.close()


def _by_hand(queue: Queue, job: Job, _number: int) -> tuple[float, float, float] | None:
    """Claim ten and complete them together, in one thread, until nothing is left."""
    job.barrier.wait(LONGEST_SECONDS)
    claims = queue.claim(BY_HAND)
    ended = began = (time.monotonic(), processor_seconds())
    while claims:
        queue.complete_many(claims)
        ended = (time.monotonic(), processor_seconds())
        claims = queue.claim(BY_HAND)
    return (began[0], ended[0], ended[1] - began[1]) if ended != began else None


def _by_worker(queue: Queue, job: Job, number: int) -> tuple[float, float, float] | None:
    """Run a worker until all is settled, in all processes."""
    watch = _Watch()

    def all_settled() -> bool:
        job.settled[number] = len(watch.settlements)
        return sum(job.settled) >= job.tasks

    worker = Worker(queue, watch.run, concurrency=job.concurrency, observer=watch)
    job.barrier.wait(LONGEST_SECONDS)
    worker.run(until=all_settled)
    return watch.span()


class _Watch(LoggingObserver):
    """Notes when the first run began, and each settlement."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self.settlements: list[tuple[float, float]] = []

    def run(self, _task: Task) -> None:
        """Do nothing."""
        if self._began is None:
            self._began = time.monotonic(), processor_seconds()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note the time."""
        super().settled(claim, outcome, run_seconds, error)
        self.settlements.append((time.monotonic(), processor_seconds()))

    def span(self) -> tuple[float, float, float] | None:
        """Return the first start, the last settlement and the processor time between; None without a task."""
        if self._began is None:
            return None
        ended, processor = self.settlements[-1]
        return self._began[0], ended, processor - self._began[1]


CONCURRENCY: Final = (1, 8, 32, 256)
# For each process: about a second of work or more, for each contender at its own speed.
WORKER_TASKS: Final = {1: 1600, 8: 6000, 32: 10_000, 256: 12_000}
TASKS: Final = {
    HAND: 8000, "oban": 3000, "procrastinate": 700, "celery": 600, "huey": 2500, "litequeue": 6000,
}  # fmt: skip
PEERS_ON: Final = {"postgresql": ("oban", "procrastinate", "celery"), "sqlite": ("huey", "litequeue")}
# litequeue has no worker: one loop.
ONE_LOOP: Final = ("litequeue",)
PROGRAM: Final = str(Path(__file__).with_name("worker_peers.py"))
POLL_SECONDS: Final = 0.02
COUNT_SECONDS: Final = 0.05
CONNECTIONS: Final = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"


def fill_peer(python: str, peer: str, where: str, tasks: int) -> str | None:
    """Fill the queue of a peer, and return its version; None if it is not installed."""
    done = subprocess.run(
        [python, PROGRAM, "fill", peer, where, str(tasks)],
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if done.returncode == NOT_INSTALLED:
        return None
    if done.returncode != 0:
        msg = f"{peer}: {done.stderr.strip().splitlines()[-1]}"
        raise RuntimeError(msg)
    return done.stdout.split()[-1]


def python_version(python: str) -> str:
    """Return the version of an interpreter."""
    shown = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.split()[-1]


class PeerProcess:
    """A process of a peer that works."""

    def __init__(self, python: str, peer: str, where: str, concurrency: int) -> None:
        """Start it, and wait until it is connected."""
        self._process = subprocess.Popen(
            [python, PROGRAM, "work", peer, where, str(concurrency)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.runs = 0
        self._last_line = "null"
        self._reader = threading.Thread(target=self._read)
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            msg = f"{peer} did not start"
            raise RuntimeError(msg)
        self._reader.start()

    def begin(self) -> None:
        """Let it work."""
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line[0].isdigit():
                self.runs = int(line)
            else:
                self._last_line = line

    def end(self) -> Span | None:
        """Let it end; return what it did."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(LONGEST_SECONDS)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        span = json.loads(self._last_line)
        return Span(*span) if span else None


def of_peer(python: str, peer: str, where: str, tasks: int, slots: tuple[int, int]) -> list[Span]:
    """Work off a filled queue of a peer; return what each process did.

    Args:
        python: The interpreter that has it.
        peer: Its name.
        where: Its address.
        tasks: How many there are.
        slots: How many each process has, and the number of processes.

    Raises:
        TimeoutError: If it does not run them all.
    """
    concurrency, processes = slots
    running = [PeerProcess(python, peer, where, concurrency) for _ in range(processes)]
    for process in running:
        process.begin()
    deadline = time.monotonic() + LONGEST_SECONDS
    while (runs := sum(process.runs for process in running)) < tasks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    spans = [process.end() for process in running]
    if runs < tasks:
        msg = f"{peer} ran {runs} of {tasks} tasks in {LONGEST_SECONDS} s"
        raise TimeoutError(msg)
    return [span for span in spans if span]


class Place:
    """One database, and what was measured on it.

    Attributes:
        name: Of the database.
        figures: By concurrency and contender, a figure for each round.
        missing: Peers that are not installed.
        versions: Of the peers.
    """

    def __init__(self, url: str, python: str, conninfo: str = "") -> None:
        """Measure nothing yet.

        Args:
            url: Where it is; of SQLite, the folder of its files.
            python: An interpreter that has peers.
            conninfo: Where it is, for libpq.
        """
        self._url, self._python, self._conninfo = url, python, conninfo
        self.name = "postgresql" if conninfo else "sqlite"
        self.figures: dict[str, dict[str, list[dict[str, float]]]] = {}
        self.missing: set[str] = set()
        self.versions: dict[str, str] = {}

    def measure(self, number: int, concurrency: int, processes: int) -> None:
        """Measure every contender once, in the order of a round."""
        for contender in rotated((HAND, WORKER, *PEERS_ON[self.name]), number):
            if contender in self.missing or (contender in ONE_LOOP and concurrency > 1):
                continue
            tasks = TASKS.get(contender, WORKER_TASKS[concurrency]) * processes
            with self._counting() as connections:
                spans = self._spans(contender, tasks, concurrency, processes)
            if spans:
                found = _figures(spans, tasks) | ({"connections": max(connections)} if connections else {})
                self.figures.setdefault(str(concurrency), {}).setdefault(contender, []).append(found)

    @contextmanager
    def _counting(self) -> Iterator[list[int]]:
        """Count the connections to a server, time after time; yield the counts."""
        counts: list[int] = []
        if not self._conninfo:
            yield counts
            return
        over = threading.Event()

        def count() -> None:
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                while not over.wait(COUNT_SECONDS):
                    row = connection.execute(CONNECTIONS).fetchone()
                    counts.append(row[0] if row else 0)

        counting = threading.Thread(target=count)
        counting.start()
        try:
            yield counts
        finally:
            over.set()
            counting.join()

    def _spans(self, contender: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
        with tempfile.TemporaryDirectory() as folder:
            if contender not in PEERS:
                url = self._url or f"sqlite:///{folder}/freshq.db"
                return together(contender, url, tasks, concurrency, processes)
            where = self._conninfo or f"{folder}/{contender}.db"
            found = fill_peer(self._python, contender, where, tasks)
            if found is None:
                self.missing.add(contender)
                return []
            self.versions[contender] = found
            return of_peer(self._python, contender, where, tasks, (concurrency, processes))


def _figures(spans: Sequence[Span], tasks: int) -> dict[str, float]:
    seconds = max(span.last for span in spans) - min(span.first for span in spans)
    processor_seconds = sum(span.processor_seconds for span in spans)
    return {
        "tasks": tasks,
        "tasks_per_second": round(tasks / seconds, 1),
        "processor_us_per_task": round(1e6 * processor_seconds / tasks, 1),
    }


def measured(options: argparse.Namespace, processes: int) -> Mapping[str, Any]:
    """Measure everything with a number of processes, all in turns."""
    report: dict[str, Any] = {"rounds": options.rounds, "peers_python": python_version(options.peers)}
    with Postgres(durable=True) as server:
        conninfo = f"host={HOST} port={server.port} user=freshq dbname=postgres"
        places = [Place("", options.peers), Place(server.url, options.peers, conninfo)]
        for number in range(options.rounds):
            for place, concurrency in product(places, CONCURRENCY):
                place.measure(number, concurrency, processes)
            Console().print(f"round {number + 1} of {options.rounds}")
    report["missing"] = sorted(set.union(*(place.missing for place in places)))
    report["versions"] = {name: each for place in places for name, each in place.versions.items()}
    return report | {place.name: place.figures for place in places}


def show(report: Mapping[str, Any]) -> None:
    """Print the medians."""
    for store in PEERS_ON:
        for concurrency, contenders in report[store].items():
            for contender, rounds in contenders.items():
                median = statistics.median(each["tasks_per_second"] for each in rounds)
                Console().print(f"{store} @ {concurrency}: {contender} {median:,.0f}/s")


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peers", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--processes", type=int, choices=FILES, help="only with so many")
    options = parser.parse_args()
    for processes in [options.processes] if options.processes else FILES:
        report = measured(options, processes)
        show(report)
        figures.write(FILES[processes], report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
