"""Speed of the simulator on one core, by policy, in simulated tasks per second."""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from benchmarks import figures
from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.pressure import Door
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.simulate import Load, Source, simulate_load

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVERS: Final = 10
DEADLINE_SECONDS: Final = 10.0
LOADS: Final = (0.8, 3.0)
# Many short runs: the fastest is what the code can do, whatever else the machine does.
TASKS: Final = 20_000
ROUNDS: Final = 25
POLICIES: Final[Mapping[str, OverloadRules]] = {
    "LIFO": OverloadRules(DEADLINE_SECONDS),
    "FIFO": OverloadRules(DEADLINE_SECONDS, Order.FIFO),
    "LIFO, reserve p90": OverloadRules(DEADLINE_SECONDS, reserve=ReserveRule(quantile=0.9)),
    "adaptive": OverloadRules(DEADLINE_SECONDS, Order.ADAPTIVE),
    "FIFO, CoDel": OverloadRules(DEADLINE_SECONDS, Order.FIFO, codel=CodelRule(0.5, 1.0)),
    "LIFO, bounded": OverloadRules(DEADLINE_SECONDS, backlog=BacklogLimit(50)),
    "LIFO, door": OverloadRules(DEADLINE_SECONDS, door=Door(2.0)),
    "LIFO, 2 groups in turn": OverloadRules(DEADLINE_SECONDS, fair=True),
}


def load_at(load: float, *, groups: bool) -> Load:
    """Return a load, given as a multiple of capacity."""
    rate_per_second = load * SERVERS
    return Source(
        rate_per_second=rate_per_second,
        duration_seconds=TASKS / rate_per_second,
        deadline_seconds=DEADLINE_SECONDS,
        groups={"quiet": 1, "busy": 9} if groups else {},
    ).load()


def tasks_per_second(load: Load, rules: OverloadRules) -> float:
    """Return the speed of one simulation."""
    started = time.perf_counter()
    simulate_load(load, rules, SERVERS)
    return len(load) / (time.perf_counter() - started)


def main() -> None:
    """Time each policy at each load, the policies interleaved; print and write the fastest runs."""
    table = Table(
        "policy", *(f"at {load:g}x" for load in LOADS), title="simulated tasks per second, one core"
    )
    loads = {(load, fair): load_at(load, groups=fair) for load in LOADS for fair in (False, True)}
    fastest = {name: {f"{load:g}": 0 for load in LOADS} for name in POLICIES}
    for _, (name, rules), load in product(range(ROUNDS), POLICIES.items(), LOADS):
        speed = round(tasks_per_second(loads[load, rules.fair], rules))
        fastest[name][f"{load:g}"] = max(speed, fastest[name][f"{load:g}"])
    for name, speeds in fastest.items():
        table.add_row(name, *(f"{speed:,}" for speed in speeds.values()))
    Console().print(table)
    figures.write("simulator", {"rounds": ROUNDS, "tasks": TASKS, "tasks_per_second": fastest})


if __name__ == "__main__":
    main()
