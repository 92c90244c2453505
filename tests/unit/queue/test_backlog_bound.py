"""The bound on the backlog while other threads put, and when the store fails."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from freshq import Overloaded, Queue, StoreError
from freshq.errors import PutIncomplete
from freshq.policy import BacklogLimit, WhenFull
from freshq.policy.rules import OverloadRules
from freshq.queue.shared.measures import FlowMeter
from freshq.stores.lines import WaitingReader
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock

T = TypeVar("T")


class InterruptedStore(MemoryStore):
    """Lets a test act after a count was read and before it is used, as another thread may."""

    def __init__(self) -> None:
        """Start with no interruption."""
        super().__init__()
        self.after_count: Callable[[], object] | None = None
        self.after_oldest: Callable[[], object] | None = None
        self.counts = 0

    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        """Count, or read the oldest tasks; then let the test act once."""
        answer = super().read_waiting(queue, now, work)
        is_count = isinstance(answer, dict)
        self.counts += is_count
        if is_count and (action := self.after_count) is not None:
            self.after_count = None
            action()
        elif not is_count and (action := self.after_oldest) is not None:
            self.after_oldest = None
            action()
        return answer


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
    store.after_oldest = lambda: queue.cancel("a")
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


def test_the_bound_holds_when_a_noisy_group_has_no_task_to_evict(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(1, WhenFull.REFUSE_NEWEST, group_share=0.3))
    with pytest.raises(PutIncomplete) as incomplete:
        queue.put_many([{"payload": number, "group": "noisy"} for number in range(3)])
    rejected = [error for error in incomplete.value.receipts if isinstance(error, Overloaded)]
    assert [error.reason for error in rejected] == ["group", "group"]
    assert queue.stats().pending == 1


def test_a_full_backlog_shows_in_the_pressure(store: InterruptedStore) -> None:
    queue = queue_with(store, BacklogLimit(2, WhenFull.REFUSE_NEWEST))
    put(queue, 2)
    assert not queue.pressure().overloaded
    with pytest.raises(Overloaded):
        queue.put("one too many")
    assert queue.pressure().overloaded


def test_tasks_put_one_by_one_use_up_the_room_that_was_counted() -> None:
    queue = Queue.memory(backlog=BacklogLimit(5, WhenFull.REFUSE_NEWEST), clock=lambda: 1000.0)
    for number in range(5):
        queue.put(number)
    with pytest.raises(Overloaded):
        queue.put(5)
    assert queue.stats().pending == 5


@pytest.mark.parametrize("when_full", WhenFull)
def test_the_tasks_are_counted_when_the_counted_room_is_used_up_or_a_second_old(
    store: InterruptedStore, clock: Clock, when_full: WhenFull
) -> None:
    queue = Queue(store, backlog=BacklogLimit(3, when_full), clock=clock)
    counted = []
    for seconds in (0, 0, 0.5, 0.5, 0):
        clock.advance(seconds)
        queue.put("work")
        queue.claim()
        counted.append(store.counts)
    assert counted == [1, 1, 1, 2, 2]
    queue.put_many([{"payload": number} for number in range(3)])
    assert store.counts == 3


def test_what_another_thread_put_into_counted_room_meanwhile_counts(
    store: InterruptedStore, clock: Clock
) -> None:
    queue = Queue(store, backlog=BacklogLimit(5, WhenFull.REFUSE_NEWEST), clock=clock)
    put(queue, 1)
    store.after_count = lambda: queue.put("other thread")
    with pytest.raises(PutIncomplete):
        queue.put_many([{"payload": number} for number in range(5)])
    assert queue.stats().pending == 5


@pytest.mark.parametrize(
    "change", [lambda queue: queue.redrive(["a"], as_new=True), lambda queue: queue.cancel("a")]
)
def test_a_task_that_changes_before_its_eviction_is_not_counted_as_shed(
    store: InterruptedStore, clock: Clock, change: Callable[[Queue], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="freshq")
    queue = Queue(store, backlog=BacklogLimit(2), clock=clock)
    for name in ("a", "b"):
        queue.put(name, task_id=name)
    store.after_oldest = lambda: change(queue)
    queue.put("c")
    assert queue.stats().shed == 0
    assert [record.getMessage() for record in caplog.records] == ["task a changed before it could be evicted"]
    assert not queue.pressure().overloaded


def test_what_was_evicted_shows_in_the_pressure(store: InterruptedStore, clock: Clock) -> None:
    queue = Queue(store, backlog=BacklogLimit(2), clock=clock)
    queue.put_many([{"payload": number} for number in range(5)])
    queue.admin.flush()
    flow = FlowMeter(store, "default", OverloadRules(queue.admin.config.stale_after_seconds)).flow(clock.now)
    assert (flow.shed_early / flow.offered, flow.served) == (3 / 5, 0)


def test_in_one_batch_some_are_rejected_and_older_ones_of_a_noisy_group_evicted(
    store: InterruptedStore, clock: Clock
) -> None:
    queue = Queue(store, backlog=BacklogLimit(4, WhenFull.REFUSE_NEWEST, group_share=0.75), clock=clock)
    queue.put_many([{"payload": number, "group": "noisy"} for number in range(3)])
    queue.put("quiet", group="quiet")
    with pytest.raises(PutIncomplete) as incomplete:
        queue.put_many([{"payload": 1, "group": "third"}, {"payload": 2, "group": "noisy"}])
    assert [isinstance(entry, Overloaded) for entry in incomplete.value.receipts] == [True, False]
    assert queue.stats().shed_by_reason == {"overflow": 1, "group": 1}


def test_tasks_put_one_by_one_never_exceed_the_bound(store: InterruptedStore, clock: Clock) -> None:
    queue = Queue(store, backlog=BacklogLimit(3), clock=clock)
    pending = []
    for number in range(6):
        queue.put(number)
        pending.append(queue.stats().pending)
    assert pending == [1, 2, 3, 3, 3, 3]
