"""Causes of collapse: clients that try again, a loss of capacity, service that slows down."""

from array import array
from statistics import fmean
from typing import Any, Final

import pytest

from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.policy.shedding import ShedReason
from freshq.simulate import (
    Clients,
    Dip,
    Load,
    Result,
    Slowdown,
    Source,
    Stress,
    simulate_load,
    simulate_stressed,
    summarize,
)
from freshq.simulate.backlog import Fates
from freshq.simulate.load import MAX_TASKS
from tests.support.queueing import assert_agrees, erlang_c
from tests.support.refusals import refused
from tests.support.retrying_clients import RetryingQueue, kella_yechiali

SERVERS: Final = 10
NO_DEADLINE: Final = 1e9
# A client waits 5 s, and tries again three times; 30 s of outage begin after a minute.
CLIENTS: Final = Clients(5.0, 3)
OUTAGE: Final = Dip(60.0, 30.0)


def one_server(*created: float, service: float = 1.0, age: float = NO_DEADLINE) -> Load:
    count = len(created)
    return Load(
        array("d", created), array("d", [service] * count), array("d", [at + age for at in created]), 100.0
    )


def after_outage(order: Order, rate: float, age: float, stress: Stress, seed: int = 1) -> Result:
    rules = OverloadRules(age, order)
    load = Source(rate, 180.0, age, seed=seed).load()
    return summarize(simulate_stressed(load, rules, SERVERS, stress, seed), stress.dip)


def late_goodput(result: Result) -> float:
    """Return the tasks done in time, per second, from 30 s after the outage on."""
    return fmean(result.goodput_by_10_seconds[12:])


# --- each part


def test_without_stress_both_simulations_are_the_same() -> None:
    load = Source(12.0, 60.0, 10.0, priorities={0: 0.8, 9: 0.2}, groups={"a": 1, "b": 3}).load()
    rules = OverloadRules(
        10.0, Order.FIFO, ReserveRule(quantile=0.9), fair=True, admission=AdmissionLimit(1.5)
    )
    plain, stressed = simulate_load(load, rules, SERVERS), simulate_stressed(load, rules, SERVERS, Stress())
    assert stressed.starts == plain.starts
    assert stressed.fates == plain.fates
    assert summarize(stressed) == summarize(plain)


def test_a_client_that_gave_up_puts_its_task_again_at_a_fresh_position() -> None:
    # The first task runs until 6 s; the second gives up at 2 s, comes again by 3 s, and again by 6 s.
    load = one_server(0.0, 0.0, service=6.0)
    load.service[1] = 1.0
    done = simulate_stressed(load, OverloadRules(NO_DEADLINE, Order.FIFO), 1, Stress(Clients(2.0, 2)))
    again = list(done.load.created[2:])
    assert done.put_again == len(again) == 4
    assert 2.0 <= again[0] <= again[1] <= 3.0
    assert set(done.fates) == {Fates.LATE}, "the first takes longer than its client waits"
    assert done.load.deadline[2] == again[0] + 2.0


def test_a_task_that_is_done_in_time_is_not_put_again() -> None:
    done = simulate_stressed(one_server(0.0, 5.0), OverloadRules(10.0), 1, Stress(Clients(2.0, 5)))
    assert done.put_again == 0
    assert summarize(done).served_in_time == 2


def test_a_rejected_task_comes_again() -> None:
    load = Source(60.0, 60.0, 10.0).load()
    result = summarize(
        simulate_stressed(load, OverloadRules(10.0, admission=AdmissionLimit(1.0)), SERVERS, Stress(CLIENTS))
    )
    assert result.shed_by_reason[ShedReason.ADMISSION] > 0
    assert result.put_again > len(load)
    assert result.offered == len(load) + result.put_again


def test_in_a_dip_the_lost_servers_claim_nothing() -> None:
    load = one_server(*(n / 10 for n in range(100)), service=0.5)
    done = simulate_stressed(load, OverloadRules(NO_DEADLINE, Order.FIFO), 2, Stress(dip=Dip(2.0, 3.0, 0.5)))
    rates = [sum(begin <= start < begin + 1 for start in done.starts) for begin in range(7)]
    assert rates == [4, 4, 2, 2, 2, 4, 4]
    assert summarize(done, Dip(2.0, 3.0, 0.5)).served_in_time == 100


def test_service_slows_down_with_work_and_backlog() -> None:
    load = one_server(0.0, 0.0, 0.0)
    done = simulate_stressed(
        load, OverloadRules(NO_DEADLINE, Order.FIFO), 2, Stress(slowdown=Slowdown(work=0.5, backlog=0.25))
    )
    # The second starts beside another; the third, alone with the second until 1.5 s.
    assert list(done.load.service) == [1.0, 1.5, 1.5]
    assert list(done.starts) == [0.0, 0.0, 1.0]
    backlogged = simulate_stressed(
        load, OverloadRules(NO_DEADLINE), 1, Stress(slowdown=Slowdown(backlog=0.25))
    )
    assert sorted(backlogged.load.service) == [1.0, 1.0, 1.25]


def test_goodput_over_time_counts_ends_in_time() -> None:
    result = summarize(simulate_load(one_server(0.0, 1.0, 11.0, 99.5), OverloadRules(NO_DEADLINE), 1))
    assert result.goodput_by_10_seconds == [0.2, 0.1, *[0.0] * 8]
    short = summarize(simulate_load(Source(5.0, 4.0, 10.0).load(), OverloadRules(10.0), SERVERS))
    assert len(short.goodput_by_10_seconds) == 1
    assert short.goodput_by_10_seconds[0] <= short.offered / 4.0


@pytest.mark.parametrize("text", ["", "60", "60+30", "60+30x1", "60+30x-1", "-1+30x0", "1+0x0", "nanx1+2"])
def test_a_wrong_dip(text: str) -> None:
    with refused("dip"):
        Dip.parse(text)
    assert Dip.parse("60+30x0.5") == Dip(60.0, 30.0, 0.5)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Clients(0.0), "client_timeout"),
        (lambda: Clients(1.0, -1), "client_retries"),
        (lambda: Slowdown(work=-1.0), "slowdown"),
        (lambda: simulate_stressed(one_server(0.0), OverloadRules(1.0), 0, Stress()), "servers"),
        (
            lambda: simulate_stressed(
                one_server(0.0), OverloadRules(1.0), 1, Stress(Clients(1.0, MAX_TASKS))
            ),
            "client_retries",
        ),
    ],
)
def test_wrong_numbers(make: Any, names: str) -> None:
    with refused(names):
        make()


# --- metastable failures


@pytest.mark.parametrize("rate", [5.0, 7.0, 9.0])
def test_after_an_outage_newest_first_comes_back_and_oldest_first_does_not(rate: float) -> None:
    stress = Stress(CLIENTS, OUTAGE)
    newest = after_outage(Order.LIFO, rate, 5.0, stress)
    assert late_goodput(newest) > 0.9 * rate
    assert newest.recovery_seconds is not None
    for age in (5.0, NO_DEADLINE):
        assert late_goodput(after_outage(Order.FIFO, rate, age, stress)) < 0.2 * rate


def test_what_sustains_the_failure() -> None:
    """Retries do: without them, or at a load that they cannot multiply above the capacity, it comes back.

    "Metastable Failures in the Wild", section 4: vulnerability grows with load and with the size of the
    trigger. With three retries, a load of a quarter is the bound.
    """
    assert late_goodput(after_outage(Order.FIFO, 5.0, 5.0, Stress(Clients(5.0), OUTAGE))) > 4.0
    assert late_goodput(after_outage(Order.FIFO, 2.0, 5.0, Stress(CLIENTS, OUTAGE))) > 1.6
    assert late_goodput(after_outage(Order.FIFO, 5.0, 5.0, Stress(CLIENTS, Dip(60.0, 2.0)))) > 4.0
    assert late_goodput(after_outage(Order.FIFO, 5.0, 5.0, Stress(CLIENTS, Dip(60.0, 30.0, 0.6)))) > 4.0


@pytest.mark.matrix("rate")
@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
@pytest.mark.parametrize("age", [5.0, NO_DEADLINE])
@pytest.mark.parametrize("rate", [7.0, 5.0])
def test_outages_agree_with_an_independent_simulation(order: Order, age: float, rate: float) -> None:
    """Shares of the arrivals, from 30 s after the outage on, within 0.03."""
    shares, theirs = [], []
    for seed in range(1, 9):
        load = Source(rate, 180.0, age, seed=seed).load()
        done = simulate_stressed(load, OverloadRules(age, order), SERVERS, Stress(CLIENTS, OUTAGE), seed)
        arrived = sum(created >= 120.0 for created in load.created)
        shares.append(sum(summarize(done).goodput_by_10_seconds[12:]) * 10 / arrived)
        other = RetryingQueue(SERVERS, seed, newest_first=order is Order.LIFO, max_age=age)
        other.run(rate, 180.0, (60.0, 90.0), timeout=5.0, tries=4)
        arrived = sum(120.0 <= asked < 180.0 for asked in other.asked)
        theirs.append(sum(120.0 <= ended < 180.0 for ended in other.done) / arrived)
    assert fmean(shares) == pytest.approx(fmean(theirs), abs=0.03)


def test_recovery_takes_longer_with_load() -> None:
    """The trend of "Formal Analysis of Metastable Failures in Software Systems" (arXiv, 2025)."""
    seconds = []
    for rate in (3.0, 6.0, 8.0):
        runs = [after_outage(Order.LIFO, rate, 20.0, Stress(CLIENTS, OUTAGE), seed) for seed in range(1, 5)]
        seconds.append(fmean(90.0 if run.recovery_seconds is None else run.recovery_seconds for run in runs))
    assert seconds == sorted(seconds)
    assert seconds[-1] > 2 * seconds[0]


# --- levels


def test_waits_by_level_are_those_of_kella_and_yechiali() -> None:
    expected = kella_yechiali(SERVERS, [0.2, 0.6], erlang_c(SERVERS, 0.8))
    found: dict[str, list[tuple[float, float]]] = {"9": [], "0": []}
    for seed in range(1, 9):
        load = Source(8.0, 1500.0, NO_DEADLINE, priorities={9: 0.25, 0: 0.75}, seed=seed).load()
        by_level = summarize(simulate_load(load, OverloadRules(NO_DEADLINE, Order.FIFO), SERVERS)).by_level
        for level, result in by_level.items():
            assert result.wait_mean_seconds is not None
            assert result.wait_second_moment_square_seconds is not None
            found[level].append((result.wait_mean_seconds, result.wait_second_moment_square_seconds))
    for level, (mean, second) in zip(("9", "0"), expected, strict=True):
        assert_agrees([each[0] for each in found[level]], mean, within=0.5)
        assert_agrees([each[1] for each in found[level]], second, within=1.0)


def test_a_level_without_service_has_no_wait() -> None:
    load = one_server(0.0, 0.0, age=0.5)
    load = Load(load.created, load.service, load.deadline, 100.0, levels=bytes([9, 0]))
    by_level = summarize(simulate_load(load, OverloadRules(0.5), 1)).by_level
    assert by_level["9"].wait_mean_seconds == 0.0
    assert by_level["0"].offered == 1
    assert by_level["0"].wait_mean_seconds is None
