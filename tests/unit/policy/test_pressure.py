"""What a producer is told, and when the door closes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.pressure import Door, Flow, WindowCounter, assess

DEADLINE_SECONDS = 10.0
OLD, YOUNG = 9.0, 1.0


def test_a_steady_stream_is_counted_exactly() -> None:
    counter = WindowCounter(10.0, now=0.0)
    for tick in range(1, 1001):
        counter.add(tick * 0.1)
    assert counter.rate(100.0) == pytest.approx(10.0, rel=0.02)
    assert counter.total(105.0) == pytest.approx(50.0, abs=2)
    assert counter.total(130.0) == 0.0


def test_at_the_beginning_the_rate_is_over_the_time_that_there_was() -> None:
    counter = WindowCounter(10.0, now=100.0)
    assert counter.rate(100.0) == 0.0
    counter.add(101.0, 20)
    assert counter.rate(102.0) == 10.0


@given(st.lists(st.floats(0, 4), max_size=100))
def test_a_window_is_never_more_than_two_windows_hold(gaps: list[float]) -> None:
    counter, times = WindowCounter(3.0, now=0.0), [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
        counter.add(times[-1])
        total = counter.total(times[-1])
        assert 0 <= total <= sum(time > times[-1] - 6.0 - 1e-9 for time in times)


def test_a_senseless_window() -> None:
    with pytest.raises(ValueError, match="window_seconds"):
        WindowCounter(0.0, now=0.0)


def test_no_overload_no_advice() -> None:
    pressure = assess(Flow(10.0, 9.0, 9.0), YOUNG, DEADLINE_SECONDS, uniform=0.5)
    assert not pressure.overloaded
    assert pressure.probability_in_time == 1.0
    assert pressure.retry_after_seconds is None
    assert not assess(Flow(0.0, 0.0, 0.0), None, DEADLINE_SECONDS, uniform=0.5).overloaded


def test_an_old_task_or_one_turned_away_shows_overload() -> None:
    old = assess(Flow(30.0, 10.0, 9.0), OLD, DEADLINE_SECONDS, uniform=0.5)
    turned_away = assess(Flow(30.0, 10.0, 9.0, turned_away=20.0), YOUNG, DEADLINE_SECONDS, uniform=0.5)
    assert old == turned_away
    assert old.overloaded
    assert old.probability_in_time == pytest.approx(0.3)
    assert old.retry_after_seconds == pytest.approx(DEADLINE_SECONDS * 2)


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


# --- the door


@given(rates, rates, st.floats(0, 20), st.floats(1, 10))
def test_the_door_lets_in_a_multiple_of_what_is_served(
    offered: float, served: float, age: float, multiple: float
) -> None:
    pressure = assess(Flow(offered, served, served), age, DEADLINE_SECONDS, uniform=0.0)
    refused = Door(multiple).refusal_probability(pressure)
    assert 0 <= refused <= 1
    if not pressure.overloaded:
        assert refused == 0
    else:
        assert (1 - refused) * offered == pytest.approx(min(offered, multiple * served), rel=1e-6, abs=1e-6)


def test_the_door_opens_again_after_an_outage() -> None:
    outage = Flow(offered=10.0, served=0.0, served_in_time=0.0)
    assert Door().refusal_probability(assess(outage, OLD, DEADLINE_SECONDS, 0.0)) == 1.0
    # All that waited went stale: whoever comes now is let in, though nothing was served yet.
    assert Door().refusal_probability(assess(outage, None, DEADLINE_SECONDS, 0.0)) == 0.0


@pytest.mark.parametrize("multiple", [0.5, 0.0, -1.0, float("inf"), float("nan")])
def test_a_senseless_door(multiple: float) -> None:
    with pytest.raises(ValueError, match="door"):
        Door(multiple)
