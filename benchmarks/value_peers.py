"""Value that real workers deliver under overload, compared with other queues and their priorities.

A worker with four slots runs tasks that sleep for 200 ms and are worth 10, 4 or 1, and nothing 4 s after
their put. The other queues get the values as priorities where they have any. Contenders take turns, as in
`benchmarks.overload_peers`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from local.servers import Postgres

from benchmarks import figures
from benchmarks.figures import in_turns
from benchmarks.overload_peers import SLOTS, Databases, Program
from benchmarks.peers import VALUES
from benchmarks.worker import fill_peer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASK_SECONDS: Final = 0.2
LIMIT_SECONDS: Final = 4.0
# The share of the tasks of each of the `VALUES`.
SHARES: Final = (0.2, 0.3, 0.5)
LOADS: Final = (1.0, 1.5, 3.0, 10.0)
# Name and option for `benchmarks.peers`.
CONTENDERS: Final = {
    "freshq, by value": "freshq@value/4",
    "freshq, levels by value": "freshq@levels/4",
    "freshq, newest first": "freshq@lifo/4",
    "huey, priorities, expires=4": "huey@4",
    "oban, priorities": "oban",
    "procrastinate, priorities": "procrastinate",
    "Celery, expires=4": "celery@4",
}


class Arrival(NamedTuple):
    """The value of a task, and when it is put, in seconds from the start."""

    at: float
    value: float


def arrivals(load: float, seconds: float, seed: int) -> list[Arrival]:
    """Return the tasks that are put within some seconds at a load, as a multiple of the capacity."""
    rng, now, found = Random(f"{load}/{seed}"), 0.0, []
    while (now := now + rng.expovariate(load * SLOTS / TASK_SECONDS)) < seconds:
        found.append(Arrival(now, rng.choices(VALUES, SHARES)[0]))
    return found


def most_value(tasks: Sequence[Arrival], seconds: float) -> float:
    """Return the most that can be delivered: the dearest tasks that the slots have time for."""
    places = round((seconds + LIMIT_SECONDS) / TASK_SECONDS * SLOTS)
    return sum(sorted((task.value for task in tasks), reverse=True)[:places])


def delivered(
    tasks: Sequence[Arrival], puts: Sequence[float], runs: Mapping[int, tuple[float, float]]
) -> float:
    """Return the value of the tasks that were done in time.

    Args:
        tasks: The tasks.
        puts: When each was put, by the machine's monotonic clock.
        runs: Start and end of each run by the number of its task.
    """
    in_time = (number for number, (_, end) in runs.items() if end - puts[number] <= LIMIT_SECONDS)
    return sum(tasks[number].value for number in in_time)


def drive(producer: Program, tasks: Sequence[Arrival]) -> list[float]:
    """Put tasks; return when."""
    puts, begin = [], time.monotonic() + 0.2
    for number, task in enumerate(tasks):
        time.sleep(max(0.0, begin + task.at - time.monotonic()))
        puts.append(time.monotonic())
        producer.tell(f"{number} {task.value} {TASK_SECONDS}")
    return puts


@dataclass
class Place:
    """Where the contenders run.

    Attributes:
        databases: Gives each run a database of its own.
        python: The interpreter in which other queues are installed.
        seconds: How long tasks are put.
        versions: The version of each queue; None if it is not installed.
    """

    databases: Databases
    python: str
    seconds: float
    versions: dict[str, str | None]

    def __post_init__(self) -> None:
        """Begin with the first seed of each pair."""
        self._seeds = dict.fromkeys(product(CONTENDERS, LOADS), 0)

    def measure(self, name: str, load: float) -> float | None:
        """Return the share of the most value that a contender delivers; None if it is not installed."""
        peer = CONTENDERS[name]
        own = peer.partition("@")[0]
        python = sys.executable if own == "freshq" else self.python
        with tempfile.TemporaryDirectory() as folder:
            where = f"{folder}/tasks.db" if own == "huey" else self.databases.new(own)
            self.versions[own] = fill_peer(python, peer, where, 0)
            if self.versions[own] is None:
                return None
            self._seeds[name, load] += 1
            tasks = arrivals(load, self.seconds, self._seeds[name, load])
            worker, producer = (Program(python, verb, peer, where) for verb in ("serve", "offer"))
            puts = drive(producer, tasks)
            time.sleep(LIMIT_SECONDS + TASK_SECONDS)
            producer.end()
            worker.end()
        return round(delivered(tasks, puts, worker.runs) / most_value(tasks, self.seconds), 4)


def main(seeds: int = 2, seconds: float = 16.0, peers: str = sys.executable) -> None:
    """Measure all contenders under each load, in turns."""
    with Postgres() as server:
        place = Place(Databases(server), peers, seconds, {})
        found = in_turns({pair: partial(place.measure, *pair) for pair in product(CONTENDERS, LOADS)}, seeds)
    shares: dict[str, dict[str, Any]] = {}
    for (name, load), each in found.items():
        if None not in each:
            shares.setdefault(name, {})[f"{load:g}"] = each
    report = {"seeds": seeds, "seconds": seconds, "versions": place.versions, "contenders": shares}
    figures.write("value_peers", report)
