"""The eight rules of the design, each on every store."""

from collections.abc import Callable
from dataclasses import astuple

import pytest

from freshq import Claim, LeaseLost, Order, Queue, TaskStatus
from tests.conftest import Clock, StoreUnderTest
from tests.support.readings import known, payloads, total


class TestOrder:
    def test_newest_first(self, queue: Queue) -> None:
        for number in range(5):
            queue.put(number)
        assert payloads(queue.claim(limit=5)) == [4, 3, 2, 1, 0]

    def test_each_claim_takes_the_newest_that_is_left(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old")
        store.clock.advance(1)
        queue.put("new")
        assert payloads(queue.claim()) == ["new"]
        store.clock.advance(1)
        queue.put("newest")
        assert payloads(queue.claim()) == ["newest"]
        assert payloads(queue.claim()) == ["old"]

    def test_oldest_first_on_request(self, store: StoreUnderTest) -> None:
        queue = store.queue(order=Order.FIFO)
        queue.put_many([{"payload": number} for number in range(5)])
        assert payloads(queue.claim(limit=3)) == [0, 1, 2]

    def test_priority_levels_are_drained_from_high_to_low_newest_first_within(self, queue: Queue) -> None:
        for number, priority in enumerate([0, 9, 5, 0, 9, 5]):
            queue.put(number, priority=priority)
        assert payloads(queue.claim(limit=6)) == [4, 1, 5, 2, 3, 0]

    def test_tasks_of_one_instant_keep_the_order_in_which_they_were_put(self, queue: Queue) -> None:
        queue.put_many([{"payload": number} for number in range(40)])
        assert payloads(queue.claim(limit=40)) == list(reversed(range(40)))

    def test_shards_are_merged_newest_first(self, store: StoreUnderTest) -> None:
        queue = store.queue(shards=4)
        queue.put_many([{"payload": number} for number in range(30)])
        assert payloads(queue.claim(limit=30)) == list(reversed(range(30)))


class TestClaim:
    """Rule 1: one conditional write; two claimers never both win."""

    def test_a_task_is_claimed_once(self, store: StoreUnderTest) -> None:
        first, second = store.queue(), store.queue()
        first.put("work")
        assert payloads(first.claim()) == ["work"]
        assert second.claim() == []

    def test_a_delayed_task_is_not_claimable_before_its_time(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        queue.put("later", delay_seconds=30)
        assert queue.claim() == []
        store.clock.advance(29.9)
        assert queue.claim() == []
        store.clock.advance(0.1)
        assert payloads(queue.claim()) == ["later"]

    def test_a_claim_has_its_task_and_the_end_of_its_lease(self, queue: Queue, store: StoreUnderTest) -> None:
        receipt = queue.put({"n": 1}, task_id="a", priority=3, group="tenant")
        (claim,) = queue.claim(lease_seconds=20)
        assert receipt.task_id == claim.task.task_id == "a"
        assert claim.lease_until == store.clock.now + 20
        assert claim.task.status is TaskStatus.TAKEN
        assert claim.task.attempts == 1
        assert (claim.task.priority, claim.task.group, claim.task.payload) == (3, "tenant", {"n": 1})
        assert queue.get("a") == claim.task


Settle = Callable[[Queue, Claim], object]
SETTLEMENTS: dict[str, Settle] = {
    "complete": lambda queue, claim: queue.complete(claim, result={"answer": 42}),
    "fail": lambda queue, claim: queue.fail(claim, error="broken"),
    "retry": lambda queue, claim: queue.retry(claim, error="broken"),
    "release": lambda queue, claim: queue.release(claim),
    "extend": lambda queue, claim: queue.extend(claim, lease_seconds=60),
}


@pytest.mark.parametrize("settle", SETTLEMENTS.values(), ids=SETTLEMENTS.keys())
class TestStaleHolder:
    """Rule 2: every settle verb is conditional on the claim's token."""

    def test_after_another_claimed_it(self, queue: Queue, store: StoreUnderTest, settle: Settle) -> None:
        queue.put("work", task_id="a")
        (stale,) = queue.claim(lease_seconds=10)
        store.clock.advance(10)
        assert queue.admin.recover() == 1
        (held,) = queue.claim()
        before = queue.get("a")
        with pytest.raises(LeaseLost):
            settle(queue, stale)
        assert queue.get("a") == before
        queue.complete(held)

    def test_after_it_was_returned(self, queue: Queue, store: StoreUnderTest, settle: Settle) -> None:
        queue.put("work", task_id="a")
        (stale,) = queue.claim(lease_seconds=10)
        store.clock.advance(10)
        queue.admin.recover()
        with pytest.raises(LeaseLost):
            settle(queue, stale)
        assert payloads(queue.claim()) == ["work"]

    def test_after_it_was_settled(self, queue: Queue, settle: Settle) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        queue.complete(claim, result="first")
        with pytest.raises(LeaseLost):
            settle(queue, claim)
        task = known(queue, "a")
        assert (task.status, task.result) == (TaskStatus.SUCCESS, "first")

    def test_after_it_was_deleted(self, queue: Queue, settle: Settle) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        queue.purge(confirm="default")
        with pytest.raises(LeaseLost):
            settle(queue, claim)
        assert queue.get("a") is None


class TestCrash:
    """Rule 4: a crash at any point loses no task."""

    def test_the_sweep_returns_what_a_dead_worker_held(self, store: StoreUnderTest) -> None:
        dead, sweep = store.queue(), store.queue()
        dead.put_many([{"payload": number} for number in range(3)])
        dead.claim(limit=3, lease_seconds=30)
        store.clock.advance(29)
        assert sweep.admin.recover() == 0
        store.clock.advance(1)
        assert sweep.admin.recover() == 3
        assert payloads(sweep.claim(limit=5)) == [2, 1, 0]
        assert sweep.admin.recover() == 0

    def test_each_lease_expires_at_its_own_time(self, store: StoreUnderTest) -> None:
        worker, sweep = store.queue(), store.queue()
        worker.put_many([{"payload": number} for number in range(3)])
        worker.claim(lease_seconds=100)
        worker.claim(lease_seconds=10)
        store.clock.advance(5)
        worker.claim(lease_seconds=10)
        store.clock.advance(5)
        assert sweep.admin.recover() == 1
        store.clock.advance(5)
        assert sweep.admin.recover() == 1
        store.clock.advance(84)
        assert sweep.admin.recover() == 0
        store.clock.advance(1)
        assert sweep.admin.recover() == 1

    def test_an_extended_lease_is_not_recovered_early(self, store: StoreUnderTest) -> None:
        worker, sweep = store.queue(), store.queue()
        worker.put("long")
        (claim,) = worker.claim(lease_seconds=10)
        store.clock.advance(9)
        claim = worker.extend(claim, lease_seconds=60)
        assert claim.lease_until == store.clock.now + 60
        store.clock.advance(30)
        assert sweep.admin.recover() == 0
        store.clock.advance(30)
        assert sweep.admin.recover() == 1

    def test_a_lease_is_never_shortened(self, store: StoreUnderTest) -> None:
        worker, sweep = store.queue(), store.queue()
        worker.put("long")
        (claim,) = worker.claim(lease_seconds=100)
        assert worker.extend(claim, lease_seconds=5).lease_until == claim.lease_until
        store.clock.advance(99)
        assert sweep.admin.recover() == 0
        store.clock.advance(1)
        assert sweep.admin.recover() == 1

    def test_a_task_settled_by_another_process_is_not_returned(self, store: StoreUnderTest) -> None:
        claimer, settler = store.queue(), store.queue()
        claimer.put("work", task_id="a")
        (claim,) = claimer.claim(lease_seconds=10)
        settler.complete(claim)
        store.clock.advance(20)
        assert settler.admin.recover() == 0
        task = known(settler, "a")
        assert task.status is TaskStatus.SUCCESS

    def test_claims_after_an_expired_lease_are_covered_too(self, store: StoreUnderTest) -> None:
        worker, sweep = store.queue(), store.queue()
        worker.put_many([{"payload": number} for number in range(2)])
        worker.claim(lease_seconds=10)
        store.clock.advance(10)
        worker.claim(lease_seconds=10)
        assert worker.stats().taken == 1  # the claim recovered the first
        assert sweep.admin.recover() == 0
        store.clock.advance(10)
        assert sweep.admin.recover() == 1

    def test_the_attempt_counts_and_the_last_one_makes_a_dead_letter(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_attempts=2)
        queue.put("kills its worker", task_id="poison")
        for _ in range(2):
            assert len(queue.claim(lease_seconds=10)) == 1
            store.clock.advance(10)
            assert queue.admin.recover() == 1
        task = known(queue, "poison")
        assert (task.status, task.attempts) == (TaskStatus.FAILURE, 2)
        assert "lease expired in attempt 2 of 2" in (task.error or "")


class TestPlaceInTime:
    """Rule 5: an old failure never becomes newest."""

    @pytest.mark.parametrize("way_back", ["retry", "release", "lease", "redrive"])
    def test_created_survives(self, queue: Queue, store: StoreUnderTest, way_back: str) -> None:
        queue.put("old", task_id="old")
        (claim,) = queue.claim(lease_seconds=10)
        store.clock.advance(5)
        queue.put("young")
        if way_back == "retry":
            queue.retry(claim, error="again", delay_seconds=0)
        elif way_back == "release":
            queue.release(claim)
        elif way_back == "lease":
            store.clock.advance(5)
            assert queue.admin.recover() == 1
        else:
            queue.fail(claim, error="broken")
            assert queue.redrive() == 1
        task = known(queue, "old")
        assert task.created == claim.task.created
        assert payloads(queue.claim(limit=2)) == ["young", "old"]

    def test_touch_moves_a_task_in_time_on_request(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old", task_id="old", max_age_seconds=100)
        store.clock.advance(50)
        queue.put("young")
        store.clock.advance(1)
        queue.redrive(["old"], as_new=True)
        touched = known(queue, "old")
        assert touched.stale_at - touched.created == 100
        assert payloads(queue.claim(limit=2)) == ["old", "young"]


class TestStale:
    """Rule 6: stale work is never started."""

    def test_past_the_queues_max_age(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=60)
        queue.put("stale")
        store.clock.advance(30)
        queue.put("fresh")
        store.clock.advance(30)
        assert payloads(queue.claim(limit=10)) == ["fresh"]
        assert queue.stats().shed == 1

    def test_past_its_own_max_age(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("fresh", task_id="fresh")
        queue.put("stale", task_id="stale", max_age_seconds=5)
        store.clock.advance(5)
        assert payloads(queue.claim(limit=10)) == ["fresh"]
        task = known(queue, "stale")
        assert task.status is TaskStatus.SHED
        assert queue.claim() == []

    def test_past_the_max_age_of_the_claiming_process(self, store: StoreUnderTest) -> None:
        store.queue(max_age_seconds=600).put("too old for this consumer")
        store.clock.advance(60)
        assert store.queue(max_age_seconds=60, override=True).claim() == []
        assert len(store.queue(max_age_seconds=600).claim()) == 1

    def test_a_stale_head_does_not_hide_the_tasks_behind_it(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        queue.put("fresh")
        queue.put_many([{"payload": number, "max_age_seconds": 1} for number in range(30)])
        store.clock.advance(2)
        assert payloads(queue.claim()) == ["fresh"]

    def test_a_delayed_task_that_goes_stale_is_shed(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a", delay_seconds=5, max_age_seconds=10)
        store.clock.advance(15)
        queue.admin.recover()
        assert queue.claim() == []
        assert queue.stats().shed == 1
        assert queue.stats().delayed == 0
        assert queue.admin.recover() == 0

    def test_a_task_returned_too_late_is_shed(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", max_age_seconds=10)
        queue.claim(lease_seconds=20)
        store.clock.advance(20)
        assert queue.admin.recover() == 1
        assert queue.claim() == []
        assert queue.stats().shed == 1

    def test_the_store_keeps_it_past_lease_and_deadline(self, store: StoreUnderTest) -> None:
        queue = store.queue(retention_seconds=0, max_age_seconds=100)
        queue.put("work", task_id="a", max_age_seconds=10)
        (claim,) = queue.claim(lease_seconds=1000)
        assert claim.task.expires >= store.clock.now + 1000
        released = queue.release(claim)
        assert store.clock.now + 10 <= released.expires <= store.clock.now + 11


class TestAccounting:
    """Rule 7: put = success + failure + cancelled + shed + pending + delayed + taken, at all times."""

    def test_every_task_has_one_fate(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=1000)
        ids = [queue.put(number, task_id=str(number)).task_id for number in range(8)]
        queue.put("soon stale", max_age_seconds=1)
        queue.put("later", delay_seconds=500)
        assert total(queue) == 10
        store.clock.advance(2)
        claims = queue.claim(limit=6)
        queue.complete(claims[0])
        queue.fail(claims[1], error="no")
        queue.retry(claims[2], error="again", delay_seconds=100)
        queue.release(claims[3])
        queue.cancel(ids[0])
        stats = queue.stats()
        assert total(queue) == 10
        assert (stats.success, stats.failure, stats.cancelled, stats.shed) == (1, 1, 1, 1)
        assert (stats.pending, stats.delayed, stats.taken) == (2, 2, 2)
        store.clock.advance(1000)
        queue.admin.recover()
        assert (queue.stats().shed, queue.stats().pending, queue.stats().taken) == (6, 1, 0)
        store.clock.advance(498)
        assert (queue.stats().shed, total(queue)) == (7, 10)

    def test_ages_of_the_waiting_tasks(self, queue: Queue, store: StoreUnderTest) -> None:
        assert queue.stats().oldest_pending_seconds is None
        queue.put("a")
        store.clock.advance(20)
        queue.put("b")
        store.clock.advance(5)
        stats = queue.stats()
        assert stats.oldest_pending_seconds == pytest.approx(25, abs=1e-3)
        assert stats.newest_pending_seconds == pytest.approx(5, abs=1e-3)

    @pytest.mark.parametrize("shards", [1, 3])
    def test_approximate_counts_say_what_they_bound(self, store: StoreUnderTest, shards: int) -> None:
        queue = store.queue(shards=shards)
        queue.put_many([{"payload": number, "priority": number % 2} for number in range(10)])
        queue.put("later", delay_seconds=100)
        store.clock.advance(7)
        queue.claim(limit=3)
        stats, exact = queue.stats(approximate=True), queue.stats()
        assert (stats.pending, stats.delayed, stats.taken) == (7, 1, 3)
        assert stats.oldest_pending_seconds == exact.oldest_pending_seconds
        assert stats.newest_pending_seconds == exact.newest_pending_seconds
        assert exact.bounded == {}
        assert stats.bounded["shed_by_reason"] == "not counted"
        assert "pending" not in stats.bounded


class TestDuplicates:
    def test_within_one_batch_each_task_has_its_own_outcome(self, queue: Queue) -> None:
        queue.put("before", task_id="b")
        receipts = queue.put_many([{"payload": 1, "task_id": name} for name in ("a", "b", "c")])
        assert [receipt.task_id for receipt in receipts] == ["a", "b", "c"]
        assert [str(receipt.outcome) for receipt in receipts] == ["CREATED", "DUPLICATE", "CREATED"]
        assert total(queue) == 3


def test_values_come_back_as_they_were_put(queue: Queue) -> None:
    payload = {"text": "é\u0000✓", "int": 2**63, "float": 0.1, "none": None, "list": [1, [True, {}]], "": ""}
    queue.put(payload, task_id="a")
    (claim,) = queue.claim()
    assert claim.task.payload == payload
    queue.complete(claim, result=[payload, 1e300])
    task = known(queue, "a")
    assert task.result == [payload, 1e300]


def test_two_queues_in_one_store_do_not_mix(store: StoreUnderTest) -> None:
    one, other = store.queue(name="one"), store.queue(name="other")
    one.put("one's", task_id="a")
    other.put("other's", task_id="b")
    assert other.get("a") is None
    assert payloads(other.claim(limit=5)) == ["other's"]
    assert [task.task_id for task in one.list()] == ["a"]
    assert one.purge(confirm="one") == 1
    assert total(other) == 1


def test_a_task_is_the_same_whichever_way_it_is_read(queue: Queue, clock: Clock) -> None:
    queue.put({"n": 1}, task_id="a", group="g", delay_seconds=1.5, priority=2)
    task = known(queue, "a")
    assert astuple(task) == astuple(queue.list()[0])
    assert task.not_before == pytest.approx(clock.now + 1.5, abs=1e-5)
