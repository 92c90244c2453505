"""Waiting for the end of a task, on every store."""

import threading

import pytest

from freshq import NotFound, Queue, TaskStatus
from freshq.errors import WaitTimeout
from tests.conftest import StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS


class TestWait:
    def test_a_task_that_is_over_is_returned_at_once(self, queue: Queue) -> None:
        queue.put("work", task_id="done")
        queue.complete(queue.claim()[0], {"price": 42})
        queue.put("work", task_id="dead")
        queue.fail(queue.claim()[0], "broken")
        queue.put("work", task_id="no more")
        queue.cancel("no more")
        done, dead, cancelled = (queue.wait(task_id, 0) for task_id in ("done", "dead", "no more"))
        assert (done.status, done.result) == (TaskStatus.SUCCESS, {"price": 42})
        assert (dead.status, dead.error) == (TaskStatus.FAILURE, "broken")
        assert cancelled.status is TaskStatus.CANCELLED

    def test_a_stale_task_is_over(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=5)
        queue.put("work", task_id="a")
        store.clock.advance(6)
        assert queue.wait("a", 0).status is TaskStatus.SHED

    def test_a_live_task_is_a_timeout_that_says_so(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(
            WaitTimeout, match=r"task 'a': still PENDING after \d+\.\d s; wait longer"
        ) as raised:
            queue.wait("a", 0.03)
        assert raised.value.status == TaskStatus.PENDING
        (claim,) = queue.claim()
        with pytest.raises(TimeoutError, match="still TAKEN"):
            queue.wait("a", 0)
        queue.complete(claim)

    def test_it_ends_when_another_process_settles_the_task(self, store: StoreUnderTest) -> None:
        queue, other = store.queue(), store.queue()
        queue.put("work", task_id="a")
        (claim,) = other.claim()
        settles = threading.Timer(0.05, other.complete, (claim, "answer"))
        settles.start()
        assert queue.wait("a", PATIENCE_SECONDS).result == "answer"
        settles.join()

    def test_a_task_that_is_not_there_is_no_timeout(self, queue: Queue) -> None:
        with pytest.raises(NotFound, match="'nobody'"):
            queue.wait("nobody", 5)
