"""Limits of groups in units: the bound of every window, the share that is used, and corrections."""

import json
import random
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.groups import GroupRoom, GroupRule, GroupRules, StartLog
from freshq.policy.limits import TokenBucket
from tests.support.refusals import refused

RULES = GroupRules(of={"a": GroupRule(units_per_second=10, burst_units=50)})
RULE = RULES.rule("a")


def room(log: StartLog, now: float, rules: GroupRules = RULES) -> GroupRoom:
    return GroupRoom(rules, Counter[str]().__getitem__, log, now)


def read_again(log: StartLog, now: float, rules: GroupRules = RULES) -> StartLog:
    """Return a log as another process reads it."""
    return StartLog(json.loads(json.dumps(log.values(rules, now))))


def assert_bounded(started: list[tuple[float, float]], rate: float, burst: float) -> None:
    largest = max((units for _at, units in started), default=0.0)
    for place, (since, _units) in enumerate(started):
        used = 0.0
        for at, units in started[place:]:
            used += units
            assert used <= burst + rate * (at - since) + largest + 1e-6


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(1e-6, 500)), min_size=1, max_size=60),
    st.sampled_from([0.5, 10.0, 1e6]),
    st.sampled_from([None, 0.001, 50.0]),
)
def test_no_window_takes_more_than_its_bound(
    arrivals: list[tuple[float, float]], rate: float, burst: float | None
) -> None:
    rules = GroupRules(GroupRule(units_per_second=rate, burst_units=burst))
    log, started, now = StartLog(), list[tuple[float, float]](), 0.0
    for gap, units in arrivals:
        now += gap
        claim = room(log, now, rules)
        for cost in (units, 1.0):
            if claim.allows("a"):
                claim.start("a", cost)
                started.append((now, cost))
        log = read_again(log, now, rules)
    assert started
    assert_bounded(started, rate, rules.default.most_units)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("burst", [None, 5.0, 5000.0])
def test_at_least_95_percent_are_used_while_work_waits(seed: int, burst: float | None) -> None:
    """Costs are lognormal, and each is an estimate whose error is lognormal, too."""
    dice, rate = random.Random(seed), 1000.0
    rules = GroupRules(GroupRule(units_per_second=rate, burst_units=burst))
    log, now, taken, running = StartLog(), 0.0, 0.0, list[tuple[float, float]]()
    while now < 100:
        for ends, correction in [each for each in running if each[0] <= now]:
            log.correct([("a", None, correction)], rules, now)
            running.remove((ends, correction))
        claim = room(log, now, rules)
        while claim.allows("a"):
            units = dice.lognormvariate(4, 1)
            claim.start("a", units)
            actual = units * dice.lognormvariate(0, 0.5)
            taken += actual
            running.append((now + dice.uniform(0, 0.05), actual - units))
        log = read_again(log, now, rules)
        now = min([now + claim.wait_seconds, *(ends for ends, _ in running if ends > now)])
    used = taken / (rate * now)
    assert 0.95 <= used <= 1.05 + rules.default.most_units / (rate * now)


def test_a_debt_is_paid_before_the_next_start() -> None:
    log = StartLog()
    claim = room(log, 0.0)
    assert claim.allows("a")
    claim.start("a", 1000)
    assert not claim.allows("a")
    assert claim.wait_seconds == pytest.approx((950 + 2.5) / 10)
    assert not room(log, 95.0).allows("a")
    assert room(log, 95.01).allows("a")
    assert room(log, 0.0).allows("b")
    assert room(log, 0.0).allows(None)


def test_units_that_come_back_fill_the_burst_at_most() -> None:
    log = StartLog()
    log.take_units("a", RULE, 60, 0.0)
    assert log.units("a", RULE, 0.0) == -10
    log.correct([("a", None, -20), ("b", None, 7), (None, None, 7)], RULES, 0.0)
    assert log.units("a", RULE, 0.0) == 10
    log.correct([("a", None, -1000)], RULES, 0.0)
    assert log.units("a", RULE, 0.0) == 50
    assert log.values(RULES, 0.0) == {}
    log.correct([("a", None, 70)], RULES, 0.0)
    assert log.units("a", RULE, 0.0) == -20


def test_debts_are_forgotten_with_their_rules() -> None:
    log, both = StartLog(), GroupRules(of={"a": RULE, "b": RULE})
    log.correct([("a", None, 70), ("b", None, 70)], both, 0.0)
    assert set(read_again(log, 0.0).values(both, 0.0)[""]) == {"a"}


def test_a_clock_that_is_behind_gives_no_units_twice() -> None:
    log = StartLog()
    log.take_units("a", RULE, 50, 100.0)
    log.take_units("a", RULE, 5, 90.0)  # by a process whose clock is behind
    assert log.units("a", RULE, 101.0) == pytest.approx(5)


def test_other_limits_stand_beside_units() -> None:
    rule = GroupRule(units_per_second=10, rate_per_second=2, max_running=9)
    log, rules = StartLog(), GroupRules(rule)
    claim = room(log, 0.0, rules)
    for _ in range(2):
        assert claim.allows("a")
        claim.start("a", 0.1)
    assert not claim.allows("a")
    assert claim.wait_seconds == pytest.approx(1.0)
    assert not room(read_again(log, 0.99, rules), 0.99, rules).allows("a")
    assert room(read_again(log, 1.01, rules), 1.01, rules).allows("a")


def test_a_claim_expects_the_units_of_a_task_that_it_does_not_know() -> None:
    log = StartLog()
    claim = room(log, 0.0)
    claim.expected = {"a": 30.0}
    claim.start("a")
    assert log.units("a", RULE, 0.0) == 20
    claim.start("b")
    claim.expected = {}
    claim.start("a")
    assert log.units("a", RULE, 0.0) == 19


def test_units_of_rules_that_changed() -> None:
    log = StartLog()
    log.take_units("a", RULE, 20, 0.0)
    smaller = GroupRules(of={"a": GroupRule(units_per_second=10, burst_units=5)})
    assert log.units("a", smaller.rule("a"), 0.0) == 5
    assert log.values(GroupRules(), 0.0) == {}
    assert (GroupRules().has_units, RULES.has_units, RULES.has_rates, RULES.has_limits) == (False,) + 3 * (
        True,
    )


def test_a_brake_slows_units_and_leaves_the_burst() -> None:
    slowed = RULES.slowed({"a": 0.5}).rule("a")
    assert (slowed.units_per_second, slowed.most_units) == (5, 50)
    slowed = GroupRules(GroupRule(units_per_second=8)).slowed({"b": 0.25}).rule("b")
    assert (slowed.units_per_second, slowed.most_units, slowed.rate_per_second) == (2, 8, None)
    assert RULES.rated("a") == "a"


@pytest.mark.parametrize("wrong", [0, -1, inf, float("nan"), "7", True])
@pytest.mark.parametrize("name", ["units_per_second", "burst_units"])
def test_wrong_rules_are_refused(name: str, wrong: object) -> None:
    given: dict[str, object] = {"units_per_second": 1, name: wrong}
    with refused(f"of.a.{name}"):
        GroupRules.of_values({"of": {"a": given}})


def test_a_burst_needs_units() -> None:
    with refused("burst_units"):
        GroupRule(burst_units=5)
    values = {"of": {"a": {"units_per_second": 10, "burst_units": 50}}}
    assert GroupRules.of_values(values) == RULES
    assert RULES.values() == values


KINDS = GroupRules(kinds={"embed": GroupRule(units_per_second=10, burst_units=50)}, of=RULES.of)


def test_a_task_counts_for_its_group_and_its_kind() -> None:
    log = StartLog()
    claim = room(log, 0.0, KINDS)
    claim.start("a", 60, "embed")
    assert not claim.allows("a")
    assert not claim.allows_kind("embed")
    assert claim.allows_kind("mail")
    assert claim.allows_kind(None)
    assert claim.allows("b")
    assert claim.full_kinds == {"embed"}
    later = room(read_again(log, 0.0, KINDS), 1.3, KINDS)
    assert later.allows_kind("embed")
    assert later.allows("a")
    log.correct([("a", "embed", 100)], KINDS, 0.0)
    log.correct([(None, "mail", 100)], KINDS, 0.0)
    assert not room(log, 5.0, KINDS).allows_kind("embed")
    assert room(log, 5.0, RULES).allows_kind("embed")


def test_a_brake_slows_the_kind_before_the_group() -> None:
    assert KINDS.rated("a", "mail") == "a"
    name = KINDS.rated("a", "embed")
    assert name is not None
    slowed = KINDS.slowed({name: 0.5})
    assert (slowed.kinds["embed"].units_per_second, slowed.of) == (5, KINDS.of)
    assert RULES.slowed({name: 0.5}) is RULES  # a rule that is gone


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kinds": {"embed": {"weight": 3}}}, "kinds.embed"),
        ({"kinds": {"embed": {"rate_per_second": 3, "max_running": 3}}}, "kinds.embed"),
        ({"kinds": {"embed": 7}}, "kinds.embed"),
        ({"kinds": 7}, "kinds"),
        ({"kinds": {"\0embed": {"rate_per_second": 3}}}, "kinds"),
        ({"of": {"\0embed": {"rate_per_second": 3}}}, "of"),
        ({"share": "tasks"}, "share"),
    ],
)
def test_wrong_rules_of_kinds_and_shares_are_refused(values: dict[str, object], named: str) -> None:
    with refused(named):
        GroupRules.of_values(values)


def test_rules_of_kinds_and_shares_are_stored() -> None:
    rules = GroupRules(kinds={"embed": GroupRule(rate_per_second=3)}, share="units")
    values = {"kinds": {"embed": {"rate_per_second": 3}}, "share": "units"}
    assert rules.values() == values
    assert GroupRules.of_values(values) == rules
    assert (rules.has_limits, rules.has_rates, rules.has_units, rules.counts_running) == (
        True,
        True,
        False,
        False,
    )


def test_a_kind_takes_the_time_of_its_slowest_rate() -> None:
    rule = GroupRule(units_per_second=10, rate_per_second=2)
    assert [rule.seconds_per_task(units) for units in (1, 40)] == [0.5, 4]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(1e-6, 500)), min_size=1, max_size=60))
def test_a_bucket_takes_no_more_than_its_bound(arrivals: list[tuple[float, float]]) -> None:
    bucket, started, now = TokenBucket(10, 20, 0.0), list[tuple[float, float]](), 0.0
    for gap, units in arrivals:
        now += gap
        if bucket.available(now):
            assert bucket.take(units)
            started.append((now, units))
        else:
            assert not bucket.take(units)
    assert started
    assert_bounded(started, 10, 20)


def test_a_bucket_is_corrected_up_to_its_burst() -> None:
    bucket = TokenBucket(10, 20, 0.0)
    assert bucket.take(50)
    assert bucket.available(0.0) == 0
    assert bucket.seconds_until_next() == pytest.approx(3.1)
    bucket.correct(-45)
    assert bucket.available(0.0) == 15
    bucket.correct(-45)
    assert bucket.available(0.0) == 20
