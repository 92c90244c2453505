"""Limits of the downstream: concurrent runs, a rate, and retries."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.limits import (
    ConcurrencyLimit,
    LimitState,
    Prefetch,
    RetryBudget,
    SharedBucket,
    Signals,
    TokenBucket,
)
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


steps = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20)), max_size=100)


@given(steps, st.floats(0.1, 50), st.integers(1, 30))
def test_a_bucket_admits_no_more_than_burst_and_rate(
    demand: list[tuple[float, int]], rate: float, burst: int
) -> None:
    bucket, now, admitted = TokenBucket(rate, burst, 0.0), 0.0, 0
    for gap, wanted in demand:
        now += gap
        taken = min(wanted, bucket.available(now))
        bucket.take(taken)
        admitted += taken
        assert admitted <= burst + rate * now + 1e-6


@given(steps, st.floats(0.1, 50), st.integers(1, 30), st.integers(1, 30))
def test_workers_that_lease_blocks_share_one_rate(
    demand: list[tuple[float, int]], rate: float, burst: int, block: int
) -> None:
    bucket = SharedBucket(rate, burst, min(block, burst))
    state, now, leased = bucket.full(0.0), 0.0, 0
    for gap, wanted in demand:
        now += gap
        # Clocks of workers differ.
        seen_at = max(0.0, now - (0.5 if wanted % 3 == 0 else 0.0))
        state, granted = bucket.lease(state, seen_at, wanted)
        leased += granted.count
        assert 0 <= granted.count <= min(wanted, block)
        assert (granted.count == 0) is (granted.retry_after_seconds > 0)
        assert 0 <= state.tokens <= burst
        assert leased <= burst + rate * now + 1e-6


def test_a_lease_says_when_to_come_back_and_lapses() -> None:
    bucket = SharedBucket(rate_per_second=2.0, burst=4, block=3, block_seconds=1.5)
    state, first = bucket.lease(bucket.full(10.0), 10.0, wanted=10)
    state, second = bucket.lease(state, 10.0, wanted=10)
    state, third = bucket.lease(state, 10.0, wanted=10)
    assert (first.count, first.until) == (3, 11.5)
    assert second.count == 1
    assert (third.count, third.retry_after_seconds) == (0, 0.5)
    assert bucket.lease(state, 10.5, wanted=1)[1].count == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1, 1), "rate_per_second"),
        ((inf, 1, 1), "rate_per_second"),
        ((10**400, 1, 1), "rate_per_second"),
        (("5", 1, 1), "rate_per_second"),
        ((1.0, 1, 1, True), "rate_per_second"),
        ((1.0, 2, 3), "block"),
        ((1.0, 2, 0), "block"),
        ((1.0, 2, "1"), "block"),
    ],
    ids=["none", "infinite", "huge", "text", "flag", "large", "zero", "text block"],
)
def test_a_senseless_bucket(arguments: tuple[Any, ...], name: str) -> None:
    with refused(name):
        SharedBucket(*arguments)


@given(st.lists(st.booleans(), max_size=500), st.floats(0.01, 1), st.integers(0, 20))
def test_retries_stay_a_fraction_of_first_attempts(
    retries: list[bool], fraction: float, reserve: int
) -> None:
    budget, first_attempts, spent = RetryBudget(fraction, reserve, cap=50), 0, 0
    for retry in retries:
        if retry:
            spent += budget.spend()
        else:
            budget.deposit()
            first_attempts += 1
        assert spent <= reserve + fraction * first_attempts + 1e-6
        assert 0 <= budget.balance <= 50


def test_a_budget_with_another_balance_has_the_same_rules() -> None:
    budget = RetryBudget(0.5, reserve=3, cap=4)
    other = budget.at(9.0)
    assert (budget.balance, other.balance) == (3.0, 4.0)
    assert other.spend()
    other.deposit()
    assert other.balance == 3.5
    other.deposit(9)
    assert other.balance == 4.0
    assert budget.at(1.0).balance == 1.0
    assert RetryBudget(0.5, reserve=0, cap=0.5).at(1.0).balance == 0.5
    assert RetryBudget(0.5, reserve=4, cap=4).balance == 4.0


def test_a_calm_day_does_not_pay_for_a_storm() -> None:
    budget = RetryBudget(0.1, reserve=0, cap=5)
    budget.deposit(1_000_000)
    assert sum(budget.spend() for _ in range(100)) == 5


@pytest.mark.parametrize(("arguments", "name"), [((0.0,), "fraction"), ((0.1, 10, 5), "reserve")])
def test_a_senseless_budget(arguments: tuple[float, ...], name: str) -> None:
    with refused(name):
        RetryBudget(*arguments)


def test_as_many_tasks_are_prefetched_as_the_slots_start_in_5_ms() -> None:
    prefetch = Prefetch(slots=8)
    prefetch.began(10.0)
    assert prefetch.limit(10.0) == 0  # it knows of no run
    prefetch.ended(0.004)
    assert prefetch.limit(10.0) == 10
    prefetch.ended(0.012)
    assert prefetch.limit(10.0) == 8  # a mean of 5 ms
    for _ in range(100):
        prefetch.ended(0.0)
    assert prefetch.limit(10.0) == 24


def test_nothing_is_prefetched_while_no_run_begins() -> None:
    prefetch = Prefetch(slots=1)
    prefetch.ended(0.001)
    assert prefetch.limit(10.0) == 0
    prefetch.began(10.0)
    assert (prefetch.limit(10.009), prefetch.limit(10.011)) == (5, 0)
    prefetch.began(11.0)
    assert prefetch.limit(11.0) == 5


def test_prefetching_begins_again_with_one_task_where_some_were_given_back() -> None:
    prefetch = Prefetch(slots=2)
    prefetch.ended(0.0001)
    prefetch.began(10.0)
    assert prefetch.limit(10.0) == 24
    prefetch.waited_too_long()
    assert prefetch.limit(10.0) == 1
    prefetch.ended(0.05)
    prefetch.waited_too_long()  # runs are known to be longer still
    assert prefetch.limit(10.0) == 0
