"""Goodput under load, simulated by order and measured in the deployed application on the emulator.

The part `outage` simulates clients that try again after an outage.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import boto3
from local.emulator import Emulator, build, demonstration, deploy
from local.facts import lives_of, percentile, read_changes, recorded, slot_seconds, versions_by_task
from rich.console import Console

from benchmarks import figures
from benchmarks import overload_setting as setting
from benchmarks.figures import in_turns
from benchmarks.pictures import AFTER_OUTAGE, draw_outage, draw_overload
from freshq import Order, Queue
from freshq.aws.pass_options import configure_stack
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import (
    Burst,
    Clients,
    Dip,
    Load,
    ServiceDistribution,
    Source,
    Stress,
    load_sweep,
    policies,
    simulate_load,
    simulate_stressed,
    summarize,
)  # fmt: skip
from freshq.simulate.backlog import Fates
from freshq.simulate.sweep import LOADS as SWEPT_LOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from local.facts import Life

BUILD: Final = Path("build/local")
PUTTERS: Final = 8
PATIENCE_SECONDS: Final = 240.0
# The simulator has no worker that waits to be woken.
PARAMETERS: Final[dict[str, str | int]] = {
    "BatchingWindowSeconds": 0,
    "Tracing": "off",
    **demonstration(setting.SERVERS, setting.MEASURED_TASK_SECONDS),
}
OPTIONS: Final[dict[str, Any]] = {
    "max_age_seconds": setting.MEASURED_DEADLINE_SECONDS,
    "concurrency": setting.SERVERS,
    "pass_seconds": 100,
    "settle_seconds": 5,
}


class _Application:
    """The application in one order, on an emulator shared by all orders."""

    def __init__(self, emulator: Emulator, name: str, order: Order) -> None:
        stack = f"freshq-{order.value}"
        outputs = deploy(emulator, build(BUILD), PARAMETERS, stack=stack)
        self.name, self.order = name, order
        self.table = outputs["QueueTableName"]
        self._emulator = emulator
        client = boto3.client("dynamodb", **emulator.connection)
        self.queue = Queue.dynamodb(self.table, client)
        configure_stack(self.queue, order=order, **OPTIONS)

    def is_warm(self) -> bool:
        """Return whether a first task is done; put one if none waits."""
        stats = self.queue.stats()
        if stats.success == 0 and stats.pending + stats.taken == 0:
            self.queue.put("first")
        return stats.success > 0

    def is_done(self) -> bool:
        """Return whether no task waits or runs."""
        stats = self.queue.stats()
        return stats.pending + stats.taken == 0

    def lives(self, load: float) -> list[Life]:
        """Return the tasks of a load from the table's change stream."""
        streams = boto3.client("dynamodbstreams", **self._emulator.connection)
        versions = versions_by_task(read_changes(streams, self.table))
        lives = lives_of(versions, time.time())
        return [life for life in lives if versions[life.task_id][0].payload == load]


def measured_application() -> list[dict[str, Any]]:
    """Return the figures of all orders under each load, measured side by side with the same arrivals."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="freshq-overload-") as folder,
        Emulator(Path(folder) / "emulator.log") as emulator,
    ):
        applications = [_Application(emulator, name, order) for name, order in setting.ORDERS.items()]
        _wait([application.is_warm for application in applications])
        for load, seconds in setting.MEASURED_SECONDS.items():
            before = round(os.getloadavg()[0], 1)
            began = _offer(applications, load, seconds)
            _wait([application.is_done for application in applications])
            for application in applications:
                figure = figures_of(application.lives(load), application.order, began, seconds, load)
                found.append({"order": application.name, "offered": load, "machine_load": before} | figure)
                Console(stderr=True).print(found[-1])
    return found


def figures_of(
    lives: Sequence[Life], order: Order, began: float, seconds: float, offered: float
) -> dict[str, Any]:
    """Return the offered load and the goodput as shares of capacity, without the first seconds.

    The capacity is computed from the measured time per task in a slot, because the emulator takes longer to
    claim and to settle than AWS.

    Args:
        lives: The tasks.
        order: The order of service.
        began: Start of the load in seconds since the epoch.
        seconds: Duration of the load.
        offered: The intended load as a multiple of capacity.
    """
    start, end = began + setting.FIRST_SECONDS, began + seconds
    slowest = slot_seconds(lives, setting.SERVERS) if offered > 1 else _run_seconds(lives)
    occupied_seconds = max(setting.MEASURED_TASK_SECONDS, slowest)
    capacity = (end - start) * setting.SERVERS / occupied_seconds
    done = [life for life in lives if life.is_in_time and start <= (life.ended or 0.0) <= end]
    waits = [life.wait_seconds for life in done if life.wait_seconds is not None]
    arrived = sum(start <= life.created < end for life in lives)
    expected = sum(start <= ended <= end for ended in simulated_ends(lives, order, began, occupied_seconds))
    return {
        "load": round(arrived / capacity, 3),
        "arrived": arrived,
        "done": len(done),
        "simulated_done": expected,
        # At the edges of the period, one task more than the average may end.
        "goodput": min(1.0, round(len(done) / capacity, 3)),
        "simulated_goodput": min(1.0, round(expected / capacity, 3)),
        "slot_seconds": round(occupied_seconds, 3),
        "wait_p50_seconds": percentile(waits, 50),
        "wait_p99_seconds": percentile(waits, 99),
    }


def simulated_ends(lives: Sequence[Life], order: Order, began: float, occupied_seconds: float) -> list[float]:
    """Return the ends of the tasks that the simulator completes in time, given the same arrivals.

    Args:
        lives: The tasks, by the time of their put.
        order: The order of service.
        began: Start of the load in seconds since the epoch, like the returned ends.
        occupied_seconds: How long each task occupies its slot.
    """
    load_seconds = max(life.created for life in lives) - began
    tasks = recorded(lives, occupied_seconds, load_seconds, [life.deadline for life in lives], start=began)
    served = simulate_load(tasks, OverloadRules(setting.MEASURED_DEADLINE_SECONDS, order), setting.SERVERS)
    return [
        began + started + occupied_seconds
        for fate, started in zip(served.fates, served.starts, strict=True)
        if fate == Fates.IN_TIME
    ]


def _run_seconds(lives: Sequence[Life]) -> float:
    """Return the mean run time of tasks: while slots are free, no task waits for the end of another."""
    return fmean(
        life.ended - life.claims[-1].taken for life in lives if life.ended is not None and life.claims
    )


def _offer(applications: Sequence[_Application], load: float, seconds: float) -> float:
    """Put the same tasks into every queue at random times; return the start."""
    rng = random.Random(11)
    rate_per_second = load * setting.SERVERS / setting.MEASURED_TASK_SECONDS
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
            msg = f"the application was not ready or done within {PATIENCE_SECONDS:g} s"
            raise TimeoutError(msg)
        time.sleep(0.5)


SWEEP_SERVERS, SWEEP_DEADLINE_SECONDS = 10, 10.0
SPEED_LOADS: Final = (0.8, 3.0)
# Many short runs: the fastest shows the speed of the code, whatever else the machine does.
SPEED_TASKS: Final = 20_000
SPEED_ROUNDS: Final = 25


def tasks_per_second(load: Load, rules: OverloadRules) -> float:
    """Return the simulated tasks a second of one run."""
    started = time.perf_counter()
    simulate_load(load, rules, SWEEP_SERVERS)
    return len(load) / (time.perf_counter() - started)


def simulator(rounds: int = SPEED_ROUNDS) -> None:
    """Measure the fastest simulation of each policy at each load, in turns."""
    loads = {
        load: Source(
            rate_per_second=load * SWEEP_SERVERS,
            duration_seconds=SPEED_TASKS / load / SWEEP_SERVERS,
            deadline_seconds=SWEEP_DEADLINE_SECONDS,
        ).load()
        for load in SPEED_LOADS
    }
    compared = policies(SWEEP_DEADLINE_SECONDS, SWEEP_SERVERS)
    found = in_turns(
        {
            (name, load): partial(tasks_per_second, loads[load], rules)
            for (name, rules), load in product(compared.items(), SPEED_LOADS)
        },
        rounds,
    )
    fastest = {
        name: {f"{load:g}": round(max(found[name, load])) for load in SPEED_LOADS} for name in compared
    }
    figures.write("simulator", {"rounds": rounds, "tasks": SPEED_TASKS, "tasks_per_second": fastest})


LOADS: Final = (0.5, 0.8, 0.95, 1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
SEEDS: Final = range(1, 11)
# Student's t for the 95 % interval of the mean of ten.
T_OF_TEN: Final = 2.262
# A simulation of this length hardly depends on its start.
SECONDS: Final = 1000.0 * setting.TASK_SECONDS
SOURCE: Final = "JavaScript prototype"
RULES: Final = {
    name: OverloadRules(setting.DEADLINE_SECONDS, order) for name, order in setting.ORDERS.items()
}
TENANTS: Final = {
    "newest first, groups in turn": OverloadRules(setting.DEADLINE_SECONDS, fair=True),
    "newest first, one line": OverloadRules(setting.DEADLINE_SECONDS),
    "first in, first out": OverloadRules(setting.DEADLINE_SECONDS, Order.FIFO),
}


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of the shares of ten seeds and the half width of its 95 % interval.

    A share above 1 is noise, so a mean above 1 becomes 1.
    """
    half = T_OF_TEN * stdev(values) / math.sqrt(len(values))
    return {"mean": round(min(1.0, fmean(values)), 4), "half_width": round(half, 4)}


def offered(load: float, seed: int, **more: Any) -> Load:
    """Return Poisson arrivals at `load` times the capacity; by default all take the same time."""
    usual: dict[str, Any] = {"duration_seconds": SECONDS, "service": ServiceDistribution.DET}
    return Source(
        rate_per_second=load * setting.SERVERS / setting.TASK_SECONDS,
        deadline_seconds=setting.DEADLINE_SECONDS,
        service_mean_seconds=setting.TASK_SECONDS,
        seed=seed,
        **usual | more,
    ).load()


def goodput(tasks: Load, name: str, seed: int) -> float:
    """Return the work done in time during the arrivals, as a share of capacity."""
    if name == SOURCE:
        ends = setting.ends_in_time(tasks, setting.SERVERS, setting.TASK_SECONDS).values()
        done = sum(end <= tasks.duration_seconds for end in ends)
        return done * setting.TASK_SECONDS / (setting.SERVERS * tasks.duration_seconds)
    return summarize(simulate_load(tasks, RULES[name], setting.SERVERS, seed)).goodput_ratio


def by_load(service: ServiceDistribution = ServiceDistribution.DET) -> list[dict[str, Any]]:
    """Return the goodput of every order under every load; all orders have the same arrivals.

    Args:
        service: Distribution of the service times; by default constant.
    """
    found = []
    for load in LOADS:
        tasks = {seed: offered(load, seed, service=service) for seed in SEEDS}
        found += [
            {"order": name, "load": load, **interval([goodput(tasks[seed], name, seed) for seed in SEEDS])}
            for name in (*RULES, SOURCE)
        ]
    return found


def in_time(tasks: Load, name: str, seed: int) -> set[int]:
    """Return the indices of the tasks done in time."""
    if name == SOURCE:
        return set(setting.ends_in_time(tasks, setting.SERVERS, setting.TASK_SECONDS))
    fates = simulate_load(tasks, RULES[name], setting.SERVERS, seed).fates
    return {index for index, fate in enumerate(fates) if fate == Fates.IN_TIME}


def of_burst() -> dict[str, list[dict[str, Any]]]:
    """Return the figures of every order around a burst; all orders have the same arrivals."""
    burst = Burst(setting.BURST_FACTOR, setting.BURST_STARTS, setting.BURST_SECONDS)
    loads = {
        seed: offered(
            setting.BURST_LOAD, seed, duration_seconds=burst.end + setting.BURST_STARTS, burst=burst
        )
        for seed in setting.SEEDS
    }
    return setting.burst_figures(
        {
            name: [
                setting.counts_of(tasks.created, in_time(tasks, name, seed)) for seed, tasks in loads.items()
            ]
            for name in (*RULES, SOURCE)
        }
    )


def by_flood() -> list[dict[str, Any]]:
    """Return the share of a quiet tenant's tasks done in time, alongside a flood."""
    found = []
    for load in LOADS:
        shares: dict[str, list[float]] = {name: [] for name in TENANTS}
        for seed in SEEDS:
            tasks = offered(
                load + setting.QUIET_LOAD, seed, groups={"quiet": setting.QUIET_LOAD, "flood": load}
            )
            for name, rules in TENANTS.items():
                quiet = summarize(simulate_load(tasks, rules, setting.SERVERS, seed)).by_group["quiet"]
                shares[name].append(quiet.served_in_time / quiet.offered)
        found += [{"tenants": name, "load": load, **interval(each)} for name, each in shares.items()]
    return found


def by_policy() -> list[dict[str, Any]]:
    """Return the goodput of every policy of `freshq simulate --sweep`, with exponential service times."""
    compared = policies(SWEEP_DEADLINE_SECONDS, SWEEP_SERVERS)
    cells: dict[tuple[str, float], list[float]] = {}
    for seed in SEEDS:
        for cell in load_sweep(compared, SWEEP_SERVERS, seed=seed):
            # Values above the offered load or the capacity are noise.
            best = min(cell.load, 1.0)
            cells.setdefault((cell.policy, cell.load), []).append(min(cell.result.goodput_ratio, best))
    return [
        {"policy": name, "load": load, **interval(cells[name, load])}
        for name in compared
        for load in SWEPT_LOADS
    ]


SIMULATED: Final[dict[str, Callable[[], list[dict[str, Any]]]]] = {
    "by_load": by_load,
    "by_load_uneven": partial(by_load, ServiceDistribution.EXP),
    "by_flood": by_flood,
    "by_policy": by_policy,
}


def main(*, simulated: bool = False) -> None:
    """Simulate, measure the application unless `simulated`, and draw the picture."""
    report: dict[str, Any] = {name: simulate() for name, simulate in SIMULATED.items()}
    report |= of_burst()
    report["application"] = (
        figures.figures_of("overload")["application"] if simulated else measured_application()
    )
    figures.write("overload", report)
    draw_overload(report)


OUTAGE_LOADS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
DRAWN_LOAD: Final = 0.7
OUTAGE_DEADLINE_SECONDS: Final = 5.0
NO_DEADLINE_SECONDS: Final = 1e9
CLIENTS: Final = Clients(OUTAGE_DEADLINE_SECONDS, 3)
OUTAGE: Final = Dip(60.0, 30.0)
OUTAGE_SECONDS: Final = 240.0
# Shares are of the arrivals from half a minute after the outage on.
FROM_SECONDS: Final = OUTAGE.end + 30.0
OUTAGE_RULES: Final = {
    "FIFO": OverloadRules(NO_DEADLINE_SECONDS, Order.FIFO),
    "FIFO with a deadline": OverloadRules(OUTAGE_DEADLINE_SECONDS, Order.FIFO),
    "FIFO with a deadline and the reserve": OverloadRules(
        OUTAGE_DEADLINE_SECONDS, Order.FIFO, ReserveRule(quantile=0.9)
    ),
    "LIFO": OverloadRules(NO_DEADLINE_SECONDS),
    "LIFO with a deadline": OverloadRules(OUTAGE_DEADLINE_SECONDS),
}


def goodput_after_outage(name: str, load: float, seed: int) -> list[float]:
    """Return the goodput of each 10 seconds, as a share of the rate of arrivals."""
    rules, rate = OUTAGE_RULES[name], load * SWEEP_SERVERS
    source = Source(rate, OUTAGE_SECONDS, rules.deadline_seconds, seed=seed)
    done = simulate_stressed(source.load(), rules, SWEEP_SERVERS, Stress(CLIENTS, OUTAGE), seed)
    return [each / rate for each in summarize(done).goodput_by_10_seconds]


def outage() -> None:
    """Simulate an outage, and draw the picture."""
    runs = {
        (name, load): [goodput_after_outage(name, load, seed) for seed in SEEDS]
        for name in OUTAGE_RULES
        for load in OUTAGE_LOADS
    }
    first = int(FROM_SECONDS / 10)
    by_load = [
        {"order": name, "load": load, **interval([sum(run[first:]) / len(run[first:]) for run in each])}
        for (name, load), each in runs.items()
    ]
    over_time = [
        {"order": name, "seconds": 10.0 * place + 5.0, "share": round(sum(rates) / len(rates), 4)}
        for name in AFTER_OUTAGE
        for place, rates in enumerate(zip(*runs[name, DRAWN_LOAD], strict=True))
    ]
    figures.write("outage", {"by_load": by_load, "over_time": over_time})
    draw_outage(over_time, DRAWN_LOAD, (OUTAGE.start, OUTAGE.end))
