"""Several policies under the same loads, from half to ten times the capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.simulate.engine import simulate_load
from freshq.simulate.load import ArrivalProcess, ServiceDistribution, Source
from freshq.simulate.results import Result, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOADS: Final = (0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
# Length of a simulation, in mean service times: goodput is accurate to about 0.007 at ten servers.
SERVICES: Final = 2000


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy under one load.

    Attributes:
        policy: Name of the policy.
        load: Service time offered per second of a server.
        result: The measures.
    """

    policy: str
    load: float
    result: Result


def policies(deadline_seconds: float, servers: int) -> dict[str, OverloadRules]:
    """Return the policies that a load sweep compares, by name.

    CoDel's target is a twentieth of the deadline, its interval a tenth. The bounded backlog holds one
    task per server.
    """
    percentile = ReserveRule(quantile=0.9)
    codel = CodelRule(deadline_seconds / 20, deadline_seconds / 10)
    return {
        "FIFO": OverloadRules(deadline_seconds, Order.FIFO),
        "FIFO, reserve p90": OverloadRules(deadline_seconds, Order.FIFO, percentile),
        "FIFO, CoDel": OverloadRules(deadline_seconds, Order.FIFO, codel=codel),
        "FIFO, bounded": OverloadRules(deadline_seconds, Order.FIFO, backlog=BacklogLimit(servers)),
        "LIFO": OverloadRules(deadline_seconds),
        "LIFO, reserve p90": OverloadRules(deadline_seconds, reserve=percentile),
        "adaptive, reserve p90": OverloadRules(deadline_seconds, Order.ADAPTIVE, percentile),
    }


def load_sweep(
    compared: Mapping[str, OverloadRules],
    servers: int,
    *,
    arrivals: ArrivalProcess = ArrivalProcess.POISSON,
    service: ServiceDistribution = ServiceDistribution.EXP,
    service_mean_seconds: float = 1.0,
    duration_seconds: float | None = None,
    seed: int = 1,
) -> Iterator[Cell]:
    """Yield the measures of every policy under every load. All policies get the same arrivals.

    Args:
        compared: The policies by name; they must have the same deadline.
        servers: Number of servers.
        arrivals: How arrivals are spread.
        service: Distribution of the service times.
        service_mean_seconds: Mean service time.
        duration_seconds: How long tasks arrive under each load; None: `SERVICES` mean service times.
        seed: Seed of the draws.
    """
    (deadline_seconds,) = {rules.deadline_seconds for rules in compared.values()}
    for load in LOADS:
        source = Source(
            rate_per_second=load * servers / service_mean_seconds,
            duration_seconds=duration_seconds or SERVICES * service_mean_seconds,
            deadline_seconds=deadline_seconds,
            arrivals=arrivals,
            service=service,
            service_mean_seconds=service_mean_seconds,
            seed=seed,
        )
        tasks = source.load()
        for name, rules in compared.items():
            yield Cell(name, load, summarize(simulate_load(tasks, rules, servers, seed)))
