"""A queue whose store fails, or whose tasks other processes change, between two steps of a verb."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from freshq import LeaseLost, Overloaded, Queue, Settlement, StoreError, Task, TaskStatus
from freshq.errors import IllegalTransition, LostRace
from freshq.policy import AdmissionLimit, BacklogLimit, CodelRule, ConcurrencyLimit, RetryBudget, WhenFull
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.policy.shedding import MAX_SHED_BEHIND
from freshq.queue.core import MAX_READ_WRITE_TRIES, core_of
from freshq.queue.shared.limits import SharedRetries, SharedSlots
from freshq.queue.shared.measures import MAX_TRIES, SharedReserve, change_record
from freshq.stores.memory import MemoryStore
from tests.conftest import START, Clock
from tests.support.readings import known, payloads

LOST_RACE = f"task 'a': other processes changed it during each of {MAX_READ_WRITE_TRIES} attempts; try again"
FOUR_SLOTS = ConcurrencyLimit(lowest=4, highest=4, window_seconds=10.0)
CODEL = CodelRule(target_seconds=5, interval_seconds=10)


class Place:
    """A queue in memory, a way to act before one call of its store, and the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """Start empty."""
        self.clock = Clock()
        self.store = MemoryStore()
        self._monkeypatch = monkeypatch
        self._caplog = caplog

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

    def logged(self) -> list[tuple[str, bool]]:
        """Return each log message, and whether it has a traceback."""
        return [(record.getMessage(), bool(record.exc_info)) for record in self._caplog.records]

    def shared(self, record_name: str) -> Mapping[str, Any]:
        """Return the values of a shared record of queue q."""
        record = self.store.read_record("q", record_name)
        assert record is not None
        return record.values


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Place:
    return Place(monkeypatch, caplog)


def fail() -> None:
    raise StoreError("no answer")


class TestClaim:
    def test_what_was_claimed_before_recover_failed_is_returned(self, place: Place) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("work")
        place.before("due", fail)
        assert len(queue.claim(2)) == 1
        assert place.logged() == [("claimed only 1 of 2 tasks", True)]
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
        place.clock.advance(1)
        return queue

    def test_what_was_claimed_before_the_second_take_failed_is_returned(self, place: Place) -> None:
        queue = self.overloaded(place)
        queue.put("fresh")
        place.before("take", fail, calls=range(1, 100))
        assert [claim.task.payload for claim in queue.claim(3)] == ["fresh"]
        assert place.logged() == [("claimed only 1 of 3 tasks", True)]

    def test_both_takes_of_a_claim_are_returned(self, place: Place) -> None:
        queue = self.overloaded(place)
        for payload in ("fresh", "fresher", "freshest"):
            queue.put(payload)
        assert payloads(queue.claim(3)) == ["fresh", "fresher", "freshest"]

    def test_a_second_take_that_fails_with_nothing_claimed_is_an_error(self, place: Place) -> None:
        queue = self.overloaded(place)
        place.before("take", fail, calls=range(1, 100))
        with pytest.raises(StoreError):
            queue.claim()
        assert queue.stats().shed_by_reason == {"codel": 2}

    def test_what_a_claim_does_not_shed_is_passed_over_and_left_to_later_ones(self, place: Place) -> None:
        queue = self.overloaded(place)
        queue.put_many([{"payload": number} for number in range(2 * MAX_SHED_BEHIND)])
        place.clock.advance(40)
        queue.claim()
        place.clock.advance(11)
        queue.claim()
        queue.put("fresh")
        before = queue.stats().shed
        assert [claim.task.payload for claim in queue.claim()] == ["fresh"]
        assert queue.stats().shed - before == MAX_SHED_BEHIND + 1
        queue.claim()
        assert queue.stats().shed - before == 2 * MAX_SHED_BEHIND

    def test_if_what_waits_cannot_be_read_it_is_passed_over(self, place: Place) -> None:
        queue = self.overloaded(place)
        queue.put("fresh")
        place.before("read_waiting", fail)
        assert [claim.task.payload for claim in queue.claim()] == ["fresh"]
        assert queue.stats().shed_by_reason == {"codel": 1}
        assert place.logged() == [("queue 'default': could not read what else waited too long", True)]

    def test_a_task_behind_that_changes_meanwhile_is_not_shed(self, place: Place) -> None:
        queue, other = self.overloaded(place), place.queue()
        (behind,) = [task for task in queue.list() if task.payload == 3]
        place.before("replace_many", lambda: other.redrive([behind.task_id], as_new=True), calls=range(1))
        queue.claim()
        assert queue.get(behind.task_id) is not None
        assert known(queue, behind.task_id).status is not TaskStatus.SHED

    def test_a_task_behind_that_the_reserve_keeps_is_not_shed(self, place: Place) -> None:
        queue = place.queue(order="fifo", codel=CODEL, reserve=10)
        for number in range(3):
            queue.put(number)
        queue.put("short", task_id="short", max_age_seconds=45)
        for seconds in (30, 11, 1):
            place.clock.advance(seconds)
            queue.claim()
        assert known(queue, "short").status is TaskStatus.PENDING
        assert queue.stats().shed_by_reason == {"codel": 1}

    def test_what_was_shed_is_counted(self, place: Place) -> None:
        queue = self.overloaded(place)
        queue.claim()
        queue.admin.flush()
        minutes = range(int(START // 60), int(place.clock.now // 60) + 1)
        counts = [place.store.read_counts("default", f"flow-{minute}") for minute in minutes]
        assert sum(count.get("shed_early", 0) for count in counts) == queue.stats().shed == 2

    def test_a_retried_task_behind_is_not_shed(self, place: Place) -> None:
        queue = place.queue(order="fifo", codel=CODEL)
        queue.put("retried", task_id="r")
        (claim,) = queue.claim()
        queue.retry(claim, delay_seconds=1)
        place.clock.advance(2)
        for number in range(4):
            queue.put(number, task_id=f"{number}")
        queue.redrive(["r"], as_new=True)
        place.clock.advance(30)
        first = queue.claim()
        place.clock.advance(11)
        second = queue.claim()
        assert [claim.task.payload for claim in first + second] == [0, 1]
        assert [claim.task.payload for claim in queue.claim()] == ["retried"]
        assert queue.stats().shed_by_reason == {"codel": 2}

    def test_lines_that_are_overloaded_too_are_passed_over_until_their_turn(self, place: Place) -> None:
        queue = place.queue(order="fifo", codel=CODEL)
        groups = [f"{number}" for number in range(6)]
        queue.put_many([{"payload": number, "group": group} for group in groups for number in range(4)])
        for _ in range(2):
            place.clock.advance(11)
            assert len(queue.claim(6)) == 6
        queue.put("fresh", group="0")
        assert [claim.task.payload for claim in queue.claim()] == ["fresh"]
        assert queue.stats().shed_by_reason == {"codel": 2}

    def test_a_task_that_cannot_be_shed_is_recovered(self, place: Place) -> None:
        queue = self.overloaded(place)
        place.before("replace_many", fail, calls=range(1))
        queue.claim()
        assert place.logged() == [("1 tasks could not be shed; each returns when its lease expires", True)]
        assert (queue.stats().taken, queue.stats().shed) == (3, 1)

    def test_a_task_that_another_process_recovers_first_is_not_counted(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        queue.put("work", task_id="a", delay_seconds=5)
        place.clock.advance(6)
        place.before("replace", lambda: other.redrive(["a"], as_new=True), calls=range(1))
        assert queue.admin.recover() == 0

    def test_poll_ends_after_its_timeout(self, place: Place) -> None:
        assert place.queue().claim(wait_seconds=0.02) == []


class TestFreshLeases:
    """Claims that take 20 s of a lease of 60 s."""

    def test_a_lease_that_cannot_be_extended_is_left_to_expire(self, place: Place) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("old")
        queue.put("due", delay_seconds=14)
        place.clock.advance(14)
        place.before("due", lambda: place.clock.advance(20), calls=range(1))
        place.before("replace_many", fail, calls=range(1, 2))  # the first brings in due tasks
        assert [claim.task.payload for claim in queue.claim(2)] == ["due"]
        assert place.logged() == [("the leases of 1 claims could not be extended", True)]
        assert queue.stats().taken == 2

    def test_an_extended_lease_ends_at_a_whole_microsecond(self, place: Place) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("old", task_id="a")
        place.before("due", lambda: place.clock.advance(20), calls=range(1))
        (claim,) = queue.claim(2, lease_seconds=60.123_456_5)
        assert claim.lease_until == START + 80.123_456 == known(queue, "a").lease_until

    @pytest.mark.parametrize(("seconds", "lease_until"), [(6, START + 60), (6.5, START + 66.5)])
    def test_a_lease_is_extended_if_less_than_nine_tenths_are_left(
        self, place: Place, seconds: float, lease_until: float
    ) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("work")
        place.before("due", lambda: place.clock.advance(seconds), calls=range(1))
        (claim,) = queue.claim(2)
        assert claim.lease_until == lease_until

    def test_what_stays_short_is_released(self, place: Place) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("old", task_id="a")
        place.before("take", lambda: place.before("replace", lambda: place.clock.advance(20)), range(1))
        place.before("due", lambda: place.clock.advance(20), calls=range(1))
        assert queue.claim(2) == []
        released = known(queue, "a")
        assert (released.status, released.updated) == (TaskStatus.PENDING, START + 60)

    def test_what_cannot_be_released_returns_when_its_lease_expires(self, place: Place) -> None:
        queue = place.queue()
        assert queue.claim() == []  # the first claim looks before it takes
        queue.put("old", task_id="a")

        def slow() -> None:
            place.clock.advance(20)
            if place.clock.now >= START + 80:
                fail()

        place.before("due", lambda: place.clock.advance(20), calls=range(1))
        place.before("replace", slow)
        assert queue.claim(2) == []
        message = "queue 'default': could not release 1 tasks; each returns when its lease expires"
        assert place.logged()[0] == (message, True)
        assert queue.stats().taken == 1


class TestAdmission:
    def test_a_put_does_not_wait_for_another_thread_that_measures_the_pressure(self, place: Place) -> None:
        queue = place.queue(admission=AdmissionLimit())
        place.before("read_waiting", lambda: queue.put("meanwhile"), calls=range(1))
        queue.put("work")
        assert queue.stats().pending == 2

    def test_after_a_failed_measure_the_next_put_measures_again(self, place: Place) -> None:
        queue = place.queue(admission=AdmissionLimit())
        place.before("read_waiting", fail, calls=range(1))
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
        first, lost, last = queue.settle_many(
            [Settlement.complete(claim, result) for claim, result in zip(claims, (1, 2, 3), strict=True)]
        )
        assert isinstance(lost, LeaseLost)
        assert [task.result for task in (first, last) if isinstance(task, Task)] == [1, 3]

    def test_the_last_attempt_is_known_as_such(self, place: Place) -> None:
        queue = place.queue(max_attempts=2)
        queue.put("work")
        (claim,) = queue.claim()
        assert not core_of(queue).is_last_attempt(claim)
        queue.retry(claim, delay_seconds=0)
        assert core_of(queue).is_last_attempt(queue.claim()[0])


class TestTend:
    def dead(self, queue: Queue, task_id: str) -> None:
        queue.put("work", task_id=task_id)
        queue.fail(queue.claim()[0])

    def test_a_task_that_changes_during_every_attempt_is_a_lost_race(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        queue.put("work", task_id="a")
        place.before("replace", lambda: other.redrive(["a"], as_new=True))
        with pytest.raises(LostRace) as lost:
            queue.reprioritize("a", priority=3)
        assert str(lost.value) == LOST_RACE

    def test_a_lease_that_others_extend_each_time_is_a_lost_race(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        longer = itertools.count(200)
        place.before("replace", lambda: other.extend(claim, lease_seconds=next(longer)))
        with pytest.raises(LostRace) as lost:
            queue.extend(claim, lease_seconds=100)
        assert str(lost.value) == LOST_RACE

    def test_a_claim_of_a_deleted_task_is_lost(self, place: Place) -> None:
        queue = place.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        queue.purge(confirm=queue.name)
        with pytest.raises(LeaseLost, match=r"\(it was deleted\)"):
            queue.complete(claim)

    def test_a_claim_is_found_again_by_its_token_only(self, place: Place) -> None:
        queue = place.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        with pytest.raises(LeaseLost, match=r"\(it is held under another token\)"):
            queue.admin.held("a", "other")
        queue.complete(claim)
        with pytest.raises(LeaseLost, match=r"\(it is SUCCESS now\)"):
            queue.admin.held("a", claim.token)

    def test_what_is_no_dead_letter_is_not_discarded(self, place: Place) -> None:
        queue = place.queue(max_age_seconds=60)
        queue.put("work", task_id="a")
        place.clock.advance(60)
        with pytest.raises(IllegalTransition) as caught:
            queue.purge(status="FAILURE", task_ids=["a"], confirm=queue.name)
        assert str(caught.value) == "task 'a': cannot purge a task that is SHED; purge needs FAILURE"

    def test_a_dead_letter_that_another_process_revived_meanwhile_is_not_discarded(
        self, place: Place
    ) -> None:
        queue, other = place.queue(), place.queue()
        self.dead(queue, "a")

        def die_again() -> None:
            other.redrive()
            other.fail(other.claim()[0])

        place.before("delete", die_again, calls=range(1))
        assert (
            queue.purge(status="FAILURE", confirm=queue.name),
            queue.purge(status="FAILURE", confirm=queue.name),
        ) == (0, 1)

    def test_a_dead_letter_that_another_process_deletes_first_is_not_counted(self, place: Place) -> None:
        queue, other = place.queue(), place.queue()
        self.dead(queue, "a")
        place.before("replace_many", lambda: other.purge(confirm=other.name), calls=range(1))
        assert queue.redrive() == 0

    def test_limits_count_what_was_changed(self, place: Place) -> None:
        queue = place.queue()
        for task_id in ("a", "b", "c"):
            self.dead(queue, task_id)
        assert queue.redrive(limit=2) == 2
        assert queue.purge(status="FAILURE", limit=2, confirm=queue.name) == 1


class TestShared:
    def test_a_record_that_changes_each_time_is_left_to_the_next_turn(self, place: Place) -> None:
        numbers = itertools.count()

        def interfere() -> None:
            assert change_record(place.store, "q", "r", lambda _: {"other": next(numbers)})

        place.before("write_record", interfere)
        assert not change_record(place.store, "q", "r", lambda _: {"own": 1})
        assert place.shared("r") == {"other": MAX_TRIES - 1}

    def test_slots_that_cannot_be_returned_expire(self, place: Place) -> None:
        slots, other = (SharedSlots(place.store, "q", FOUR_SLOTS, wanted=4) for _ in range(2))
        assert slots.free(0, 0.0) == 4
        place.before("read_record", fail, calls=range(1))
        slots.leave(1.0)
        assert place.logged() == [("queue 'q': could not return concurrency slots; they expire", True)]
        assert other.free(0, 1.0) == 0
        assert other.free(0, 21.0) == 4

    def test_a_worker_without_slots_returns_none(self, place: Place) -> None:
        SharedSlots(place.store, "q", FOUR_SLOTS, wanted=4).leave(0.0)
        assert place.store.read_record("q", "slots") is None

    def test_slots_end_when_others_change_the_record_each_time(self, place: Place) -> None:
        slots = SharedSlots(place.store, "q", FOUR_SLOTS, wanted=4)
        assert slots.free(0, 0.0) == 4

        def interfere() -> None:
            change_record(place.store, "q", "slots", lambda values: {**values, "other": 1})

        place.before("write_record", interfere, calls=range(2 * MAX_TRIES))
        assert slots.free(1, 10.0) == 3  # still within the two windows of its share
        assert slots.free(1, 20.0) == 0
        assert slots.free(1, 30.0) == 3

    def test_a_retry_is_granted_while_the_store_does_not_answer(self, place: Place) -> None:
        retries = SharedRetries(place.store, "q", RetryBudget(fraction=0.1))
        place.before("read_record", fail, calls=range(1))
        for _ in range(20):
            retries.first_attempt()
        assert place.logged() == [("queue 'q': could not reach the retry budget", True)]
        assert retries.spend()  # the first attempts are added now
        assert place.shared("retries") == {"balance": 10 + 2 - 1}
        place.before("read_record", fail)
        assert retries.spend()

    @pytest.mark.parametrize("values", [{"n": "one"}, {"m": 1}, {"n": [1]}])
    def test_a_damaged_record_is_replaced(self, place: Place, values: dict[str, Any]) -> None:
        place.store.write_record("q", "r", values, None)
        assert change_record(place.store, "q", "r", lambda old: {"n": old["n"] + 1 if old else 1})
        assert place.shared("r") == {"n": 1}
        assert place.logged() == [("the shared record 'r' was damaged and is replaced", True)]

    def test_a_change_that_fails_on_no_record_is_an_error(self, place: Place) -> None:
        with pytest.raises(KeyError):
            change_record(place.store, "q", "r", lambda old: {"n": old["n"]})

    def test_counts_that_could_not_be_written_are_written_later(self, place: Place) -> None:
        queue = place.queue(backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
        queue.put("work")
        with pytest.raises(Overloaded):
            queue.put("too many")
        place.before("add_counts", fail, calls=range(2))
        for _ in range(2):
            queue.admin.flush()
        assert place.logged() == [("queue 'default': could not write the flow counts", True)] * 2
        queue.admin.flush()
        other = place.queue()
        assert other.pressure().offered_per_second > 0
        assert other.pressure().overloaded  # a task was shed early
        assert other.stats().shed_by_reason == {"overflow": 1}

    def test_a_bound_that_could_not_be_enforced_is_logged(self, place: Place) -> None:
        place.before("read_waiting", fail)
        place.queue(backlog=BacklogLimit(1)).put("work")
        assert place.logged() == [("queue 'default': could not enforce the backlog limit", True)]

    def test_service_times_that_could_not_be_shared_are_shared_later(self, place: Place) -> None:
        rules = OverloadRules(60.0, reserve=ReserveRule.parse("p90"))
        worker, other, elsewhere = (SharedReserve(place.store, name, rules) for name in ("q", "q", "r"))
        for _ in range(30):
            worker.observe(2.0, None, 1000.0)
        place.before("read_record", fail, calls=range(1))
        worker.sync(1000.0)
        assert place.logged() == [("queue 'q': could not share service times", True)]
        worker.sync(1100.0)
        seconds = [reserve.seconds(lambda: 1100.0) for reserve in (worker, other, elsewhere)]
        assert seconds == pytest.approx([2.0, 2.0, 0.0], rel=0.1)
        assert place.store.read_record("q", "service-times") is not None

    def test_times_in_which_tasks_were_skipped_are_kept_apart(self, place: Place) -> None:
        reserve = SharedReserve(place.store, "q", OverloadRules(60.0, reserve=ReserveRule.parse("p90")))
        for now in (1000.0, 1100.0):
            reserve.note_skipped(now, 5.0, now - 1, now, short=True)
        assert len(reserve.spans()) == 2
        place.before("read_record", fail, calls=range(1))
        reserve.note_skipped(1200.0, 5.0, 1199.0, 1200.0, short=True)
        assert place.logged() == [("queue 'q': could not record the reserve", True)]

    def test_a_damaged_record_of_the_reserve_is_as_none(self, place: Place) -> None:
        place.store.write_record("q", "reserve-spans", {"spans": 5}, None)
        assert len(SharedReserve(place.store, "q", OverloadRules(60.0)).spans()) == 0
        assert place.logged() == [("queue 'q': the record of the reserve is damaged", False)]
