"""The flow, counted by windows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.pressure import (
    HARDLY_SERVED,
    IN_TIME_OF_BAND,
    PUT_OF_BAND,
    Flow,
    FlowCounter,
    ValueFlow,
    assess,
    flow_between,
    flow_window_seconds,
)
from freshq.policy.value import LARGEST_VALUE, SMALLEST_VALUE


def test_the_window_is_the_deadline_or_a_minute() -> None:
    assert flow_window_seconds(10.0) == FlowCounter(10.0).window_seconds == 10.0
    assert flow_window_seconds(3600.0) == 60.0


def test_a_steady_stream_is_counted_exactly() -> None:
    counter = FlowCounter(10.0)
    for tick in range(1, 1001):
        now = tick / 8
        counter.offered(now)
        counter.ended(now, 0.0, in_time=tick % 2 == 0)
        if tick % 8 == 0:
            counter.shed_early(now, 2)
    flow = counter.flow(125.0)
    assert flow.offered == flow.served == pytest.approx(8.0, rel=0.02)
    assert flow.served_in_time == pytest.approx(4.0, rel=0.03)
    assert flow.shed_early == pytest.approx(2.0, abs=0.25)
    assert counter.flow(150.0) == Flow(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("into_seconds", "rate"), [(0.0, 20.0), (0.5, 20.0), (4.0, 5.0), (10.0, 2.0)])
def test_at_the_beginning_rates_are_over_the_time_that_has_passed(into_seconds: float, rate: float) -> None:
    assert flow_between(10.0, into_seconds, {"offered": 20}, {}).offered == rate
    assert flow_between(10.0, into_seconds, {"offered": 20}, {"served": 0}).offered == rate


@given(st.floats(0, 1), st.integers(0, 1000), st.integers(1, 1000))
def test_rates_never_exceed_what_two_windows_counted(covered: float, current: int, before: int) -> None:
    flow = flow_between(3.0, 3.0 * covered, {"offered": current}, {"offered": before})
    assert current - 1e-6 <= flow.offered * 3.0 <= current + before + 1e-6


def test_counts_may_be_taken_and_given_back() -> None:
    counter = FlowCounter(10.0)
    counter.offered(5.0, 3)
    counter.offered(15.0, 4)
    windows = counter.take()
    assert windows == {0: {"offered": 3}, 1: {"offered": 4}}
    assert counter.take() == {}
    counter.offered(15.0)
    counter.counts(1).update(windows[1])
    assert counter.flow(20.0) == counter.between(20.0, {}, {"offered": 5})


def test_every_put_of_a_group_is_counted() -> None:
    counter = FlowCounter(10.0)
    for _ in range(20):
        counter.offered_by("a", 12.0)
    counter.offered_by("b", 12.0)
    flow = counter.flow(20.0)
    assert flow.offered_by("a") == pytest.approx(2.0)
    assert flow.offered_by("b") == pytest.approx(0.1)


def test_a_group_offers_time_by_the_length_of_its_tasks() -> None:
    counter = FlowCounter(10.0)
    for group, took_seconds in (("short", 1.0), ("short", 1.0), ("short", 1.0), ("long", 9.0)):
        counter.served_by(group, 12.0, took_seconds)
    for group in ("short", "long", "unknown"):
        for _ in range(20):
            counter.offered_by(group, 12.0)
    flow = counter.flow(20.0)
    assert [flow.offered_by(group) for group in ("short", "long", "unknown")] == pytest.approx([2 / 3, 6, 2])
    assert sorted(flow.demands()) == pytest.approx([2 / 3, 2, 6])


def test_a_task_is_shed_early_once_unless_a_count_is_given() -> None:
    counter = FlowCounter(10.0)
    for _ in range(10):
        counter.shed_early(12.0)
    assert counter.flow(20.0).shed_early == pytest.approx(1.0)


def test_a_counter_keeps_the_window_before_and_the_current_one() -> None:
    counter = FlowCounter(60.0)
    counter.offered(30.0, 60)
    counter.offered(90.0, 60)
    first = counter.flow(90.0)
    assert first == counter.flow(90.0)
    assert first.offered == pytest.approx((60 + 30) / 60)


def test_work_is_counted_in_seconds_and_the_shortest_task_has_some() -> None:
    counter = FlowCounter(10.0)
    counter.ended(12.0, 4.0, in_time=None)
    counter.ended(12.0, 0.0, in_time=None)
    assert counter.counts(1) == {"work_us": 4_000_001}
    assert counter.flow(20.0).work == pytest.approx(0.4)


def test_the_price_is_the_least_value_that_is_still_served() -> None:
    counter = FlowCounter(60.0)
    assert counter.flow(0.0).least_value == 0
    for number in range(100):
        for value in (1.0, 4.0, 16.0):
            counter.valued(float(number % 50), value, PUT_OF_BAND)
        counter.valued(float(number % 50), 16.0, IN_TIME_OF_BAND)
    assert counter.flow(50.0).least_value == 16
    for second in range(4):
        counter.valued(float(second), 4.0, IN_TIME_OF_BAND)
    assert counter.flow(50.0).least_value == 4


def test_few_tasks_tell_no_price() -> None:
    counter = FlowCounter(60.0)
    for _ in range(round(1 / HARDLY_SERVED)):
        counter.valued(0.0, 1.0, PUT_OF_BAND)
    assert counter.flow(1.0).least_value == 0
    counter.valued(0.0, 8.0, PUT_OF_BAND)
    counter.valued(0.0, 8.0, IN_TIME_OF_BAND)
    assert counter.flow(1.0).least_value == 8
    nothing_served = FlowCounter(60.0)
    for _ in range(200):
        nothing_served.valued(0.0, 1.0, PUT_OF_BAND)
    assert nothing_served.flow(1.0).least_value == 0


def counted(*values: tuple[float, int, int]) -> FlowCounter:
    """Return a counter of tasks, given by value, number and how many of them were done in time."""
    counter = FlowCounter(60.0)
    for value, put, in_time in values:
        for number in range(put):
            counter.valued(0.0, value, PUT_OF_BAND)
            if number < in_time:
                counter.valued(0.0, value, IN_TIME_OF_BAND)
    return counter


def test_the_chance_grows_with_the_value() -> None:
    tasks = ((1.0, 100, 2), (2.0, 50, 0), (4.0, 10, 6), (8.0, 30, 12), (16.0, 10, 10))
    found = counted(*tasks).flow(1.0).by_value
    assert found == {1.0: pytest.approx(2 / 150), 4.0: pytest.approx(0.45), 16.0: 1.0}
    hardly_served_or_shed = ((1.0, 100, 0), (2.0, 50, 4), (4.0, 10, 5), (8.0, 20, 19), (16.0, 10, 10))
    found = counted(*hardly_served_or_shed).flow(1.0).by_value
    assert found == {1.0: pytest.approx(4 / 150), 4.0: 0.5, 8.0: pytest.approx(29 / 30)}
    assert counted((4.0, 5, 9)).flow(1.0).by_value == {4.0: 1.0}
    assert FlowCounter(60.0).flow(0.0).by_value == {}


def test_a_task_of_a_value_has_the_chance_of_its_class() -> None:
    flow = replace(counted((4.0, 20, 1), (16.0, 10, 9)).flow(1.0), offered=30.0, served=10.0, shed_early=1.0)
    pressure = assess(flow, None, 60.0, 0.5)
    assert pressure.overloaded
    chances = {value: pressure.chance(value) for value in (1.0, 4.0, 15.9, 16.0, 1e9)}
    assert chances == {1.0: 0.05, 4.0: 0.05, 15.9: 0.05, 16.0: 0.9, 1e9: 0.9}
    calm = assess(replace(flow, shed_early=0.0), None, 60.0, 0.5)
    assert (calm.by_value, calm.chance(1.0)) == ({}, calm.probability_in_time)


def test_the_names_of_counts_fit_every_store() -> None:
    counter = FlowCounter(60.0)
    for value in (SMALLEST_VALUE, 0.5, 1.0, LARGEST_VALUE):
        counter.valued(0.0, value, PUT_OF_BAND)
        counter.valued(0.0, value, IN_TIME_OF_BAND)
    names = list(counter.counts(0))
    assert len(names) == 8
    assert all(name.isalnum() for name in names)  # DynamoDB refuses other characters in a placeholder
    assert counter.flow(1.0).least_value == pytest.approx(SMALLEST_VALUE, rel=0.5)


@given(
    st.lists(st.tuples(st.floats(SMALLEST_VALUE, LARGEST_VALUE), st.floats(0, 1)), min_size=1, max_size=20)
)
def test_sums_of_values_are_those_of_the_tasks_in_whole_counts(tasks: list[tuple[float, float]]) -> None:
    counter = FlowCounter(10.0)
    for value, left in tasks:
        counter.offered(5.0)
        counter.valued_put(5.0, value)
        counter.ended(5.0, 0.1, in_time=True)
        counter.valued_done(5.0, value, value * left, in_time=True)
    counter.offered(5.0)  # without a value: worth 1
    counter.ended(5.0, 0.1, in_time=False)
    counts = counter.counts(0)
    assert all(isinstance(number, int) and abs(number) < 2**63 / 1e5 for number in counts.values())
    flow = counter.flow(9.999999).value
    worth, delivered = sum(value for value, _left in tasks), sum(value * left for value, left in tasks)
    assert flow.offered == pytest.approx((worth + 1) / 10, rel=1e-6, abs=1e-5)
    assert flow.served == flow.offered
    assert flow.delivered == pytest.approx(delivered / 10, rel=1e-6, abs=1e-5)


def test_late_tasks_deliver_nothing_and_without_values_there_are_no_sums() -> None:
    counter = FlowCounter(10.0)
    counter.offered(1.0)
    counter.ended(1.0, 0.1, in_time=True)
    assert counter.flow(2.0).value == ValueFlow()
    counter.offered(1.0)
    counter.valued_put(1.0, 9.0)
    counter.ended(1.0, 0.1, in_time=False)
    counter.valued_done(1.0, 9.0, 0.0, in_time=False)
    assert counter.flow(2.0).value == ValueFlow(offered=5.0, served=5.0, delivered=0.5)
    assert counter.flow(30.0).value == ValueFlow()


@pytest.mark.parametrize(
    ("value", "overloaded", "lost"),
    [
        (ValueFlow(), True, None),
        (ValueFlow(10.0, 4.0, 4.0), True, 0.6),
        # The others have not ended: nobody knows yet that they are lost.
        (ValueFlow(10.0, 4.0, 4.0), False, 0.0),
        (ValueFlow(10.0, 4.0, 3.0), False, 0.25),
        (ValueFlow(10.0, 0.0, 0.0), False, 0.0),
        (ValueFlow(10.0, 0.0, 0.0), True, 1.0),
        (ValueFlow(0.0, 4.0, 4.0), True, 0.0),
        (ValueFlow(1.0, 4.0, 4.0), True, 0.0),
    ],
)
def test_the_share_of_the_value_that_is_lost(value: ValueFlow, overloaded: bool, lost: float | None) -> None:
    shed = 1.0 if overloaded else 0.0
    found = assess(Flow(8.0, 4.0, 4.0, shed, value=value), None, 10.0, 0.5)
    assert found.value_lost_ratio == (lost if lost is None else pytest.approx(lost))
    assert (found.value_offered_per_second, found.value_delivered_per_second) == (
        value.offered,
        value.delivered,
    )


def test_tasks_that_expire_lose_their_share_before_the_queue_is_overloaded() -> None:
    flow = Flow(1000.0, 990.0, 990.0, expired=9.0, value=ValueFlow(1000.0, 500.0, 250.0))
    found = assess(flow, None, 10.0, 0.5)
    assert not found.overloaded
    assert found.value_lost_ratio == pytest.approx(1 - 0.5 * 0.991)
