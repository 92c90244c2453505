"""Groups share the servers' time: the promises of docs/overload.md about groups."""

from array import array
from dataclasses import replace
from random import Random

import pytest
from benchmarks.fair import (
    DEADLINE,
    FLOOD,
    KEYS,
    ONE_PARENT,
    QUIET,
    SERVERS,
    SHORT_DEADLINE,
    beside_flood,
    bounds,
    by_rules,
    by_scenario,
    offered,
    simulated,
)

from freshq import GroupRule, GroupRules, Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import OverloadRules
from freshq.simulate import simulate_load, summarize

DURATION = 1000.0


@pytest.mark.matrix("times")
@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO, Order.ADAPTIVE])
@pytest.mark.parametrize("times", [10, 1, 3, 20])
def test_a_quiet_group_is_in_time_beside_a_flood_of_long_tasks(times: int, order: Order) -> None:
    runs = simulated(beside_flood(times, DURATION, DEADLINE), order)
    assert runs.share(QUIET) >= 0.99
    assert runs.row()["flood"] >= 0.75


def test_with_a_deadline_below_the_floods_tasks_no_order_does_better_and_a_limit_does() -> None:
    """The slots are busy with tasks that nothing interrupts, so a quiet task waits for the end of one."""
    found = {(row["where"], row["length"]): row["quiet"] for row in bounds()}
    shared = simulated(beside_flood(20, DURATION, SHORT_DEADLINE)).share(QUIET)
    assert shared == pytest.approx(found["always first", 20], abs=0.005)
    assert shared < 0.95
    assert found["flood limited to 8 slots", 20] >= 0.985


def test_a_victim_is_in_time_beside_forty_keys_of_one_parent_and_weights_are_kept() -> None:
    found = by_rules("simulator", lambda load, groups: simulated(load, groups=groups), DURATION)
    assert found["victim_without_parent"] < 0.2
    assert found["victim"] >= 0.99
    assert found["ratio"] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(("slower", "is_in_time"), [(1.2, True), (1.4, False)])
def test_stalls_of_a_machine_cost_a_victim_nothing_until_its_work_exceeds_its_half(
    slower: float, is_in_time: bool
) -> None:
    """It offers 0.4 of the capacity. On a busy machine tasks take longer, now and then much longer."""
    rng = Random(1)
    shares = {"victim": 0.4} | {f"acme/{number}": 0.05 for number in range(KEYS)}
    load = offered(shares, dict.fromkeys(shares, 1.0), DURATION / 2, DEADLINE)
    stalled = [seconds * (1 + (slower - 1) * rng.paretovariate(1.5) / 3) for seconds in load.service]
    found = simulated(replace(load, service=array("d", stalled)), groups=ONE_PARENT).share("victim")
    assert (found >= 0.99) is is_in_time


def test_weights_hold_when_the_heavier_group_has_longer_tasks() -> None:
    load = offered({FLOOD: 2.0, QUIET: 2.0}, {FLOOD: 5.0, QUIET: 1.0}, DURATION, DEADLINE)
    used = simulated(load, groups=GroupRules(of={FLOOD: GroupRule(weight=3)})).used
    assert used[FLOOD] / used[QUIET] == pytest.approx(3, rel=0.05)


def test_the_admission_limit_rejects_no_quiet_group_beside_a_flood_of_long_tasks() -> None:
    """It offers ten times the time in half of the tasks; by number, half of the quiet group was rejected."""
    load = beside_flood(20, DURATION, 2 * DEADLINE)
    rules = OverloadRules(2 * DEADLINE, fair=True, admission=AdmissionLimit(1.0))
    found = summarize(simulate_load(load, rules, SERVERS)).by_group
    assert found[QUIET].served_in_time >= 0.99 * found[QUIET].offered
    assert found[FLOOD].served_in_time < 0.5 * found[FLOOD].offered


def test_a_few_tasks_hardly_wait_behind_the_backlog_of_another_tenant() -> None:
    for row in by_scenario():
        assert row["groups_makespan"] == row["line_makespan"], row
        least = 1.0 if row["scenario"] == "one key alone" else 0.02
        assert row["groups_wait"] <= least * row["line_wait"], row
