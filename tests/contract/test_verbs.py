"""The effects of each verb, on every store."""

import random
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import pytest

from freshq import Claim, LeaseLost, NotFound, Order, PutOutcome, Queue, TaskStatus
from freshq.errors import IllegalTransition
from freshq.model.lifecycle import MAX_ERROR_CHARS
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.stores.base import Conflict, Guard
from freshq.stores.dynamodb import line_records as control
from freshq.stores.sql import records
from tests.conftest import Clock, StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, ids, known, payloads, total, within_seconds


@pytest.fixture
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which a process notices changes by others."""
    monkeypatch.setattr(control, "MAX_STALENESS_SECONDS", 0.05)
    monkeypatch.setattr(records, "PAUSE_CHECK_SECONDS", 0.05)


class Level(int, Enum):
    HIGH = 5


class Dice(random.Random):
    """A source of random numbers that always returns the same one."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


def claimed(queue: Queue, **options: Any) -> Claim:
    (claim,) = queue.claim(**options)
    return claim


class TestRetry:
    @pytest.mark.parametrize("jitter", [0.25, 1 - 2**-53])
    def test_the_delay_is_a_random_part_of_an_exponential_bound(
        self, store: StoreUnderTest, jitter: float
    ) -> None:
        backoff = Backoff(base_seconds=2, cap_seconds=10)
        queue = store.queue(max_attempts=10, backoff=backoff, rng=Dice(jitter), lease_seconds=5)
        queue.put("work")
        for bound_seconds in (2, 4, 8, 10, 10):
            task = queue.retry(claimed(queue), error="broken")
            assert task.not_before == pytest.approx(store.clock.now + jitter * bound_seconds, abs=2e-6)
            store.clock.advance(jitter * bound_seconds - 0.001)
            assert queue.claim() == []
            store.clock.advance(0.002)

    def test_the_jitter_may_be_zero(self, store: StoreUnderTest) -> None:
        queue = store.queue(rng=Dice(0.0))
        queue.put("work")
        assert queue.retry(claimed(queue)).not_before is None
        assert claimed(queue).task.attempts == 2

    def test_the_jitter_comes_from_the_queue_s_rng(self, store: StoreUnderTest) -> None:
        queue = store.queue(rng=random.Random(3), backoff=Backoff(base_seconds=8))
        queue.put("work")
        delay_seconds = 8 * random.Random(3).random()
        assert queue.retry(claimed(queue)).not_before == pytest.approx(
            store.clock.now + delay_seconds, abs=2e-6
        )

    @pytest.mark.parametrize("delay_seconds", [0, 0.5, 40])
    def test_an_explicit_delay_has_no_jitter(
        self, queue: Queue, store: StoreUnderTest, delay_seconds: float
    ) -> None:
        queue.put("work")
        queue.retry(claimed(queue), error="broken", delay_seconds=delay_seconds)
        if delay_seconds:
            assert counts(queue.stats()) == {"delayed": 1}
            store.clock.advance(delay_seconds - 0.001)
            assert queue.claim() == []
            store.clock.advance(0.001)
        assert payloads(queue.claim()) == ["work"]

    def test_the_error_stays_readable_until_the_task_succeeds(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        queue.retry(claimed(queue), error="broken", delay_seconds=0)
        assert known(queue, "a").error == "broken"
        claim = claimed(queue)
        assert claim.task.error == "broken"
        assert queue.complete(claim).error is None

    def test_a_long_error_is_truncated(self, queue: Queue) -> None:
        queue.put("x" * 390_000, task_id="a")
        queue.retry(claimed(queue), error="é" * 400_000, delay_seconds=0)
        error = known(queue, "a").error
        assert error == "é" * (MAX_ERROR_CHARS - 1) + "…"

    def test_the_last_attempt_makes_a_dead_letter_with_its_error(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_attempts=3)
        queue.put("poison", task_id="a")
        for attempt in (1, 2, 3):
            queue.retry(claimed(queue), error=f"error {attempt}", delay_seconds=0)
        task = known(queue, "a")
        assert (task.status, task.attempts, task.error) == (TaskStatus.FAILURE, 3, "error 3")
        assert (task.lease_token, task.lease_until, task.not_before) == (None, None, None)
        assert queue.claim() == []

    @pytest.mark.parametrize("order", Order)
    @pytest.mark.parametrize("delay_seconds", [None, 0])
    def test_a_failing_task_never_blocks_newer_or_older_ones(
        self, store: StoreUnderTest, order: Order, delay_seconds: float | None
    ) -> None:
        queue = store.queue(max_attempts=3, order=order)
        for payload in ("older", "poison", "newer"):
            queue.put(payload)
            store.clock.advance(1)
        runs: list[object] = []
        while counts(queue.stats()).keys() & {"pending", "delayed"}:
            for claim in queue.claim(limit=2):
                runs.append(claim.task.payload)
                if claim.task.payload == "poison":
                    queue.retry(claim, error="poisonous", delay_seconds=delay_seconds)
                else:
                    queue.complete(claim)
            store.clock.advance(1)
            assert len(runs) <= 5
        assert sorted(map(str, runs)) == ["newer", "older", "poison", "poison", "poison"]
        assert counts(queue.stats()) == {"success": 2, "failure": 1}


class TestRelease:
    def test_the_attempt_is_not_counted(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        before = known(queue, "a")
        released = queue.release(claimed(queue))
        expected = replace(before, first_claim_at=before.updated, last_claim_at=before.updated)
        assert released == replace(expected, updated=released.updated, request_token=released.request_token)

    def test_not_even_after_many_releases(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_attempts=2)
        queue.put("work")
        for _ in range(5):
            claim = claimed(queue)
            assert claim.task.attempts == 1
            queue.release(claim)
        assert counts(queue.stats()) == {"pending": 1}

    def test_earlier_attempts_stay_counted(self, queue: Queue) -> None:
        queue.put("work")
        queue.retry(claimed(queue), error="broken", delay_seconds=0)
        assert queue.release(claimed(queue)).attempts == 1
        assert claimed(queue).task.attempts == 2


def test_fail_makes_a_dead_letter_even_if_attempts_are_left(queue: Queue) -> None:
    queue.put("work", task_id="a")
    queue.fail(claimed(queue), error="hopeless")
    task = known(queue, "a")
    assert (task.status, task.attempts, task.error) == (TaskStatus.FAILURE, 1, "hopeless")
    assert task.lease_token is None
    assert queue.claim() == []
    assert queue.admin.recover() == 0


def make_pending(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a")


def make_delayed(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a", delay_seconds=100)


def make_taken(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a")
    claimed(queue)


def make_success(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a")
    queue.complete(claimed(queue), result="result")


def make_failure(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a")
    queue.fail(claimed(queue), error="error")


def make_stale_failure(queue: Queue, clock: Clock) -> None:
    queue.put("work", task_id="a", max_age_seconds=10)
    queue.fail(claimed(queue), error="error")
    clock.advance(10)


def make_cancelled(queue: Queue, _clock: Clock) -> None:
    queue.put("work", task_id="a")
    queue.cancel("a")


def make_shed(queue: Queue, clock: Clock) -> None:
    queue.put("work", task_id="a", max_age_seconds=10)
    clock.advance(10)


# How a task gets into a status, the status, and the verbs on its id that the status allows.
STATES: list[tuple[Callable[[Queue, Clock], None], str, set[str]]] = [
    (make_pending, "pending", {"cancel", "redrive as new", "reprioritize"}),
    (make_delayed, "delayed", {"cancel", "redrive as new", "reprioritize"}),
    (make_taken, "taken", set()),
    (make_success, "success", set()),
    (make_failure, "failure", {"redrive", "redrive as new"}),
    (make_stale_failure, "failure", {"redrive as new"}),
    (make_cancelled, "cancelled", set()),
    (make_shed, "shed", set()),
]
VERBS: dict[str, Callable[[Queue], object]] = {
    "cancel": lambda queue: queue.cancel("a"),
    "redrive as new": lambda queue: queue.redrive(["a"], as_new=True),
    "reprioritize": lambda queue: queue.reprioritize("a", priority=4),
    "redrive": lambda queue: queue.redrive(["a"]),
}


@pytest.mark.parametrize(("make", "state", "allowed"), STATES, ids=[make.__name__ for make, *_ in STATES])
def test_each_status_allows_only_its_verbs(
    store: StoreUnderTest, make: Callable[[Queue, Clock], None], state: str, allowed: set[str]
) -> None:
    queue = store.queue()
    make(queue, store.clock)
    before = known(queue, "a")
    assert counts(queue.stats()) == {state: 1}
    assert before.status is (TaskStatus.PENDING if state == "delayed" else TaskStatus(state.upper()))
    for status in TaskStatus:
        assert list(queue.list(status=status)) == ([before] if status is before.status else [])
    assert list(queue.list(status=str(before.status))) == [before]
    assert queue.put("other work", task_id="a", priority=9).outcome is PutOutcome.DUPLICATE
    for name in VERBS.keys() - allowed:
        with pytest.raises(IllegalTransition):
            VERBS[name](queue)
    assert known(queue, "a") == before
    for name in allowed:
        VERBS[name](store.queue())
        assert known(queue, "a") != before
        queue.purge(confirm="default")
        make(queue, store.clock)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_an_unknown_task_is_an_error(store: StoreUnderTest, verb: Callable[[Queue], object]) -> None:
    queue = store.queue(name="here")
    store.queue(name="elsewhere").put("work", task_id="a")
    with pytest.raises(NotFound):
        verb(queue)
    assert total(queue) == 0


class TestRedrive:
    @pytest.fixture
    def dead(self, queue: Queue, store: StoreUnderTest) -> list[str]:
        """Make three dead letters and a stale one; return the ids of the three, oldest first."""
        queue.put("stale", task_id="stale", max_age_seconds=10)
        queue.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
        for claim in queue.claim(limit=4):
            queue.fail(claim, error="hopeless")
        store.clock.advance(10)
        return ["0", "1", "2"]

    def test_all_but_the_stale(self, queue: Queue, dead: list[str]) -> None:
        assert queue.redrive() == 3
        assert counts(queue.stats()) == {"pending": 3, "failure": 1}
        assert known(queue, "stale").status is TaskStatus.FAILURE
        assert ids(queue.claim(limit=5)) == dead[::-1]
        assert queue.redrive() == 0

    def test_some(self, queue: Queue, dead: list[str]) -> None:
        assert queue.redrive(limit=2) == 2
        assert counts(queue.stats()) == {"pending": 2, "failure": 2}
        assert queue.redrive(limit=2) == 1
        assert len(queue.claim(limit=5)) == len(dead)

    def test_ids(self, queue: Queue, dead: list[str]) -> None:
        with pytest.raises(NotFound):
            queue.redrive([dead[0], "nobody", "stale"])
        with pytest.raises(IllegalTransition) as caught:
            queue.redrive([dead[0], "stale", "nobody"])
        assert caught.value.status == known(queue, "stale").status == TaskStatus.FAILURE
        assert counts(queue.stats()) == {"failure": 4}
        assert queue.redrive([dead[1], dead[0], dead[1]]) == 2
        assert ids(queue.claim(limit=5)) == [dead[1], dead[0]]
        assert queue.redrive([]) == 0

    def test_as_new_the_stale_return_too(self, queue: Queue, dead: list[str]) -> None:
        assert queue.redrive(limit=2, as_new=True) == 2
        assert queue.redrive(as_new=True) == len(dead) - 1
        assert counts(queue.stats()) == {"pending": 4}
        deadlines = {task.task_id: task.stale_at - task.created for task in queue.list()}
        assert deadlines.pop("stale") == pytest.approx(10, abs=1e-3)
        assert all(task.attempts == 0 for task in queue.list())

    @pytest.mark.parametrize(
        "arguments",
        [
            {"task_ids": "0"},
            {"task_ids": ["0"], "limit": 1},
            {"task_ids": ["0"], "force": True},
            {"force": True, "as_new": True},
            {"task_ids": 7},
        ],
    )
    def test_arguments_that_contradict(self, queue: Queue, dead: list[str], arguments: Any) -> None:
        with pytest.raises(ValueError, match=r"^(task_ids: must be a list of ids|limit|force)"):
            queue.redrive(**arguments)
        assert counts(queue.stats()) == {"failure": len(dead) + 1}

    def test_its_attempts_are_reset(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_attempts=2)
        queue.put("work", task_id="a")
        for _ in range(2):
            queue.retry(claimed(queue), error="broken", delay_seconds=0)
        queue.redrive()
        task = known(queue, "a")
        assert (task.attempts, task.status, task.error) == (0, TaskStatus.PENDING, "broken")
        queue.retry(claimed(queue), error="broken", delay_seconds=0)
        assert known(queue, "a").status is TaskStatus.PENDING


class TestCancel:
    def test_it_is_never_claimed(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        queue.put("later", task_id="b", delay_seconds=5)
        for task_id in ("a", "b"):
            assert queue.cancel(task_id).status is TaskStatus.CANCELLED
        store.clock.advance(5)
        assert queue.admin.recover() == 0
        assert queue.claim() == []
        assert counts(queue.stats()) == {"cancelled": 2}

    def test_a_task_that_was_released_can_be_cancelled(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        queue.release(claimed(queue))
        queue.cancel("a")
        assert queue.claim() == []


class TestRedriveAsNewOfAWaitingTask:
    def test_only_its_creation_time_changes(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a", priority=2, group="g", max_age_seconds=60)
        queue.retry(claimed(queue), error="broken", delay_seconds=0)
        before = known(queue, "a")
        store.clock.advance(30)
        assert queue.redrive(["a"], as_new=True) == 1
        touched = known(queue, "a")
        assert touched.created == pytest.approx(store.clock.now, abs=1e-3)
        assert touched.deadline == pytest.approx(store.clock.now + 60, abs=1e-3)
        assert (touched.attempts, touched.priority, touched.group, touched.error) == (1, 2, "g", "broken")
        assert touched.expires > before.expires
        store.clock.advance(59)
        assert payloads(queue.claim()) == ["work"]

    def test_a_delayed_task_stays_delayed(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a", delay_seconds=50)
        store.clock.advance(20)
        queue.redrive(["a"], as_new=True)
        assert queue.claim() == []
        store.clock.advance(30)
        assert payloads(queue.claim()) == ["work"]

    def test_repeated_touches_keep_the_max_age(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a", max_age_seconds=1)
        for _ in range(20):
            store.clock.advance(0.9)
            queue.redrive(["a"], as_new=True)
        touched = known(queue, "a")
        assert touched.stale_at - touched.created == pytest.approx(1, abs=1e-3)


class TestReprioritize:
    def test_it_changes_the_level_but_not_the_creation_time(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        for task_id in ("old", "young", "urgent"):
            queue.put(task_id, task_id=task_id)
        for task_id in ("urgent", "old"):
            assert queue.reprioritize(task_id, priority=Level.HIGH).priority == 5
        assert payloads(store.queue().claim(limit=3)) == ["urgent", "old", "young"]

    def test_back_to_the_lowest(self, queue: Queue) -> None:
        queue.put("a", task_id="a", priority=9)
        queue.put("b", task_id="b", priority=1)
        queue.reprioritize("a", priority=0)
        assert payloads(queue.claim(limit=2)) == ["b", "a"]

    def test_a_delayed_task_stays_delayed(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("later", task_id="a", delay_seconds=5)
        queue.put("now")
        queue.reprioritize("a", priority=3)
        assert payloads(queue.claim(limit=2)) == ["now"]
        store.clock.advance(5)
        assert [claim.task.priority for claim in queue.claim()] == [3]

    @pytest.mark.usefixtures("quick_look")
    def test_a_level_that_is_new_to_another_process_is_seen_there(self, store: StoreUnderTest) -> None:
        worker, producer = store.queue(), store.queue()
        producer.put("old", task_id="old")
        producer.put("new")
        assert payloads(worker.claim()) == ["new"]
        producer.reprioritize("old", priority=8)
        found: list[Claim] = []

        def claim() -> bool:
            found.extend(worker.claim())
            return bool(found)

        assert within_seconds(PATIENCE_SECONDS, claim)
        assert payloads(found) == ["old"]


class TestPriorities:
    def test_each_of_the_ten_levels(self, queue: Queue) -> None:
        queue.put_many([{"payload": level, "priority": level} for level in (3, 0, 9, 1, 8, 2, 7, 4, 6, 5)])
        assert payloads(queue.claim(limit=20)) == list(range(9, -1, -1))

    def test_with_shards_and_pages(self, store: StoreUnderTest) -> None:
        queue = store.queue(shards=3)
        queue.put_many([{"payload": number, "priority": number % 3} for number in range(60)])
        expected = [number for level in (2, 1, 0) for number in range(59, -1, -1) if number % 3 == level]
        assert payloads(queue.claim(limit=25)) + payloads(queue.claim(limit=60)) == expected

    def test_a_priority_survives_every_way_back(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("urgent", priority=6)
        queue.put("idle", delay_seconds=1)
        queue.release(claimed(queue))
        queue.retry(claimed(queue), delay_seconds=3)
        store.clock.advance(3)
        claim = claimed(queue, lease_seconds=10)
        assert claim.task.payload == "urgent"
        store.clock.advance(10)
        queue.admin.recover()
        queue.fail(claimed(queue))
        queue.redrive()
        assert claimed(queue).task.priority == 6


class TestDelay:
    def test_a_claim_promotes_a_delayed_task_of_another_process(self, store: StoreUnderTest) -> None:
        store.queue().put("later", delay_seconds=10, priority=4)
        worker = store.queue()
        assert worker.claim() == []
        store.clock.advance(10)
        assert payloads(worker.claim()) == ["later"]

    def test_more_of_them_than_fit_on_a_page(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number, "delay_seconds": 5} for number in range(60)])
        store.clock.advance(5)
        assert queue.admin.recover() == 60
        assert counts(queue.stats()) == {"pending": 60}


class TestLease:
    def test_a_claim_may_set_the_length_of_its_lease(self, store: StoreUnderTest) -> None:
        queue = store.queue(lease_seconds=40)
        queue.put_many([{"payload": number} for number in range(2)])
        assert claimed(queue).lease_until == store.clock.now + 40
        assert claimed(queue, lease_seconds=0.5).lease_until == store.clock.now + 0.5
        store.clock.advance(0.5)
        assert store.queue().admin.recover() == 1

    def test_extend_counts_from_now(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        claim = claimed(queue, lease_seconds=100)
        store.clock.advance(30)
        extended = queue.extend(claim, lease_seconds=100)
        assert extended.lease_until == store.clock.now + 100 == known(queue, "a").lease_until
        assert extended.token == claim.token
        assert extended.task.attempts == 1

    @pytest.mark.parametrize("which", ["before", "after"])
    def test_both_claims_of_an_extended_lease_can_settle(self, queue: Queue, which: str) -> None:
        queue.put("work", task_id="a")
        claim = claimed(queue)
        extended = queue.extend(claim, lease_seconds=500)
        assert queue.complete(claim if which == "before" else extended).status is TaskStatus.SUCCESS

    def test_an_expired_lease_can_be_extended_until_the_task_is_recovered(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        queue.put("work")
        claim = claimed(queue, lease_seconds=10)
        store.clock.advance(15)
        claim = queue.extend(claim, lease_seconds=10)
        assert store.queue().admin.recover() == 0
        store.clock.advance(10)
        store.queue().admin.recover()
        with pytest.raises(LeaseLost):
            queue.extend(claim, lease_seconds=10)

    def test_a_heartbeat_keeps_a_long_task(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number} for number in range(3)])
        claim, *_done = queue.claim(limit=3, lease_seconds=30)
        for _ in range(20):
            store.clock.advance(10)
            claim = queue.extend(claim, lease_seconds=30)
            store.queue().admin.recover()
        store.clock.advance(10)
        assert queue.complete(claim).status is TaskStatus.SUCCESS


class TestList:
    @pytest.mark.parametrize("limit", [1, 3, 7, 8])
    def test_pages_visit_each_task_once(self, queue: Queue, limit: int) -> None:
        queue.put_many([{"payload": number} for number in range(7)])
        seen: list[object] = []
        cursor: str | None = None
        for _ in range(8):
            page = queue.list(limit=limit, cursor=cursor)
            assert len(page) <= limit
            seen += [task.payload for task in page]
            if (cursor := page.cursor) is None:
                break
        assert sorted(seen, key=str) == list(range(7))
        assert cursor is None

    def test_pages_of_one_state(self, queue: Queue) -> None:
        queue.put_many([{"payload": number} for number in range(10)])
        done = {queue.complete(claim).task_id for claim in queue.claim(limit=5)}
        first = queue.list(status="SUCCESS", limit=3)
        rest = queue.list(status=TaskStatus.SUCCESS, limit=3, cursor=first.cursor)
        assert {task.task_id for task in first} | {task.task_id for task in rest} == done
        assert (len(first), len(rest), rest.cursor) == (3, 2, None)

    def test_pages_while_tasks_change(self, queue: Queue) -> None:
        queue.put_many([{"payload": number, "task_id": str(number)} for number in range(9)])
        first = queue.list(limit=4)
        queue.cancel(first[-1].task_id)
        queue.claim(limit=4)
        rest = queue.list(limit=9, cursor=first.cursor)
        assert sorted(task.task_id for task in (*first, *rest)) == list("012345678")

    def test_an_empty_queue(self, queue: Queue) -> None:
        page = queue.list()
        assert (page.tasks, page.cursor) == ((), None)


class TestGet:
    def test_the_store_s_own_items_are_not_tasks(self, queue: Queue) -> None:
        queue.put("work", priority=5)
        queue.pause()
        assert queue.get("freshq#control#default") is None
        assert [task.payload for task in queue.list()] == ["work"]
        assert total(queue) == 1


class TestValues:
    """A payload is a copy, as JSON represents it."""

    def test_the_callers_object_may_change_after_a_put(self, queue: Queue) -> None:
        payload = {"list": [1]}
        queue.put(payload, task_id="a")
        payload["list"].append(2)
        assert known(queue, "a").payload == {"list": [1]}

    def test_a_runner_may_change_what_it_got(self, queue: Queue) -> None:
        queue.put({"list": [1]})
        claim = claimed(queue)
        claim.task.payload["list"].append(2)
        queue.retry(claim, delay_seconds=0)
        assert claimed(queue).task.payload == {"list": [1]}

    def test_values_that_are_equal_in_json_are_equal_on_every_store(self, queue: Queue) -> None:
        queue.put({"1": (2, 3)}, task_id="a")
        assert known(queue, "a").payload == {"1": [2, 3]}
        result = {"1": [4]}
        settled = queue.complete(claimed(queue), result=result)
        result["1"].append(5)
        assert known(queue, "a").result == settled.result == {"1": [4]}


class TestPurge:
    def test_all_tasks_are_deleted_even_taken_ones(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number} for number in range(30)])
        queue.put("later", delay_seconds=10)
        queue.complete(claimed(queue))
        queue.claim(limit=3)
        assert queue.purge(confirm="default") == 31
        assert total(queue) == 0
        assert queue.claim(limit=5) == []
        store.clock.advance(100)
        assert queue.admin.recover() == 0

    def test_the_queue_can_be_used_again(self, queue: Queue) -> None:
        queue.put("old", task_id="a", priority=3)
        queue.purge(confirm="default")
        assert queue.put("new", task_id="a").outcome is PutOutcome.CREATED
        assert payloads(queue.claim()) == ["new"]

    def test_a_pause_outlives_it(self, queue: Queue) -> None:
        queue.pause()
        queue.purge(confirm="default")
        assert queue.paused()


class TestPause:
    def test_only_claims_are_suspended(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number} for number in range(3)])
        first, second = queue.claim(limit=2, lease_seconds=10)
        queue.pause()
        assert queue.claim(limit=5) == []
        queue.put("more")
        queue.complete(first)
        store.clock.advance(10)
        assert queue.admin.recover() == 1
        assert counts(queue.stats()) == {"pending": 3, "success": 1}
        queue.resume()
        assert payloads(queue.claim(limit=5)) == ["more", second.task.payload, 0]

    @pytest.mark.usefixtures("quick_look")
    def test_another_process_sees_it(self, store: StoreUnderTest) -> None:
        here, there = store.queue(), store.queue()
        there.put_many([{"payload": number} for number in range(2)])
        assert len(there.claim()) == 1  # and has cached that nothing is paused
        here.pause()
        assert within_seconds(PATIENCE_SECONDS, there.paused)
        assert there.claim() == []
        here.resume()
        assert within_seconds(PATIENCE_SECONDS, lambda: not there.paused())
        assert len(there.claim()) == 1

    def test_only_the_queue_of_that_name(self, store: StoreUnderTest) -> None:
        one, other = store.queue(name="one"), store.queue(name="other")
        other.put("work")
        one.pause()
        assert payloads(other.claim()) == ["work"]


class TestStats:
    def test_an_empty_queue(self, queue: Queue) -> None:
        for stats in (queue.stats(), queue.stats(approximate=True)):
            assert counts(stats) == {}
            assert stats.oldest_pending_seconds is stats.newest_pending_seconds is None

    def test_only_claimable_tasks_have_an_age(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("taken")
        queue.claim()
        queue.put("delayed", delay_seconds=1000)
        queue.put("stale", max_age_seconds=5)
        store.clock.advance(6)
        assert queue.stats().oldest_pending_seconds is None
        queue.put("fresh")
        store.clock.advance(2)
        stats = queue.stats()
        assert stats.oldest_pending_seconds == stats.newest_pending_seconds == pytest.approx(2, abs=1e-3)
        assert counts(stats) == {"taken": 1, "delayed": 1, "shed": 1, "pending": 1}

    def test_a_due_task_counts_as_delayed_until_it_is_promoted(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        queue.put("later", delay_seconds=5)
        store.clock.advance(5)
        assert counts(queue.stats()) == {"delayed": 1}
        queue.admin.recover()
        assert counts(queue.stats()) == {"pending": 1}


class TestHeld:
    def test_id_and_token_are_enough_for_another_process(self, store: StoreUnderTest) -> None:
        first, second = store.queue(), store.queue()
        first.put("work", task_id="a")
        claim = claimed(first)
        carried = second.admin.held("a", claim.token)
        assert (carried.token, carried.lease_until) == (claim.token, claim.lease_until)
        assert second.complete(
            second.admin.held("a", second.extend(carried, lease_seconds=90).token)
        ).status is (TaskStatus.SUCCESS)
        with pytest.raises(LeaseLost):
            first.admin.held("a", claim.token)

    def test_only_the_holder_s_token_is_accepted(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(LeaseLost):
            queue.admin.held("a", "none")
        stale = claimed(queue, lease_seconds=5)
        store.clock.advance(6)
        assert claimed(queue).task.task_id == "a"
        with pytest.raises(LeaseLost):
            queue.admin.held("a", stale.token)
        with pytest.raises(NotFound):
            queue.admin.held("b", stale.token)


class TestPurgeOfSome:
    def test_of_a_status(self, queue: Queue, store: StoreUnderTest) -> None:
        for name in ("a", "b", "c"):
            queue.put("bad", task_id=name)
            queue.fail(claimed(queue), error="no good")
        for name in ("stale", "cancelled", "done", "held", "good"):
            queue.put("work", task_id=name, max_age_seconds=5 if name == "stale" else None, priority=1)
        store.clock.advance(5)
        queue.cancel("cancelled")
        for claim in queue.claim(3):
            if claim.task.task_id == "done":
                queue.complete(claim)
            elif claim.task.task_id == "good":
                queue.release(claim)
        purge = partial(queue.purge, confirm=queue.name)
        assert (purge(status="FAILURE", limit=1), purge(status="FAILURE"), purge(status="FAILURE")) == (
            1,
            2,
            0,
        )
        for status in ("SHED", "CANCELLED", TaskStatus.SUCCESS, "TAKEN"):
            assert purge(status=status) == 1
        assert [task.task_id for task in queue.list()] == ["good"]
        assert (purge(status="READY"), purge(limit=5)) == (0, 1)

    def test_of_ids(self, queue: Queue, store: StoreUnderTest) -> None:
        for name in "abcd":
            queue.put("work", task_id=name)
        dead = queue.fail(claimed(queue)).task_id
        store.queue(name="other").put("work", task_id="other")
        purge = partial(queue.purge, confirm=queue.name)
        with pytest.raises(IllegalTransition):
            purge(status="FAILURE", task_ids=[dead, "a", "b"])
        for missing in ("nobody", "other"):
            with pytest.raises(NotFound):
                purge(task_ids=["a", missing, "nothing"])
        assert total(queue) == 4
        assert purge(status="FAILURE", task_ids=[dead]) == 1
        claim = claimed(queue)
        assert purge(task_ids=iter(["b", "c", "b"])) == 2
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        assert [task.task_id for task in queue.list()] == ["a"]
        assert purge(task_ids=[]) == 0

    def test_one_that_was_redriven_meanwhile_stays(self, queue: Queue) -> None:
        queue.put("bad", task_id="a")
        dead = queue.fail(claimed(queue))
        queue.redrive(["a"])
        with pytest.raises(Conflict):
            core_of(queue).store.delete(dead, Guard(TaskStatus.FAILURE, request_token=dead.request_token))
        assert queue.get("a") is not None

    def test_one_that_is_already_deleted_is_no_error(self, queue: Queue) -> None:
        queue.put("bad", task_id="a")
        dead = queue.fail(claimed(queue))
        for _ in range(2):
            core_of(queue).store.delete(dead, Guard(TaskStatus.FAILURE, request_token=dead.request_token))
        assert queue.get("a") is None
