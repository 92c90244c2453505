"""Operators change tasks by id, whoever holds them: cancel and redrive as new, also by force."""

from collections.abc import Callable

import pytest

from freshq import Claim, LeaseLost, NotFound, Order, Queue, Task, TaskStatus
from freshq.errors import IllegalTransition
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known, payloads

VERBS: dict[str, tuple[Callable[[Queue, bool], object], TaskStatus]] = {
    "cancel": (lambda queue, force: queue.cancel("a", force=force), TaskStatus.CANCELLED),
    "cancel as dead": (lambda queue, force: queue.cancel("a", dead=True, force=force), TaskStatus.FAILURE),
    "redrive as new": (
        lambda queue, force: queue.redrive(["a"], as_new=True, force=force),
        TaskStatus.PENDING,
    ),
}


def changed(queue: Queue, verb: str, *, force: bool = True) -> Task:
    VERBS[verb][0](queue, force)
    return known(queue, "a")


def held(queue: Queue) -> Claim:
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    return claim


class TestCancelAsDead:
    def test_a_waiting_task_becomes_a_dead_letter_with_the_reason(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        buried = queue.cancel("a", dead=True, error="wrong address")
        assert known(queue, "a") == buried
        assert (buried.status, buried.error, buried.attempts) == (TaskStatus.FAILURE, "wrong address", 0)
        assert queue.claim() == []
        assert counts(queue.stats()) == {"failure": 1}
        assert queue.redrive(["a"]) == 1
        assert payloads(queue.claim()) == ["work"]

    @pytest.mark.parametrize("restored", [False, True])
    def test_a_delayed_one_does_not_come_in_later(
        self, queue: Queue, store: StoreUnderTest, *, restored: bool
    ) -> None:
        queue.put("work", task_id="a", delay_seconds=30)
        queue.cancel("a", dead=True)
        if restored:
            queue.redrive(["a"], as_new=True)
            assert ids(queue.claim()) == ["a"]
        store.clock.advance(31)
        assert queue.admin.recover() == 0
        assert queue.claim() == []


class TestRedriveAsNew:
    @pytest.mark.parametrize(("order", "after"), [(Order.FIFO, ["b", "a"]), (Order.LIFO, ["a", "b"])])
    @pytest.mark.parametrize("state", ["waiting", "dead"])
    def test_it_goes_where_a_new_task_goes(
        self, store: StoreUnderTest, order: Order, after: list[str], state: str
    ) -> None:
        queue = store.queue(order=order)
        queue.put("older", task_id="a", priority=3, group="g")
        if state == "dead":
            queue.fail(queue.claim()[0], error="broken")
        store.clock.advance(1)
        queue.put("newer", task_id="b", priority=3, group="g")
        store.clock.advance(1)
        assert queue.redrive(["a"], as_new=True) == 1
        restored = known(queue, "a")
        assert (restored.status, restored.attempts) == (TaskStatus.PENDING, 0)
        assert restored.created == pytest.approx(store.clock.now, abs=1e-3)
        assert (restored.priority, restored.group) == (3, "g")
        assert ids(queue.claim(limit=2)) == after

    def test_a_dead_letter_past_its_deadline_begins_anew(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=60)
        queue.put("work", task_id="a", max_age_seconds=10)
        queue.cancel("a", dead=True)
        store.clock.advance(30)
        with pytest.raises(IllegalTransition):
            queue.redrive(["a"])
        queue.redrive(["a"], as_new=True)
        assert known(queue, "a").deadline == pytest.approx(store.clock.now + 10, abs=1e-3)
        store.clock.advance(9)
        assert ids(queue.claim()) == ["a"]


class TestForce:
    @pytest.mark.parametrize("verb", VERBS)
    def test_without_it_a_held_task_is_left_to_its_holder(self, queue: Queue, verb: str) -> None:
        claim = held(queue)
        with pytest.raises(IllegalTransition):
            changed(queue, verb, force=False)
        assert queue.complete(claim).status is TaskStatus.SUCCESS

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("settle", ["complete", "fail", "retry", "release", "extend"])
    def test_with_it_the_old_holder_has_lost_its_lease(
        self, queue: Queue, store: StoreUnderTest, verb: str, settle: str
    ) -> None:
        claim = held(queue)
        task = changed(store.queue(), verb)
        assert (task.lease_token, task.lease_until) == (None, None)
        with pytest.raises(LeaseLost):
            getattr(queue, settle)(claim)
        assert known(queue, "a") == task
        # The record of the lease does not bring the task back a second time.
        again = ids(queue.claim())
        assert again == (["a"] if verb == "redrive as new" else [])

    @pytest.mark.parametrize("verb", ["cancel", "cancel as dead"])
    def test_the_end_of_the_old_lease_changes_nothing(
        self, queue: Queue, store: StoreUnderTest, verb: str
    ) -> None:
        held(queue)
        task = changed(store.queue(), verb)
        store.clock.advance(120)
        store.queue().admin.upkeep()
        assert known(queue, "a") == task
        assert queue.claim() == []

    @pytest.mark.parametrize("verb", VERBS)
    def test_it_is_not_needed_for_a_waiting_task(self, queue: Queue, verb: str) -> None:
        queue.put("work", task_id="a")
        assert changed(queue, verb).status is VERBS[verb][1]

    @pytest.mark.parametrize("verb", VERBS)
    def test_what_is_over_stays_over(self, queue: Queue, store: StoreUnderTest, verb: str) -> None:
        queue.complete(held(queue))
        with pytest.raises(IllegalTransition):
            changed(queue, verb)
        queue.put("late", task_id="b", max_age_seconds=1)
        store.clock.advance(2)
        with pytest.raises(IllegalTransition):
            queue.redrive(["b"], as_new=True, force=True)
        with pytest.raises(NotFound):
            queue.cancel("nobody", dead=True, force=True)
