"""The orders, and when an adaptive one switches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.order import Order, OrderPolicy, OrderSwitch, Wait, latest_wait
from tests.support.refusals import refused

DEADLINE_SECONDS = 10.0
ages = st.none() | st.integers(0, 80).map(lambda quarters: quarters / 4)


@pytest.mark.parametrize(("order", "newest_first"), [(Order.LIFO, True), (Order.FIFO, False)])
def test_a_fixed_order_never_switches(order: Order, newest_first: bool) -> None:
    policy = OrderPolicy(order, DEADLINE_SECONDS)
    assert order.newest_first is policy.newest_first is newest_first
    assert order.oldest_first is not newest_first
    assert not order.switches
    assert policy.check_at == math.inf
    assert policy.observe(10.0, 0.1) is None
    assert policy.newest_first is newest_first


def test_adaptive_is_not_an_answer_by_itself() -> None:
    with refused("order"):
        _ = Order.ADAPTIVE.newest_first
    assert Order.ADAPTIVE.switches
    assert not Order.ADAPTIVE.oldest_first


def test_adaptive_switches_at_its_thresholds_and_says_so() -> None:
    policy = OrderPolicy(Order.ADAPTIVE, DEADLINE_SECONDS)
    assert policy.check_at == -math.inf
    assert not policy.newest_first
    assert policy.observe(14.0, 10.0) is None
    assert policy.observe(14.5, 10.0) == OrderSwitch(14.5, newest_first=True, oldest_age_seconds=4.5)
    assert policy.observe(16.0, 14.0) is None
    assert policy.observe(16.5, 15.0) == OrderSwitch(16.5, newest_first=False, oldest_age_seconds=1.5)


@pytest.mark.parametrize(("deadline_seconds", "check_interval_seconds"), [(10.0, 0.2), (3600.0, 1.0)])
def test_adaptive_looks_at_the_oldest_task_at_intervals(
    deadline_seconds: float, check_interval_seconds: float
) -> None:
    policy = OrderPolicy(Order.ADAPTIVE, deadline_seconds)
    assert policy.unused
    policy.observe(100.0, 99.0)
    assert (policy.check_at, policy.unused) == (100.0 + check_interval_seconds, False)
    policy.observe(101.0, None)
    assert policy.unused, "an empty line may be forgotten"


def test_an_empty_line_is_young() -> None:
    policy = OrderPolicy(Order.ADAPTIVE, DEADLINE_SECONDS)
    policy.observe(1.0, -4.0)
    assert policy.observe(2.0, None) == OrderSwitch(2.0, newest_first=False, oldest_age_seconds=0.0)


@given(st.lists(ages, max_size=50))
def test_adaptive_has_hysteresis(observed: list[float | None]) -> None:
    policy = OrderPolicy(Order.ADAPTIVE, DEADLINE_SECONDS)
    for now, age in enumerate(observed):
        before = policy.newest_first
        switch = policy.observe(float(now), None if age is None else now - age)
        seconds = age or 0.0
        assert (switch is not None) is (policy.newest_first is not before)
        if 2.0 <= seconds <= 4.0:
            assert switch is None
        elif seconds > 4.0:
            assert policy.newest_first
        else:
            assert not policy.newest_first


@pytest.mark.parametrize("deadline_seconds", [0.0, -1.0, math.nan])
def test_a_deadline_must_be_positive(deadline_seconds: float) -> None:
    with refused("deadline_seconds"):
        OrderPolicy(Order.ADAPTIVE, deadline_seconds)


def test_a_deadline_may_be_shorter_than_a_second() -> None:
    policy = OrderPolicy(Order.ADAPTIVE, 0.5)
    policy.observe(100.0, 99.75)
    assert policy.newest_first


# --- by the tasks' own deadlines


@pytest.mark.parametrize(
    ("oldest", "nearest", "switches"),
    [
        (99.1, [(99.1, 101.1)], True),
        (99.3, [(99.3, 101.3)], False),
        # The oldest task has a minute, but one behind it has used half of its 2 s.
        (90.0, [(99.0, 101.0), (90.0, 150.0)], True),
        # Tasks that have used little of a short life do not hide one that has used most of a long life.
        (70.0, [(99.9, 101.9)] * 100, True),
        (90.0, [(99.9, 101.9)] * 100, False),
    ],
)
def test_a_task_is_late_by_its_own_deadline(
    oldest: float, nearest: list[tuple[float, float]], switches: bool
) -> None:
    policy = OrderPolicy(Order.ADAPTIVE, 60.0)
    assert (policy.observe(100.0, oldest, nearest) is not None) is switches


@given(ages.filter(lambda age: age is not None))
def test_own_max_ages_are_like_the_max_age_of_a_queue(age: float) -> None:
    own, alike = OrderPolicy(Order.ADAPTIVE, 3600.0), OrderPolicy(Order.ADAPTIVE, DEADLINE_SECONDS)
    for now in (0.0, 1.0):
        created = now - age
        own.observe(now, created, [(created, created + DEADLINE_SECONDS)])
        alike.observe(now, created)
        assert own.newest_first is alike.newest_first
        assert own.check_at == pytest.approx(alike.check_at)


def test_no_task_lives_longer_than_the_queue_allows() -> None:
    assert latest_wait(10.0, None, 60.0, [(5.0, 1e9)]) == Wait(5.0, 60.0)
    assert latest_wait(10.0, None, 60.0) is None
