"""The deployed application under load in several orders, on the embedded emulator."""

from __future__ import annotations

import os
import random
import tempfile
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import boto3
from local.deploy import build, deploy
from local.emulator import Emulator
from local.facts import lives_of, percentile, read_changes, slot_seconds, versions_by_task

from benchmarks.overload_setting import (
    FIRST_SECONDS,
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    ORDERS,
    SERVERS,
)
from freshq import Order, Queue, TaskStatus
from freshq.policy.rules import OverloadRules
from freshq.simulate import Load, simulate_load
from freshq.simulate.backlog import Fates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local.facts import Life
    from rich.console import Console

BUILD: Final = Path("build/local")
PUTTERS: Final = 8
PATIENCE_SECONDS: Final = 240.0
PARAMETERS: Final[dict[str, str | int]] = {
    "MaxAgeSeconds": str(MEASURED_DEADLINE_SECONDS),
    "Concurrency": SERVERS,
    "DemoCapacity": SERVERS,
    "DemoTaskSeconds": str(MEASURED_TASK_SECONDS),
    "PassSeconds": 100,
    "SettleSeconds": 5,
    # The simulator knows no worker that waits to be woken, and no log.
    "BatchingWindowSeconds": 0,
    "LogSampleRatio": "0.1",
}


class _Application:
    """The application in one order, on an emulator that it shares with the others."""

    def __init__(self, emulator: Emulator, name: str, order: Order) -> None:
        stack = f"freshq-{order.value}"
        outputs = deploy(emulator, build(BUILD), PARAMETERS | {"Order": order.value}, stack=stack)
        self.name, self.order = name, order
        self.table = outputs["QueueTableName"]
        self._emulator = emulator
        client = boto3.client("dynamodb", **emulator.connection)
        self.queue = Queue.dynamodb(self.table, client, max_age_seconds=MEASURED_DEADLINE_SECONDS)

    def is_warm(self) -> bool:
        """Return whether a first task was done; put one if none waits."""
        stats = self.queue.stats()
        if stats.success == 0 and stats.pending + stats.taken == 0:
            self.queue.put("first")
        return stats.success > 0

    def is_done(self) -> bool:
        """Return whether nothing waits or runs."""
        stats = self.queue.stats()
        return stats.pending + stats.taken == 0

    def lives(self, load: float) -> list[Life]:
        """Return the tasks of a load, from the table's stream of changes."""
        streams = boto3.client("dynamodbstreams", **self._emulator.connection)
        versions = versions_by_task(read_changes(streams, self.table))
        lives = lives_of(versions, time.time())
        return [life for life in lives if versions[life.task_id][0].payload == load]


def measured(console: Console) -> list[dict[str, Any]]:
    """Measure the orders under each load, side by side with the same arrivals."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="freshq-overload-") as folder,
        Emulator(Path(folder) / "emulator.log") as emulator,
    ):
        applications = [_Application(emulator, name, order) for name, order in ORDERS.items()]
        _wait([application.is_warm for application in applications])
        for load, seconds in MEASURED_SECONDS.items():
            before = round(os.getloadavg()[0], 1)
            began = _offer(applications, load, seconds)
            _wait([application.is_done for application in applications])
            for application in applications:
                figure = figures_of(application.lives(load), application.order, began, seconds, load)
                found.append({"order": application.name, "offered": load, "machine_load": before} | figure)
                console.print(found[-1])
    return found


def figures_of(
    lives: Sequence[Life], order: Order, began: float, seconds: float, offered: float
) -> dict[str, Any]:
    """Return what was offered and done in time, as shares of capacity, after the first seconds.

    The capacity is that of the slots as they were: the emulator, on a machine that it shares, needs time to
    claim and to settle, which an account does not.

    Args:
        lives: The tasks.
        order: The order of service.
        began: When the load began, in seconds since the epoch.
        seconds: How long it lasted.
        offered: The load that was meant, as a multiple of capacity.
    """
    start, end = began + FIRST_SECONDS, began + seconds
    slowest = slot_seconds(lives, SERVERS) if offered > 1 else _run_seconds(lives)
    occupied_seconds = max(MEASURED_TASK_SECONDS, slowest)
    capacity = (end - start) * SERVERS / occupied_seconds
    done = [life for life in lives if _is_in_time(life) and start <= (life.ended or 0.0) <= end]
    waits = [life.wait_seconds for life in done if life.wait_seconds is not None]
    arrived = sum(start <= life.created < end for life in lives)
    expected = sum(start <= ended <= end for ended in simulated_ends(lives, order, began, occupied_seconds))
    return {
        "load": round(arrived / capacity, 3),
        "arrived": arrived,
        "done": len(done),
        "simulated_done": expected,
        # At the edges of the time one task more may end than the slots do on average.
        "goodput": min(1.0, round(len(done) / capacity, 3)),
        "simulated_goodput": min(1.0, round(expected / capacity, 3)),
        "slot_seconds": round(occupied_seconds, 3),
        "wait_p50_seconds": percentile(waits, 50),
        "wait_p99_seconds": percentile(waits, 99),
    }


def simulated_ends(lives: Sequence[Life], order: Order, began: float, occupied_seconds: float) -> list[float]:
    """Return when the simulator ends those of the same arrivals that it does in time.

    Args:
        lives: The tasks, by the time at which they were put.
        order: The order of service.
        began: When the load began, in seconds since the epoch, as is every end returned.
        occupied_seconds: How long each task occupies its slot.
    """
    tasks = Load(
        created=array("d", [life.created - began for life in lives]),
        service=array("d", [occupied_seconds] * len(lives)),
        deadline=array("d", [life.deadline - began for life in lives]),
        duration_seconds=max(life.created for life in lives) - began,
        levels=b"",
        groups=[],
    )
    served = simulate_load(tasks, OverloadRules(MEASURED_DEADLINE_SECONDS, order), SERVERS)
    return [
        began + started + occupied_seconds
        for fate, started in zip(served.fates, served.starts, strict=True)
        if fate == Fates.IN_TIME
    ]


def _is_in_time(life: Life) -> bool:
    return life.fate is TaskStatus.SUCCESS and life.ended is not None and life.ended <= life.deadline


def _run_seconds(lives: Sequence[Life]) -> float:
    """Return how long tasks ran, on average: where slots are free, nothing waits for their end."""
    return fmean(
        life.ended - life.claims[-1].taken for life in lives if life.ended is not None and life.claims
    )


def _offer(applications: Sequence[_Application], load: float, seconds: float) -> float:
    """Put the same tasks into every queue at random times; return when that began."""
    rng = random.Random(11)
    rate_per_second = load * SERVERS / MEASURED_TASK_SECONDS
    with ThreadPoolExecutor(PUTTERS) as pool:
        began, at, puts = time.time(), 0.0, []
        while (at := at + rng.expovariate(rate_per_second)) < seconds:
            time.sleep(max(0.0, began + at - time.time()))
            puts += [pool.submit(application.queue.put, load) for application in applications]
        for put in puts:
            put.result()
    return began


def _wait(conditions: Sequence[Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(condition() for condition in conditions):
        if time.monotonic() > deadline:
            msg = f"the application was not ready, or not done, within {PATIENCE_SECONDS:g} s"
            raise TimeoutError(msg)
        time.sleep(0.5)
