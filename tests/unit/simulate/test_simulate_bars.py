"""The aims of overload control, and the traps that it must avoid."""

import math
from functools import cache

import pytest

from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.shedding import Codel, ShedReason
from freshq.simulate import Burst, Load, Result, ServiceDistribution, Source, simulate_load, summarize
from tests.support.naive_simulator import SlowQueue
from tests.support.queueing import erlang_c

SERVERS = 10
P90 = ReserveRule(quantile=0.9)
ABOVE_CAPACITY = (1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
WELL_ABOVE_CAPACITY = (2.0, 3.0, 5.0, 10.0)


@cache
def load(rho: float, deadline: float, service: ServiceDistribution = ServiceDistribution.EXP) -> Load:
    # 30,000 tasks done: goodput is good to 0.006 at exponential service.
    return Source(rho * SERVERS, 3000.0, deadline, service=service, seed=7).load()


@cache
def measured(
    rules: OverloadRules, rho: float, service: ServiceDistribution = ServiceDistribution.EXP
) -> Result:
    return summarize(simulate_load(load(rho, rules.deadline_seconds, service), rules, SERVERS))


def freshest(order: Order, deadline: float) -> OverloadRules:
    return OverloadRules(deadline, order, P90)


# --- the bars


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("service", list(ServiceDistribution))
@pytest.mark.parametrize("rho", ABOVE_CAPACITY)
def test_goodput_at_a_deadline_of_ten_service_times(
    order: Order, service: ServiceDistribution, rho: float
) -> None:
    assert measured(freshest(order, 10.0), rho, service).goodput_ratio >= 0.97


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
def test_goodput_just_below_capacity(order: Order) -> None:
    """The bar is 0.93 of the capacity at 0.95; LIFO stays two hundredths below it, which is its price."""
    bar = {Order.LIFO: 0.91, Order.ADAPTIVE: 0.93}[order]
    assert measured(freshest(order, 10.0), 0.95).goodput_ratio >= bar


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("rho", WELL_ABOVE_CAPACITY)
def test_goodput_at_a_deadline_of_three_service_times(order: Order, rho: float) -> None:
    assert measured(freshest(order, 3.0), rho).goodput_ratio >= 0.93


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("service", list(ServiceDistribution))
@pytest.mark.parametrize("rho", WELL_ABOVE_CAPACITY)
def test_p99_wait_is_a_tenth_of_the_deadline(order: Order, service: ServiceDistribution, rho: float) -> None:
    wait_seconds = measured(freshest(order, 10.0), rho, service).wait_p99_seconds
    assert wait_seconds is not None
    assert wait_seconds <= 1.0


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("service", list(ServiceDistribution))
@pytest.mark.parametrize("rho", [0.5, 0.95, *ABOVE_CAPACITY])
def test_wasted_work(order: Order, service: ServiceDistribution, rho: float) -> None:
    """At most 2 %, not counting lognormal times beyond the deadline, which no queue can avoid."""
    times = load(rho, 10.0, service).service
    hopeless = math.fsum(time for time in times if time > 10.0) / math.fsum(times)
    allowed = 0.02 + (hopeless if service is ServiceDistribution.LOGNORMAL else 0.0)
    assert measured(freshest(order, 10.0), rho, service).wasted_ratio <= allowed


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_recovery_after_a_minute_of_ten_times_the_load(order: Order, seed: int) -> None:
    burst = Burst(10.0, 200.0, 60.0)
    tasks = Source(0.8 * SERVERS, 400.0, 10.0, burst=burst, seed=seed).load()
    seconds = summarize(simulate_load(tasks, freshest(order, 10.0), SERVERS), burst).recovery_seconds
    assert seconds is not None
    assert seconds <= 10.0


def test_high_levels_do_not_notice_the_overload() -> None:
    tasks = Source(30.0, 2000.0, 10.0, priorities={9: 0.7, 0: 2.3}, seed=4).load()
    done = simulate_load(tasks, OverloadRules(10.0, Order.LIFO), SERVERS)
    fates = [fate for fate, level in zip(done.fates, tasks.levels, strict=True) if level == 9]
    assert fates.count(1) / len(fates) >= 0.999


# --- the other policies


@pytest.mark.parametrize("rho", ABOVE_CAPACITY)
@pytest.mark.parametrize("means", ["codel", "backlog"])
def test_fifo_needs_codel_or_a_bounded_backlog(rho: float, means: str) -> None:
    bounded = OverloadRules(10.0, Order.FIFO, backlog=BacklogLimit(SERVERS))
    codel = OverloadRules(10.0, Order.FIFO, codel=CodelRule(0.5, 1.0))
    assert measured({"codel": codel, "backlog": bounded}[means], rho).goodput_ratio >= 0.96
    if rho > 1.5:
        assert measured(OverloadRules(10.0, Order.FIFO), rho).goodput_ratio < 0.15


def test_the_reserve_keeps_fifo_alive_when_every_service_takes_the_same() -> None:
    """An estimate a little too low would let each task end a little too late."""
    fifo = OverloadRules(10.0, Order.FIFO, P90)
    assert measured(fifo, 10.0, ServiceDistribution.DET).goodput_ratio >= 0.97


def test_the_admission_limit_keeps_the_goodput_and_most_of_the_load_out() -> None:
    result = measured(OverloadRules(10.0, admission=AdmissionLimit(2.0)), 10.0)
    assert result.goodput_ratio >= 0.97
    assert result.shed_by_reason[ShedReason.ADMISSION] / result.offered == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_the_admission_limit_is_open_below_capacity(rho: float) -> None:
    result = measured(OverloadRules(10.0, Order.ADAPTIVE, admission=AdmissionLimit(1.0)), rho)
    assert result.shed_by_reason[ShedReason.ADMISSION] / result.offered < 0.001


# --- the trap


def test_trap_codel_fed_from_lifo_dequeues_collapses() -> None:
    """An order that switches to LIFO while CoDel sees overload: fresh tasks hide it, and it switches back."""
    tasks = Source(2.0 * SERVERS, 400.0, 10.0, seed=7).load()
    codel = Codel(0.5, 1.0, Order.FIFO)  # the lie without which it cannot be built

    def pick(now: float, live: list[int]) -> int:
        task = live[-1] if codel.overloaded else live[0]
        codel.sheds(now, now - tasks.created[task])
        return task

    trap = SlowQueue(tasks, pick, [0.0] * SERVERS)  # type: ignore[arg-type]
    trap.run()
    trapped = trap.in_time() / len(tasks) * 2.0
    sound = summarize(simulate_load(tasks, freshest(Order.ADAPTIVE, 10.0), SERVERS)).goodput_ratio
    assert trapped < 0.6
    assert sound > 0.97


def test_trap_a_reserve_that_outgrows_the_deadline_does_not_stop_the_queue() -> None:
    tasks = Source(5.0, 500.0, 10.0, service_mean_seconds=12.0, seed=1).load()
    assert summarize(simulate_load(tasks, freshest(Order.LIFO, 10.0), SERVERS)).goodput_ratio > 0.5


# --- fairness


@cache
def quiet(
    rules: OverloadRules,
    servers: int,
    share: float,
    *,
    flooded: bool,
    service: ServiceDistribution = ServiceDistribution.EXP,
) -> tuple[float, float]:
    """Return the waits and the success of a group, alone or beside a flood of 20 times the capacity.

    Returns:
        The p99 of its waits over several seeds, a single one of which may be off by a tenth, and the share
        of its tasks that was served in time.
    """
    groups = {"quiet": share, "flood": 20.0} if flooded else {"quiet": share}
    rate = servers * sum(groups.values())
    seconds = (8000.0 if flooded else 40_000.0) / servers
    waits: list[float] = []
    offered = 0
    for seed in range(1, 6):
        tasks = Source(
            rate, seconds, rules.deadline_seconds, service=service, groups=groups, seed=seed
        ).load()
        done = simulate_load(tasks, rules, servers)
        kinds = zip(tasks.groups, done.fates, done.starts, tasks.created, strict=True)
        waits += [start - at for group, fate, start, at in kinds if group == "quiet" and fate == 1]
        offered += list(tasks.groups).count("quiet")
    return sorted(waits)[math.ceil(0.99 * len(waits)) - 1], len(waits) / offered


def fair(order: Order, deadline: float = 30.0) -> OverloadRules:
    return OverloadRules(deadline, order, fair=True)


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
@pytest.mark.parametrize(
    ("service", "share"),
    [(ServiceDistribution.EXP, 0.2), (ServiceDistribution.EXP, 0.4), (ServiceDistribution.DET, 0.2)],
)
def test_a_quiet_group_waits_at_most_twice_as_long_beside_a_flood(
    order: Order, service: ServiceDistribution, share: float
) -> None:
    alone, _ = quiet(fair(order), 1, share, flooded=False, service=service)
    flooded, in_time = quiet(fair(order), 1, share, flooded=True, service=service)
    assert in_time >= 0.99
    assert flooded <= 2 * alone


@pytest.mark.parametrize(("servers", "share"), [(3, 0.1), (10, 0.3)])
def test_where_a_group_alone_never_waits_it_waits_for_the_next_free_server(
    servers: int, share: float
) -> None:
    """No queue that keeps its servers busy can do better than to put the quiet group first.

    Then its wait is exponential with rate c - lambda, as every server is busy: p99 = ln(100) / (c - lambda).
    Alone only a share of its tasks waits, given by Erlang's C; so the ratio to its wait alone has no bound as
    that share approaches one in a hundred.
    """
    assert erlang_c(servers, share) < 0.01
    flooded, in_time = quiet(fair(Order.ADAPTIVE), servers, share, flooded=True)
    assert in_time >= 0.999
    assert flooded <= 1.1 * math.log(100) / (servers * (1 - share))


def test_plain_lifo_starves_the_quiet_group() -> None:
    _, in_time = quiet(OverloadRules(10.0), SERVERS, 0.1, flooded=True)
    assert in_time < 0.1


def test_capacity_is_shared_max_min() -> None:
    """Offering 0.2, 0.5 and 2 times the capacity, the groups get 0.2, 0.4 and 0.4 of it."""
    groups = {"small": 0.2, "medium": 0.5, "large": 2.0}
    tasks = Source(27.0, 2000.0, 10.0, groups=groups, seed=5).load()
    by_group = summarize(simulate_load(tasks, fair(Order.LIFO, 10.0), SERVERS)).by_group
    shares = {name: result.served_in_time / (SERVERS * 2000.0) for name, result in by_group.items()}
    assert shares == {
        name: pytest.approx(share, abs=0.015)
        for name, share in {"small": 0.2, "medium": 0.4, "large": 0.4}.items()
    }


def test_jain_index_of_equal_groups() -> None:
    tasks = Source(50.0, 500.0, 10.0, groups={str(n): 1.0 + n for n in range(8)}, seed=5).load()
    done = [
        group.served_in_time
        for group in summarize(simulate_load(tasks, fair(Order.LIFO), SERVERS)).by_group.values()
    ]
    assert sum(done) ** 2 / (len(done) * sum(count**2 for count in done)) >= 0.95


def test_a_noisy_group_gives_way_first_when_the_backlog_is_full() -> None:
    tasks = Source(31.0, 500.0, 10.0, groups={"quiet": 1.0, "flood": 30.0}, seed=6).load()
    rules = OverloadRules(10.0, backlog=BacklogLimit(50, group_share=0.5), fair=True)
    result = summarize(simulate_load(tasks, rules, SERVERS))
    assert result.shed_by_reason[ShedReason.GROUP] > 0
    assert result.shed_by_reason[ShedReason.OVERFLOW] == 0
    assert result.by_group["quiet"].served_in_time == result.by_group["quiet"].offered
