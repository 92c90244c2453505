"""Waiting for the end of a task, on every store."""

import threading

import pytest

from freshq import NotFound, Queue, TaskStatus
from freshq.errors import WaitTimeout
from tests.conftest import StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused


class TestWait:
    def test_a_task_that_is_over_is_returned_at_once(self, queue: Queue) -> None:
        queue.put("work", task_id="done")
        queue.complete(queue.claim()[0], result={"price": 42})
        queue.put("work", task_id="dead")
        queue.fail(queue.claim()[0], error="broken")
        queue.put("work", task_id="no more")
        queue.cancel("no more")
        done, dead, cancelled = (
            queue.wait(task_id, timeout_seconds=0) for task_id in ("done", "dead", "no more")
        )
        assert (done.status, done.result) == (TaskStatus.SUCCESS, {"price": 42})
        assert (dead.status, dead.error) == (TaskStatus.FAILURE, "broken")
        assert cancelled.status is TaskStatus.CANCELLED

    def test_a_stale_task_is_over(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=5)
        queue.put("work", task_id="a")
        store.clock.advance(6)
        assert queue.wait("a", timeout_seconds=0).status is TaskStatus.SHED

    def test_a_live_task_is_a_timeout_that_says_so(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(WaitTimeout) as raised:
            queue.wait("a", timeout_seconds=0.03)
        assert raised.value.status == TaskStatus.PENDING
        (claim,) = queue.claim()
        with pytest.raises(TimeoutError):
            queue.wait("a", timeout_seconds=0)
        queue.complete(claim)

    def test_it_ends_when_another_process_settles_the_task(self, store: StoreUnderTest) -> None:
        queue, other = store.queue(), store.queue()
        queue.put("work", task_id="a")
        (claim,) = other.claim()
        settles = threading.Timer(0.05, other.complete, (claim,), {"result": "answer"})
        settles.start()
        assert queue.wait("a", timeout_seconds=PATIENCE_SECONDS).result == "answer"
        settles.join()

    def test_a_task_that_is_not_there_is_no_timeout(self, queue: Queue) -> None:
        with pytest.raises(NotFound):
            queue.wait("nobody", timeout_seconds=5)


class TestWaitMany:
    def test_tasks_come_in_the_order_of_their_ends(self, queue: Queue, store: StoreUnderTest) -> None:
        for number in range(3):
            queue.put(number, task_id=f"t{number}")
        queue.put("stale", task_id="old", max_age_seconds=0.5)
        for name in ("t2", "t1"):
            queue.cancel(name)
            store.clock.advance(1)
        ends = queue.wait_many(["t0", "t1", "t2", "old", "t1"])
        assert [next(ends).task_id for _ in range(3)] == ["t2", "old", "t1"]
        queue.complete(queue.claim()[0], result=7)
        assert [task.result for task in ends] == [7]

    def test_what_has_not_ended_is_counted(self, queue: Queue) -> None:
        queue.put_many([{"payload": name, "task_id": name} for name in "abc"])
        queue.cancel("b")
        ends = queue.wait_many(["a", "b", "c"], timeout_seconds=0)
        assert next(ends).task_id == "b"
        with pytest.raises(WaitTimeout) as raised:
            next(ends)
        assert raised.value.not_ended == 2

    def test_unknown_tasks_and_bare_ids_are_refused(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(NotFound):
            list(queue.wait_many(["a", "nobody"]))
        for wrong in ("a", 7):
            with refused("task_ids"):
                list(queue.wait_many(wrong))  # type: ignore[arg-type]
        assert list(queue.wait_many([])) == []
