"""The reserve: learned by several workers together, and the tasks that it shed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.order import Order
from freshq.policy.reserve import (
    MOST_KEPT,
    MOST_SPANS,
    FixedReserve,
    KindTimes,
    LearnedReserve,
    QuantileReserve,
    QuantileSketch,
    ReserveSpans,
    SkippedTasks,
)
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.policy.shedding import ShedReason


def test_a_fixed_reserve_stays() -> None:
    reserve = FixedReserve(2.0)
    reserve.observe(100.0)
    assert reserve.seconds == 2.0


def test_a_quantile_reserve_follows_the_service_times() -> None:
    reserve = QuantileReserve(0.9, deadline_seconds=100.0)
    for _ in range(QuantileReserve.LEAST - 1):
        reserve.observe(1.0)
    assert reserve.seconds == 0.0
    reserve.observe(1.0)
    assert 1.0 <= reserve.seconds <= 1.05
    for _ in range(2000):
        reserve.observe(3.0)
    assert 3.0 <= reserve.seconds <= 3.15 * 1.001


def test_a_reserve_that_has_seen_nothing_is_zero() -> None:
    reserve = QuantileReserve(0.9, deadline_seconds=100.0)
    reserve.refresh()
    assert reserve.seconds == 0.0


def test_a_quantile_reserve_never_closes_the_queue() -> None:
    reserve = QuantileReserve(0.9, deadline_seconds=10.0)
    for _ in range(1000):
        reserve.observe(60.0)
    assert reserve.seconds == 5.0


def test_a_quantile_reserve_can_be_shared_between_workers() -> None:
    seasoned, new = (QuantileReserve(0.9, deadline_seconds=100.0) for _ in range(2))
    for _ in range(200):
        seasoned.observe(2.0)
    new.sketch.merge(seasoned.sketch.counts())
    new.refresh()
    assert new.seconds == seasoned.seconds > 2.0


# --- learnt together

P90 = OverloadRules(100.0, reserve=ReserveRule(quantile=0.9))


def synced(reserve: LearnedReserve, shared: dict[int, float], now: float) -> dict[int, float]:
    """Let a process share its observed times; return the shared counts afterwards."""
    seen = reserve.begin_sync(now)
    merged = reserve.merged(shared, seen)
    reserve.end_sync(merged)
    return reserve.shared_counts(merged) if seen else shared


def test_a_fixed_reserve_learns_nothing() -> None:
    reserve = LearnedReserve(OverloadRules(10.0, reserve=ReserveRule(2.0)).new_reserve)
    for _ in range(100):
        reserve.observe(5.0)
    assert (reserve.next_sync, reserve.seconds) == (math.inf, 2.0)


def test_workers_learn_together() -> None:
    one, other = (LearnedReserve(P90.new_reserve) for _ in range(2))
    for _ in range(15):
        one.observe(1.0)
        other.observe(1.0)
    assert one.seconds == other.seconds == 0.0
    shared = synced(one, {}, 0.0)
    assert one.seconds == 0.0
    assert one.next_sync == 5.0
    shared = synced(other, shared, 1.0)
    assert 1.0 <= other.seconds <= 1.05
    assert synced(one, shared, 5.0) == shared
    assert one.seconds == other.seconds


def test_what_could_not_be_shared_is_kept_in_order() -> None:
    reserve = LearnedReserve(P90.new_reserve)
    for seconds in range(MOST_KEPT):
        reserve.observe(float(seconds))
    seen = reserve.begin_sync(0.0)
    assert len(seen) == MOST_KEPT
    reserve.observe(0.5)
    reserve.abort_sync(seen)
    assert reserve.begin_sync(5.0) == [*map(float, range(1, MOST_KEPT)), 0.5]


def test_shared_counts_are_short() -> None:
    sketch = QuantileSketch(half_life=1)
    sketch.add([1.0, *[100.0] * 30])
    assert list(LearnedReserve.shared_counts(sketch).values()) == [pytest.approx(1.0)]


# --- skipped tasks


@pytest.mark.parametrize(
    ("order", "short", "due"),
    [
        (Order.FIFO, False, True),
        (Order.FIFO, True, True),
        (Order.LIFO, False, False),
        (Order.LIFO, True, True),
    ],
)
def test_which_claims_show_skipped_tasks(order: Order, short: bool, due: bool) -> None:
    assert SkippedTasks(order).check_due(0.0, 1.0, short=short) is due
    assert not SkippedTasks(order).check_due(0.0, 0.0, short=short)


def test_a_claim_that_skipped_tasks_is_noted_twice_a_reserve() -> None:
    skipped = SkippedTasks(Order.FIFO)
    assert not skipped.found(10.0, 4.0, None, 5.0, short=True)
    assert not skipped.found(10.0, 4.0, 5.1, 5.0, short=False)
    assert skipped.check_due(10.0, 4.0, short=False)
    assert skipped.found(10.0, 4.0, 5.0, 5.0, short=False)
    assert not skipped.check_due(11.9, 4.0, short=False)
    assert skipped.check_due(12.0, 4.0, short=False)


def spans_of(*claims: tuple[float, float]) -> ReserveSpans:
    spans = ReserveSpans()
    for now, reserve_seconds in claims:
        spans = ReserveSpans(spans.extended(now, reserve_seconds))
    return spans


def test_the_reserve_shed_what_a_claim_skipped_in_its_last_moments() -> None:
    spans = spans_of((100.0, 10.0), (108.0, 10.0), (150.0, 5.0))
    assert len(spans) == 2
    reasons = {deadline: spans.reason(deadline) for deadline in (99.0, 101.0, 118.0, 119.0, 151.0, 155.1)}
    assert reasons == {
        99.0: ShedReason.EXPIRED,
        101.0: ShedReason.RESERVE,
        118.0: ShedReason.RESERVE,
        119.0: ShedReason.EXPIRED,
        151.0: ShedReason.RESERVE,
        155.1: ShedReason.EXPIRED,
    }


@given(st.lists(st.floats(0, 1000), max_size=200).map(sorted))
def test_spans_are_bounded(times: list[float]) -> None:
    assert len(spans_of(*((now, 0.5) for now in times))) <= MOST_SPANS


def test_times_are_known_by_kind_after_enough_services_and_lapse() -> None:
    times = KindTimes()
    for _ in range(KindTimes.LEAST - 1):
        times.observe("slow", 4.0, 10.0)
    assert times.seconds("slow", 0.9, 10.0) == 0
    times.observe("slow", 4.0, 10.0)
    assert 4.0 <= times.seconds("slow", 0.9, 10.0) <= 4.2
    assert times.seconds("other", 0.9, 10.0) == times.seconds(None, 0.9, 10.0) == 0
    assert times.seconds("slow", 0.9, 70.0) > 0
    assert times.seconds("slow", 0.9, 70.1) == 0
    for _ in range(KindTimes.LEAST):
        times.observe("hours", 7200.0, 0.0)
    assert times.seconds("hours", 0.9, 72_000.0) >= 7200


def test_the_kind_that_was_served_longest_ago_is_forgotten() -> None:
    times = KindTimes()
    for kind in [*range(KindTimes.MOST_KINDS), 0, "new"]:
        for _ in range(KindTimes.LEAST):
            times.observe(str(kind), 1.0, 0.0)
    assert times.seconds("1", 0.9, 0.0) == 0
    assert min(times.seconds(kind, 0.9, 0.0) for kind in ("0", "2", "new")) > 0


def test_a_reserve_leaves_tasks_with_a_short_max_age_half_of_their_life() -> None:
    reserve = LearnedReserve(lambda sketch: QuantileReserve(0.9, 60.0, sketch))
    for _ in range(QuantileReserve.LEAST):
        reserve.observe(3.0)
    learned = reserve.seconds
    assert learned >= 3.0
    reserve.bound([(0.0, 2.0), (1.0, 2.0)])
    assert reserve.seconds == 1.0
    reserve.observe(3.0)
    assert reserve.seconds == 1.0
    reserve.bound([(0.0, 2.0), (0.0, 60.0)])
    assert reserve.seconds == learned, "a task that lives longer can still be claimed, and teach"
    reserve.bound([(0.0, 2.0)])
    reserve.abort_sync(reserve.begin_sync(1.0))
    assert reserve.seconds == learned
    fixed = LearnedReserve(lambda _: FixedReserve(3.0))
    fixed.bound([(0.0, 2.0)])
    assert fixed.seconds == 3.0
