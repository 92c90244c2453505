"""Dead letters: found by a query, the last to die first; and the times that a task keeps."""

import pytest
from benchmarks.capacity import metered

from freshq import Queue, Settlement, Task, TaskStatus
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known

DEAD = TaskStatus.FAILURE


def bury(store: StoreUnderTest, queue: Queue, *task_ids: str, apart_seconds: float = 1) -> None:
    """Make dead letters one after the other."""
    for task_id in task_ids:
        queue.put(task_id, task_id=task_id)
        queue.cancel(task_id, dead=True, error=f"{task_id} is wrong")
        store.clock.advance(apart_seconds)


def listed(queue: Queue, limit: int) -> list[str]:
    """Return all dead letters, read page by page."""
    found: list[Task] = []
    cursor = None
    while True:
        page = queue.list(DEAD, limit=limit, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            return [task.task_id for task in found]
        assert len(page) == limit


class TestListing:
    @pytest.mark.parametrize("shards", [1, 3])
    @pytest.mark.parametrize("limit", [1, 4, 100])
    def test_the_last_to_die_comes_first(self, store: StoreUnderTest, shards: int, limit: int) -> None:
        queue = store.queue(shards=shards)
        names = [f"t{number}" for number in range(9)]
        bury(store, queue, *names)
        queue.put("waits")
        assert listed(queue, limit) == names[::-1]

    @pytest.mark.parametrize("shards", [1, 3])
    def test_of_one_instant_each_comes_once(self, store: StoreUnderTest, shards: int) -> None:
        queue = store.queue(shards=shards)
        names = [f"t{number}" for number in range(9)]
        bury(store, queue, *names, apart_seconds=0)
        in_one_go = listed(queue, 100)
        assert sorted(in_one_go) == names
        assert listed(queue, 2) == listed(queue, 1) == in_one_go

    def test_the_next_page_follows_a_dead_letter_that_is_gone(
        self, store: StoreUnderTest, queue: Queue
    ) -> None:
        bury(store, queue, "a", "b", "c", "d")
        page = queue.list(DEAD, limit=2)
        queue.purge(status="FAILURE", task_ids=["c"], confirm=queue.name)
        bury(store, queue, "e")
        assert [task.task_id for task in queue.list(DEAD, limit=2, cursor=page.cursor)] == ["b", "a"]

    def test_only_this_queue_s_and_only_while_they_are_dead(
        self, store: StoreUnderTest, queue: Queue
    ) -> None:
        bury(store, store.queue(name="other"), "x")
        bury(store, queue, "a", "b", "c", "d")
        queue.redrive(["a"])
        queue.purge(status="FAILURE", task_ids=["b"], confirm=queue.name)
        assert listed(queue, 10) == ["d", "c"]
        queue.fail(queue.claim()[0], error="again")
        assert listed(queue, 10) == ["a", "d", "c"]
        queue.purge(confirm="default")
        assert listed(queue, 10) == []

    def test_however_a_task_died(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_attempts=1, lease_seconds=5)
        for task_id in ("failed", "retried", "expired", "buried"):
            queue.put("work", task_id=task_id)
        for claim in queue.claim(limit=3):
            if claim.task.task_id == "failed":
                queue.fail(claim)
            elif claim.task.task_id == "retried":
                queue.retry(claim)
        queue.cancel("expired", dead=True, force=True)
        store.clock.advance(6)
        queue.admin.recover()
        assert counts(queue.stats())["failure"] == len(listed(queue, 10))
        assert {"expired"} <= set(listed(queue, 10))


class TestAll:
    @pytest.mark.parametrize("number", [3, 120])
    def test_all_are_redriven_or_discarded(self, store: StoreUnderTest, queue: Queue, number: int) -> None:
        bury(store, queue, *(f"t{n}" for n in range(number)), apart_seconds=0.001)
        assert queue.redrive(limit=2) == 2
        assert queue.purge(status="FAILURE", limit=1, confirm=queue.name) == 1
        assert counts(queue.stats()) == {"pending": 2} | ({"failure": number - 3} if number > 3 else {})
        assert queue.redrive() == number - 3
        assert listed(queue, 10) == []
        assert sorted(ids(queue.claim(limit=2))) == [f"t{number - 2}", f"t{number - 1}"]

    def test_limits_take_the_last_to_die(self, store: StoreUnderTest, queue: Queue) -> None:
        bury(store, queue, "a", "b", "c")
        queue.redrive(limit=1)
        queue.purge(status="FAILURE", limit=1, confirm=queue.name)
        assert listed(queue, 10) == ["a"]

    @pytest.mark.usefixtures("read_once")
    def test_it_costs_what_is_dead_whatever_else_is_in_the_table(self, table_store: StoreUnderTest) -> None:
        queue = table_store.queue()
        queue.put_many([{"payload": number} for number in range(300)])
        bury(table_store, queue, "a", "b", "c")
        assert table_store.client is not None
        with metered(table_store.client) as meter:
            queue.list(DEAD, limit=2)
        # A page of the index, and three reads of tasks.
        assert meter.calls == {"Query": 1, "BatchGetItem": 1}
        assert meter.read_units == 3.5
        with metered(table_store.client) as meter:
            assert queue.redrive() == 3
        # Three units each: the task, the removed entry and the new entry.
        assert meter.write_units == 9
        assert "Scan" not in meter.calls


class TestTimes:
    def test_each_state_leaves_its_time(self, store: StoreUnderTest) -> None:
        queue, start = store.queue(), store.clock.now
        queue.put("work", task_id="a", delay_seconds=5)
        first = known(queue, "a")
        assert (first.first_claim_at, first.last_claim_at, first.dead_at) == (None, None, None)
        assert first.put_at == pytest.approx(start, abs=1e-3)
        assert first.first_due == start + 5
        assert first.ended_at(store.clock.now) is None
        store.clock.advance(10)
        (claim,) = queue.claim()
        assert (claim.task.first_claim_at, claim.task.last_claim_at) == (start + 10, start + 10)
        queue.release(claim)
        store.clock.advance(10)
        (claim,) = queue.claim()
        queue.extend(claim, lease_seconds=60)
        store.clock.advance(10)
        queue.fail(claim, error="broken")
        dead = known(queue, "a")
        times = (dead.first_claim_at, dead.last_claim_at, dead.dead_at, dead.ended_at(store.clock.now))
        assert times == (start + 10, start + 20, start + 30, start + 30)
        store.clock.advance(10)
        queue.redrive()
        assert known(queue, "a").ended_at(store.clock.now) is None
        (claim,) = queue.claim()
        store.clock.advance(10)
        assert queue.complete(claim) == known(queue, "a")
        done = known(queue, "a")
        times = (done.first_claim_at, done.last_claim_at, done.dead_at, done.ended_at(store.clock.now))
        assert times == (start + 10, start + 40, start + 30, start + 50)
        assert done.first_due == start + 5

    def test_a_new_life_has_none_of_them(self, store: StoreUnderTest, queue: Queue) -> None:
        queue.put("work", task_id="a")
        queue.fail(queue.claim()[0])
        store.clock.advance(10)
        queue.put("work", task_id="a", on_conflict="update")
        task = known(queue, "a")
        assert (task.first_claim_at, task.last_claim_at, task.dead_at) == (None, None, None)
        assert listed(queue, 10) == []

    def test_completing_several_keeps_the_time_of_each_death(
        self, store: StoreUnderTest, queue: Queue
    ) -> None:
        queue.put("work", task_id="b")
        bury(store, queue, "a")
        queue.redrive()
        queue.settle_many([Settlement.complete(claim) for claim in queue.claim(limit=2)])
        assert known(queue, "a").dead_at == store.clock.now - 1
        assert known(queue, "b").dead_at is None

    def test_a_stale_task_ended_at_its_deadline(self, store: StoreUnderTest, queue: Queue) -> None:
        queue.put("work", task_id="a", max_age_seconds=5)
        task = known(queue, "a")
        store.clock.advance(9)
        assert task.ended_at(store.clock.now) == task.deadline
