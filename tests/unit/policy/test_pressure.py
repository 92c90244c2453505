"""What a producer learns, and when the admission limit closes."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.order import Wait
from freshq.policy.pressure import (
    AdmissionLimit,
    AdmissionPolicy,
    Flow,
    FlowCounter,
    assess,
    group_counts,
    wanted_servers,
)
from tests.support.refusals import refused

DEADLINE_SECONDS = 10.0
OLD, YOUNG = 9.0, 1.0


def test_no_overload_no_advice() -> None:
    pressure = assess(Flow(10.0, 9.0, 9.0), YOUNG, DEADLINE_SECONDS, uniform=0.5)
    assert not pressure.overloaded
    assert pressure.probability_in_time == 1.0
    assert pressure.retry_after_seconds is None
    assert not assess(Flow(0.0, 0.0, 0.0), None, DEADLINE_SECONDS, uniform=0.5).overloaded


def test_an_old_task_or_one_shed_early_shows_overload() -> None:
    old = assess(Flow(30.0, 10.0, 9.0), OLD, DEADLINE_SECONDS, uniform=0.5)
    shed_early_flow = assess(Flow(30.0, 10.0, 9.0, shed_early=20.0), YOUNG, DEADLINE_SECONDS, uniform=0.5)
    assert old == shed_early_flow
    assert old.overloaded
    assert old.probability_in_time == pytest.approx(0.3)
    assert (old.offered_per_second, old.served_per_second) == (30.0, 10.0)
    assert old.retry_after_seconds == pytest.approx(DEADLINE_SECONDS * 2)


def test_an_old_task_alone_is_overload_and_a_new_one_has_every_chance() -> None:
    pressure = assess(Flow(0.0, 0.0, 0.0), OLD, DEADLINE_SECONDS, uniform=0.5)
    assert (pressure.overloaded, pressure.probability_in_time) == (True, 1.0)


def test_a_queue_that_serves_less_than_a_task_a_second_advises_by_what_it_serves() -> None:
    pressure = assess(Flow(0.5, 0.25, 0.25), OLD, DEADLINE_SECONDS, uniform=0.5)
    assert pressure.retry_after_seconds == pytest.approx(DEADLINE_SECONDS)


rates = st.floats(0, 1e6)


@given(rates, rates, st.floats(0, 1), st.floats(0, 20), st.floats(0, 1, exclude_max=True))
def test_advice_is_bounded_and_jittered(
    offered: float, served: float, share: float, age: float, uniform: float
) -> None:
    pressure = assess(Flow(offered, served, share * served), age, DEADLINE_SECONDS, uniform)
    assert 0 <= pressure.probability_in_time <= 1
    assert (pressure.retry_after_seconds is not None) is pressure.overloaded
    if pressure.retry_after_seconds is not None:
        assert 0.05 * DEADLINE_SECONDS <= pressure.retry_after_seconds <= 15 * DEADLINE_SECONDS
        lowest = assess(Flow(offered, served, share * served), age, DEADLINE_SECONDS, 0.0).retry_after_seconds
        assert lowest is not None
        assert pressure.retry_after_seconds == pytest.approx(lowest * (1 + 2 * uniform))


# --- wanted servers


@pytest.mark.parametrize(
    ("offered", "service", "deadline", "servers"),
    [
        # Erlang's C of 1 server at a load of 0.1 is 0.1; a spare of 0.9 bounds the late ones by 0.0012.
        (0.1, 1.0, 100.0, 1),
        (0.0, 1.0, 100.0, 0),
        # From a table of Erlang C: 0.409 with 12 servers, 0.285 with 13; the spare is 2 or 3 over 60 s.
        (10.0, 1.0, 61.0, 12),
        (10.0, 1.0, 1000.0, 11),
        (100.0, 0.1, 0.3, 16),
        (1e6, 1.0, 60.0, 1_000_000),
    ],
)
def test_servers_suffice_for_99_in_100(offered: float, service: float, deadline: float, servers: int) -> None:
    assert wanted_servers(offered, service, deadline) == servers


def test_a_task_that_takes_longer_than_its_deadline_has_a_server_at_once() -> None:
    assert wanted_servers(1.0, 10.0, 5.0) > wanted_servers(1.0, 10.0, 50.0) > 10


def test_the_pressure_has_the_time_of_a_task_and_the_wanted_servers() -> None:
    flow = Flow(10.0, 5.0, 5.0, work=10.0)
    pressure = assess(flow, OLD, 100.0, uniform=0.5)
    assert pressure.service_seconds == 2.0
    assert pressure.wanted_servers == wanted_servers(10.0, 2.0, 100.0)
    unknown = assess(Flow(10.0, 0.0, 0.0), OLD, 100.0, uniform=0.5)
    assert (unknown.service_seconds, unknown.wanted_servers) == (None, None)
    assert assess(Flow(0.0, 0.0, 0.0), OLD, 100.0, uniform=0.5).wanted_servers == 0


# --- the admission limit


def flow_of(offered: Mapping[str | None, float], served: float) -> Flow:
    """Return the flow of groups that offer tasks at some rates."""
    by_group: Counter[str] = Counter()
    for group, rate in offered.items():
        for name in group_counts(group):
            by_group[name] += rate  # type: ignore[assignment]
    return Flow(sum(offered.values()), served, served, by_group=by_group)


@given(
    st.dictionaries(st.sampled_from("abcde"), rates, min_size=1), rates, st.floats(0, 20), st.floats(1, 10)
)
def test_the_admission_limit_lets_in_a_multiple_of_what_is_served(
    offered: dict[str | None, float], served: float, age: float, multiple: float
) -> None:
    flow = flow_of(offered, served)
    pressure = assess(flow, age, DEADLINE_SECONDS, uniform=0.0)
    share = AdmissionLimit(multiple).share_per_second(pressure, flow)
    assert share >= 0
    if not pressure.overloaded:
        assert share == math.inf
    else:
        admitted = sum(min(rate, share) for rate in offered.values())
        assert admitted == pytest.approx(min(flow.offered, multiple * served), rel=1e-6, abs=1e-6)


def test_the_admission_limit_opens_again_after_an_outage() -> None:
    outage = flow_of({None: 10.0}, served=0.0)
    assert AdmissionLimit().share_per_second(assess(outage, OLD, DEADLINE_SECONDS, 0.0), outage) == 0.0
    # All that waited went stale: whoever comes now is let in, though nothing was served yet.
    assert AdmissionLimit().share_per_second(assess(outage, None, DEADLINE_SECONDS, 0.0), outage) == math.inf


def test_the_admission_limit_looks_at_intervals_and_rejects_at_random() -> None:
    admission = AdmissionPolicy(AdmissionLimit(2.0), DEADLINE_SECONDS)
    assert admission.check_at < 0
    assert admission.rejects(None, lambda: 0.0) is None, "open until the first look"
    overloaded = flow_of({None: 40.0}, served=10.0)
    admission.observe(5.0, overloaded, OLD)
    assert admission.check_at == 6.0
    assert admission.rejects(None, lambda: 0.5) is None
    assert admission.rejects(None, iter([0.4, 0.5]).__next__) == pytest.approx(DEADLINE_SECONDS * 3)
    assert admission.rejects(None, iter([0.4, 0.0]).__next__) == pytest.approx(DEADLINE_SECONDS * 1.5)
    admission.observe(6.0, overloaded, YOUNG)
    assert admission.rejects(None, lambda: 0.0) is None
    assert AdmissionPolicy(AdmissionLimit(), 1.0).check_at < 0


def test_the_admission_limit_rejects_a_flood_and_not_a_quiet_group() -> None:
    admission = AdmissionPolicy(AdmissionLimit(2.0), DEADLINE_SECONDS)
    admission.observe(5.0, flow_of({"flood": 200.0, "quiet": 5.0}, served=10.0), OLD)
    assert admission.rejects("quiet", lambda: 0.0) is None
    assert admission.rejects("new", lambda: 0.0) is None
    assert admission.rejects("flood", lambda: 1 - 15.0 / 200.0) is None
    assert admission.rejects("flood", iter([1 - 15.1 / 200.0, 0.0]).__next__) is not None


def test_the_admission_limit_of_a_queue_by_value_rejects_what_is_below_its_price() -> None:
    admission = AdmissionPolicy(AdmissionLimit(2.0), DEADLINE_SECONDS)
    assert admission.price == 0
    flow = replace(flow_of({None: 40.0}, served=10.0), least_value=4.0, work=5.0)
    admission.observe(5.0, flow, OLD)
    assert admission.price == 8, "a task takes half a second"
    assert admission.rejects(None, lambda: 0.5, value=4.0) is None
    assert admission.rejects(None, lambda: 0.5, value=3.9) == pytest.approx(DEADLINE_SECONDS * 3)
    assert assess(flow, OLD, DEADLINE_SECONDS, 0.0).least_value == 8
    assert assess(flow, YOUNG, DEADLINE_SECONDS, 0.0).least_value == 0
    admission.observe(6.0, flow, YOUNG)
    assert admission.rejects(None, lambda: 0.0, value=3.9) is None


@pytest.mark.parametrize("multiple", [0.5, 0.0, -1.0, float("inf"), float("nan")])
def test_a_senseless_admission_limit(multiple: float) -> None:
    with refused("admission"):
        AdmissionLimit(multiple)


# --- by the tasks' own deadlines


def test_a_task_that_is_late_by_its_own_deadline_is_overload() -> None:
    flow = Flow(20.0, 10.0, 10.0, own=20.0, own_urgency=10.0)
    pressure = assess(flow, 1.9, 60.0, 0.5, Wait(1.9, 2.0))
    assert (pressure.overloaded, pressure.probability_in_time) == (True, 0.5)
    assert pressure.retry_after_seconds == pytest.approx(2.0)
    assert (pressure.own_ratio, pressure.own_max_age_seconds) == (1.0, 2.0)
    assert not assess(flow, 1.9, 60.0, 0.5, Wait(0.5, 2.0)).overloaded


@pytest.mark.parametrize(
    ("expired", "overloaded", "chance"), [(0.0, False, 1.0), (0.05, False, 0.995), (5.0, True, 0.4)]
)
def test_tasks_that_expire_are_overload_if_they_are_more_than_one_in_a_hundred(
    expired: float, overloaded: bool, chance: float
) -> None:
    pressure = assess(Flow(10.0, 4.0, 4.0, expired=expired), None, DEADLINE_SECONDS, uniform=0.5)
    assert pressure.overloaded is overloaded
    assert pressure.probability_in_time == pytest.approx(chance)


def test_the_wanted_servers_follow_the_max_ages_of_the_tasks() -> None:
    flow = Flow(10.0, 5.0, 5.0, work=5.0, own=10.0, own_urgency=5.0)
    assert assess(flow, None, 3600.0, 0.5).wanted_servers == wanted_servers(10.0, 1.0, 2.0)
    mixed = replace(flow, own=5.0, own_urgency=2.5)
    assert mixed.life_seconds(60.0) == pytest.approx(10 / (5 / 2 + 5 / 60))


def test_the_admission_limit_judges_by_the_task_that_asks() -> None:
    admission = AdmissionPolicy(AdmissionLimit(1.0), 60.0)
    admission.observe(5.0, flow_of({None: 40.0}, served=10.0), 1.5)
    assert admission.rejects(None, lambda: 0.0, 2.0) == pytest.approx(3.0)
    assert admission.rejects(None, lambda: 0.0, 5.0) is None
    assert admission.rejects(None, lambda: 0.0) is None
    admission.observe(6.0, flow_of({None: 40.0}, served=10.0), 30.0)
    assert admission.rejects(None, lambda: 0.0, 5.0) is not None
    assert admission.rejects(None, lambda: 0.0) is not None


@given(st.lists(st.floats(0.02, 9.0), min_size=1, max_size=20))
def test_lives_are_counted_by_their_harmonic_mean(lives: list[float]) -> None:
    counter = FlowCounter(DEADLINE_SECONDS)
    counter.offered(100.0, len(lives) + 1, [*lives, DEADLINE_SECONDS])
    flow = counter.flow(100.0)
    mean = (len(lives) + 1) / (sum(1 / life for life in lives) + 1 / DEADLINE_SECONDS)
    assert flow.life_seconds(DEADLINE_SECONDS) == pytest.approx(mean, rel=1e-6)


def test_a_task_is_counted_as_expired_in_the_window_of_its_deadline() -> None:
    counter = FlowCounter(DEADLINE_SECONDS)
    counter.expired(105.0, [79.0, 95.0, 104.0])
    assert {window: counts["expired"] for window, counts in counter.take().items()} == {9: 1, 10: 1}
