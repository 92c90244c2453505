"""CoDel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.order import Order
from freshq.policy.shedding import Codel
from tests.support.refusals import refused


def test_codel_sheds_beyond_twice_the_target_once_a_whole_interval_was_slow() -> None:
    codel = Codel(1.0, 10.0, Order.FIFO)
    assert not any(codel.sheds(float(now), 5.0) for now in range(10))
    assert codel.longest_wait_seconds == float("inf")
    assert not codel.sheds(10.0, 5.0), "the first of an interval is never shed"
    assert codel.overloaded
    assert codel.longest_wait_seconds == 2.0
    assert codel.sheds(11.0, 2.1)
    assert not codel.sheds(12.0, 2.0)


def test_codel_is_not_overloaded_before_a_whole_interval_was_seen() -> None:
    codel = Codel(0.05, 0.1, Order.FIFO)
    assert not codel.sheds(0.0, 5.0)
    assert not codel.overloaded


def test_one_short_wait_ends_codels_overload() -> None:
    codel = Codel(1.0, 10.0, Order.FIFO)
    for now in range(11):
        codel.sheds(float(now), 5.0)
    assert codel.longest_wait_seconds == 2.0
    assert not codel.sheds(12.0, 0.5)
    assert not codel.sheds(21.0, 5.0)
    assert codel.longest_wait_seconds == float("inf")
    assert not codel.sheds(22.0, 5.0)


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
def test_codel_refuses_an_order_that_serves_the_newest_first(order: Order) -> None:
    with pytest.raises(ValueError, match="codel: ") as error:
        Codel(1.0, 10.0, order)
    assert str(error.value).endswith(" that is served always looks fresh, and CoDel would see no overload")


@pytest.mark.parametrize(
    ("target", "interval", "name"),
    [(0.0, 1.0, "target_seconds"), (1.0, -1.0, "interval_seconds"), (float("nan"), 1.0, "target_seconds")],
)
def test_codel_needs_positive_times(target: float, interval: float, name: str) -> None:
    with refused(f"codel.{name}"):
        Codel(target, interval, Order.FIFO)


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 2)), max_size=100))
def test_codel_never_sheds_what_waited_less_than_twice_its_target(steps: list[tuple[float, float]]) -> None:
    codel, now = Codel(1.0, 5.0, Order.FIFO), 0.0
    for gap, waited in steps:
        now += gap
        assert not codel.sheds(now, waited)
