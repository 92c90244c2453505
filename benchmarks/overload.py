"""Goodput under load: simulated for several orders, and measured of the deployed application on the emulator.

    python -m benchmarks.overload [--simulated]

It writes benchmarks/results/overload.json, and draws docs/overload.png from it. With --simulated only the
simulator runs, and the measured figures stay.
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import product
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import figures
from benchmarks.overload_application import measured
from benchmarks.overload_plot import PICTURE, draw
from benchmarks.overload_setting import (
    BURST_FACTOR,
    BURST_LOAD,
    BURST_SECONDS,
    BURST_STARTS,
    DEADLINE_SECONDS,
    ORDERS,
    QUIET_LOAD,
    SERVERS,
    TASK_SECONDS,
    burst_figures,
    counts_of,
    ends_in_time,
)
from benchmarks.overload_setting import SEEDS as BURST_SEEDS
from freshq import Order
from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.pressure import Door
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.simulate import (
    Burst,
    Load,
    ServiceDistribution,
    Source,
    load_sweep,
    policies,
    simulate_load,
    summarize,
)
from freshq.simulate.backlog import Fates
from freshq.simulate.sweep import LOADS as SWEPT_LOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SPEED_SERVERS: Final = 10
SPEED_DEADLINE_SECONDS: Final = 10.0
SPEED_LOADS: Final = (0.8, 3.0)
# Many short runs: the fastest is what the code can do, whatever else the machine does.
SPEED_TASKS: Final = 20_000
SPEED_ROUNDS: Final = 25
POLICIES: Final[Mapping[str, OverloadRules]] = {
    "LIFO": OverloadRules(SPEED_DEADLINE_SECONDS),
    "FIFO": OverloadRules(SPEED_DEADLINE_SECONDS, Order.FIFO),
    "LIFO, reserve p90": OverloadRules(SPEED_DEADLINE_SECONDS, reserve=ReserveRule(quantile=0.9)),
    "adaptive": OverloadRules(SPEED_DEADLINE_SECONDS, Order.ADAPTIVE),
    "FIFO, CoDel": OverloadRules(SPEED_DEADLINE_SECONDS, Order.FIFO, codel=CodelRule(0.5, 1.0)),
    "LIFO, bounded": OverloadRules(SPEED_DEADLINE_SECONDS, backlog=BacklogLimit(50)),
    "LIFO, door": OverloadRules(SPEED_DEADLINE_SECONDS, door=Door(2.0)),
    "LIFO, 2 groups in turn": OverloadRules(SPEED_DEADLINE_SECONDS, fair=True),
}


def load_at(load: float, *, groups: bool) -> Load:
    """Return a load, given as a multiple of capacity."""
    rate_per_second = load * SPEED_SERVERS
    return Source(
        rate_per_second=rate_per_second,
        duration_seconds=SPEED_TASKS / rate_per_second,
        deadline_seconds=SPEED_DEADLINE_SECONDS,
        groups={"quiet": 1, "busy": 9} if groups else {},
    ).load()


def tasks_per_second(load: Load, rules: OverloadRules) -> float:
    """Return the speed of one simulation."""
    started = time.perf_counter()
    simulate_load(load, rules, SPEED_SERVERS)
    return len(load) / (time.perf_counter() - started)


def simulator_main() -> None:
    """Time each policy at each load, the policies interleaved; print and write the fastest runs."""
    table = Table(
        "policy", *(f"at {load:g}x" for load in SPEED_LOADS), title="simulated tasks per second, one core"
    )
    loads = {(load, fair): load_at(load, groups=fair) for load in SPEED_LOADS for fair in (False, True)}
    fastest = {name: {f"{load:g}": 0 for load in SPEED_LOADS} for name in POLICIES}
    for _, (name, rules), load in product(range(SPEED_ROUNDS), POLICIES.items(), SPEED_LOADS):
        speed = round(tasks_per_second(loads[load, rules.fair], rules))
        fastest[name][f"{load:g}"] = max(speed, fastest[name][f"{load:g}"])
    for name, speeds in fastest.items():
        table.add_row(name, *(f"{speed:,}" for speed in speeds.values()))
    Console().print(table)
    figures.write("simulator", {"rounds": SPEED_ROUNDS, "tasks": SPEED_TASKS, "tasks_per_second": fastest})


LOADS: Final = (0.5, 0.8, 0.95, 1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
SEEDS: Final = range(1, 11)
# Of Student's t distribution, for the middle 95 % of the mean of ten.
T_OF_TEN: Final = 2.262
# So many service times make a simulation long beside its beginning.
SECONDS: Final = 1000.0 * TASK_SECONDS
SOURCE: Final = "JavaScript prototype"
RULES: Final = {name: OverloadRules(DEADLINE_SECONDS, order) for name, order in ORDERS.items()}
TENANTS: Final = {
    "newest first, groups in turn": OverloadRules(DEADLINE_SECONDS, fair=True),
    "newest first, one line": OverloadRules(DEADLINE_SECONDS),
    "first in, first out": OverloadRules(DEADLINE_SECONDS, Order.FIFO),
}
SWEEP_SERVERS, SWEEP_DEADLINE_SECONDS = 10, 10.0


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of the shares of ten seeds, and the half width of its 95 % interval.

    Only by chance is a share above 1; a mean above 1 is given as 1.
    """
    half = T_OF_TEN * stdev(values) / math.sqrt(len(values))
    return {"mean": round(min(1.0, fmean(values)), 4), "half_width": round(half, 4)}


def offered(load: float, seed: int, **more: Any) -> Load:
    """Return tasks that arrive at random at a load, given as a multiple of capacity; each takes the same."""
    usual: dict[str, Any] = {"duration_seconds": SECONDS, "service": ServiceDistribution.DET}
    return Source(
        rate_per_second=load * SERVERS / TASK_SECONDS,
        deadline_seconds=DEADLINE_SECONDS,
        service_mean_seconds=TASK_SECONDS,
        seed=seed,
        **usual | more,
    ).load()


def goodput(tasks: Load, name: str, seed: int) -> float:
    """Return what was done in time while tasks arrived, as a share of capacity."""
    if name == SOURCE:
        ends = ends_in_time(tasks, SERVERS, TASK_SECONDS).values()
        done = sum(end <= tasks.duration_seconds for end in ends)
        return done * TASK_SECONDS / (SERVERS * tasks.duration_seconds)
    return summarize(simulate_load(tasks, RULES[name], SERVERS, seed)).goodput_ratio


def by_load(service: ServiceDistribution = ServiceDistribution.DET) -> list[dict[str, Any]]:
    """Return the goodput of every order under every load; all have the same arrivals.

    Args:
        service: The distribution of the times that tasks take; by default all take the same.
    """
    found = []
    for load in LOADS:
        tasks = {seed: offered(load, seed, service=service) for seed in SEEDS}
        found += [
            {"order": name, "load": load, **interval([goodput(tasks[seed], name, seed) for seed in SEEDS])}
            for name in (*RULES, SOURCE)
        ]
    return found


def by_load_uneven() -> list[dict[str, Any]]:
    """Return the same for tasks of unequal length; the prototype's slots wait for the longest."""
    return by_load(ServiceDistribution.EXP)


def in_time(tasks: Load, name: str, seed: int) -> set[int]:
    """Return the indices of the tasks that were done in time."""
    if name == SOURCE:
        return set(ends_in_time(tasks, SERVERS, TASK_SECONDS))
    fates = simulate_load(tasks, RULES[name], SERVERS, seed).fates
    return {index for index, fate in enumerate(fates) if fate == Fates.IN_TIME}


def of_burst() -> dict[str, list[dict[str, Any]]]:
    """Return what every order does before, in and after a burst; all have the same arrivals."""
    burst = Burst(BURST_FACTOR, BURST_STARTS, BURST_SECONDS)
    loads = {
        seed: offered(BURST_LOAD, seed, duration_seconds=burst.end + BURST_STARTS, burst=burst)
        for seed in BURST_SEEDS
    }
    return burst_figures(
        {
            name: [counts_of(tasks.created, in_time(tasks, name, seed)) for seed, tasks in loads.items()]
            for name in (*RULES, SOURCE)
        }
    )


def by_flood() -> list[dict[str, Any]]:
    """Return the share of a quiet tenant's tasks that was done in time, beside floods."""
    found = []
    for load in LOADS:
        shares: dict[str, list[float]] = {name: [] for name in TENANTS}
        for seed in SEEDS:
            tasks = offered(load + QUIET_LOAD, seed, groups={"quiet": QUIET_LOAD, "flood": load})
            for name, rules in TENANTS.items():
                quiet = summarize(simulate_load(tasks, rules, SERVERS, seed)).by_group["quiet"]
                shares[name].append(quiet.served_in_time / quiet.offered)
        found += [{"tenants": name, "load": load, **interval(each)} for name, each in shares.items()]
    return found


def by_policy() -> list[dict[str, Any]]:
    """Return the goodput of every policy of `freshq simulate --sweep`, with exponential service times."""
    compared = policies(SWEEP_DEADLINE_SECONDS, SWEEP_SERVERS)
    cells: dict[tuple[str, float], list[float]] = {}
    for seed in SEEDS:
        for cell in load_sweep(compared, SWEEP_SERVERS, seed=seed):
            # What chance lets pass beyond what is offered, or can be done, is no merit of the policy.
            best = min(cell.load, 1.0)
            cells.setdefault((cell.policy, cell.load), []).append(min(cell.result.goodput_ratio, best))
    return [
        {"policy": name, "load": load, **interval(cells[name, load])}
        for name in compared
        for load in SWEPT_LOADS
    ]


SIMULATED: Final[dict[str, Callable[[], list[dict[str, Any]]]]] = {
    "by_load": by_load,
    "by_load_uneven": by_load_uneven,
    "by_flood": by_flood,
    "by_policy": by_policy,
}


def main() -> None:
    """Simulate, measure, write the figures and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulated", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, Any] = {name: simulate() for name, simulate in SIMULATED.items()}
    report |= of_burst()
    if arguments.simulated:
        report["application"] = figures.figures_of("overload")["application"]
    else:
        report["application"] = measured(Console())
    figures.write("overload", report, ("ministack", "boto3"))
    draw(report, PICTURE)


if __name__ == "__main__":
    main()
