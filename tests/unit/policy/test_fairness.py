"""Which group has the next turn."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy import fairness
from freshq.policy.fairness import LEAST_SECONDS, UNKNOWN_SECONDS, FairScheduler, GroupCosts, fair_share
from freshq.policy.groups import GroupRule, GroupRules
from freshq.stores.lines import MAX_UNCOUNTED, LevelSchedulers
from freshq.testing import make_task
from tests.support.refusals import refused


def served(scheduler: FairScheduler, groups: Sequence[str | None], count: int) -> list[str | None]:
    """Let groups that always have work take turns; return the groups in order of turns."""
    taken = []
    for _ in range(count):
        group = scheduler.next_group(groups)
        scheduler.record(group)
        taken.append(group)
    return taken


@given(st.integers(1, 7), st.integers(0, 60))
def test_groups_that_always_have_work_take_turns(groups: int, turns: int) -> None:
    names = [str(group) for group in range(groups)]
    expected = [str(turn % groups) for turn in range(turns)]
    assert served(FairScheduler(credit_turns=10), names, turns) == expected


def test_a_quiet_group_is_served_at_once_and_for_some_tasks_in_a_row() -> None:
    scheduler = FairScheduler()
    served(scheduler, ["flood"], 1000)
    assert served(scheduler, ["flood", "quiet"], 20) == ["quiet"] * 20


def test_a_group_that_begins_to_flood_does_not_starve_the_others_for_long() -> None:
    scheduler = FairScheduler(credit_turns=100)
    served(scheduler, ["old"], 5000)
    first = Counter(served(scheduler, ["old", "new"], 400))
    assert 100 <= first["old"] <= 200
    assert Counter(served(scheduler, ["old", "new"], 400)) == {"old": 200, "new": 200}


def test_what_a_group_does_not_use_goes_to_the_others() -> None:
    scheduler = FairScheduler()
    served(scheduler, ["a", "b", None], 3)
    assert Counter(served(scheduler, ["a", "b"], 100)) == {"a": 50, "b": 50}


def test_groups_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "TURNS_PER_CLEANUP", 50)
    scheduler = FairScheduler(credit_turns=1)
    for number in range(1000):
        served(scheduler, [str(number)], 1)
        served(scheduler, ["busy"], 1)
    assert len(scheduler) < 200
    before, known = scheduler.copy(), len(scheduler)
    served(scheduler, ["new", "busy"], 3)
    assert scheduler.next_group(["busy", "0"]) == "0"
    assert len(before) == known


def costs_of(**seconds: float) -> GroupCosts:
    """Return costs after tasks of some groups were seen."""
    costs = GroupCosts()
    for group, took in seconds.items():
        for _ in range(20):
            costs.observe(group, took)
    return costs


def test_a_turn_costs_the_average_time_of_the_groups_tasks() -> None:
    costs = costs_of(long=20.0, short=1.0)
    turns = Counter(served(FairScheduler(costs), ["long", "short"], 2100))
    assert turns["long"] * 20 == pytest.approx(turns["short"], rel=0.02)
    assert costs["unknown"] == costs.average


def test_averages_follow_tasks_that_become_longer_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "MAX_AVERAGES", 2)
    costs = GroupCosts()
    assert costs["a"] == UNKNOWN_SECONDS
    costs.observe("a", 2.0)
    assert costs["a"] == costs["new"] == 2.0
    for _ in range(100):
        costs.observe("a", 4.0)
    assert costs["a"] == pytest.approx(4.0, rel=0.001)
    costs.observe("b", 0.0)
    assert costs["b"] == LEAST_SECONDS
    costs.observe("a", 4.0)
    costs.observe("c", 1.0)
    assert costs["b"] == costs["new"]


def test_a_turn_is_corrected_by_the_time_that_its_task_took() -> None:
    scheduler = FairScheduler()
    assert scheduler.record("a") == UNKNOWN_SECONDS
    scheduler.correct("a", UNKNOWN_SECONDS, 5.0)
    assert served(scheduler, ["a", "b"], 6) == ["b"] * 5 + ["a"]
    scheduler.correct("b", UNKNOWN_SECONDS, 0.5)
    assert served(scheduler, ["a", "b"], 1) == ["b"]


@given(st.lists(st.floats(0.01, 10), min_size=40, max_size=40))
def test_backlogged_groups_get_the_same_time_whatever_their_tasks_take(lengths: list[float]) -> None:
    """The bound of start-time fair queueing: one task of each group, here of at most 10 s."""
    scheduler, used = FairScheduler(), {"a": 0.0, "b": 0.0}
    for seconds in lengths:
        group = scheduler.next_group(["a", "b"])
        took = seconds if group == "a" else seconds / 10
        scheduler.correct(group, scheduler.record(group), took)
        used[group] += took
        assert abs(used["a"] - used["b"]) <= 11


@pytest.mark.parametrize("long", [1.0, 20.0])
def test_time_is_shared_by_weight(long: float) -> None:
    rules = GroupRules(of={"heavy": GroupRule(weight=3)})
    scheduler = FairScheduler(costs_of(heavy=long, light=1.0), rules)
    counts = Counter(served(scheduler, ["heavy", "light"], 4000))
    assert counts["heavy"] * long / counts["light"] == pytest.approx(3, rel=0.02)
    scheduler.follow(GroupRules())
    counts = Counter(served(scheduler, ["heavy", "light"], 4000))
    assert counts["heavy"] * long / counts["light"] == pytest.approx(1, rel=0.02)


def test_the_children_of_a_parent_share_its_time() -> None:
    rules = GroupRules(of={"acme/vip": GroupRule(weight=2)}, separator="/")
    groups = ["victim", "acme", "acme/vip", *(f"acme/{number}" for number in range(7))]
    counts = Counter(served(FairScheduler(rules=rules), groups, 2000))
    assert counts["victim"] == 1000
    assert counts["acme/vip"] == 200
    assert {counts[group] for group in groups} == {1000, 200, 100}


def test_a_name_has_a_lineage() -> None:
    rules = GroupRules(separator="/")
    assert rules.lineage("a/b/c") == ("a", "a/b", "a/b/c")
    assert rules.lineage("a") == ("a",)
    assert rules.lineage(None) == (None,)
    assert GroupRules().lineage("a/b") == ("a/b",)


@given(
    st.lists(st.sampled_from(["a", "b", "c", None, "a/b"]), max_size=30), st.integers(0, 40), st.booleans()
)
def test_a_plan_is_what_the_turns_will_be(before: list[str | None], count: int, nested: bool) -> None:
    rules = GroupRules(of={"b": GroupRule(weight=2)}, separator="/" if nested else None)
    groups = ["a", "b", None, "d", "a/b", "a/c"]
    scheduler = FairScheduler(costs_of(a=0.7, b=1.3, d=2.9), rules, credit_turns=5)
    for group in before:
        scheduler.record(group)
    plan = scheduler.plan(groups, count)
    assert scheduler.plan(groups, count) == plan
    coming = served(scheduler, groups, count)
    assert Counter(plan) == Counter(coming)
    assert [group for group, number in plan.items() if number] == list(dict.fromkeys(coming))
    assert set(plan) == set(groups)
    assert scheduler.plan([], 3) == {}
    assert scheduler.plan(["a"], 3) == {"a": 3}


def test_credit_must_be_a_turn_or_more() -> None:
    with refused("credit_turns"):
        FairScheduler(credit_turns=0)


@pytest.mark.parametrize(
    ("option", "values"),
    [("weight", {"weight": 0}), ("weight", {"weight": math.inf}), ("max_running", {"max_running": 0}),
     ("max_running", {"max_running": 1.5}), ("rate_per_second", {"rate_per_second": 0}),
     ("rate_per_second", {"rate_per_second": math.nan})],
)  # fmt: skip
def test_a_wrong_rule_is_refused(option: str, values: dict[str, Any]) -> None:
    with refused(option):
        GroupRule(**values)


def test_wrong_rules_are_refused() -> None:
    with refused("separator"):
        GroupRules(separator="//")
    with refused("of"):
        GroupRules(of={"": GroupRule()})
    with refused("of"):
        GroupRules(of={"acme": 3})  # type: ignore[dict-item]


def test_a_group_has_its_own_rule_or_the_default() -> None:
    rules = GroupRules(default=GroupRule(max_running=3), of={"acme": GroupRule(weight=2)})
    assert rules.rule("acme").weight == 2
    assert not rules.rule("acme").has_limit
    assert rules.rule("other").max_running == rules.rule(None).max_running == 3
    assert rules.default.has_limit


# --- as the stores use it


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), max_size=60))
def test_claims_of_a_store_take_the_turns_of_the_policy(working: list[list[str]]) -> None:
    """Each claim sees other groups with work, as under churn."""
    scheduler, schedulers = FairScheduler(), LevelSchedulers()
    for groups in working:
        (claimed,) = islice(schedulers.interleave(0, {group: iter([group]) for group in groups}), 1)
        assert [claimed] == served(scheduler, groups, 1)


def test_a_group_without_candidates_uses_no_turn() -> None:
    schedulers = LevelSchedulers()
    schedulers.record(0, "b", 2)
    found = schedulers.interleave(0, {"a": iter(()), "b": iter(["b1", "b2"]), "c": iter(["c1", "c2", "c3"])})
    assert list(found) == ["c1", "c2", "b1", "c3", "b2"]
    assert list(schedulers.interleave(1, {"b": iter(["b1"]), "c": iter(["c1"])})) == ["b1", "c1"]


@given(st.lists(st.tuples(st.sampled_from([None, None, None, "a"]), st.floats(0, 5)), max_size=40))
def test_turns_that_wait_to_be_counted_count_the_same(ends: list[tuple[str | None, float]]) -> None:
    late, at_once = LevelSchedulers(), LevelSchedulers()
    for number, (group, seconds) in enumerate(ends):
        task = make_task(number, task_id=f"{number}", group=group)
        for schedulers in (late, at_once):
            schedulers.record(0, group, 1)
            schedulers.claimed([task])
            schedulers.settled(task, seconds)
        at_once.seconds_of(group)
    assert late.seconds_of(None) == at_once.seconds_of(None)
    assert late.plan(0, [None, "a", "b"], 50) == at_once.plan(0, [None, "a", "b"], 50)


def test_claims_that_find_nothing_displace_no_end_that_waits_to_be_counted() -> None:
    schedulers = LevelSchedulers()
    schedulers.settled(make_task("work", task_id="a"), 5.0)
    for _ in range(MAX_UNCOUNTED):
        schedulers.claimed([])
        schedulers.record(0, None, 0)
    assert schedulers.seconds_of(None) == 5.0


def test_claims_of_many_tasks_that_nobody_ends_here_are_bounded() -> None:
    schedulers, claimed = (
        LevelSchedulers(),
        [make_task(0, task_id=f"{number}") for number in range(MAX_UNCOUNTED)],
    )
    schedulers.settled(claimed[0], 5.0)
    schedulers.claimed(claimed)
    assert schedulers.seconds_of(None) == UNKNOWN_SECONDS


@pytest.mark.parametrize(
    ("demands", "capacity", "share"),
    [([], 10.0, math.inf), ([5.0, 5.0], 10.0, math.inf), ([200.0, 5.0], 20.0, 15.0),
     ([9.0, 9.0, 1.0], 10.0, 4.5), ([3.0], 0.0, 0.0)],
)  # fmt: skip
def test_who_asks_for_less_than_the_fair_share_gets_it(
    demands: list[float], capacity: float, share: float
) -> None:
    assert fair_share(demands, capacity) == share
