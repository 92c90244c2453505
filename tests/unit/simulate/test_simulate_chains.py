"""Chains of tasks that share one deadline: the simulator against the optimum, and against a real queue."""

import pytest

from freshq import Overloaded, Queue
from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.policy.shedding import ShedReason
from freshq.simulate import ServiceDistribution, Source, Stress, simulate_chains, simulate_stressed
from freshq.simulate.backlog import Fates
from tests.conftest import Clock
from tests.support.refusals import refused

SERVERS = 10
DEADLINE_SECONDS = 20.0


@pytest.mark.matrix("hops")
@pytest.mark.parametrize("service", list(ServiceDistribution))
@pytest.mark.parametrize("hops", [3, 1, 2, 4])
def test_at_twice_the_capacity_chains_get_all_that_is_possible(
    hops: int, service: ServiceDistribution
) -> None:
    """The optimum does half of the chains, and works for no other."""
    rate_per_second = 2.0 * SERVERS / hops
    load = Source(rate_per_second, 1000.0, DEADLINE_SECONDS, service=service, seed=7).load()
    result = simulate_chains(load, OverloadRules(DEADLINE_SECONDS), SERVERS, hops)
    assert result.done_ratio >= 0.48
    assert result.useful_ratio >= 0.95


def test_oldest_first_loses_most_chains() -> None:
    load = Source(5.0, 1000.0, DEADLINE_SECONDS, seed=7).load()
    assert simulate_chains(load, OverloadRules(DEADLINE_SECONDS, Order.FIFO), SERVERS, 4).done_ratio < 0.25


def test_a_queue_refuses_the_same_children() -> None:
    """One server, and chains of two: the simulator does the same as `put(parent=...)`."""
    load = Source(0.4, 2000.0, 6.0, seed=3).load()
    simulated = simulate_stressed(load, OverloadRules(6.0), 1, Stress(hops=2))
    clock = Clock(0.0)
    queue = Queue.memory(max_age_seconds=6.0, clock=clock)
    count = len(load)
    fates = []
    arrivals = [(round(created, 6), number) for number, created in enumerate(load.created)]
    while arrivals or queue.peek(1):
        while arrivals and arrivals[0][0] <= clock.now:
            clock_now, clock.now = clock.now, arrivals[0][0]
            queue.put(arrivals.pop(0)[1], kind="0")
            clock.now = clock_now
        claims = queue.claim()
        if not claims:
            if arrivals:
                clock.now = arrivals[0][0]
            continue
        (claim,) = claims
        hop, number = int(claim.task.kind or 0), claim.task.payload
        ends = round(clock.now + load.service[(number + hop * count // 2) % count], 6)
        while arrivals and arrivals[0][0] <= ends:
            clock.now, arrived = arrivals.pop(0)
            queue.put(arrived, kind="0")
        clock.now = ends
        queue.complete(claim)
        if hop == 0:
            try:
                queue.put(number, kind="1", parent=claim)
            except Overloaded as error:
                fates.append(error.reason)
        else:
            fates.append("done" if ends <= claim.task.stale_at else "late")
    refused = simulated.fates.count(Fates.SHED[ShedReason.DEADLINE])
    assert fates.count("deadline") == refused > 10
    assert queue.stats().shed_by_reason["deadline"] == refused


def test_a_chain_has_at_least_one_task() -> None:
    with refused("hops"):
        Stress(hops=0)
    load = Source(1.0, 1000.0, 1.0, seed=1).load()
    with refused("hops"):
        simulate_chains(load, OverloadRules(1.0), 1, 100_000)
