"""Overload control on every store: orders, fairness, shedding by reason, admission, shared limits."""

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from freshq import Overloaded, PutOutcome, Queue, Receipt, Settlement, TaskStatus
from freshq.errors import IllegalTransition, PutIncomplete
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule
from freshq.policy.shedding import MAX_SHED_BEHIND
from freshq.queue.claim import Search
from freshq.queue.core import core_of
from freshq.queue.shared.limits import SharedRetries, SharedSlots, SharedTokens
from tests.conftest import StoreUnderTest
from tests.support.counting import counted_calls
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.refusals import refused

DEADLINE_SECONDS = 100.0
# Calls of a claim that sheds by CoDel, besides DynamoDB's conditional writes.
MAX_CALLS = 16


def queue_of(store: StoreUnderTest, **options: Any) -> Queue:
    return store.queue(**{"max_age_seconds": DEADLINE_SECONDS, **options})


def put(queue: Queue, store: StoreUnderTest, *payloads: object, **fields: Any) -> None:
    """Put tasks a second apart."""
    for payload in payloads:
        queue.put(payload, **fields)
        store.clock.advance(1)


def claimed(queue: Queue, limit: int = 1) -> list[object]:
    return [claim.task.payload for claim in queue.claim(limit)]


def put_all(queue: Queue, count: int) -> Sequence[object]:
    """Put some tasks; return a receipt or an error for each."""
    try:
        return queue.put_many([{"payload": "work"}] * count)
    except PutIncomplete as incomplete:
        return incomplete.receipts


def serve(queue: Queue, limit: int) -> None:
    for claim in queue.claim(limit):
        queue.complete(claim)


def assert_all_counted(queue: Queue, created: int) -> None:
    stats = queue.stats()
    waiting = stats.pending + stats.delayed
    ended = stats.success + stats.failure + stats.cancelled + stats.shed
    assert waiting + stats.taken + ended == created


class TestOrder:
    def test_levels_are_drained_from_high_to_low_and_are_newest_first(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="lifo")
        put(queue, store, "a", "b")
        put(queue, store, "c", "d", priority=9)
        put(queue, store, "e", priority=3)
        assert claimed(queue, 5) == ["d", "c", "e", "b", "a"]

    def test_adaptive_is_oldest_first_while_tasks_are_young_and_then_switches(
        self, store: StoreUnderTest
    ) -> None:
        queue = queue_of(store, order="adaptive")
        put(queue, store, *range(6))
        assert claimed(queue) == [0]
        store.clock.advance(36)  # the oldest is 41 s old, more than 0.4 of the deadline
        put(queue, store, "new", "newest")
        assert claimed(queue, 2) == ["newest", "new"]
        (switch,) = queue.admin.take_order_switches()
        assert switch.newest_first
        assert switch.oldest_age_seconds == pytest.approx(43)
        assert queue.admin.take_order_switches() == []

    def test_adaptive_switches_back_only_when_the_oldest_is_younger_than_a_fifth(
        self, store: StoreUnderTest
    ) -> None:
        queue = queue_of(store, order="adaptive")
        put(queue, store, "old", "middle")
        store.clock.advance(45)
        put(queue, store, "a", "b")
        assert claimed(queue) == ["b"]
        store.clock.advance(1)
        assert claimed(queue, 3) == ["a", "middle", "old"]  # no switch between the two bounds
        put(queue, store, "c", "d")
        assert claimed(queue, 2) == ["c", "d"]
        assert [switch.newest_first for switch in queue.admin.take_order_switches()] == [True, False]

    def test_adaptive_checks_only_lines_that_have_tasks_and_their_turn(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="adaptive")
        put(queue, store, "a", group="a")
        put(queue, store, *range(3), group="b")
        store.clock.advance(45)
        taken = []
        for _ in range(3):
            taken += claimed(queue)
            store.clock.advance(2)
        assert sorted(map(str, taken)) == ["1", "2", "a"]
        # The line of "a" is empty since its turn, which says nothing about the load.
        assert [switch.newest_first for switch in queue.admin.take_order_switches()] == [True, True]

    def test_the_age_of_claimed_tasks_does_not_switch_the_order(self, store: StoreUnderTest) -> None:
        """Newest first, a claimed task is always fresh. Only the oldest waiting task counts."""
        queue = queue_of(store, order="adaptive")
        put(queue, store, *range(5))
        store.clock.advance(50)
        for number in range(5, 25):
            put(queue, store, number)
            assert claimed(queue) == [number]

    def test_adaptive_switches_each_group_separately(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="adaptive")
        put(queue, store, "old", group="slow")
        store.clock.advance(50)
        put(queue, store, "s1", "s2", group="slow")
        put(queue, store, "q1", "q2", group="quick")
        assert sorted(map(str, claimed(queue, 2))) == ["q1", "s2"]


class TestFairness:
    def test_newest_first_within_a_group_and_groups_in_turn(self, store: StoreUnderTest) -> None:
        queue = queue_of(store)
        put(queue, store, "a1", "a2", group="a")
        put(queue, store, "b1", "b2", group="b")
        put(queue, store, "c1", "c2")
        got = claimed(queue, 6)
        assert sorted(map(str, got[:3])) == ["a2", "b2", "c2"]
        assert sorted(map(str, got[3:])) == ["a1", "b1", "c1"]

    def test_a_flood_does_not_starve_a_quiet_group(self, store: StoreUnderTest) -> None:
        """Newest first without turns would serve only the flood, whose tasks are always the newest."""
        queue = queue_of(store)
        queue.put("quiet", group="quiet")
        for _ in range(10):
            queue.put_many([{"payload": "flood", "group": "flood"}] * 5)
            queue.put("quiet", group="quiet")
            store.clock.advance(1)
            assert sorted(map(str, claimed(queue, 2))) == ["flood", "quiet"]

    def test_a_group_that_returns_goes_before_one_that_was_served_much(self, store: StoreUnderTest) -> None:
        queue = queue_of(store)
        put(queue, store, *["busy"] * 20, group="busy")
        assert claimed(queue, 10) == ["busy"] * 10
        put(queue, store, *["back"] * 4, group="back")
        assert claimed(queue, 4) == ["back"] * 4

    def test_groups_within_levels_over_shards(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, **{"shards": 3} if store.kind != "memory" else {})
        for group in ("a", "b"):
            put(queue, store, *(f"{group}{number}" for number in range(3)), group=group)
            put(queue, store, f"{group}-high", group=group, priority=5)
        got = claimed(queue, 8)
        assert sorted(map(str, got[:2])) == ["a-high", "b-high"]
        pairs = [sorted(map(str, got[start : start + 2])) for start in (2, 4, 6)]
        assert pairs == [["a2", "b2"], ["a1", "b1"], ["a0", "b0"]]

    def test_another_process_finds_a_group_within_seconds(self, store: StoreUnderTest) -> None:
        producer, worker = queue_of(store), queue_of(store)
        assert claimed(worker) == []
        producer.put("first", group="one")
        producer.put("second", group="two")
        found: list[object] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < 2 and time.monotonic() < deadline:
            found += claimed(worker, 2)
        assert sorted(map(str, found)) == ["first", "second"]


class TestReserve:
    def test_a_task_that_could_not_end_in_time_is_not_claimed_and_counted_under_reserve(
        self, store: StoreUnderTest
    ) -> None:
        queue = queue_of(store, order="fifo", reserve=10)
        put(queue, store, "late")
        store.clock.advance(88.5)
        put(queue, store, "fresh")
        store.clock.advance(0.6)  # 9.9 s are left for the first one
        assert claimed(queue, 2) == ["fresh"]
        assert queue.stats().pending == 1
        store.clock.advance(20)
        stats = queue.stats()
        assert (stats.shed, stats.shed_by_reason) == (1, {"reserve": 1})

    def test_a_claim_that_sees_no_line_reads_no_oldest_task(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = queue_of(store, order="fifo", reserve=10)
        found = core_of(queue).store
        if found.takes_each:
            pytest.skip("its claims list no lines")
        assert claimed(queue) == []
        reads, read_waiting = list[str](), type(found).read_waiting

        def read(itself: Any, name: str, *others: Any) -> Any:
            reads.append(name)
            return read_waiting(itself, name, *others)

        monkeypatch.setattr(type(found), "read_waiting", read)
        put(queue, store, "a")
        assert claimed(queue, 2) == ["a"]
        reads.clear()
        assert claimed(queue) == []
        assert reads == []
        put(queue, store, "late")
        store.clock.advance(95)
        assert claimed(queue) == []
        assert reads
        store.clock.advance(20)
        assert queue.stats().shed_by_reason.keys() == {"reserve"}

    def test_a_shorter_max_age_counts_too(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, reserve=10)
        queue.put("short", max_age_seconds=12)
        store.clock.advance(3)
        assert claimed(queue) == []
        store.clock.advance(10)
        assert queue.stats().shed_by_reason == {"reserve": 1}

    def test_a_task_that_is_put_during_a_claim_was_not_skipped(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = queue_of(store, order="fifo", reserve=10)
        found, run = core_of(queue).store, Search.run

        def claim_before_a_put(search: Search, taken_from: Any) -> Any:
            tasks = run(search, taken_from)
            store.queue().put("other")
            return tasks

        put(queue, store, "first")
        monkeypatch.setattr(Search, "run", claim_before_a_put)
        assert claimed(queue, 2) == ["first"]
        assert found.read_record(queue.name, "reserve-spans") is None
        store.clock.advance(DEADLINE_SECONDS - 5)
        assert claimed(queue, 2) == []
        assert found.read_record(queue.name, "reserve-spans") is not None

    def test_tasks_behind_skipped_ones_are_claimed_together(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="fifo", reserve=10)
        for number in range(3):
            queue.put(f"hopeless {number}", max_age_seconds=9)
        queue.put("first")
        assert claimed(queue, 2) == ["first"]
        for number in range(6):
            queue.put(number)
        assert claimed(queue, 5) == [0, 1, 2, 3, 4]

    def test_a_task_that_no_claim_skipped_is_expired(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, reserve=10)
        put(queue, store, "a", "b")
        store.clock.advance(DEADLINE_SECONDS)
        assert queue.stats().shed_by_reason == {"expired": 2}

    @pytest.mark.parametrize("together", [False, True])
    def test_a_percentile_is_learnt_by_all_workers_together(
        self, store: StoreUnderTest, together: bool
    ) -> None:
        options = {"order": "fifo"}  # the reserve is p90 by default
        first = queue_of(store, **options)
        put(first, store, *range(25))
        for _ in range(25):
            (claim,) = first.claim()
            store.clock.advance(2)
            if together:
                first.settle_many([Settlement.complete(claim)])
            else:
                first.complete(claim)
        first.put("probe")
        serve(first, 1)  # shares the times it observed
        second = queue_of(store, **options)
        second.put("late")
        store.clock.advance(DEADLINE_SECONDS - 1.9)  # p90 of the run times is 2 s
        assert claimed(second) == []
        assert claimed(queue_of(store, order="fifo", reserve="none", override=True)) == ["late"]


class TestCodel:
    def test_tasks_that_waited_long_are_shed_while_every_wait_is_long(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="fifo", codel=CodelRule(target_seconds=5, interval_seconds=10))
        put(queue, store, *range(30))
        assert claimed(queue) == [0]  # 30 s old: begins an interval
        store.clock.advance(11)
        assert claimed(queue) == [1]  # begins the next one, of an overloaded queue
        put(queue, store, "fresh")
        assert claimed(queue) == ["fresh"]
        assert queue.stats().shed_by_reason == {"codel": 28}
        assert_all_counted(queue, 31)

    def test_a_claim_that_sheds_some_returns_no_more_than_its_limit(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, order="fifo", codel=CodelRule(target_seconds=5, interval_seconds=10))
        put(queue, store, "begins", "overloaded", "late")
        store.clock.advance(11)
        assert claimed(queue) == ["begins"]
        store.clock.advance(11)
        assert claimed(queue) == ["overloaded"]
        put(queue, store, "a", "b", "c", "d")
        assert [claim.task.payload for claim in queue.claim(limit=2)] == ["a", "b"]
        assert queue.stats().shed_by_reason == {"codel": 1}

    def test_a_claim_sheds_many_by_as_many_calls_as_a_few(self, store: StoreUnderTest) -> None:
        sent = []
        for name, count in (("few", MAX_SHED_BEHIND), ("many", MAX_SHED_BEHIND + 20)):
            rule = CodelRule(target_seconds=5, interval_seconds=10)
            queue = queue_of(store, name=name, order="fifo", codel=rule)
            queue.put_many([{"payload": number} for number in range(count + 3)])
            for _ in range(2):
                store.clock.advance(11)
                assert len(queue.claim()) == 1
            queue.put("fresh")
            with counted_calls(queue, store) as calls:
                assert claimed(queue) == ["fresh"]
            assert queue.stats().shed_by_reason == {"codel": MAX_SHED_BEHIND + 1}
            sent.append(len(calls))
        assert max(sent) <= sent[0] + 3  # pauses and levels are read again from time to time
        shed_by = MAX_SHED_BEHIND if store.client is not None else 0
        assert sent[1] <= shed_by + MAX_CALLS

    def test_only_with_fifo(self, store: StoreUnderTest) -> None:
        rule = CodelRule(target_seconds=5, interval_seconds=10)
        for order in ("lifo", "adaptive"):
            with refused("codel"):
                queue_of(store, order=order, codel=rule)


class TestBacklog:
    def test_the_oldest_is_evicted(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(5))
        put(queue, store, *range(9))
        stats = queue.stats()
        assert (stats.pending, stats.shed_by_reason) == (5, {"overflow": 4})
        assert claimed(queue, 9) == [8, 7, 6, 5, 4]
        assert_all_counted(queue, 9)

    def test_a_put_succeeds_when_the_oldest_is_past_its_own_deadline(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(2))
        queue.put("short-lived", task_id="stale", max_age_seconds=1)
        queue.put(1, task_id="kept")
        store.clock.advance(2)

        assert queue.put(2, task_id="new").outcome is PutOutcome.CREATED
        statuses = {task.task_id: task.status for task in queue.list()}
        assert statuses == {
            "stale": TaskStatus.SHED,
            "kept": TaskStatus.PENDING,
            "new": TaskStatus.PENDING,
        }

    def test_the_lowest_level_is_evicted_first(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(3))
        put(queue, store, "high", priority=7)
        put(queue, store, "a", "b", "c", "d")
        assert claimed(queue, 9) == ["high", "d", "c"]

    def test_a_batch_larger_than_the_bound(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(3))
        queue.put_many([{"payload": number} for number in range(10)])
        assert claimed(queue, 10) == [9, 8, 7]

    def test_the_newest_is_rejected(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(3, WhenFull.REFUSE_NEWEST))
        put(queue, store, *range(3))
        with pytest.raises(Overloaded) as rejected:
            queue.put("too many", task_id="x")
        assert (rejected.value.task_id, rejected.value.reason) == ("x", "overflow")
        assert queue.get("x") is None
        claimed(queue)
        with pytest.raises(PutIncomplete) as incomplete:
            queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(3)])
        assert [isinstance(entry, Overloaded) for entry in incomplete.value.receipts] == [False, True, True]
        assert incomplete.value.task_ids == ["t0", "t1", "t2"]
        stats = queue.stats()
        assert (stats.pending, stats.shed, stats.shed_by_reason) == (3, 0, {"overflow": 3})

    def test_the_noisiest_group_is_evicted_first(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(6, group_share=0.5))
        put(queue, store, "q1", "q2", group="quiet")
        put(queue, store, *(f"n{number}" for number in range(8)), group="noisy")
        stats = queue.stats()
        assert (stats.pending, stats.shed_by_reason) == (6, {"group": 4})
        assert sorted(map(str, claimed(queue, 9))) == ["n4", "n5", "n6", "n7", "q1", "q2"]

    def test_the_noisiest_group_is_the_one_that_takes_the_most_time(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(6, group_share=0.5))
        for group, seconds in (("short", 0.1), ("long", 2.0)):
            put(queue, store, group, group=group)
            (claim,) = queue.claim()
            store.clock.advance(seconds)
            queue.complete(claim)
        put(queue, store, "l1", "l2", group="long")
        put(queue, store, *(f"s{number}" for number in range(5)), group="short")
        assert sorted(map(str, claimed(queue, 9))) == ["l2", "s0", "s1", "s2", "s3", "s4"]

    def test_a_task_that_was_shed_is_not_claimed_cancelled_or_redriven(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, backlog=BacklogLimit(1))
        queue.put("a", task_id="a")
        store.clock.advance(1)
        queue.put("b", task_id="b")
        task = known(queue, "a")
        assert (task.status, task.shed_reason) == (TaskStatus.SHED, "overflow")
        with pytest.raises(IllegalTransition):
            queue.cancel("a")
        for as_new in (False, True):
            with pytest.raises(IllegalTransition):
                queue.redrive(["a"], as_new=as_new)


class TestPressure:
    def test_a_calm_queue(self, store: StoreUnderTest) -> None:
        queue = queue_of(store)
        put(queue, store, *range(10))
        serve(queue, 10)
        pressure = queue.pressure()
        assert not pressure.overloaded
        assert (pressure.probability_in_time, pressure.retry_after_seconds) == (1.0, None)
        assert pressure.offered_per_second == pytest.approx(pressure.served_per_second)

    def test_an_overloaded_queue(self, store: StoreUnderTest) -> None:
        producer, worker = (queue_of(store, max_age_seconds=20.0) for _ in range(2))
        for _ in range(40):
            producer.put_many([{"payload": "work"}] * 3)
            store.clock.advance(1)
            serve(worker, 1)
        worker.admin.flush()
        pressure = producer.pressure()
        assert pressure.overloaded
        assert pressure.offered_per_second == pytest.approx(3, rel=0.1)
        assert pressure.served_per_second == pytest.approx(1, rel=0.1)
        assert pressure.probability_in_time == pytest.approx(1 / 3, rel=0.1)
        times = {producer.pressure().retry_after_seconds for _ in range(5)}
        assert len(times) == 5  # jitter: no two retry at the same time

    def test_the_admission_limit_admits_a_multiple_of_the_served_rate(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, max_age_seconds=20.0, admission=AdmissionLimit(2.0), rng=random.Random(5))
        rejections: list[Overloaded] = []
        created = 0
        for second in range(70):
            outcomes = put_all(queue, 8)
            rejections += [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
            created += sum(isinstance(outcome, Receipt) for outcome in outcomes if second >= 30)
            store.clock.advance(1)
            serve(queue, 1)
        assert created / 40 == pytest.approx(2, rel=0.35)
        assert {rejection.reason for rejection in rejections} == {"admission"}
        assert len({rejection.retry_after_seconds for rejection in rejections}) > len(rejections) / 2
        assert queue.stats().shed_by_reason["admission"] == len(rejections)

    def test_the_admission_limit_rejects_nothing_without_overload(self, store: StoreUnderTest) -> None:
        queue = queue_of(store, admission=AdmissionLimit(1.0))
        for _ in range(3):
            queue.put_many([{"payload": "burst"}] * 20)
            store.clock.advance(1)
        assert queue.stats().pending == 60


class TestSharedLimits:
    def slots(self, store: StoreUnderTest, wanted: int = 10, **rule: Any) -> SharedSlots:
        queue = queue_of(store)
        limit = ConcurrencyLimit(**{"lowest": 1, "highest": 8, "window_seconds": 10.0, **rule})
        return SharedSlots(core_of(queue).store, queue.name, limit, wanted)

    def test_a_fixed_limit_is_divided_and_never_exceeded(self, store: StoreUnderTest) -> None:
        first, second, third = (self.slots(store, lowest=7, highest=7) for _ in range(3))
        now = store.clock.now
        assert first.free(0, now) == 7
        assert second.free(0, now) == 0  # nothing is left until the first returns some
        for _ in range(4):
            now += 10
            shares = [slots.free(0, now) for slots in (first, second, third)]
            assert sum(shares) <= 7
        assert sorted(shares) == [2, 2, 3]
        second.leave(now)
        now += 10
        assert sum(slots.free(0, now) for slots in (first, third)) == 7

    def test_a_slot_in_use_is_not_given_to_another_worker(self, store: StoreUnderTest) -> None:
        first, second = (self.slots(store, lowest=4, highest=4) for _ in range(2))
        now = store.clock.now
        assert first.free(0, now) == 4
        assert second.free(0, now) == 0
        assert first.free(4, now + 10) == 0
        assert second.free(0, now + 11) == 0
        assert first.free(1, now + 20) == 1
        assert second.free(0, now + 21) == 2

    def test_a_dead_worker_loses_its_share(self, store: StoreUnderTest) -> None:
        dead, alive = (self.slots(store, lowest=4, highest=4) for _ in range(2))
        now = store.clock.now
        assert dead.free(0, now) == 4
        assert alive.free(0, now + 10) == 0
        assert alive.free(0, now + 21) == 4

    def test_it_grows_by_one_per_window_and_falls_on_push_back(self, store: StoreUnderTest) -> None:
        slots = self.slots(store)
        now = store.clock.now
        sizes = []
        for _ in range(12):
            free = slots.free(0, now)
            sizes.append(free)
            slots.free(free, now)  # all slots are in use
            slots.succeeded()
            now += 10
        assert sizes == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]
        slots.pushed_back()
        assert slots.free(0, now) == 5  # 8 * 0.7 is 5.6

    def test_it_does_not_grow_while_under_half_of_it_is_used(self, store: StoreUnderTest) -> None:
        slots = self.slots(store, lowest=6)
        now = store.clock.now
        for _ in range(5):
            assert slots.free(0, now) == 6
            slots.free(2, now)
            slots.succeeded()
            now += 10

    def test_one_worker_s_push_back_slows_all_down(self, store: StoreUnderTest) -> None:
        first, second = (self.slots(store, lowest=1, highest=20, wanted=20) for _ in range(2))
        now = store.clock.now
        for _ in range(19):
            for slots in (first, second):
                slots.free(slots.free(0, now), now)
                slots.succeeded()
            now += 10
        before = sum(slots.free(0, now) for slots in (first, second))
        first.pushed_back()
        second.succeeded()
        now += 10
        first.free(0, now)
        second.free(0, now)
        now += 10
        assert sum(slots.free(0, now) for slots in (first, second)) <= 0.7 * before + 1

    def test_tokens_are_leased_in_blocks_and_never_exceed_the_rate(self, store: StoreUnderTest) -> None:
        queue = queue_of(store)
        bucket = SharedBucket(rate_per_second=5, burst=10, block=4)
        workers = [SharedTokens(core_of(queue).store, queue.name, bucket) for _ in range(3)]
        began = now = store.clock.now
        started = 0
        while now < began + 20:
            for worker in workers:
                count = worker.available(now, 3)
                worker.take(count)
                started += count
            now += 0.25
        assert started <= 10 + 5 * 20
        assert started >= 0.8 * 5 * 20

    def test_retries_are_at_most_a_fraction_of_first_attempts(self, store: StoreUnderTest) -> None:
        queue = queue_of(store)
        budget = RetryBudget(fraction=0.1, reserve=2)
        workers = [SharedRetries(core_of(queue).store, queue.name, budget) for _ in range(2)]
        granted = 0
        for _ in range(100):
            for worker in workers:
                worker.first_attempt()
                granted += worker.spend()
        assert granted <= 2 + 0.1 * 200
        assert granted >= 0.1 * 200 - 5
