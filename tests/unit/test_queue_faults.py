"""A queue whose store fails, or whose tasks others change, between two steps of one verb."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from freshq import (
    CodelRule,
    ConcurrencyLimit,
    Door,
    LeaseLost,
    LostRace,
    Queue,
    RetryBudget,
    StoreError,
    Task,
)
from freshq.queue.core import MAX_READ_WRITE_TRIES
from freshq.queue.shared.limits import SharedRetries, SharedSlots
from freshq.queue.shared.records import MAX_TRIES, change_record
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

CODEL = CodelRule(target_seconds=5, interval_seconds=10)


class Place:
    """A queue in memory, and a way to act before one call of its store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start empty."""
        self.clock = Clock()
        self.store = MemoryStore()
        self._monkeypatch = monkeypatch

    def queue(self, **options: Any) -> Queue:
        return Queue(self.store, clock=self.clock, **options)

    def before(self, verb: str, action: Callable[[], object], calls: range = range(100)) -> None:
        """Act before these calls of a verb of the store, except those that the action makes itself."""
        numbers = itertools.count()
        original = getattr(self.store, verb)
        acting = False

        def interrupted(*arguments: Any, **named: Any) -> Any:
            nonlocal acting
            if not acting and next(numbers) in calls:
                acting = True
                try:
                    action()
                finally:
                    acting = False
            return original(*arguments, **named)

        self._monkeypatch.setattr(self.store, verb, interrupted)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def fail() -> None:
    raise StoreError("no answer")


class TestClaim:
    def test_what_was_claimed_before_recover_failed_is_returned(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = place.queue()
        queue.put("work")
        place.before("due", fail)
        assert len(queue.claim(2)) == 1
        assert "claimed only 1 of 2 tasks" in caplog.text
        with pytest.raises(StoreError):
            queue.claim(2)

    def overloaded(self, place: Place) -> Queue:
        """Return a queue in which CoDel sheds all tasks but the newest."""
        queue = place.queue(order="fifo", codel=CODEL)
        for number in range(4):
            queue.put(number)
        place.clock.advance(30)
        queue.claim()
        place.clock.advance(11)
        queue.claim()
        return queue

    def test_what_was_claimed_before_a_round_of_codel_failed_is_returned(self, place: Place) -> None:
        queue = self.overloaded(place)
        place.clock.advance(1)
        queue.put("fresh")
        place.before("claim", fail, calls=range(1, 100))
        assert [claim.task.payload for claim in queue.claim(3)] == ["fresh"]

    def test_a_round_of_codel_that_fails_with_nothing_claimed_is_an_error(self, place: Place) -> None:
        queue = self.overloaded(place)
        place.clock.advance(1)
        place.before("claim", fail, calls=range(1, 100))
        with pytest.raises(StoreError):
            queue.claim()
        assert queue.stats().shed_by_reason == {"codel": 1}

    def test_a_task_that_cannot_be_shed_is_recovered(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = self.overloaded(place)
        place.clock.advance(1)
        place.before("replace", fail, calls=range(1))
        queue.claim()
        assert "1 tasks could not be shed; each returns when its lease expires" in caplog.text
        assert (queue.stats().taken, queue.stats().shed) == (3, 1)

    def test_a_task_that_another_process_recovers_first_is_not_counted(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        queue.put("work", task_id="a", delay_seconds=5)
        place.clock.advance(6)
        place.before("replace", lambda: other.touch("a"), calls=range(1))
        assert queue.recover() == 0

    def test_poll_claims_a_task_at_its_due_time(self, place: Place) -> None:
        queue = place.queue()
        queue.put("work", delay_seconds=5)
        place.before("wait_for_put", lambda: place.clock.advance(6))
        (claim,) = queue.poll(poll_seconds=0.01)
        assert claim.task.payload == "work"

    def test_poll_ends_after_its_timeout(self, place: Place) -> None:
        assert place.queue().poll(timeout_seconds=0.02, poll_seconds=0.01) == []


class TestAdmission:
    def test_a_put_does_not_wait_for_another_thread_that_measures_the_pressure(self, place: Place) -> None:
        queue = place.queue(door=Door())
        place.before("oldest_created", lambda: queue.put("meanwhile"), calls=range(1))
        queue.put("work")
        assert queue.stats().pending == 2

    def test_after_a_failed_measure_the_next_put_measures_again(self, place: Place) -> None:
        queue = place.queue(door=Door())
        place.before("oldest_created", fail, calls=range(1))
        with pytest.raises(StoreError):
            queue.put("work")
        queue.put("work")
        assert queue.stats().pending == 1


class TestSettle:
    def test_of_many_claims_a_lost_one_is_reported_in_its_place(self, place: Place) -> None:
        queue = place.queue()
        queue.put_many([{"payload": number} for number in range(3)])
        claims = queue.claim(3)
        queue.release(claims[1])
        first, lost, last = queue.complete_many(claims, [1, 2, 3])
        assert isinstance(lost, LeaseLost)
        assert [task.result for task in (first, last) if isinstance(task, Task)] == [1, 3]

    def test_results_must_be_as_many_as_the_claims(self, place: Place) -> None:
        with pytest.raises(ValueError, match="results: must have one entry per claim, 0, got 1"):
            place.queue().complete_many([], [1])

    def test_the_last_attempt_is_known_as_such(self, place: Place) -> None:
        queue = place.queue(max_attempts=2)
        queue.put("work")
        (claim,) = queue.claim()
        assert not queue.is_last_attempt(claim)
        queue.retry(claim, delay_seconds=0)
        assert queue.is_last_attempt(queue.claim()[0])


class TestTend:
    def dead(self, queue: Queue, task_id: str) -> None:
        queue.put("work", task_id=task_id)
        queue.fail(queue.claim()[0])

    def test_a_task_that_changes_during_every_attempt_is_a_lost_race(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        queue.put("work", task_id="a")
        place.before("replace", lambda: other.touch("a"))
        with pytest.raises(LostRace, match=f"during each of {MAX_READ_WRITE_TRIES} attempts; try again"):
            queue.reprioritize("a", 3)

    def test_a_dead_letter_that_another_process_deletes_first_is_not_counted(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        self.dead(queue, "a")
        place.before("get", lambda: other.purge(other.name), calls=range(1))
        assert queue.redrive() == 0

    def test_limits_count_what_was_changed(self, place: Place) -> None:
        queue = place.queue()
        for task_id in ("a", "b", "c"):
            self.dead(queue, task_id)
        assert queue.redrive(limit=2) == 2
        assert queue.discard(limit=2) == 1


class TestShared:
    def test_a_record_that_changes_each_time_is_left_to_the_next_turn(self, place: Place) -> None:
        numbers = itertools.count()

        def interfere() -> None:
            assert change_record(place.store, "q", "r", lambda _: {"other": next(numbers)})

        place.before("write_record", interfere)
        assert not change_record(place.store, "q", "r", lambda _: {"own": 1})
        record = place.store.read_record("q", "r")
        assert record is not None
        assert record.values == {"other": MAX_TRIES - 1}

    def test_slots_that_cannot_be_returned_expire(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        limit = ConcurrencyLimit(lowest=4, highest=4, window_seconds=10.0)
        slots, other = (SharedSlots(place.store, "q", limit, wanted=4) for _ in range(2))
        assert slots.free(0, 0.0) == 4
        place.before("read_record", fail, calls=range(1))
        slots.leave(1.0)
        assert "could not return concurrency slots; they expire" in caplog.text
        assert other.free(0, 1.0) == 0
        assert other.free(0, 21.0) == 4

    def test_a_worker_without_slots_returns_none(self, place: Place) -> None:
        limit = ConcurrencyLimit(lowest=4, highest=4, window_seconds=10.0)
        SharedSlots(place.store, "q", limit, wanted=4).leave(0.0)
        assert place.store.read_record("q", "slots") is None

    def test_slots_end_when_others_change_the_record_each_time(self, place: Place) -> None:
        limit = ConcurrencyLimit(lowest=4, highest=4, window_seconds=10.0)
        slots = SharedSlots(place.store, "q", limit, wanted=4)
        assert slots.free(0, 0.0) == 4

        def interfere() -> None:
            change_record(place.store, "q", "slots", lambda values: {**values, "other": 1})

        place.before("write_record", interfere, calls=range(2 * MAX_TRIES))
        assert slots.free(1, 10.0) == 3  # still within the two windows of its share
        assert slots.free(1, 20.0) == 0
        assert slots.free(1, 30.0) == 3

    def test_a_retry_is_granted_while_the_store_does_not_answer(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        retries = SharedRetries(place.store, "q", RetryBudget(fraction=0.1))
        place.before("read_record", fail, calls=range(1))
        for _ in range(20):
            retries.first_attempt()
        assert "could not reach the retry budget" in caplog.text
        assert retries.spend()  # the first attempts are added now
        record = place.store.read_record("q", "retries")
        assert record is not None
