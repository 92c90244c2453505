"""CoDel, the bounded backlog, and what is too late."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.order import Order
from freshq.policy.shedding import (
    BacklogLimit,
    Codel,
    ShedReason,
    Victim,
    WhenFull,
    too_late,
)


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [(9.0, ShedReason.EXPIRED), (10.0, ShedReason.EXPIRED), (12.0, ShedReason.RESERVE), (12.1, None)],
)
def test_too_late(deadline: float, reason: ShedReason | None) -> None:
    assert too_late(10.0, deadline, reserve_seconds=2.0) is reason


# --- CoDel


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


@pytest.mark.parametrize("order", [Order.LIFO, Order.PRIORITY, Order.ADAPTIVE])
def test_codel_refuses_an_order_that_serves_the_newest_first(order: Order) -> None:
    with pytest.raises(
        ValueError, match=f"codel: works only with order=fifo, got order={order.value}"
    ) as error:
        Codel(1.0, 10.0, order)
    assert str(error.value).endswith(" that is served always looks fresh, and CoDel would see no overload")


@pytest.mark.parametrize(
    ("target", "interval", "name"),
    [(0.0, 1.0, "target_seconds"), (1.0, -1.0, "interval_seconds"), (float("nan"), 1.0, "target_seconds")],
)
def test_codel_needs_positive_times(target: float, interval: float, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^codel\.{name}: must be greater than 0"):
        Codel(target, interval, Order.FIFO)


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 2)), max_size=100))
def test_codel_never_sheds_what_waited_less_than_twice_its_target(steps: list[tuple[float, float]]) -> None:
    codel, now = Codel(1.0, 5.0, Order.FIFO), 0.0
    for gap, waited in steps:
        now += gap
        assert not codel.sheds(now, waited)


# --- backlog


def test_a_backlog_that_is_not_full_sheds_nothing() -> None:
    assert BacklogLimit(3).eviction(3, {}) is None


def test_a_full_backlog_drops_the_oldest_or_refuses_the_newest() -> None:
    drop = BacklogLimit(3).eviction(4, {})
    refuse = BacklogLimit(3, WhenFull.REFUSE_NEWEST).eviction(4, {})
    assert drop is not None
    assert refuse is not None
    assert (drop.reason, drop.victim) == (ShedReason.OVERFLOW, Victim.OLDEST)
    assert (refuse.reason, refuse.victim) == (ShedReason.OVERFLOW, Victim.NEWCOMER)


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_the_noisiest_group_gives_way_first(when_full: WhenFull) -> None:
    limit = BacklogLimit(10, when_full, group_share=0.5)
    eviction = limit.eviction(11, {"quiet": 2, None: 3, "noisy": 6})
    assert eviction is not None
    assert eviction.reason is ShedReason.GROUP
    assert (eviction.victim, eviction.group) == (Victim.OLDEST_OF_GROUP, "noisy")


def test_without_a_noisy_group_the_backlog_overflows_as_usual() -> None:
    eviction = BacklogLimit(10, group_share=0.5).eviction(11, {"a": 4, "b": 4, "c": 3})
    assert eviction is not None
    assert eviction.reason is ShedReason.OVERFLOW


@given(st.lists(st.sampled_from("aabc" + "n" * 12), max_size=200), st.sampled_from(WhenFull))
def test_the_bound_holds_and_quiet_groups_are_spared(arrivals: list[str], when_full: WhenFull) -> None:
    limit = BacklogLimit(8, when_full, group_share=0.25)
    waiting: list[str] = []
    for group in arrivals:
        waiting.append(group)
        counts: Counter[str | None] = Counter(waiting)
        eviction = limit.eviction(len(waiting), counts)
        if eviction is None:
            continue
        if max(counts.values()) > 2:
            assert eviction.group is not None
            assert counts[eviction.group] == max(counts.values())
            waiting.remove(eviction.group)
        else:
            assert eviction.reason is ShedReason.OVERFLOW
            waiting.pop(-1 if eviction.victim is Victim.NEWCOMER else 0)
        assert len(waiting) <= 8


@pytest.mark.parametrize(
    ("options", "name"), [((0,), "max_waiting"), ((5, WhenFull.DROP_OLDEST, 1.0), "group")]
)
def test_a_senseless_backlog(options: tuple[int, WhenFull, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BacklogLimit(*options)
