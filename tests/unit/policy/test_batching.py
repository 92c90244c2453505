"""Batches: who is in one, when its call is due, and how many tasks may be claimed for them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.batching import Batches, BatchRule, ExpectedTime, SlotUse

SECONDS = st.floats(0, 100)
# The time since the last task, the key of the task, and how long it can wait.
ARRIVALS = st.lists(st.tuples(SECONDS, st.sampled_from("ab"), SECONDS | st.just(math.inf)), max_size=60)
RULES = st.builds(BatchRule, st.integers(1, 5), SECONDS)


@given(ARRIVALS, RULES)
def test_each_task_is_in_one_call_of_its_key_in_order_and_in_time(
    arrivals: list[tuple[float, str, float]], rule: BatchRule
) -> None:
    batches: Batches[tuple[str, int, float]] = Batches()
    now, calls = 0.0, list[list[tuple[str, int, float]]]()
    for number, (later_seconds, key, slack_seconds) in enumerate(arrivals):
        until = now + later_seconds
        while batches.due_at <= until:  # the worker wakes when a call is due
            now = batches.due_at
            due = batches.take_due(now)
            assert due
            assert all(now <= latest for batch in due for _key, _number, latest in batch.tasks)
            calls += [batch.tasks for batch in due]
        now = until
        latest = now + min(slack_seconds, rule.within_seconds)
        batch = batches.add(key, rule, (key, number, latest), now, slack_seconds)
        if not batch.missing:
            calls.append(batch.tasks)
    missing = batches.missing
    left = batches.take_due(math.inf)
    assert missing == sum(batch.missing for batch in left)
    assert batches.due_at == math.inf
    assert batches.due_at == math.inf
    calls += [batch.tasks for batch in left]
    assert sorted(number for call in calls for _key, number, _by in call) == [*range(len(arrivals))]
    for call in calls:
        assert 1 <= len(call) <= rule.size
        assert len({key for key, _number, _by in call}) == 1
        assert call == sorted(call, key=lambda task: task[1])


def test_the_earliest_slack_counts_and_a_full_batch_waits_for_nothing() -> None:
    batches, rule = Batches[int](), BatchRule(3, 10.0)
    batches.add("a", rule, 1, 100.0, math.inf)
    assert (batches.due_at, batches.missing) == (110.0, 2)
    batches.add("a", rule, 2, 101.0, 2.0)
    assert (batches.due_at, batches.take_due(102.9)) == (103.0, [])
    assert batches.add("a", rule, 3, 102.0, math.inf).tasks == [1, 2, 3]
    assert (batches.due_at, batches.take_due(math.inf)) == (math.inf, [])
    assert batches.add("a", rule, 4, 102.0, math.inf).tasks == [4]


def test_due_batches_come_earliest_first() -> None:
    batches, rule = Batches[str](), BatchRule(2, 10.0)
    for key, slack_seconds in (("late", 5.0), ("soon", 1.0), ("last", 9.0)):
        batches.add(key, rule, key, 0.0, slack_seconds)
    assert [batch.tasks for batch in batches.take_due(5.0)] == [["soon"], ["late"]]
    assert [batch.tasks for batch in batches.take_due(math.inf)] == [["last"]]


@given(st.lists(st.floats(0.001, 1000), min_size=1), SECONDS)
def test_the_slack_is_never_negative_nor_more_than_a_usual_run_leaves(runs: list[float], left: float) -> None:
    time = ExpectedTime()
    assert time.slack_seconds(left) == left / 2  # half is kept for a run of unknown length
    for run_seconds in runs:
        time.ended(run_seconds)
    assert 0 <= time.slack_seconds(left) <= max(0.0, left - min(runs)) + 1e-6
    assert time.slack_seconds(math.inf) == math.inf


def test_equal_runs_are_expected_to_take_what_they_took_and_changes_are_followed() -> None:
    time = ExpectedTime()
    for _ in range(200):
        time.ended(2.0)
    assert time.slack_seconds(10.0) == pytest.approx(8.0)
    for _ in range(200):
        time.ended(5.0)
    assert time.slack_seconds(10.0) == pytest.approx(5.0)


def test_the_next_batch_is_claimed_shortly_before_the_end_of_a_regular_run() -> None:
    time = ExpectedTime()
    assert time.ahead(0.01) == (math.inf, math.inf)
    for _ in range(100):
        time.ended(0.05)
    assert time.ahead(0.001) == pytest.approx((0.04, 0.06))
    assert time.ahead(0.02) == pytest.approx((0.03, 0.07))
    assert time.ahead(1.0) == pytest.approx((0.025, 0.075))
    for _ in range(100):
        time.ended(0.02)
    assert time.ahead(0.004) == pytest.approx((0.01, 0.03), abs=1e-5)
    for run_seconds in (0.01, 0.5, 0.01, 0.5):
        time.ended(run_seconds)
    assert time.ahead(0.01) == (math.inf, math.inf)


def test_most_of_equal_times_are_likely() -> None:
    time = ExpectedTime()
    assert time.likely_seconds == 0.0
    time.ended(0.02)
    assert time.likely_seconds == pytest.approx(0.03)
    for _ in range(100):
        time.ended(0.02)
    assert time.likely_seconds == pytest.approx(0.02)


def test_a_pure_load_of_batches_fills_every_slot_in_one_claim() -> None:
    use = SlotUse([BatchRule(32, 0.05)])
    assert (use.room(3, 0), use.room(0, 5), use.room(1, 31), use.room(0, 0)) == (96, 5, 32, 0)


def test_a_mixed_load_claims_what_fits_on_average() -> None:
    use = SlotUse([BatchRule(4, 0.05), None])
    assert use.room(3, 0) == 4  # a task takes 5/8 of a slot if both kinds are equally frequent
    for _ in range(20):
        use.claimed(10, 10.0)
    assert (use.room(3, 0), use.room(3, 2), use.room(0, 2)) == (3, 3, 1)
    for _ in range(20):
        use.claimed(8, 2.0)
    assert (use.room(3, 0), use.room(0, 2)) == (12, 2)


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1))), st.integers(-3, 50), st.integers(0, 500))
def test_the_room_is_bounded_by_the_batches(claims: list[tuple[int, float]], free: int, missing: int) -> None:
    use = SlotUse([BatchRule(10, 0.05), None, BatchRule(4, 1.0)])
    for tasks, part in claims:
        use.claimed(tasks, tasks * (0.1 + 0.9 * part))
    room = use.room(free, missing)
    assert room == 0 if free < 0 or free + missing == 0 else 1 <= room <= missing + 10 * free
