"""The simulator against queueing theory: means over several seeds, with confidence intervals of 99.9 %."""

import math
import statistics
from functools import cache

import pytest

from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import Result, ServiceDistribution, Source, simulate_load, summarize, waits_in_time
from freshq.simulate.backlog import Fates
from tests.support.queueing import (
    assert_agrees,
    erlang_c,
    interval,
    md1_patience_loss,
    mm1_patience_loss,
    mmc_fifo_second_moment,
    mmc_wait,
    mmck_loss,
)

SEEDS = range(1, 9)
NO_DEADLINE = 1e9


def results(
    rules: OverloadRules,
    rate: float,
    tasks: int,
    servers: int = 1,
    service: ServiceDistribution = ServiceDistribution.EXP,
) -> list[Result]:
    """Return the result for each seed."""
    deadline = rules.deadline_seconds
    sources = (Source(rate, tasks / rate, deadline, service=service, seed=seed) for seed in SEEDS)
    return [summarize(simulate_load(source.load(), rules, servers)) for source in sources]


@cache
def moments(order: Order, rho: float, servers: int, tasks: int) -> tuple[list[float], list[float]]:
    """Return E[W] and E[W^2] over all tasks for each seed, with no deadline."""
    first, second = [], []
    rate = rho * servers
    for seed in SEEDS:
        load = Source(rate, tasks / rate, NO_DEADLINE, seed=seed).load()
        waits = waits_in_time(simulate_load(load, OverloadRules(NO_DEADLINE, order), servers))
        first.append(statistics.fmean(waits))
        second.append(math.fsum(wait * wait for wait in waits) / len(waits))
    return first, second


# --- a deadline on the wait


@pytest.mark.parametrize(("rho", "deadline"), [(0.8, 5.0), (1.5, 5.0), (3.0, 5.0), (0.95, 2.0)])
def test_loss_of_mm1_with_a_deadline(rho: float, deadline: float) -> None:
    lost = [result.shed_ratio for result in results(OverloadRules(deadline, Order.FIFO), rho, 20_000)]
    assert_agrees(lost, mm1_patience_loss(rho, deadline), within=0.15)


@pytest.mark.parametrize("rho", [0.8, 0.95, 1.5, 3.0])
def test_loss_of_md1_with_a_deadline(rho: float) -> None:
    done = results(OverloadRules(5.0, Order.FIFO), rho, 20_000, service=ServiceDistribution.DET)
    assert_agrees([result.shed_ratio for result in done], md1_patience_loss(rho, 5.0), within=0.3)


@pytest.mark.parametrize("order", list(Order))
def test_what_cannot_be_served_is_shed(order: Order) -> None:
    done = results(OverloadRules(10.0, order), 30.0, 20_000, servers=10)
    assert_agrees([result.shed_ratio for result in done], 1 - 1 / 3, within=0.03)


# --- no deadline: the wait


@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
@pytest.mark.parametrize(("servers", "rho"), [(1, 0.5), (1, 0.7), (10, 0.8)])
def test_mean_wait_of_mmc_is_the_same_in_both_orders(order: Order, servers: int, rho: float) -> None:
    first, _ = moments(order, rho, servers, 50_000)
    assert_agrees(first, mmc_wait(servers, rho), within=0.2)


@pytest.mark.parametrize(("servers", "rho"), [(1, 0.5), (1, 0.7)])
def test_second_moment_of_the_wait(servers: int, rho: float) -> None:
    _, fifo = moments(Order.FIFO, rho, servers, 50_000)
    _, lifo = moments(Order.LIFO, rho, servers, 50_000)
    theory = mmc_fifo_second_moment(servers, rho)
    assert_agrees(fifo, theory, within=0.3)
    assert_agrees(lifo, theory / (1 - rho), within=0.4)
    ratios = [newest / oldest for newest, oldest in zip(lifo, fifo, strict=True)]
    assert_agrees(ratios, 1 / (1 - rho), within=0.3)


def test_erlang_c_is_the_known_one() -> None:
    known = {0.5: 0.036, 0.8: 0.409, 0.95: 0.826}
    assert {rho: round(erlang_c(10, rho), 3) for rho in known} == known


# --- overload


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0, 5.0])
def test_wait_under_lifo_above_capacity_is_a_busy_period(rho: float) -> None:
    """Mean 1 / (lambda - C): it falls as the load grows."""
    means = []
    for seed in SEEDS:
        load = Source(10 * rho, 1000.0, 100.0, seed=seed).load()
        done = simulate_load(load, OverloadRules(100.0), 10)
        # Tasks still fresh after the last arrival are served after long waits, so they are left out here.
        waits = [
            start - created
            for start, created, fate in zip(done.starts, load.created, done.fates, strict=True)
            if fate == Fates.IN_TIME and start < load.duration_seconds
        ]
        means.append(statistics.fmean(waits))
    assert_agrees(means, 1 / (10 * rho - 10), within=0.15)


@pytest.mark.parametrize("reserve", [0.0, 1.0, 3.0])
def test_fifo_deep_in_overload_does_what_fits_into_the_reserve(reserve: float) -> None:
    """Goodput C * F(r).

    The task at the head has a little more left than the reserve: the time to the next deadline, which
    is exponential with the rate of arrivals, so that F is taken at r + Exp(lambda).
    """
    rate = 200.0
    rules = OverloadRules(10.0, Order.FIFO, ReserveRule(reserve))
    done = results(rules, rate, 80_000, servers=10)
    theory = 1 - math.exp(-reserve) * rate / (rate + 1)
    if reserve:
        assert_agrees([result.goodput_ratio for result in done], theory, within=0.05)
    else:
        mean, width = interval(result.goodput_ratio for result in done)
        # The first deadline of the run is served well: 10 s of 400.
        assert mean - width <= theory + 10 / 400
        assert mean < 0.04


@pytest.mark.parametrize("deadline", [1.0, 3.0])
def test_lifo_deep_in_overload_does_what_fits_into_the_deadline(deadline: float) -> None:
    """Goodput C * F(D), minus a small loss by waits."""
    done = results(OverloadRules(deadline), 200.0, 80_000, servers=10)
    assert_agrees([result.goodput_ratio for result in done], 1 - math.exp(-deadline), within=0.03)


@pytest.mark.parametrize(("rho", "waiting"), [(0.95, 10), (2.0, 5)])
def test_a_bounded_backlog_loses_what_mmck_loses(rho: float, waiting: int) -> None:
    backlog = BacklogLimit(waiting, WhenFull.REFUSE_NEWEST)
    done = results(OverloadRules(NO_DEADLINE, Order.FIFO, backlog=backlog), 10 * rho, 60_000, servers=10)
    assert_agrees([result.shed_ratio for result in done], mmck_loss(10, waiting, rho), within=0.15)


def test_levels_are_served_from_the_top() -> None:
    """Level k gets min(its load, capacity left by the levels above it)."""
    offered = {9: 0.3, 5: 0.5, 0: 1.2}
    served: dict[int, list[float]] = {level: [] for level in offered}
    for seed in SEEDS:
        load = Source(20.0, 1500.0, 10.0, priorities=offered, seed=seed).load()
        done = simulate_load(load, OverloadRules(10.0, Order.LIFO), 10)
        for level, shares in served.items():
            fates = (fate for fate, own in zip(done.fates, load.levels, strict=True) if own == level)
            shares.append(sum(fate in {1, 2} for fate in fates) / (10 * load.duration_seconds))
    for level, expected in {9: 0.3, 5: 0.5, 0: 0.2}.items():
        assert_agrees(served[level], expected, within=0.12)
