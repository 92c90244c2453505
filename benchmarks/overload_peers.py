"""Goodput of real workers under overload, compared with other queues, with clients that give up.

A worker with four slots runs tasks that sleep for 50 ms, and a client gives a task up after 1 s. A producer
puts tasks at random intervals, at loads below and above the capacity; the other queues have a worker and a
producer of their own in an interpreter in which they are installed. Contenders take turns, each run with a
new database on the same PostgreSQL (huey on SQLite), neither of which waits for the disk.
"""

from __future__ import annotations

import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, product
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

from local.servers import Postgres
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import in_turns
from benchmarks.library_pages import possible_ratio
from benchmarks.peers import TASK_SECONDS
from benchmarks.pictures import draw_peers
from benchmarks.worker import PeerProcess, fill_peer, new_database
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLOTS: Final = 4
LIMIT_SECONDS: Final = 1.0
# A client pauses at random up to this long before it puts a task again.
PAUSE_SECONDS: Final = 0.5
RETRIES: Final = 3
LATER_LOAD: Final = 0.5
# Goodput counts as recovered at the start of this many seconds with this share of new tasks done in time.
BACK_SECONDS: Final = 3
BACK_SHARE: Final = 0.9
LEFT: Final = "left "


@dataclass(frozen=True, slots=True)
class Contender:
    """A queue, and how the picture shows it.

    Attributes:
        peer: Its name and option for `benchmarks.peers`.
        colour: Its colour.
    """

    peer: str
    colour: str


CONTENDERS: Final = {
    "freshq, newest first": Contender("freshq@lifo", Colour.TAKEN.value),
    "freshq, oldest first": Contender("freshq@fifo", Colour.PENDING.value),
    "Celery, expires=0.9": Contender("celery@0.9", Colour.SHED.value),
    "Celery, expires=1": Contender("celery@1", Colour.FAILURE.value),
    "huey, expires=1": Contender("huey@1", Colour.LATE.value),
    "oban": Contender("oban", Colour.SUCCESS.value),
    "procrastinate": Contender("procrastinate", "#000000"),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load.

    Attributes:
        loads: The load of each phase, as a multiple of the capacity.
        retries: How often a client repeats a put whose task is not done in time.
    """

    loads: tuple[float, ...]
    retries: int = 0

    def arrivals(self, seconds: float, seed: int) -> list[float]:
        """Return when clients put their tasks, in seconds from the start."""
        rng, found = Random(f"{self.loads}/{seed}"), []
        for phase, load in enumerate(self.loads):
            now, rate = phase * seconds, load * SLOTS / TASK_SECONDS
            while (now := now + rng.expovariate(rate)) < (phase + 1) * seconds:
                found.append(now)
        return found


LOADS: Final = ("0.5", "0.9", "1.5", "3")
RETRYING: Final = "retries"
Runs = dict[str, dict[str, list[Any]]]
SCENARIOS: Final = {
    **{load: Scenario((float(load),)) for load in LOADS},
    RETRYING: Scenario((1.5, LATER_LOAD), RETRIES),
}


class Program(PeerProcess):
    """A worker or a producer in another process.

    Attributes:
        runs: Start and end of each run by the number of its task.
        left: Tasks that wait at the end.
    """

    def __init__(self, python: str, verb: str, peer: str, where: str) -> None:
        """Start it and wait until it is connected."""
        self.runs: dict[int, tuple[float, float]] = {}
        self.left = 0
        super().__init__(python, verb, peer, where, SLOTS)

    @override
    def hear(self, line: str) -> None:
        if line.startswith(LEFT):
            self.left = int(line.removeprefix(LEFT))
        else:
            number, began, ended = line.split()
            self.runs[int(number)] = float(began), float(ended)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fates of the tasks of a run, with times of the machine's monotonic clock.

    Attributes:
        arrivals: When each client put its task first, in seconds from the start.
        puts: For each task, its client and the time of its put.
        runs: Start and end of each run.
        left: Tasks that waited when all clients had given up.
    """

    arrivals: Sequence[float]
    puts: Sequence[tuple[int, float]]
    runs: Mapping[int, tuple[float, float]]
    left: int

    def measures(self, seconds: float, phases: int) -> dict[str, Any]:
        """Return the measures of a run.

        Args:
            seconds: Length of a phase.
            phases: Number of phases.
        """
        took = self._took_seconds()
        in_time = {task: waited for task, waited in took.items() if waited <= LIMIT_SECONDS}
        happy = {self.puts[task][0] for task in in_time}
        first = bisect_left(self.arrivals, seconds)
        shares = self._by_second(happy, round(seconds * phases))
        return {
            "in_time": round(sum(client < first for client in happy) / first, 4),
            "median_seconds": round(median(in_time.values()), 3) if in_time else None,
            "wasted": round(1 - len(in_time) / len(took), 4) if took else 0.0,
            "left": self.left,
            "puts": len(self.puts),
            "by_second": shares,
            "recovery_seconds": recovery_seconds(shares[round(seconds) :]) if phases > 1 else None,
        }

    def _took_seconds(self) -> dict[int, float]:
        """Return how long after its put each task was done."""
        puts = enumerate(self.puts)
        return {task: self.runs[task][1] - put for task, (_, put) in puts if task in self.runs}

    def _by_second(self, happy: set[int], seconds: int) -> list[float]:
        clients: defaultdict[int, list[bool]] = defaultdict(list)
        for client, at in enumerate(self.arrivals):
            clients[int(at)].append(client in happy)
        return [round(fmean(clients[second] or [True]), 4) for second in range(seconds)]


def recovery_seconds(shares: Sequence[float]) -> int | None:
    """Return the seconds until the goodput has recovered permanently; None if it never does.

    Args:
        shares: For each second, the share of its tasks that were done in time.
    """
    for second in range(len(shares) - BACK_SECONDS + 1):
        if min(shares[second : second + BACK_SECONDS]) >= BACK_SHARE:
            return second
    return None


def drive(
    producer: Program, worker: Program, scenario: Scenario, arrivals: Sequence[float]
) -> list[tuple[int, float]]:
    """Let clients put their tasks, and repeat tasks that are not done in time; return all puts."""
    puts: list[tuple[int, float]] = []
    begin, ties = time.monotonic() + 0.2, count()
    # When, a tie-breaker, the client, how often it has put, and the task that it waits for.
    events = [(at, next(ties), client, 0, -1) for client, at in enumerate(arrivals)]
    heapify(events)
    while events:
        at, _, client, before, task = heappop(events)
        time.sleep(max(0.0, begin + at - time.monotonic()))
        if task < 0:
            task = len(puts)
            puts.append((client, time.monotonic()))
            producer.tell(task)
            if before < scenario.retries:
                gives_up = puts[task][1] - begin + LIMIT_SECONDS
                heappush(events, (gives_up, next(ties), client, before + 1, task))
        elif task not in worker.runs:
            pause_seconds = Random(f"{client}/{before}").uniform(0, PAUSE_SECONDS)
            heappush(events, (at + pause_seconds, next(ties), client, before, -1))
    return puts


class Databases:
    """New databases on a PostgreSQL server, one for each run."""

    def __init__(self, server: Postgres) -> None:
        """Make none yet."""
        self._server, self._numbers = server, count()

    def new(self, own: str) -> str:
        """Return the address of a new database, as a queue of this name takes it."""
        name = f"run{next(self._numbers)}"
        where = new_database(self._server, name)
        return self._server.url.replace("/postgres", f"/{name}") if own == "freshq" else where


class Place:
    """The PostgreSQL server of the contenders, and the interpreter with the other queues."""

    def __init__(self, server: Postgres, python: str, seconds: float) -> None:
        """Measure nothing yet.

        Args:
            server: The server; each run has its own database.
            python: The interpreter.
            seconds: Length of a phase.
        """
        self._databases, self._python, self._seconds = Databases(server), python, seconds
        self._seeds = Counter[tuple[str, str]]()
        self.versions: dict[str, str | None] = {}

    def measure(self, name: str, scenario_name: str) -> dict[str, Any] | None:
        """Run a contender once; return None if it is not installed."""
        peer, scenario = CONTENDERS[name].peer, SCENARIOS[scenario_name]
        own = peer.partition("@")[0]
        python = sys.executable if own == "freshq" else self._python
        with tempfile.TemporaryDirectory() as folder:
            where = f"{folder}/tasks.db" if own == "huey" else self._databases.new(own)
            self.versions[own] = fill_peer(python, peer, where, 0)
            if self.versions[own] is None:
                return None
            self._seeds[name, scenario_name] += 1
            arrivals = scenario.arrivals(self._seconds, self._seeds[name, scenario_name])
            worker, producer = (Program(python, verb, peer, where) for verb in ("serve", "offer"))
            puts = drive(producer, worker, scenario, arrivals)
            time.sleep(LIMIT_SECONDS)
            producer.end()
            worker.end()
        outcome = Outcome(arrivals, puts, worker.runs, producer.left)
        return outcome.measures(self._seconds, len(scenario.loads))


def main(seeds: int = 2, seconds: float = 15.0, peers: str = sys.executable) -> None:
    """Measure all contenders under each load, in turns, and draw the picture."""
    with Postgres() as server:
        place = Place(server, peers, seconds)
        pairs = product(CONTENDERS, SCENARIOS)
        found = in_turns({pair: partial(place.measure, *pair) for pair in pairs}, seeds)
    runs: Runs = {}
    for (name, scenario), each in found.items():
        if None not in each:
            runs.setdefault(name, {})[scenario] = each
    report = {"seeds": seeds, "seconds": seconds, "versions": place.versions, "contenders": runs}
    figures.write("overload_peers", report)
    colours = {name: contender.colour for name, contender in CONTENDERS.items()}
    retrying = f"A load of 1.5, then of {LATER_LOAD:g}; clients try again"
    draw_peers(*shares_by_load_and_second(runs), colours, retrying)


def shares_by_load_and_second(runs: Runs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the shares done in time by queue and load, and by second while clients try again."""
    by_load = [
        {"queue": name, "load": load, "share": possible_ratio(of[load], float(load))}
        for name, of in runs.items()
        for load in LOADS
    ]
    by_second = [
        {"queue": name, "second": second + 0.5, "share": fmean(shares)}
        for name, of in runs.items()
        for second, shares in enumerate(zip(*[run["by_second"] for run in of[RETRYING]], strict=True))
    ]
    return by_load, by_second
