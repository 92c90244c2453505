"""A claim in memory takes work in proportion to its limit, not to the size of the queue."""

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import pytest

from freshq import Order, Queue, TaskStatus
from freshq.model.new_task import NewTask
from freshq.model.task import Task
from freshq.queue.core import core_of
from freshq.queue.reading import count_waiting, oldest_created
from freshq.stores.base import NO_VALUES
from freshq.stores.sql import SqlStore

FEW, MANY = 100, 10_000
CLAIMED: Final = 5
MAX_AGE_SECONDS: Final = 1000.0
MOST_GROWTH: Final = 1.2
# Turns among groups cost something, up to the number of groups that a claim looks at.
MOST_GROWTH_BY_GROUPS: Final = 2.0


@dataclass
class Filled:
    """A queue in memory with a clock that stands still."""

    order: Order = Order.LIFO
    now: float = 1_000_000.0
    put: int = 0

    def __post_init__(self) -> None:
        """Open the queue."""
        self.queue = Queue.memory(
            order=self.order, max_age_seconds=MAX_AGE_SECONDS, clock=lambda: self.now, worker_name="worker"
        )

    def fill(self, count: int, max_age_seconds: float | None = None, **changes: Any) -> None:
        """Store tasks, each created a microsecond after the one before."""
        new = NewTask(payload=None, max_age_seconds=max_age_seconds)
        first = core_of(self.queue).lifecycle.created(new, self.now, self.now)
        core_of(self.queue).store.insert([self._next(first, changes) for _ in range(count)])

    def _next(self, first: Task, changes: dict[str, Any]) -> Task:
        self.put += 1
        created = changes.get("created", self.now) + self.put / 1e6
        return replace(first, **{"task_id": f"{self.put:08}", **changes, "created": created})

    def claim(self) -> None:
        """Claim tasks, and check that all were there."""
        assert len(self.queue.claim(CLAIMED)) == CLAIMED


def steps_of(action: Callable[[], object]) -> int:
    """Return how many instructions of Python an action takes."""
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(tracer)
    return steps


def peak_bytes_of(action: Callable[[], object]) -> int:
    """Return how much memory an action takes at most: a copy of the backlog would show here."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def waiting(filled: Filled, count: int) -> None:
    filled.fill(count)


def past_the_max_age(filled: Filled, count: int) -> None:
    filled.fill(count)
    filled.now += MAX_AGE_SECONDS + 1


def past_their_own_deadline(filled: Filled, count: int) -> None:
    filled.fill(count, max_age_seconds=1.0)
    filled.now += 2


def newer_and_past_their_own_deadline(filled: Filled, count: int) -> None:
    filled.now += 1
    filled.fill(count, max_age_seconds=1.0)
    filled.now += 2
    filled.fill(100, created=filled.now - 10)


def delayed(filled: Filled, count: int) -> None:
    filled.fill(count, not_before=filled.now + 100)


def finished(filled: Filled, count: int) -> None:
    filled.fill(count, status=TaskStatus.SUCCESS)


@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
@pytest.mark.parametrize(
    "beside",
    [
        waiting,
        past_the_max_age,
        past_their_own_deadline,
        newer_and_past_their_own_deadline,
        delayed,
        finished,
    ],
)
def test_a_claim_costs_the_same_beside_a_hundred_times_as_many(
    order: Order, beside: Callable[[Filled, int], None]
) -> None:
    work = []
    for count in (FEW, MANY):
        filled = Filled(order)
        beside(filled, count)
        filled.fill(100)
        filled.claim()  # drops the stale ones that it meets
        work.append((steps_of(filled.claim), peak_bytes_of(filled.claim)))
    few, many = work
    assert many[0] <= MOST_GROWTH * few[0]
    assert many[1] <= MOST_GROWTH * few[1] + 2_000


def test_the_first_claim_beside_stale_tasks_does_not_look_at_each() -> None:
    filled = Filled()
    newer_and_past_their_own_deadline(filled, MANY)
    first, second = steps_of(filled.claim), steps_of(filled.claim)
    assert first - second < MANY


def test_a_claim_from_ten_thousand_groups_costs_at_most_twice_that_from_one() -> None:
    work = []
    for groups in (1, 100, 10_000):
        filled = Filled()
        for number in range(groups):
            filled.fill(max(1, 20 // groups), group=f"group-{number}")
        filled.claim()
        work.append(steps_of(filled.claim))
    assert max(work) <= MOST_GROWTH_BY_GROUPS * work[0]


def count(filled: Filled) -> None:
    created_after = filled.now - MAX_AGE_SECONDS
    waiting = count_waiting(core_of(filled.queue).store, "default", filled.now, created_after, 10)
    assert sum(waiting.values()) >= 10


def look_for_the_oldest(filled: Filled) -> None:
    created_after = filled.now - MAX_AGE_SECONDS
    assert oldest_created(core_of(filled.queue).store, "default", filled.now, created_after) is not None


def approximate(filled: Filled) -> None:
    assert filled.queue.stats(approximate=True).pending == filled.put


def test_what_waits_is_known_without_a_look_at_each_group() -> None:
    work = []
    for groups in (1_500, 6_000):
        filled = Filled()
        for number in range(groups):
            filled.fill(1, group=f"group-{number}")
        approximate(filled)  # builds the caches of the next claims
        work.append([steps_of(partial(look, filled)) for look in (count, look_for_the_oldest, approximate)])
    few, many = work
    assert all(after <= MOST_GROWTH * before for before, after in zip(few, many, strict=True))


def test_counts_of_many_groups_agree_with_those_of_each_task() -> None:
    filled = Filled()
    for number in range(100):
        filled.fill(1, group=f"group-{number}", max_age_seconds=5.0 if number % 2 else None)
        filled.fill(1, group=f"group-{number}", not_before=filled.now + 100)
        filled.fill(1, group=f"group-{number}", status=TaskStatus.FAILURE)
        filled.now += 0.25
    queue, created_after = filled.queue, filled.now - MAX_AGE_SECONDS
    queue.claim(10)
    exact, known = queue.stats(), queue.stats(approximate=True)
    waiting = count_waiting(core_of(queue).store, "default", filled.now, created_after, 99)
    assert exact.pending == sum(waiting.values())
    oldest = oldest_created(core_of(queue).store, "default", filled.now, created_after)
    assert oldest is not None
    assert exact.oldest_pending_seconds == pytest.approx(filled.now - oldest)
    assert known == replace(exact, shed_by_reason={}, bounded={"shed_by_reason": "not counted", **NO_VALUES})


def test_a_claim_from_groups_with_nothing_but_stale_tasks_is_bounded_and_forgets_them() -> None:
    filled = Filled()
    for number in range(1000):
        filled.fill(1, max_age_seconds=1.0, group=f"group-{number}")
    filled.now += 2
    work = [steps_of(filled.queue.claim) for _ in range(17)]
    filled.fill(1, group="live")
    assert filled.queue.claim()
    assert max(work[:15]) <= MOST_GROWTH * min(work[:15])
    assert work[-1] < work[0] / 2


def test_one_live_task_is_found_behind_a_backlog_that_is_stale() -> None:
    for order in (Order.LIFO, Order.FIFO):
        filled = Filled(order)
        filled.fill(1, task_id="live", created=filled.now - 10)
        past_their_own_deadline(filled, MANY)
        assert [claim.task.task_id for claim in filled.queue.claim()] == ["live"]


def test_a_store_that_is_used_no_more_takes_no_memory(sqlite_url: str) -> None:
    # Stores of other tests share the statements of the usual tables.
    queue = Queue.sql(sqlite_url, table="unused")
    queue.create_table()
    queue.put_many([{"payload": None, "group": group} for group in ("red", "blue")])
    assert len(queue.claim(2)) == 2
    statements = weakref.ref(cast("SqlStore", core_of(queue).store).sql)
    queue.close()
    del queue
    gc.collect()
    assert statements() is None
