"""The concurrency limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.limits import ConcurrencyLimit, LimitState, Signals
from tests.support.refusals import refused

AIMD = ConcurrencyLimit(1, 100)
GOOD = Signals(succeeded=50, peak_in_flight=10)
BAD = Signals(succeeded=50, pushed_back=1, peak_in_flight=10)


def test_one_up_and_times_seven_tenths_down() -> None:
    state = LimitState(10.0)
    up = AIMD.moved(state, 1, GOOD)
    assert up == LimitState(11.0, moved=1)
    assert up is not None
    down = AIMD.moved(up, 2, BAD)
    assert down is not None
    assert down.limit == pytest.approx(7.7)
    assert (down.moved, down.lowered) == (2, 2)
    assert down.slots == 7


def test_no_growth_under_half_use_or_without_success() -> None:
    state = LimitState(10.0)
    assert AIMD.moved(state, 1, Signals(succeeded=50, peak_in_flight=4)) is None
    assert AIMD.moved(state, 1, Signals(succeeded=50, peak_in_flight=5)) is not None
    assert AIMD.moved(state, 1, Signals(peak_in_flight=10)) is None


def test_it_stays_within_its_bounds() -> None:
    assert AIMD.moved(LimitState(1.0), 1, BAD) is None
    assert AIMD.moved(LimitState(1.2), 1, BAD) == LimitState(1.0, moved=1, lowered=1)
    assert AIMD.moved(LimitState(100.0), 1, Signals(succeeded=1, peak_in_flight=99)) is None


def test_a_fixed_limit_never_moves() -> None:
    fixed = ConcurrencyLimit.fixed(5)
    assert fixed.initial().slots == 5
    assert fixed.moved(fixed.initial(), 1, BAD) is None
    assert fixed.moved(fixed.initial(), 1, GOOD) is None


def test_it_moves_up_once_a_window_whoever_is_first() -> None:
    up = AIMD.moved(LimitState(10.0), 1, GOOD)
    assert up is not None
    assert AIMD.moved(up, 1, GOOD) is None
    assert AIMD.moved(up, 2, GOOD) is not None


def test_push_back_is_not_hidden_by_a_worker_that_saw_none() -> None:
    up = AIMD.moved(LimitState(10.0), 1, GOOD)
    assert up is not None
    down = AIMD.moved(up, 1, BAD)
    assert down is not None
    assert down.limit < 10.0
    assert AIMD.moved(down, 1, BAD) is None, "lowered once a window"
    assert AIMD.moved(down, 1, GOOD) is None, "not raised in the window in which it was lowered"


signals = st.builds(Signals, st.integers(0, 3), st.integers(0, 1), st.integers(0, 30))


@given(st.lists(st.tuples(st.integers(0, 3), signals), max_size=100))
def test_properties_of_the_limit(steps: list[tuple[int, Signals]]) -> None:
    limit = ConcurrencyLimit(2, 20)
    state, window, lowered_in, raised_in = limit.initial(), 0, set[int](), set[int]()
    for gap, seen in steps:
        window += gap
        new = limit.moved(state, window, seen)
        if new is None:
            if seen.pushed_back:
                assert state.limit == 2 or window in lowered_in
            continue
        assert 2 <= new.limit <= 20
        moves = lowered_in if new.limit < state.limit else raised_in
        assert window not in moves
        moves.add(window)
        assert (new.limit < state.limit) is bool(seen.pushed_back)
        state = new


def test_windows_have_numbers() -> None:
    assert ConcurrencyLimit(1, 2, window_seconds=10.0).window(1_700_000_009.9) == 170_000_000
    assert ConcurrencyLimit(1, 2, window_seconds=10.0).window(1_700_000_010.0) == 170_000_001


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"lowest": 0, "highest": 5}, "lowest"),
        ({"lowest": 6, "highest": 5}, "lowest"),
        ({"lowest": 1, "highest": 5, "window_seconds": 0}, "window_seconds"),
        ({"lowest": 1, "highest": 5, "decrease": 1}, "decrease"),
    ],
)
def test_a_senseless_limit(arguments: dict[str, int], name: str) -> None:
    with refused(name):
        ConcurrencyLimit(**arguments)
