"""Delayed puts: they enter their line when they are due, and their age counts from then."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from benchmarks.capacity import metered
from types_boto3_dynamodb import DynamoDBClient

from freshq import LeaseLost, Order, PutOutcome, Queue, TaskStatus
from freshq.policy.rules import CodelRule
from freshq.queue.core import core_of
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known, payloads, total

DAY_SECONDS = 86_400.0


def put_for(queue: Queue, *delays_seconds: float) -> None:
    """Put a task for each delay, named after it."""
    for delay_seconds in delays_seconds:
        queue.put(delay_seconds, task_id=f"{delay_seconds:g}", delay_seconds=delay_seconds)


class TestOrder:
    def test_first_in_first_out_is_the_order_of_due_times(self, store: StoreUnderTest) -> None:
        queue = store.queue(order=Order.FIFO)
        put_for(queue, 30, 10, 20)
        store.clock.advance(15)
        queue.put("undelayed", task_id="undelayed")
        store.clock.advance(15)
        assert queue.admin.recover() == 3
        assert ids(queue.claim(limit=4)) == ["10", "undelayed", "20", "30"]

    def test_last_in_first_out_begins_with_the_latest_due(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        put_for(queue, 30, 10, 20)
        store.clock.advance(25)
        queue.put("undelayed", task_id="undelayed")
        store.clock.advance(5)
        queue.admin.recover()
        assert ids(queue.claim(limit=4)) == ["30", "undelayed", "20", "10"]

    def test_those_with_the_same_delay_keep_the_order_of_their_puts(self, store: StoreUnderTest) -> None:
        queue = store.queue(order=Order.FIFO)
        queue.put_many([{"payload": n, "task_id": f"{9 - n}", "delay_seconds": 5} for n in range(10)])
        store.clock.advance(5)
        assert payloads(queue.claim(limit=10)) == list(range(10))

    def test_those_due_at_the_same_instant_are_each_claimed_once(self, store: StoreUnderTest) -> None:
        queue = store.queue(order=Order.FIFO)
        at = store.clock.now + 5
        queue.put_many([{"payload": n, "task_id": f"{n}", "at": at} for n in range(10)])
        store.clock.advance(5)
        claimed = ids(queue.claim(limit=3)) + ids(queue.claim(limit=3)) + ids(queue.claim(limit=10))
        assert sorted(claimed) == [f"{n}" for n in range(10)]

    def test_those_due_in_the_past_come_in_the_order_of_their_times(self, store: StoreUnderTest) -> None:
        queue, other = store.queue(order=Order.FIFO), store.queue(order=Order.FIFO)
        now = store.clock.now
        queue.put("first", task_id="first")
        queue.put("before", task_id="-40", at=now - 40)
        assert ids(queue.claim()) == ["-40"]
        for ago in (30, 50, 20):
            other.put("late", task_id=f"-{ago}", at=datetime.fromtimestamp(now - ago, UTC))
        other.put_many([{"payload": 1, "task_id": f"-{ago}", "at": now - ago} for ago in (10, 60)])
        task = known(queue, "-50")
        assert (task.not_before, task.first_due, task.created) == (None, now - 50, now - 50)
        assert task.put_at == pytest.approx(now, abs=1e-3)
        assert task.deadline == now - 50 + 3600
        assert counts(queue.stats()) == {"pending": 6, "taken": 1}
        assert ids(queue.claim(limit=4)) == ["-60", "-50", "-30", "-20"]
        assert ids(queue.claim(limit=9)) == ["-10", "first"]

    def test_one_that_was_due_a_max_age_ago_is_stale(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=60)
        queue.put("late", task_id="a", at=store.clock.now - 60)
        assert queue.claim() == []
        assert counts(queue.stats()) == {"shed": 1}

    def test_a_retry_and_a_release_with_a_delay_keep_the_old_place(self, store: StoreUnderTest) -> None:
        queue = store.queue(order=Order.FIFO)
        put_for(queue, 10, 11)
        queue.put("undelayed", task_id="0")
        store.clock.advance(11)
        queue.admin.recover()
        first, second, third = queue.claim(limit=3)
        assert ids([first, second, third]) == ["0", "10", "11"]
        queue.retry(first, error="again", delay_seconds=7)
        queue.release(second, delay_seconds=9)
        queue.release(third)
        store.clock.advance(9)
        queue.admin.recover()
        assert ids(queue.claim(limit=3)) == ["0", "10", "11"]


class TestAge:
    def test_the_max_age_counts_from_the_due_time(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=100)
        put_for(queue, 99, 98)
        store.clock.advance(100.5)
        assert queue.admin.recover() == 2
        assert ids(queue.claim(lease_seconds=1000)) == ["99"]
        store.clock.advance(97.499)
        assert counts(queue.stats()) == {"taken": 1, "pending": 1}
        store.clock.advance(0.001)
        assert counts(queue.stats()) == {"taken": 1, "shed": 1}
        assert queue.claim() == []

    def test_the_delay_may_be_longer_than_the_max_age(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("tomorrow", task_id="a", at=store.clock.now + DAY_SECONDS, max_age_seconds=60)
        task = known(queue, "a")
        assert task.deadline == pytest.approx(store.clock.now + DAY_SECONDS + 60, abs=1e-3)
        assert task.expires >= task.stale_at
        store.clock.advance(DAY_SECONDS - 0.001)
        assert queue.admin.recover() == 0
        assert counts(queue.stats()) == {"delayed": 1}
        store.clock.advance(0.001)
        assert payloads(queue.claim()) == ["tomorrow"]

    def test_stats_count_the_age_from_the_due_time(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        put_for(queue, 100, 50)
        store.clock.advance(40)
        assert queue.stats().oldest_pending_seconds is None
        store.clock.advance(65)
        queue.admin.recover()
        for stats in (queue.stats(), queue.stats(approximate=True)):
            assert (stats.pending, stats.delayed) == (2, 0)
            assert stats.oldest_pending_seconds == pytest.approx(55, abs=1e-3)
            assert stats.newest_pending_seconds == pytest.approx(5, abs=1e-3)

    def test_codel_does_not_count_the_delay_as_waiting(self, store: StoreUnderTest) -> None:
        rule = CodelRule(target_seconds=1, interval_seconds=5)
        queue = store.queue(order=Order.FIFO, codel=rule, max_age_seconds=100)
        put_for(queue, *range(20, 40))
        for _ in range(20):
            store.clock.advance(20 if total(queue) == counts(queue.stats()).get("delayed") else 1)
            for claim in queue.claim():
                queue.complete(claim)
        assert counts(queue.stats()) == {"success": 20}

    def test_every_state_is_counted_throughout(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=10)
        put_for(queue, 5, 15, 25)
        seen = []
        for _ in range(8):
            queue.admin.recover()
            seen.append(counts(queue.stats()))
            assert total(queue) == 3
            store.clock.advance(5)
        waiting = {"delayed": 2, "pending": 1}
        assert seen[:4] == [{"delayed": 3}, waiting, waiting, {"delayed": 1, "pending": 1, "shed": 1}]
        assert seen[-1] == {"shed": 3}


class TestSchedule:
    def test_it_stays_readable_to_the_end(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        put_at, due = store.clock.now, store.clock.now + 20.25
        queue.put("work", task_id="a", at=datetime.fromtimestamp(due, UTC), group="g")
        for change in ("claim", "retry", "claim", "complete"):
            store.clock.advance(21)
            if change == "claim":
                (claim,) = queue.claim()
                task = claim.task
            elif change == "retry":
                task = queue.retry(claim, error="again", delay_seconds=5)
                assert task.not_before == pytest.approx(store.clock.now + 5, abs=1e-3)
            else:
                task = queue.complete(claim)
            for read in (task, known(queue, "a"), queue.list()[0]):
                assert (read.first_due, read.created) == (due, due)
                assert read.put_at == pytest.approx(put_at, abs=1e-3)
        assert known(store.queue(), "a").status is TaskStatus.SUCCESS

    def test_a_task_that_was_not_delayed_has_none(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        store.clock.advance(3)
        queue.retry(queue.claim()[0], error="again", delay_seconds=5)
        task = known(queue, "a")
        assert (task.first_due, task.put_at) == (None, task.created)

    def test_a_touch_before_the_due_time_changes_nothing(self, queue: Queue, store: StoreUnderTest) -> None:
        put_for(queue, 50)
        before = known(queue, "50")
        store.clock.advance(20)
        queue.redrive(["50"], as_new=True)
        touched = known(queue, "50")
        assert (touched.created, touched.deadline) == (before.created, before.deadline)
        store.clock.advance(29)
        assert queue.claim() == []

    def test_a_touch_after_it_leaves_the_schedule(self, queue: Queue, store: StoreUnderTest) -> None:
        put_for(queue, 50)
        before = known(queue, "50")
        store.clock.advance(60)
        queue.admin.recover()
        queue.redrive(["50"], as_new=True)
        touched = known(queue, "50")
        assert touched.created == pytest.approx(store.clock.now, abs=1e-3)
        assert touched.stale_at - touched.created == pytest.approx(3600, abs=1e-3)
        assert (touched.first_due, touched.put_at) == (before.first_due, before.put_at)

    def test_a_retried_task_that_waits_is_touched_at_once(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        queue.retry(queue.claim()[0], error="again", delay_seconds=50)
        store.clock.advance(20)
        queue.redrive(["a"], as_new=True)
        assert known(queue, "a").created == pytest.approx(store.clock.now, abs=1e-3)


class TestPutOver:
    def test_an_update_brings_its_own_schedule(self, queue: Queue, store: StoreUnderTest) -> None:
        put_for(queue, 50)
        store.clock.advance(10)
        now = store.clock.now
        assert queue.put("new", task_id="50", at=now + 80, on_conflict="update").outcome is PutOutcome.UPDATED
        task = known(queue, "50")
        assert (task.created, task.first_due, task.deadline) == (now + 80, now + 80, now + 3680)
        assert task.put_at == pytest.approx(now, abs=1e-3)
        store.clock.advance(79)
        assert queue.claim() == []
        store.clock.advance(1)
        assert payloads(queue.claim()) == ["new"]

    def test_an_update_may_end_the_delay(self, queue: Queue) -> None:
        put_for(queue, 50)
        queue.put("now", task_id="50", on_conflict="update")
        task = known(queue, "50")
        assert (task.created, task.first_due, task.not_before) == (task.put_at, None, None)
        assert payloads(queue.claim()) == ["now"]

    def test_an_update_may_delay_what_is_held(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old", task_id="a")
        (claim,) = queue.claim()
        queue.put("new", task_id="a", delay_seconds=DAY_SECONDS, on_conflict="update")
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        store.clock.advance(DAY_SECONDS)
        assert payloads(queue.claim()) == ["new"]

    def test_equal_work_is_no_update_once_it_is_due(self, queue: Queue, store: StoreUnderTest) -> None:
        at = store.clock.now + 50
        queue.put("work", task_id="a", at=at)
        before = known(queue, "a")
        store.clock.advance(60)
        assert queue.put("work", task_id="a", at=at, on_conflict="update").outcome is PutOutcome.DUPLICATE
        assert known(queue, "a") == before
        (claim,) = queue.claim()
        assert queue.put("work", task_id="a", at=at, on_conflict="update").outcome is PutOutcome.DUPLICATE
        queue.complete(claim)

    def test_an_id_is_free_after_the_deadline_and_not_before(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        put_for(queue, 5000)
        store.clock.advance(5000 + 3599)
        assert queue.put("new", task_id="5000", on_conflict="ignore").outcome is PutOutcome.DUPLICATE
        store.clock.advance(1)
        assert queue.put("new", task_id="5000", on_conflict="ignore").outcome is PutOutcome.CREATED
        assert (known(queue, "5000").payload, known(queue, "5000").first_due) == ("new", None)


@pytest.mark.usefixtures("read_once")
def test_a_delayed_put_costs_what_another_costs(table: StoreUnderTest, client: DynamoDBClient) -> None:
    queue = table.queue()
    queue.put("other")
    ways: tuple[dict[str, Any], ...] = ({"delay_seconds": DAY_SECONDS}, {"at": table.clock.now + DAY_SECONDS})
    for way in ways:
        with metered(client) as meter:
            queue.put("x" * 500, task_id=str(uuid.uuid4()), **way)
        assert (meter.write_units, meter.calls.total()) == (2, 1)
    table.clock.advance(DAY_SECONDS)
    with metered(client) as meter:
        assert queue.admin.recover() == 2
    # The item, its entry in the due index, and one in the index of claimable tasks.
    assert meter.write_units == 2 * 3


def test_a_task_stored_by_an_earlier_version(store: StoreUnderTest) -> None:
    """It was created when it was put, whatever its delay; its deadline counts from then, and it stays so."""
    queue = store.queue(order=Order.FIFO)
    put_for(queue, 30)
    new = known(queue, "30")
    created = store.clock.now
    old = replace(new, task_id="old", created=created, deadline=created + 60, put_at=None, first_due=None)
    assert core_of(store.queue()).store.insert([old]) == [True]
    assert known(queue, "old") == old
    store.clock.advance(30)
    queue.admin.recover()
    claims = queue.claim(limit=2)
    assert ids(claims) == ["old", "30"]
    assert (claims[0].task.created, claims[0].task.deadline) == (created, created + 60)
    assert (claims[0].task.put_at, claims[0].task.first_due) == (None, None)
    queue.release(claims[0])
    store.clock.advance(30)
    assert known(queue, "old").status is TaskStatus.SHED
