"""Only tasks that are claimable now count as waiting, on every store."""

import pytest

from freshq.queue.core import core_of
from freshq.queue.reading import count_waiting, oldest_created, oldest_tasks
from tests.conftest import StoreUnderTest


def test_a_task_past_its_own_deadline_does_not_wait(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=3600)
    queue.put_many([{"payload": "stale", "max_age_seconds": 5} for _ in range(3)])
    store.clock.advance(2)
    queue.put("live", task_id="live")
    queue.put("live", group="other", priority=1)
    store.clock.advance(8)
    now, created_after = queue.admin.now(), queue.admin.now() - 3600
    tasks = core_of(queue).store
    assert count_waiting(tasks, "default", now, created_after, 10) == {None: 1, "other": 1}
    assert oldest_created(tasks, "default", now, created_after) == pytest.approx(now - 8)
    oldest = oldest_tasks(tasks, "default", now, created_after, 1)
    assert [task.task_id for task in oldest] == ["live"]
    stats = queue.stats(approximate=True)
    assert stats.pending == 2
    assert stats.oldest_pending_seconds == pytest.approx(8)
    assert stats.newest_pending_seconds == pytest.approx(8)
    assert queue.stats().pending == 2


def test_nothing_but_stale_tasks_is_nothing_waiting(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=3600)
    queue.put_many([{"payload": "stale", "max_age_seconds": 5} for _ in range(3)])
    store.clock.advance(10)
    now, created_after = queue.admin.now(), queue.admin.now() - 3600
    tasks = core_of(queue).store
    assert not any(count_waiting(tasks, "default", now, created_after, 10).values())
    assert oldest_created(tasks, "default", now, created_after) is None
    assert oldest_tasks(tasks, "default", now, created_after, 10) == []
    assert queue.stats(approximate=True).oldest_pending_seconds is None
