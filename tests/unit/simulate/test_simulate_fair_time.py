"""Groups share the servers' time: the promises of docs/overload.md about groups."""

from array import array
from collections.abc import Mapping
from heapq import merge
from random import Random

import pytest

from freshq import GroupRule, GroupRules
from freshq.policy.rules import OverloadRules
from freshq.simulate import Load, simulate_load, summarize

SERVERS = 10
DEADLINE_SECONDS = 30.0
DURATION_SECONDS = 1000.0


def load_of(shares: Mapping[str, float], seconds: Mapping[str, float]) -> Load:
    """Return Poisson arrivals with exponential service.

    Args:
        shares: What each group offers, as a share of the capacity.
        seconds: Mean service time of each group.
    """

    def arrivals(group: str) -> list[tuple[float, str, float]]:
        rng, now, found = Random(group), 0.0, []
        mean = seconds[group]
        while (now := now + rng.expovariate(shares[group] * SERVERS / mean)) < DURATION_SECONDS:
            found.append((now, group, rng.expovariate(1 / mean)))
        return found

    tasks = list(merge(*map(arrivals, shares)))
    created = array("d", [now for now, _group, _took in tasks])
    return Load(
        created,
        array("d", [took for _now, _group, took in tasks]),
        array("d", [now + DEADLINE_SECONDS for now in created]),
        DURATION_SECONDS,
        groups=[group for _now, group, _took in tasks],
    )


def in_time(load: Load, group: str, rules: GroupRules) -> float:
    simulation = simulate_load(load, OverloadRules(DEADLINE_SECONDS, fair=True, groups=rules), SERVERS)
    found = summarize(simulation).by_group[group]
    return found.served_in_time / found.offered


@pytest.mark.parametrize("times", [1, 3, 10, 20])
def test_a_quiet_group_is_in_time_beside_a_flood_of_long_tasks(times: int) -> None:
    load = load_of({"quiet": 0.2, "flood": 2.0}, {"quiet": 1.0, "flood": float(times)})
    assert in_time(load, "quiet", GroupRules()) >= 0.99


def test_a_victim_is_in_time_beside_forty_keys_of_one_parent() -> None:
    shares = {"victim": 0.4} | {f"acme/{number}": 0.05 for number in range(40)}
    load = load_of(shares, dict.fromkeys(shares, 1.0))
    assert in_time(load, "victim", GroupRules()) < 0.2
    assert in_time(load, "victim", GroupRules(separator="/")) >= 0.99


@pytest.mark.parametrize("times", [1, 5])
def test_backlogged_groups_use_time_by_their_weights(times: int) -> None:
    load = load_of({"heavy": 2.0, "light": 2.0}, {"heavy": float(times), "light": 1.0})
    rules = OverloadRules(DEADLINE_SECONDS, fair=True, groups=GroupRules(of={"heavy": GroupRule(weight=3)}))
    simulation = simulate_load(load, rules, SERVERS)
    used = dict.fromkeys(("heavy", "light"), 0.0)
    for task, group in enumerate(load.groups):
        if simulation.starts[task]:
            used[str(group)] += load.service[task]
    assert used["heavy"] / used["light"] == pytest.approx(3, rel=0.05)
