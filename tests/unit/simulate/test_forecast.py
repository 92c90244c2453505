"""Forecasts, against what then happened in simulated afternoons."""

from collections import Counter
from dataclasses import replace

import pytest

from freshq.cli.output import chances_by_value, forecast_lines
from freshq.policy.order import Order
from freshq.policy.pressure import IN_TIME_OF_BAND, PUT_OF_BAND, FlowCounter, Pressure
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import Source, simulate_load
from freshq.simulate.backlog import Fates
from freshq.simulate.forecast import (
    EVERY_SECONDS,
    SLOTS_SECONDS,
    Forecaster,
    Interval,
    Moment,
    WaitingTasks,
    forecast,
)
from tests.support.forecast_cases import held

RULES = OverloadRules(30.0)
OVERLOADED = Moment(30.0, 10.0, 30.0, 1.0, 10, 10, [0.05 * number for number in range(600)])


def test_intervals_hold_what_then_happened() -> None:
    # Nine in ten of 200 afternoons: see test_simulate_long.
    for name, count in held(range(5)).items():
        assert sum(count) >= len(count) - 1, name


def test_an_interval_leaves_out_the_outermost_runs() -> None:
    assert Interval.of([float(number) for number in range(19)]) == Interval(9.0, 0.0, 18.0)
    assert Interval.of([float(number) for number in range(39)]) == Interval(19.0, 1.0, 37.0)


def test_an_interval_of_few_values_has_nine_in_ten_runs_as_nearly_as_it_can() -> None:
    assert Interval.nearest([30.0] * 30 + [float(number) for number in range(9)]) == Interval(30.0, 4.0, 30.0)
    whole = [1.0] * 2 + [2.0] * 15 + [3.0] * 18 + [4.0] * 4
    assert Interval.nearest(whole) == Interval(3.0, 2.0, 4.0), "37 of 39; 33 would be further from 35.1"
    assert Interval.nearest([5.0]) == Interval(5.0, 5.0, 5.0)


def test_a_threefold_load_is_done_to_a_third_and_wants_more_slots() -> None:
    found = forecast(OVERLOADED, RULES)
    assert found.in_time_ratio.low < 1 / 3 < found.in_time_ratio.high
    assert found.in_time_ratio.high < 0.45
    assert found.more_slots.low <= 22 <= found.more_slots.high, "30 are busy, two are spare"
    assert found.backlog_in_time_ratio is not None
    assert found.backlog_in_time_ratio.high < 0.1, "newest first, the backlog goes stale"
    assert found.backlog_over_seconds is not None
    assert 28.0 < found.backlog_over_seconds.low <= found.backlog_over_seconds.high <= 30.0
    assert found.better_order is None, "none does more"
    assert found == forecast(OVERLOADED, RULES), "the same runs"
    assert found != forecast(OVERLOADED, RULES, seed=2)


def test_oldest_first_without_a_reserve_is_told_the_better_order() -> None:
    found = forecast(OVERLOADED, replace(RULES, order=Order.FIFO))
    assert found.in_time_ratio.high < 0.1
    assert found.better_order in (Order.LIFO, Order.ADAPTIVE)
    assert found.better_ratio is not None
    assert found.better_ratio.low > 0.1
    learned = forecast(OVERLOADED, replace(RULES, order=Order.FIFO, reserve=ReserveRule(quantile=0.9)))
    assert learned.in_time_ratio.low > found.in_time_ratio.high, "the reserve of today's rules is learned"


def test_a_backlog_that_clears() -> None:
    moment = Moment(1.0, 10.0, 30.0, 1.0, 10, 10, [1.0] * 90)
    found = forecast(moment, RULES)
    assert found.backlog_in_time_ratio is not None
    assert found.backlog_over_seconds is not None
    assert found.backlog_in_time_ratio.low == found.in_time_ratio.low == 1.0
    assert 5.0 < found.backlog_over_seconds.low < 10.0 < found.backlog_over_seconds.high < 20.0
    assert found.more_slots.high == 0


@pytest.mark.matrix
@pytest.mark.parametrize("scale", [400, 20, 1])
def test_a_large_queue_is_simulated_in_batches(scale: int) -> None:
    moment = replace(
        OVERLOADED,
        offered_per_second=30.0 * scale,
        served_per_second=10.0 * scale,
        slots=10 * scale,
        in_work=10 * scale,
        ages=[0.05 * (number // scale) for number in range(600 * scale)],
    )
    found = forecast(moment, RULES)
    assert found.in_time_ratio.low - 0.01 < 1 / 3 < found.in_time_ratio.high + 0.01
    assert found.slots == 10 * scale


def test_a_fast_queue_of_few_slots_is_simulated_in_batches() -> None:
    moment = replace(OVERLOADED, offered_per_second=3000.0, served_per_second=1000.0, service_seconds=0.001)
    found = forecast(replace(moment, slots=1, in_work=1), RULES)
    assert 0.25 < found.in_time_ratio.low < 1 / 3 < found.in_time_ratio.high < 0.42


def test_a_queue_without_a_max_age_has_a_horizon() -> None:
    found = forecast(OVERLOADED, OverloadRules(1e9))
    assert found.backlog_over_seconds is not None
    assert found.horizon_seconds == 660.0
    assert found.backlog_over_seconds.median == found.horizon_seconds, "not before"


def test_what_tasks_of_a_value_can_expect() -> None:
    by_value = {1.0: 0.01, 4.0: 0.5, 8.0: 0.975}
    moment = Moment(9.0, 3.0, 10.0, 1.0, 3, 3, [0.1 * number for number in range(60)], by_value=by_value)
    found = forecast(moment, replace(RULES, order=Order.VALUE))
    assert found.by_value == by_value
    assert forecast_lines(found)["by value"] == "from 8: 98%, from 4: 50%, less: 1% in time"
    assert found.better_order is None, "orders by time would complete as many tasks, of less value"
    assert chances_by_value({2.0: 0.3}) == "less: 30% in time"
    assert "by value" not in forecast_lines(forecast(OVERLOADED, RULES))


def test_the_chance_of_a_value_is_what_tasks_of_it_have_later() -> None:
    """At twice the capacity, with chances counted in the minute before, and tasks put in the minute after."""
    values = {10.0: 0.2, 4.0: 0.5, 1.0: 0.3}
    load = Source(20.0, 180.0, 20.0, values=values, seed=5).load()
    done = simulate_load(load, OverloadRules(20.0, Order.VALUE), 10)
    counter, later = FlowCounter(60.0), Counter[tuple[float, bool]]()
    for created, start, service, value, fate in zip(
        load.created, done.starts, load.service, load.values, done.fates, strict=True
    ):
        in_time = fate == Fates.IN_TIME
        if 60 <= created < 120:
            counter.valued(created, value, PUT_OF_BAND)
        if in_time and 60 <= start + service < 120:
            counter.valued(start + service, value, IN_TIME_OF_BAND)
        if 120 <= created < 160:
            later[value, in_time] += 1
    found = replace(pressure(), by_value=counter.flow(119.9).by_value)
    for value in values:
        share = later[value, True] / (later[value, True] + later[value, False])
        assert found.chance(value) == pytest.approx(share, abs=0.1), value
    assert found.chance(10.0) > 0.95
    assert 0.2 < found.chance(4.0) < 0.9
    assert found.chance(1.0) < 0.05


def pressure(service_seconds: float | None = 1.0, wanted: int | None = 12) -> Pressure:
    return Pressure(5.0, 5.0, 1.0, False, None, service_seconds, wanted)  # noqa: FBT003 - as it is


class TestForecaster:
    def test_a_forecast_is_made_every_ten_seconds(self) -> None:
        forecaster, nothing = Forecaster(), WaitingTasks(0, None, list)
        first = forecaster.forecast(0.0, RULES, pressure(), 3, nothing)
        assert forecaster.forecast(EVERY_SECONDS - 1, RULES, pressure(None), 3, nothing) is first
        assert forecaster.forecast(EVERY_SECONDS, RULES, pressure(None), 3, nothing) is None

    def test_slots_are_those_taken_while_tasks_wait(self) -> None:
        forecaster = Forecaster()
        nothing, some = WaitingTasks(0, None, list), WaitingTasks(1, 1.0, lambda: [0.0])

        def slots(now: float, taken: int, waiting: WaitingTasks) -> int:
            found = forecaster.forecast(now, RULES, pressure(), taken, waiting)
            assert found is not None
            return found.slots

        assert slots(0.0, 3, nothing) == 12, "as many as the load wants"
        assert slots(EVERY_SECONDS, 15, some) == 15
        assert slots(2 * EVERY_SECONDS + SLOTS_SECONDS, 4, nothing) == 15, "seen before"
        assert slots(3 * EVERY_SECONDS + 2 * SLOTS_SECONDS, 4, some) == 4, "the others are gone"

    def test_tasks_that_are_not_read_are_spread_up_to_the_oldest(self) -> None:
        waiting = WaitingTasks(5, 30.0, lambda: iter([98.0, 90.0]))
        assert waiting.ages(100.0) == pytest.approx([2.0, 10.0, 10 + 20 / 3, 10 + 40 / 3, 30.0])
        assert WaitingTasks(1, 2.0, lambda: [98.0, 90.0]).ages(100.0) == [2.0]
        assert WaitingTasks(0, None, list).ages(100.0) == []


@pytest.mark.matrix("order")
@pytest.mark.parametrize("order", list(Order))
def test_tasks_are_forecast_by_their_own_max_ages(order: Order) -> None:
    """A queue of a minute whose tasks all live for 2 s has the future of a queue of 2 s."""
    ages = [number / 8 for number in range(16)]
    own = Moment(10.0, 5.0, 60.0, 0.2, 1, 1, ages, own_ratio=1.0, own_max_age_seconds=2.0)
    reserve = ReserveRule(automatic=True).for_order(order, has_max_age=True)
    found = forecast(own, OverloadRules(60.0, order, reserve))
    alike = forecast(
        replace(own, own_ratio=0.0, own_max_age_seconds=None), OverloadRules(2.0, order, reserve)
    )
    assert found.in_time_ratio.median == pytest.approx(0.5, abs=0.06)
    assert found.more_slots == alike.more_slots
    assert found.backlog_over_seconds is not None
    assert found.backlog_over_seconds.high <= 2.1
    half = forecast(replace(own, own_ratio=0.5), OverloadRules(60.0, order, reserve))
    assert half.more_slots.median <= found.more_slots.median
