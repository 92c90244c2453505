"""What an operator changes by id, whoever holds it: bury, cancel by force, restore."""

from collections.abc import Callable

import pytest

from freshq import Claim, LeaseLost, NotFound, Order, Queue, Task, TaskStatus
from freshq.errors import IllegalTransition
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known, payloads

FORCED: dict[str, Callable[[Queue], Task]] = {
    "cancel": lambda queue: queue.cancel("a", force=True),
    "bury": lambda queue: queue.bury("a", "by hand", force=True),
    "restore": lambda queue: queue.restore("a", force=True),
}
UNFORCED: dict[str, Callable[[Queue], Task]] = {
    "cancel": lambda queue: queue.cancel("a"),
    "bury": lambda queue: queue.bury("a"),
    "restore": lambda queue: queue.restore("a"),
}


def held(queue: Queue) -> Claim:
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    return claim


class TestBury:
    def test_a_waiting_task_becomes_a_dead_letter_with_the_reason(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        buried = queue.bury("a", "wrong address")
        assert known(queue, "a") == buried
        assert (buried.status, buried.error, buried.attempts) == (TaskStatus.FAILURE, "wrong address", 0)
        assert queue.claim() == []
        assert counts(queue.stats()) == {"failure": 1}
        assert queue.redrive(task_id="a") == 1
        assert payloads(queue.claim()) == ["work"]

    @pytest.mark.parametrize("restored", [False, True])
    def test_a_delayed_one_does_not_come_in_later(
        self, queue: Queue, store: StoreUnderTest, *, restored: bool
    ) -> None:
        queue.put("work", task_id="a", delay_seconds=30)
        queue.bury("a")
        if restored:
            queue.restore("a")
            assert ids(queue.claim()) == ["a"]
        store.clock.advance(31)
        assert queue.admin.recover() == 0
        assert queue.claim() == []


class TestRestore:
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
        restored = queue.restore("a")
        assert known(queue, "a") == restored
        assert (restored.status, restored.attempts) == (TaskStatus.PENDING, 0)
        assert restored.created == pytest.approx(store.clock.now, abs=1e-3)
        assert (restored.priority, restored.group) == (3, "g")
        assert ids(queue.claim(limit=2)) == after

    def test_a_dead_letter_past_its_deadline_begins_anew(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=60)
        queue.put("work", task_id="a", max_age_seconds=10)
        queue.bury("a")
        store.clock.advance(30)
        with pytest.raises(IllegalTransition):
            queue.redrive(task_id="a")
        assert queue.restore("a").deadline == pytest.approx(store.clock.now + 10, abs=1e-3)
        store.clock.advance(9)
        assert ids(queue.claim()) == ["a"]


class TestForce:
    @pytest.mark.parametrize("verb", FORCED)
    def test_without_it_a_held_task_is_left_to_its_holder(self, queue: Queue, verb: str) -> None:
        claim = held(queue)
        with pytest.raises(IllegalTransition, match=f"cannot {verb} a task that is TAKEN; .*, or force$"):
            UNFORCED[verb](queue)
        assert queue.complete(claim).status is TaskStatus.SUCCESS

    @pytest.mark.parametrize("verb", FORCED)
    @pytest.mark.parametrize("settle", ["complete", "fail", "retry", "release", "extend"])
    def test_with_it_the_old_holder_has_lost_its_lease(
        self, queue: Queue, store: StoreUnderTest, verb: str, settle: str
    ) -> None:
        claim = held(queue)
        changed = FORCED[verb](store.queue())
        assert (changed.lease_token, changed.lease_until) == (None, None)
        with pytest.raises(LeaseLost):
            getattr(queue, settle)(claim)
        assert known(queue, "a") == changed
        # What names the lease does not bring the task back once more.
        again = ids(queue.claim())
        assert again == (["a"] if verb == "restore" else [])

    @pytest.mark.parametrize("verb", ["cancel", "bury"])
    def test_the_end_of_the_old_lease_changes_nothing(
        self, queue: Queue, store: StoreUnderTest, verb: str
    ) -> None:
        held(queue)
        changed = FORCED[verb](store.queue())
        store.clock.advance(120)
        store.queue().admin.upkeep()
        assert known(queue, "a") == changed
        assert queue.claim() == []

    @pytest.mark.parametrize("verb", FORCED)
    def test_it_is_not_needed_for_a_waiting_task(self, queue: Queue, verb: str) -> None:
        queue.put("work", task_id="a")
        assert (
            FORCED[verb](queue).status
            is {
                "cancel": TaskStatus.CANCELLED,
                "bury": TaskStatus.FAILURE,
                "restore": TaskStatus.PENDING,
            }[verb]
        )

    @pytest.mark.parametrize("verb", FORCED)
    def test_what_is_over_stays_over(self, queue: Queue, store: StoreUnderTest, verb: str) -> None:
        queue.complete(held(queue))
        with pytest.raises(IllegalTransition, match="SUCCESS"):
            FORCED[verb](queue)
        queue.put("late", task_id="b", max_age_seconds=1)
        store.clock.advance(2)
        with pytest.raises(IllegalTransition, match="SHED"):
            queue.restore("b", force=True)
        with pytest.raises(NotFound):
            queue.bury("nobody", force=True)
