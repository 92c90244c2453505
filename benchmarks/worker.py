"""Throughput of a Worker on SQL, in turns with claims of ten by hand and the workers of other queues.

Handlers are empty and payloads have 1 KB. Each contender is one process, or two with the same number of slots
each. A rate counts from the first run (by hand: the first claim) to the last; freshq's until all tasks are
settled. `--peers` names an interpreter in which other queues are installed (oban needs Python 3.12 or newer);
the page names the queues that it lacks.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from local.servers import HOST, Postgres
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import CONTEXT, LONGEST_SECONDS, in_processes, in_turns
from benchmarks.library_pages import FILES, HAND, WORKER
from benchmarks.peers import NOT_INSTALLED, PAYLOAD, PEERS, Span
from benchmarks.sql import fill
from freshq import Queue, Settlement, Worker
from freshq.worker.report import LoggingObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableSequence

    from freshq import Claim, Task
    from freshq.telemetry import Outcome

BY_HAND: Final = 10
CONCURRENCY: Final = (1, 8, 32, 256)
# For each process: at least about a second of work at each contender's own speed.
WORKER_TASKS: Final = {1: 8000, 8: 8000, 32: 10_000, 256: 12_000}
TASKS: Final = {
    HAND: 8000, "oban": 3000, "procrastinate": 700, "celery": 600, "huey": 2500,
}  # fmt: skip
PEERS_ON: Final = {"postgresql": ("oban", "procrastinate", "celery"), "sqlite": ("huey",)}
PROGRAM: Final = str(Path(__file__).with_name("peers.py"))
POLL_SECONDS: Final = 0.02
COUNT_SECONDS: Final = 0.05
CONNECTIONS: Final = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"


class Watch(LoggingObserver):
    """Notes when the first run of a task began, and each settlement, by wall and processor time."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.settlements: list[tuple[float, float]] = []
        self.settled_one = threading.Event()

    def run(self, _task: Task) -> None:
        """Note the first run."""
        if self.began is None:
            self.began = time.monotonic(), time.process_time()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Note a settlement."""
        super().settled(claim, outcome, run_seconds, error)
        self.settlements.append((time.monotonic(), time.process_time()))
        self.settled_one.set()

    def span(self) -> Span | None:
        """Return the span from the first run to the last settlement; None if nothing ran."""
        if self.began is None:
            return None
        ended, processor = self.settlements[-1]
        return Span(self.began[0], ended, processor - self.began[1])


def opened(url: str) -> Queue:
    """Return a queue; on SQLite it does not wait for the disk, like every contender there."""
    return Queue.sql(url, durable=not url.startswith("sqlite"))


def together(contender: str, url: str, tasks: int, concurrency: int, processes: int) -> list[Span]:
    """Fill a queue and work it off in a number of processes; return the span of each that ran a task."""
    fill(url, tasks, PAYLOAD, durable=not url.startswith("sqlite"))
    settled = CONTEXT.RawArray("q", processes)
    work = {HAND: _by_hand, WORKER: _by_worker}[contender]
    jobs = [(url, work, settled, number, tasks, concurrency) for number in range(processes)]
    return [Span(*each) for each in in_processes(_process, jobs) if each]


def _process(ready: Callable[[], object], url: str, work: Callable[..., Span | None], *job: Any) -> Any:
    """Work in a process that logs no task."""
    logging.disable(logging.WARNING)
    queue = opened(url)
    queue.get("none")  # connects
    span = work(queue, ready, *job)
    queue.close()
    return span and tuple(span)


def _by_hand(queue: Queue, ready: Callable[[], object], *_job: object) -> Span | None:
    """Claim and complete ten tasks at a time, in one thread, until none is left."""
    ready()
    claims = queue.claim(BY_HAND)
    ended = began = (time.monotonic(), time.process_time())
    while claims:
        queue.settle_many([Settlement.complete(claim) for claim in claims])
        ended = (time.monotonic(), time.process_time())
        claims = queue.claim(BY_HAND)
    return Span(began[0], ended[0], ended[1] - began[1]) if ended != began else None


def _by_worker(
    queue: Queue,
    ready: Callable[[], object],
    settled: MutableSequence[int],
    number: int,
    tasks: int,
    concurrency: int,
) -> Span | None:
    """Run a worker until the processes together have settled all tasks.

    Args:
        queue: The queue.
        ready: Waits until every process is connected.
        settled: Settlements of each process, which writes only its own number.
        number: This process.
        tasks: Tasks of all processes.
        concurrency: Slots.
    """
    watch = Watch()

    def all_settled() -> bool:
        settled[number] = len(watch.settlements)
        return sum(settled) >= tasks

    worker = Worker(queue, watch.run, concurrency=concurrency, observer=watch)
    ready()
    worker.run(until=all_settled)
    return watch.span()


def fill_peer(python: str, peer: str, where: str, tasks: int) -> str | None:
    """Fill the queue of a peer and return its version; None if it is not installed."""
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


class PeerProcess:
    """A process of a peer, whose lines `hear` takes in a thread."""

    def __init__(self, python: str, verb: str, peer: str, where: str, number: int) -> None:
        """Start it with the arguments of `benchmarks.peers`, and wait until it is ready.

        Raises:
            RuntimeError: If it does not start.
        """
        command = [python, PROGRAM, verb, peer, where, str(number)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline() != "ready\n":
            msg = f"{peer} did not start"
            raise RuntimeError(msg)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self.hear(line)

    def hear(self, line: str) -> None:
        """Take a line."""
        raise NotImplementedError

    def tell(self, line: object) -> None:
        """Send it a line."""
        self._input.write(f"{line}\n")
        self._input.flush()

    def end(self) -> None:
        """Let it exit."""
        self._input.close()
        self._process.wait(LONGEST_SECONDS)
        self._reader.join()
        self._output.close()


class Working(PeerProcess):
    """A worker that counts its runs, and at its end has the span of its work; None if it ran nothing."""

    runs = 0
    span: Span | None = None

    @override
    def hear(self, line: str) -> None:
        if line[0].isdigit():
            self.runs = int(line)
        elif found := json.loads(line):
            self.span = Span(*found)


def of_peer(python: str, peer: str, where: str, tasks: int, slots: tuple[int, int]) -> list[Span]:
    """Work off a filled queue of a peer; return the span of each process.

    Args:
        python: The interpreter in which it is installed.
        peer: Its name.
        where: Its address.
        tasks: Number of tasks.
        slots: Slots of each process, and the number of processes.

    Raises:
        TimeoutError: If it does not run them all.
    """
    concurrency, processes = slots
    running = [Working(python, "work", peer, where, concurrency) for _ in range(processes)]
    for process in running:
        process.tell("go")
    deadline = time.monotonic() + LONGEST_SECONDS
    while (runs := sum(process.runs for process in running)) < tasks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for process in running:
        process.end()
    if runs < tasks:
        msg = f"{peer} ran {runs} of {tasks} tasks in {LONGEST_SECONDS} s"
        raise TimeoutError(msg)
    return [process.span for process in running if process.span]


class Place:
    """A database in which contenders are measured.

    Attributes:
        name: Its name in the results.
        missing: Peers that are not installed.
        versions: Versions of the peers that are.
    """

    def __init__(self, url: str, python: str, conninfo: str = "") -> None:
        """Measure nothing yet.

        Args:
            url: The database; empty for new files of SQLite.
            python: An interpreter with peers.
            conninfo: The database, for libpq.
        """
        self._url, self._python, self._conninfo = url, python, conninfo
        self.name = "postgresql" if conninfo else "sqlite"
        self.missing: set[str] = set()
        self.versions: dict[str, str] = {}

    def contenders(self, processes: int) -> dict[tuple[str, str, str], Callable[[], dict[str, float] | None]]:
        """Return the measurements of one round, by store, slots and contender."""
        return {
            (self.name, str(slots), name): partial(self._measure, name, slots, processes)
            for slots, name in product(CONCURRENCY, (HAND, WORKER, *PEERS_ON[self.name]))
        }

    def _measure(self, contender: str, concurrency: int, processes: int) -> dict[str, float] | None:
        """Measure a contender once; return None if it is not installed."""
        tasks = TASKS.get(contender, WORKER_TASKS[concurrency]) * processes
        with self._counting() as connections:
            spans = self._spans(contender, tasks, concurrency, processes)
        if not spans:
            return None
        seconds = max(span.last for span in spans) - min(span.first for span in spans)
        processor_seconds = sum(span.processor_seconds for span in spans)
        return {
            "tasks": tasks,
            "tasks_per_second": round(tasks / seconds, 1),
            "processor_us_per_task": round(1e6 * processor_seconds / tasks, 1),
        } | ({"connections": max(connections)} if connections else {})

    @contextmanager
    def _counting(self) -> Iterator[list[int]]:
        """Count the connections to a server repeatedly; yield the counts."""
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
            found = None if contender in self.missing else fill_peer(self._python, contender, where, tasks)
            if found is None:
                self.missing.add(contender)
                return []
            self.versions[contender] = found
            return of_peer(self._python, contender, where, tasks, (concurrency, processes))


def conninfo(server: Postgres) -> str:
    """Return the address of a server for libpq."""
    return f"host={HOST} port={server.port} user=freshq dbname=postgres"


def measured(rounds: int, peers: str, processes: int) -> Mapping[str, Any]:
    """Measure all contenders with a number of processes, in turns."""
    shown = subprocess.run([peers, "--version"], capture_output=True, text=True, check=True)
    with Postgres(durable=True) as server:
        places = [Place("", peers), Place(server.url, peers, conninfo(server))]
        contenders = {key: each for place in places for key, each in place.contenders(processes).items()}
        found = in_turns(contenders, rounds)
    report: dict[str, Any] = {place.name: {} for place in places}
    for (store, slots, name), results in found.items():
        if any(results):
            report[store].setdefault(slots, {})[name] = results
    return {
        "rounds": rounds,
        "peers_python": shown.stdout.split()[-1],
        "missing": sorted(set.union(*(place.missing for place in places))),
        "versions": {name: each for place in places for name, each in place.versions.items()},
    } | report


def main(rounds: int = 4, peers: str = sys.executable, processes: str = "1,2") -> None:
    """Measure with one process and with two."""
    for number in figures.numbers(processes):
        figures.write(FILES[number], measured(rounds, peers, number))
