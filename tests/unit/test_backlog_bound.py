"""The bound on the backlog while other threads put, and when the store fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from freshq import BacklogLimit, Overloaded, Queue, StoreError, WhenFull
from freshq.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable


class InterruptedStore(MemoryStore):
    """Lets a test act after a count was read and before it is used, as another thread may."""

    def __init__(self) -> None:
        """Start with no interruption."""
        super().__init__()
        self.after_count: Callable[[], object] | None = None

    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count, then let the test act once."""
        counts = super().count_waiting(queue, created_after, at_most)
        action, self.after_count = self.after_count, None
        if action is not None:
            action()
        return counts


@pytest.fixture
def store() -> InterruptedStore:
    return InterruptedStore()


def queue_with(store: InterruptedStore, limit: BacklogLimit) -> Queue:
    return Queue(store, backlog=limit)


def put(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.put(number)


def test_the_newest_is_rejected_when_another_thread_took_the_last_room(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(3, WhenFull.REFUSE_NEWEST))
    other = queue_with(store, BacklogLimit(3, WhenFull.REFUSE_NEWEST))
    other.put_many([{"payload": number} for number in range(2)])
    store.after_count = lambda: queue.put("other thread")
    with pytest.raises(Overloaded):
        queue.put("too many")
    assert queue.stats().pending == 3


def test_the_newest_is_rejected_only_while_the_backlog_is_full(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(2, WhenFull.REFUSE_NEWEST))
    put(queue, 2)
    with pytest.raises(Overloaded):
        queue.put("too many")
    queue.claim()
    put(queue, 1)
    assert queue.stats().pending == 2


def test_the_noisy_group_makes_room_for_another_group_s_newest(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(4, WhenFull.REFUSE_NEWEST, group_share=0.5))
    for number in range(4):
        queue.put(number, group="noisy")
    queue.put("quiet", group="quiet")
    stats = queue.stats()
    assert (stats.pending, stats.shed_by_reason) == (4, {"group": 1})
    assert sorted(str(claim.task.payload) for claim in queue.claim(9)) == ["1", "2", "3", "quiet"]


def test_no_more_than_the_excess_is_evicted_when_another_thread_puts(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(3))
    put(queue, 3)
    store.after_count = lambda: put(queue, 2)
    queue.put("newest")
    stats = queue.stats()
    assert (stats.pending, stats.shed_by_reason) == (3, {"overflow": 3})


def test_a_task_that_changes_before_it_is_evicted_is_not_shed(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(2, group_share=0.5))
    for name in ("a", "b"):
        queue.put(name, task_id=name, group="noisy")
    listed = store.oldest_tasks
    store.oldest_tasks = lambda *arguments: (listed(*arguments), queue.cancel("a"))[0]  # type: ignore[method-assign]
    queue.put("c", group="noisy")
    stats = queue.stats()
    assert (stats.pending, stats.cancelled, stats.shed) == (2, 1, 0)


def test_after_a_failed_count_the_next_put_makes_room(
    store: InterruptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise StoreError("no answer")

    queue = queue_with(store, BacklogLimit(2))
    put(queue, 2)
    store.after_count = fail
    queue.put("third")
    assert queue.stats().pending == 3
    assert "backlog" in caplog.text
    queue.put("fourth")
    assert queue.stats().pending == 2
