"""Reads of a live view: the ages of waiting tasks, and the held tasks, at a bounded cost."""

import json

import pytest

from freshq import Queue
from freshq.cli.dashboard.snapshots import PageWatcher
from freshq.cli.output import json_text
from freshq.queue.core import core_of
from freshq.queue.reading import MAX_LINES, newest_created
from tests.conftest import StoreUnderTest
from tests.support.readings import known

MAX_AGE_SECONDS = 60.0


def times(queue: Queue, at_most: int = 100) -> dict[str | None, list[float]]:
    now = queue.admin.now()
    found = newest_created(core_of(queue).store, queue.name, now, now - MAX_AGE_SECONDS, at_most)
    return {group: created for group, created in found.items() if created}


def put_one_a_second(
    store: StoreUnderTest, queue: Queue, number: int, group: str | None = None
) -> list[float]:
    """Put tasks; return their creation times, newest first."""
    created = []
    for n in range(number):
        receipt = queue.put(n, group=group)
        task = known(queue, receipt.task_id)
        created.append(task.created)
        store.clock.advance(1)
    return created[::-1]


class TestNewestCreated:
    def test_nothing_waits(self, queue: Queue) -> None:
        assert times(queue) == {}

    def test_times_are_by_group_newest_first(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        alone = put_one_a_second(store, queue, 4)
        grouped = put_one_a_second(store, queue, 3, "desk")
        found = times(queue)
        assert found[None] == pytest.approx(alone, abs=0.001)
        assert found["desk"] == pytest.approx(grouped, abs=0.001)

    def test_the_oldest_are_left_out_if_there_are_too_many(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        created = put_one_a_second(store, queue, 6)
        assert times(queue, 4)[None] == pytest.approx(created[:4], abs=0.001)

    def test_only_what_can_be_claimed_counts(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        queue.put("old", priority=3)
        queue.put("own deadline", max_age_seconds=5)
        store.clock.advance(MAX_AGE_SECONDS - 10)
        queue.put("later", delay_seconds=20)
        created = put_one_a_second(store, queue, 3)
        queue.claim()  # the task of the higher level
        store.clock.advance(1)
        assert times(queue)[None] == pytest.approx(created, abs=0.001)

    def test_very_many_groups_are_counted(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        number = MAX_LINES + 6
        queue.put_many([{"payload": n, "group": f"g{n}"} for n in range(number)])
        found = times(queue)
        assert all(len(created) == 1 for created in found.values())
        assert len(found) == number


class TestLeased:
    def test_held_tasks_come_by_the_end_of_their_lease(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put_many([{"payload": n, "task_id": f"t{n}"} for n in range(4)])
        queue.put("later", delay_seconds=1)
        (longest,) = queue.claim(lease_seconds=90)
        (first,) = queue.claim(lease_seconds=20)
        (second,) = queue.claim(lease_seconds=50)
        queue.claim(lease_seconds=70)
        queue.complete(longest)
        held = core_of(queue).store.leased(queue.name, 2)
        assert [task.task_id for task in held] == [first.task.task_id, second.task.task_id]
        assert [task.lease_until for task in held] == pytest.approx([first.lease_until, second.lease_until])
        assert len(core_of(queue).store.leased(queue.name, 10)) == 3

    def test_an_orphan_is_among_them_until_it_is_recovered(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("work", task_id="orphan")
        queue.claim(lease_seconds=6)
        store.clock.advance(600)
        assert [task.task_id for task in core_of(queue).store.leased(queue.name, 10)] == ["orphan"]
        queue.admin.recover()
        assert core_of(queue).store.leased(queue.name, 10) == []


def test_the_dashboard_reads_every_store(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
    queue.put("work", task_id="dead", priority=5)
    queue.fail(queue.claim()[0], error="no")
    queue.put_many([{"payload": n, "group": f"desk-{n % 2}"} for n in range(6)])
    queue.put("later", delay_seconds=30)
    watcher = PageWatcher(queue)
    watcher.snapshot()
    store.clock.advance(2)
    (claim,) = queue.claim()
    store.clock.advance(1)
    shown = watcher.snapshot()
    assert len(shown["marks"]["ages_ms"]) == shown["stats"]["pending"] == 5
    assert [row["task_id"] for row in shown["leases"]] == [claim.task.task_id]
    assert [row["task_id"] for row in shown["dead_letters"]] == ["dead"]
    assert sorted(row["waiting"] for row in shown["groups"]["rows"]) == [2, 3]
    assert shown["waits"]["tasks"] == 1
    assert shown["waits"]["p50_seconds"] == pytest.approx(2, abs=0.1)
    assert json.loads(json_text(shown))["horizon_seconds"] == MAX_AGE_SECONDS
