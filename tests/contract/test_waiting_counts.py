"""Only tasks that are claimable now count as waiting, on every store."""

import pytest

from freshq.queue.core import core_of
from freshq.stores.lines import OldestRequest
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
    assert tasks.count_waiting("default", now, created_after, 10) == {None: 1, "other": 1}
    assert tasks.oldest_created("default", now, created_after) == pytest.approx(now - 8)
    assert [task.task_id for task in tasks.oldest_tasks(OldestRequest("default", now, created_after, 1))] == [
        "live"
    ]
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
    assert not any(core_of(queue).store.count_waiting("default", now, created_after, 10).values())
    assert core_of(queue).store.oldest_created("default", now, created_after) is None
    assert core_of(queue).store.oldest_tasks(OldestRequest("default", now, created_after, 10)) == []
    assert queue.stats(approximate=True).oldest_pending_seconds is None
