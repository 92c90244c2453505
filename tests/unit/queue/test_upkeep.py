"""Upkeep in the background: by one process at a time, under a lease."""

from collections.abc import Sequence
from typing import Any

import pytest

from freshq import Queue, Task
from freshq.queue import upkeep
from freshq.queue.core import core_of
from freshq.queue.upkeep import LARGE_PORTION, LEASE_SECONDS, RECORD, Portion, Upkeep
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock


class Shared:
    """A table with its clock, and the queue as two processes have it."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.first, self.second = self.queue(), self.queue()

    def queue(self, **options: Any) -> Queue:
        return Queue(self.store, clock=self.clock, **options)

    def put_due(self, queue: Queue) -> None:
        """Put a task that is due immediately."""
        queue.put("work", delay_seconds=0.25)
        self.clock.advance(0.25)


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_one_process_does_it_until_its_lease_ends(shared: Shared) -> None:
    first, second = shared.first, shared.second
    for number in range(10):  # the holder renews its lease in time
        shared.put_due(first)
        assert (second.admin.upkeep().moved if number else 0, first.admin.upkeep().moved) == (0, 1)
        shared.clock.advance(LEASE_SECONDS / 2)
    shared.clock.advance(LEASE_SECONDS / 2)
    shared.put_due(first)
    assert (second.admin.upkeep().moved, first.admin.upkeep().moved) == (1, 0)


def test_another_process_takes_over_when_the_lease_ends(shared: Shared) -> None:
    first, second = shared.first, shared.second
    first.put("work", delay_seconds=1)
    assert first.admin.upkeep() == second.admin.upkeep() == Portion(moved=0, more=False)
    shared.clock.advance(LEASE_SECONDS)
    assert second.admin.upkeep() == Portion(moved=1, more=False)


def test_each_queue_of_a_table_has_its_own_lease(shared: Shared) -> None:
    other = shared.queue(name="other")
    for queue in (shared.first, other):
        shared.put_due(queue)
    assert [queue.admin.upkeep().moved for queue in (shared.first, other)] == [1, 1]


@pytest.mark.parametrize(
    ("ahead_seconds", "moved"), [(LEASE_SECONDS + 0.25, 0), (LEASE_SECONDS + 0.75, 1), (3600, 1)]
)
def test_a_lease_that_ends_later_than_any_can_is_not_respected(
    shared: Shared, ahead_seconds: float, moved: int
) -> None:
    Queue(shared.store, clock=lambda: shared.clock.now + ahead_seconds).admin.upkeep()
    shared.put_due(shared.first)
    assert shared.first.admin.upkeep().moved == moved


def test_it_costs_a_write_in_half_a_lease_only(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    original = shared.store.write_record

    def write(queue: str, name: str, values: dict[str, object], version: str | None) -> bool:
        writes.append(name)
        return original(queue, name, values, version)

    monkeypatch.setattr(shared.store, "write_record", write)
    for _ in range(20):
        for queue in (shared.first, shared.second):
            queue.admin.upkeep()
        shared.clock.advance(LEASE_SECONDS / 10)
    assert writes == [RECORD] * 4


def test_who_loses_the_race_for_the_lease_does_nothing(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.put_due(shared.first)
    with monkeypatch.context() as patched:
        patched.setattr(shared.store, "write_record", lambda *_arguments: False)
        assert shared.first.admin.upkeep().moved == 0
    assert shared.second.admin.upkeep().moved == 1


def test_two_threads_of_a_process_do_not_do_it_at_once(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = shared.first
    shared.put_due(queue)
    original = shared.store.replace_many
    meanwhile: list[int] = []

    def replace_many(changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        meanwhile.append(queue.admin.upkeep().moved)
        return original(changes)

    monkeypatch.setattr(shared.store, "replace_many", replace_many)
    assert queue.admin.upkeep().moved == 1
    assert meanwhile == [0]


def test_a_lost_race_for_every_task_ends_a_recovery(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(1001):
        shared.put_due(shared.first)
    monkeypatch.setattr(shared.store, "replace_many", lambda changes: [None] * len(changes))
    assert shared.first.admin.recover() == 0


def test_a_full_portion_of_tidying_leaves_more_to_do(shared: Shared) -> None:
    queue = shared.first
    for task_id in ("a", "b"):
        queue.put("work", task_id=task_id)
        queue.cancel(task_id)
    shared.clock.advance(10 * 86_400)
    tidying = Upkeep(
        shared.store, queue.name, lambda: core_of(queue).lifecycle, queue.admin.now, lambda _dead, _now: None
    )
    assert tidying.portion(2) == Portion(moved=0, more=True)
    assert tidying.portion(2) == Portion(moved=0, more=False)
    assert list(queue.list()) == []


def test_a_claim_tidies_as_a_claim_does_however_large_its_portion(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied = list[str]()

    def tidy_all(_queue: str, _now: float, _limit: int) -> int:
        tidied.append("all")
        return 0

    def tidy_in_claim(_queue: str, _now: float, _limit: int) -> int:
        tidied.append("in a claim")
        return 0

    monkeypatch.setattr(upkeep, "SMALL_PORTION", LARGE_PORTION)
    monkeypatch.setattr(shared.store, "tidy", tidy_all)
    monkeypatch.setattr(shared.store, "tidy_in_claim", tidy_in_claim)
    shared.first.claim()
    shared.first.admin.recover()
    assert tidied == ["in a claim", "all"]


def test_tasks_whose_last_lease_expired_are_counted_until_they_are_taken(shared: Shared) -> None:
    first, other = shared.queue(max_attempts=1, lease_seconds=5, override=True), shared.second
    assert first.admin.take_dead_letter_counts() == (0, 0)
    for number in (1, 2):
        first.put_many([{"payload": each} for each in range(number)])
        assert len(first.claim(number)) == number
        shared.clock.advance(5)
        first.admin.recover()
    assert [first.admin.take_dead_letter_counts().exhausted for _ in range(2)] == [3, 0]
    # A lease that returns its task to the line does not count, and other processes count their own.
    other.put("work")
    other.claim()
    shared.clock.advance(other.admin.config.lease_seconds)
    assert other.admin.recover() == 1
    assert [each.admin.take_dead_letter_counts().exhausted for each in (first, other)] == [0, 0]


def test_what_falls_due_during_a_recovery_is_for_the_next_one(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = shared.first
    shared.put_due(queue)
    queue.put("later", delay_seconds=5)
    original = shared.store.replace_many

    def replace_slowly(changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        shared.clock.advance(5)
        return original(changes)

    monkeypatch.setattr(upkeep, "LARGE_PORTION", 1)
    monkeypatch.setattr(shared.store, "replace_many", replace_slowly)
    assert [queue.admin.recover(), queue.admin.recover()] == [1, 1]
