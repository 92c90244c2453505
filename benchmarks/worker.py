"""What a Worker gets through in a SQL database, beside claims of ten by hand and other queues, in turns.

    python -m benchmarks.worker [--rounds N] [--peers PYTHON]

Handlers are empty, payloads have 1 KB, everything is one process. A figure counts from the first run to the
last, and of a Worker until all is settled. With --peers an interpreter is named that has other queues (oban
needs Python 3.12 or newer); those that it lacks are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from tests.support.databases import HOST, Postgres

from benchmarks import figures
from benchmarks.worker_page import HAND, WORKER
from benchmarks.worker_peers import NOT_INSTALLED, PAYLOAD, PEERS
from freshq import Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq import Task

CONCURRENCY: Final = (1, 8, 32, 256)
TASKS: Final = {1: 300, 8: 1000, 32: 2000, 256: 4000}
# Peers that take milliseconds for each task, and more of them with more places.
PEER_TASKS: Final = {"oban": 1500, "procrastinate": 200, "celery": 200, "huey": 1000, "litequeue": 1000}
BY_HAND: Final = 10
LONGEST_SECONDS: Final = 300
PEERS_ON: Final = {"postgresql": ("oban", "procrastinate", "celery"), "sqlite": ("huey", "litequeue")}
# litequeue has no worker: one loop.
ONE_LOOP: Final = ("litequeue",)
Figure = dict[str, float]
# Takes an address, a number of tasks and a concurrency.
Measure = Callable[[str, int, int], Figure]


def opened(url: str) -> Queue:
    """Return a queue; on SQLite as the others are, which do not wait for the disk."""
    return Queue.sql(url, durable=not url.startswith("sqlite"))


def filled(url: str, tasks: int) -> Queue:
    """Return a queue of which nothing is left but some new tasks."""
    queue = opened(url)
    queue.create_table()
    queue.purge(confirm="default")
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    return queue


def processor_seconds() -> float:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def by_hand(url: str, tasks: int, _concurrency: int) -> Figure:
    """Claim ten and complete them together, in one thread, until nothing is left."""
    queue = filled(url, tasks + 1)
    queue.complete_many(queue.claim())  # connects
    began, processor = time.monotonic(), processor_seconds()
    while claims := queue.claim(BY_HAND):
        queue.complete_many(claims)
    figure = {"seconds": time.monotonic() - began, "processor_seconds": processor_seconds() - processor}
    queue.close()
    return figure


def by_worker(url: str, tasks: int, concurrency: int) -> Figure:
    """Run a worker until all is settled."""
    queue = filled(url, tasks)
    began: list[tuple[float, float]] = []

    def runner(_task: Task) -> None:
        began.append((time.monotonic(), processor_seconds()))

    Worker(queue, runner, concurrency=concurrency).run(until=lambda: len(began) >= tasks)
    first, processor = began[0]
    return {"seconds": time.monotonic() - first, "processor_seconds": processor_seconds() - processor}


def apart(measure: Measure, *arguments: Any) -> Figure:  # noqa: ANN401 - those of `measure`
    """Measure in a process of its own, which logs no task."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, context, initializer=logging.disable, initargs=(logging.WARNING,)
    ) as executor:
        return executor.submit(measure, *arguments).result(LONGEST_SECONDS)


def of_peer(python: str, peer: str, where: str, tasks: int, concurrency: int) -> dict[str, Any] | None:
    """Measure another queue, and return its version, too; None if it is not installed."""
    program = [python, str(Path(__file__).with_name("worker_peers.py"))]
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [*program, peer, where, str(tasks), str(concurrency)],
        capture_output=True,
        text=True,
        timeout=2 * LONGEST_SECONDS,
        check=False,
    )
    if done.returncode == NOT_INSTALLED:
        return None
    if done.returncode != 0:
        msg = f"{peer}: {done.stderr.strip().splitlines()[-1]}"
        raise RuntimeError(msg)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Place:
    """One database, and what was measured on it: by concurrency and contender, a figure for each round."""

    def __init__(self, url: str, python: str, conninfo: str = "") -> None:
        """Measure nothing yet.

        Args:
            url: Where it is; of SQLite, the folder of its files.
            python: An interpreter that has peers.
            conninfo: Where it is, for libpq.
        """
        self._url, self._python, self._conninfo = url, python, conninfo
        self.name = "postgresql" if conninfo else "sqlite"
        self.figures: dict[str, dict[str, list[Figure]]] = {}
        self.missing: set[str] = set()
        self.versions: dict[str, str] = {}

    def measure(self, concurrency: int) -> None:
        """Measure every contender once."""
        for contender in (HAND, WORKER, *PEERS_ON[self.name]):
            if contender in self.missing or (contender in ONE_LOOP and concurrency > 1):
                continue
            tasks = min(TASKS[concurrency], PEER_TASKS.get(contender, TASKS[concurrency]))
            figure = self._figure(contender, tasks, concurrency)
            if figure is None:
                self.missing.add(contender)
                continue
            each = {"tasks_per_second": tasks / figure["seconds"]}
            each["processor_us_per_task"] = 1e6 * figure["processor_seconds"] / tasks
            rounds = self.figures.setdefault(str(concurrency), {}).setdefault(contender, [])
            rounds.append({name: round(number, 1) for name, number in each.items()})

    def _figure(self, contender: str, tasks: int, concurrency: int) -> Figure | None:
        with tempfile.TemporaryDirectory() as folder:
            url = self._url or f"sqlite:///{folder}/freshq.db"
            if contender not in PEERS:
                return apart({HAND: by_hand, WORKER: by_worker}[contender], url, tasks, concurrency)
            where = self._conninfo or f"{folder}/{contender}.db"
            found = of_peer(self._python, contender, where, tasks, concurrency)
            if found is not None:
                self.versions[contender] = found.pop("version")
            return found


def measured(options: argparse.Namespace) -> Mapping[str, Any]:
    """Measure everything, all in turns."""
    report: dict[str, Any] = {"rounds": options.rounds}
    with Postgres(durable=True) as server:
        conninfo = f"host={HOST} port={server.port} user=freshq dbname=postgres"
        places = [Place("", options.peers), Place(server.url, options.peers, conninfo)]
        for number in range(options.rounds):
            for place in places:
                for concurrency in CONCURRENCY:
                    place.measure(concurrency)
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", metavar="PYTHON", default=sys.executable)
    options = parser.parse_args()
    report = measured(options)
    show(report)
    figures.write("worker", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
