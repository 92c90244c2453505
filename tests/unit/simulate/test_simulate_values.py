"""The simulator with values and random max ages: the order by value beside others, and beside theory."""

import random
from array import array
from dataclasses import replace
from math import fsum
from statistics import fmean

import pytest

from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.policy.shedding import ShedReason
from freshq.simulate import (
    Clients,
    DeadlineDistribution,
    Load,
    Result,
    ServiceDistribution,
    Slowdown,
    Source,
    Stress,
    simulate_load,
    simulate_stressed,
    summarize,
)
from freshq.simulate.backlog import Fates
from freshq.simulate.load import LONGEST_DRAW
from freshq.simulate.results import possible_value
from tests.support.best_value import MIXES, VALUES, most_value, offered
from tests.support.queueing import assert_agrees

MAX_AGE_SECONDS = 60.0
LOADS = (1.5, 0.9, 3.0)


def drawn(load: float, mix: str, servers: int, tasks: int, *, even: bool, linear: float = 0.0) -> Load:
    """Return tasks of three values, with a level for each; a share of them decays."""
    rng = random.Random(f"{load}/{mix}/{servers}/{linear}")
    created, service, deadline = array("d"), array("d"), array("d")
    values, levels, decays = array("d"), bytearray(), bytearray()
    now = 0.0
    for _ in range(tasks):
        now += rng.expovariate(load * servers)
        kind = rng.randrange(len(VALUES))
        created.append(now)
        service.append(1.0 if even else rng.expovariate(1))
        deadline.append(now + rng.uniform(*MIXES[mix][kind]))
        values.append(VALUES[kind] * rng.uniform(0.5, 1.5))
        levels.append(len(VALUES) - kind)
        decays.append(rng.random() < linear)
    return Load(created, service, deadline, now, bytes(levels), values=values, decays=decays)


def delivered(load: Load, order: Order, servers: int, *, levels: bool = False) -> float:
    """Return the value that an order delivers, with the reserve that it has by default."""
    reserve = ReserveRule(automatic=True).for_order(order, has_max_age=True)
    tasks = load if levels else replace(load, levels=b"")
    result = summarize(simulate_load(tasks, OverloadRules(MAX_AGE_SECONDS, order, reserve), servers))
    assert result.value is not None
    assert result.value.delivered <= result.value.offered
    return result.value.delivered


# --- the order by value beside others


@pytest.mark.matrix("load", "mix")
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", LOADS)
def test_four_slots_deliver_as_much_as_levels_by_value_although_services_vary(load: float, mix: str) -> None:
    tasks = drawn(load, mix, 4, 4_000, even=False)
    value = delivered(tasks, Order.VALUE, 4)
    assert value >= 0.975 * delivered(tasks, Order.LIFO, 4, levels=True)
    assert value >= (1.6 if load == max(LOADS) else 1.0) * delivered(tasks, Order.LIFO, 4)


@pytest.mark.matrix("load", "mix", "servers", "even")
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(("servers", "even"), [(4, False), (1, True)])
def test_linear_decay_never_delivers_less_than_another_order(
    servers: int, load: float, mix: str, *, even: bool
) -> None:
    tasks = drawn(load, mix, servers, 2_500, even=even, linear=1.0)
    value = delivered(tasks, Order.VALUE, servers)
    for order in (Order.LIFO, Order.FIFO, Order.ADAPTIVE, Order.DEADLINE):
        assert value >= delivered(tasks, order, servers), order


@pytest.mark.matrix("load", "mix", "servers", "even")
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(("servers", "even"), [(4, False), (1, True)])
def test_cheap_tasks_that_decay_do_not_push_dear_tasks_past_their_deadlines(
    servers: int, load: float, mix: str, *, even: bool
) -> None:
    """A task that decays is served at once, so that every dearer task has to wait for it."""
    tasks = drawn(load, mix, servers, 2_500, even=even, linear=0.5)
    value = delivered(tasks, Order.VALUE, servers)
    assert value >= 0.975 * delivered(tasks, Order.LIFO, servers, levels=True)


# --- random max ages: Erlang-A


@pytest.mark.matrix("rate", "lost")
@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
@pytest.mark.parametrize(("rate", "lost"), [(10, 0.0605), (8, 0.0142), (12, 0.1698), (20, 0.5)])
def test_loss_with_exponential_max_ages_is_that_of_erlang_a(order: Order, rate: float, lost: float) -> None:
    """Palm's M/M/n+M with 10 servers, tasks of 1 s and patience of 10 s: the order makes no difference."""
    rules = OverloadRules(10.0 * LONGEST_DRAW, order)
    sources = [
        Source(rate, 20_000 / rate, 10.0, deadline=DeadlineDistribution.EXP, seed=seed)
        for seed in range(1, 9)
    ]
    sheds = [summarize(simulate_load(source.load(), rules, 10)).shed_ratio for source in sources]
    assert_agrees(sheds, lost, within=0.3 if rate < 10 else 0.2)


# --- loads with values


def test_a_source_draws_values_and_their_max_ages_by_their_shares() -> None:
    load = Source(
        100.0, 100.0, 10.0, values={10.0: 0.2, 4.0: 0.3, 1.0: 0.5}, max_ages_seconds={10.0: 8.0, 4.0: 3.0}
    ).load()
    ages = {10.0: 8.0, 4.0: 3.0, 1.0: 10.0}
    of_value = {value: list(load.values).count(value) / len(load) for value in ages}
    assert of_value == pytest.approx({10.0: 0.2, 4.0: 0.3, 1.0: 0.5}, abs=0.02)
    for created, deadline, value in zip(load.created, load.deadline, load.values, strict=True):
        assert deadline - created == pytest.approx(ages[value])


def test_values_and_random_max_ages_leave_the_other_draws_as_they_are() -> None:
    plain = Source(10.0, 50.0, 10.0, groups={"a": 1, "b": 1}).load()
    exponential = DeadlineDistribution.EXP
    other = Source(
        10.0, 50.0, 10.0, groups={"a": 1, "b": 1}, values={1.0: 1, 2.0: 1}, deadline=exponential
    ).load()
    assert (other.created, other.service, other.groups) == (plain.created, plain.service, plain.groups)
    ages = [deadline - created for created, deadline in zip(other.created, other.deadline, strict=True)]
    assert fmean(ages) == pytest.approx(10.0, rel=0.2)
    assert not plain.values


def test_a_share_or_max_age_that_is_not_positive_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^values.1.0: must be greater than 0"):
        Source(1.0, 10.0, 10.0, values={1.0: 0.0})
    with pytest.raises(ValueError, match=r"^max_ages_seconds.1.0: must be greater than 0"):
        Source(1.0, 10.0, 10.0, values={1.0: 1.0}, max_ages_seconds={1.0: -1.0})


# --- what the tasks were worth


def test_without_values_the_order_by_value_does_as_much_in_time_as_newest_first() -> None:
    load = Source(30.0, 100.0, 10.0).load()
    done = summarize(simulate_load(load, OverloadRules(10.0, Order.VALUE), 10))
    newest = summarize(simulate_load(load, OverloadRules(10.0), 10))
    assert done.value is None
    assert done.served_in_time >= 0.98 * newest.served_in_time


def made(
    created: list[float], services: list[float], ages: list[float], values: list[float], decays: bytes = b""
) -> Load:
    """Return a load with these tasks."""
    deadlines = [start + age for start, age in zip(created, ages, strict=True)]
    return Load(
        array("d", created), array("d", services), array("d", deadlines), 100.0, values=values, decays=decays
    )


def value_of(result: Result) -> tuple[float, float, float]:
    """Return the value delivered, offered and possible."""
    assert result.value is not None
    return result.value.delivered, result.value.offered, result.value.possible


def test_the_value_delivered_is_that_of_the_tasks_done_in_time_less_what_has_decayed() -> None:
    load = made([0, 1, 2], [4, 4, 4], [10, 10, 5], [8, 4, 2], decays=b"\1\1\0")
    delivered_value, offered_value, _possible = value_of(
        summarize(simulate_load(load, OverloadRules(10.0, Order.FIFO), 1))
    )
    # The first task ends after 4 of its 10 s, the second after 7; the third goes stale before it starts.
    assert delivered_value == pytest.approx(8 * 0.6 + 4 * 0.3)
    assert offered_value == 14


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", LOADS)
def test_the_possible_value_is_a_bound_and_near_the_best_schedule(load: float, mix: str) -> None:
    tasks = sorted(offered(random.Random(f"bound/{load}/{mix}"), load, 200, mix))
    best = most_value(tasks)
    created = [task.arrives + place * 1e-9 for place, task in enumerate(tasks)]
    ages = [task.deadline - at for task, at in zip(tasks, created, strict=True)]
    bound = possible_value(made(created, [1.0 - 1e-6] * len(tasks), ages, [task.value for task in tasks]), 1)
    assert best <= bound <= 1.1 * best


def test_what_is_possible_in_a_burst_is_no_more_than_its_time_suffices_for() -> None:
    """Servers that were idle before a burst, or are after it, do none of its work."""
    burst = [300 + place / 100 for place in range(1_000)]
    calm = [float(second) for second in range(0, 300, 3)]
    count = len(burst) + len(calm)
    load = made([*calm, *burst], [1.0] * count, [2.0] * count, [1.0] * count)
    assert possible_value(load, 1) <= len(calm) + 15


def test_a_task_that_cannot_be_done_in_time_adds_nothing_to_what_is_possible() -> None:
    assert possible_value(made([0, 1], [3, 1], [2, 2], [100, 1]), 2) == 1
    assert possible_value(made([], [], [], []), 1) == 0


def test_the_offered_value_counts_a_request_once_however_often_its_client_puts_it() -> None:
    load = Source(30.0, 60.0, 10.0).load()
    load = replace(load, values=array("d", [3.0]) * len(load))
    stress = Stress(Clients(2.0, 3), slowdown=Slowdown(work=0.1))
    result = summarize(simulate_stressed(load, OverloadRules(10.0, Order.VALUE), 10, stress))
    delivered_value, offered_value, possible = value_of(result)
    assert result.put_again > 0
    assert offered_value == 3.0 * len(load)
    assert delivered_value == 3.0 * result.served_in_time <= possible <= offered_value


def test_values_do_not_change_what_other_orders_do() -> None:
    load = Source(30.0, 60.0, 10.0, values={9.0: 1, 1.0: 1}).load()
    for order in (Order.LIFO, Order.FIFO, Order.ADAPTIVE):
        rules = OverloadRules(10.0, order)
        assert (
            simulate_load(load, rules, 10).fates == simulate_load(replace(load, values=()), rules, 10).fates
        )


def test_tasks_without_a_deadline_do_not_decay() -> None:
    """A simulation has them end in a hundred years; the plan sees none."""
    load = made([0, 0.5, 1], [5, 1, 1], [1e10, 1e10, 1e10], [1, 1, 8], decays=b"\1\1\1")
    done = simulate_load(load, OverloadRules(1e10, Order.VALUE), 1)
    assert list(done.starts) == [0, 6, 5]
    assert fsum(map(load.worth, range(3), (1.0, 1.0, 1.0))) == pytest.approx(10)


@pytest.mark.matrix
@pytest.mark.parametrize("ages", [{}, {10.0: 6.0, 4.0: 12.0}, {1.0: 6.0, 4.0: 12.0}])
def test_what_the_price_refuses_would_have_been_shed(ages: dict[float, float]) -> None:
    source = Source(
        rate_per_second=12,
        duration_seconds=1000,
        service=ServiceDistribution.EXP,
        service_mean_seconds=1.0,
        deadline_seconds=30.0,
        values={10.0: 0.3, 4.0: 0.3, 2.0: 0.2, 1.0: 0.2},
        max_ages_seconds=ages,
        seed=3,
    )
    load = source.load()
    free = simulate_load(load, OverloadRules(30.0, Order.VALUE), servers=4)
    limited = simulate_load(load, OverloadRules(30.0, Order.VALUE, admission=AdmissionLimit(1.5)), servers=4)
    refused = [task for task, fate in enumerate(limited.fates) if fate == Fates.SHED[ShedReason.ADMISSION]]
    shed_anyway = [task for task in refused if free.fates[task] not in (Fates.IN_TIME, Fates.LATE)]
    assert len(refused) > len(load) / 10
    assert len(shed_anyway) >= 0.95 * len(refused)
    values = [
        sum(load.values[task] for task, fate in enumerate(run.fates) if fate == Fates.IN_TIME)
        for run in (free, limited)
    ]
    assert values[1] >= 0.98 * values[0]
