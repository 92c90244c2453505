"""Threads that want the same tasks at the same time, on Amazon's DynamoDB Local.

Each thread has a Queue of its own, as another process would.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TypeVar

import pytest

from freshq import LeaseLost, PutOutcome, Queue, TaskStatus
from freshq.errors import IllegalTransition
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known

T = TypeVar("T")
THREADS = 8


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Start all actions at the same moment, each in a thread, and return what they returned."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        barrier.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def drain_in_rounds(queues: list[Queue], limits: list[int]) -> list[list[str]]:
    """Let all claim at the same time until nothing is left; return the ids that each has claimed.

    In rounds, or how many take part would depend on when the machine starts each thread.
    """
    claimed: list[list[str]] = [[] for _ in queues]
    while any(in_round := at_once(*map(claiming, queues, limits))):
        for mine, claims, limit in zip(claimed, in_round, limits, strict=True):
            assert len(claims) <= limit
            mine.extend(claims)
    return claimed


def claiming(queue: Queue, limit: int) -> Callable[[], list[str]]:
    """Return the action that claims once and returns the ids."""
    return lambda: ids(queue.claim(limit=limit))


def fill(store: StoreUnderTest, tasks: int) -> None:
    store.queue().put_many([{"payload": number, "task_id": str(number)} for number in range(tasks)])


def test_each_of_100_tasks_is_claimed_by_one_of_8_threads(table_store: StoreUnderTest) -> None:
    fill(table_store, 100)
    claimed = drain_in_rounds([table_store.queue() for _ in range(THREADS)], [1, 7] * (THREADS // 2))
    assert Counter(chain(*claimed)) == {str(number): 1 for number in range(100)}
    assert all(claimed)  # no claimer is starved
    assert counts(table_store.queue().stats()) == {"taken": 100}
    table_store.clock.advance(60)
    assert table_store.queue().admin.recover() == 100  # every one of them is named in a lease record


def test_threads_that_share_a_queue_claim_and_settle_each_task_once(table_store: StoreUnderTest) -> None:
    fill(table_store, 90)
    queue = table_store.queue()

    def work() -> list[str]:
        done: list[str] = []
        while claims := queue.claim(limit=3):
            claims[-1] = queue.extend(claims[-1], lease_seconds=60)
            # For the other tasks the runner hangs until the lease expires.
            done += [queue.complete(claim).task_id for claim in claims if int(claim.task.task_id) % 10]
        return done

    done = Counter(chain(*at_once(*[work] * 4)))
    assert set(done.values()) == {1}
    assert counts(queue.stats()) == {"success": 81, "taken": 9}
    table_store.clock.advance(60)
    assert table_store.queue().admin.recover() == 9
    assert counts(queue.stats()) == {"success": 81, "pending": 9}


def test_sweeps_at_once_recover_each_task_once(table_store: StoreUnderTest) -> None:
    fill(table_store, 70)
    table_store.queue().claim(limit=40, lease_seconds=10)
    table_store.queue().put_many([{"payload": number, "delay_seconds": 5} for number in range(30)])
    table_store.clock.advance(10)
    moved = at_once(*[table_store.queue().admin.recover for _ in range(4)])
    assert sum(moved) + table_store.queue().admin.recover() == 70
    assert counts(table_store.queue().stats()) == {"pending": 100}
    assert Counter(task.attempts for task in table_store.queue().list(limit=200)) == {1: 40, 0: 60}


def test_of_puts_of_the_same_id_one_creates_the_task(table_store: StoreUnderTest) -> None:
    for number in range(10):
        receipts = at_once(
            *(partial(table_store.queue().put, thread, task_id=str(number)) for thread in range(THREADS))
        )
        outcomes = [receipt.outcome for receipt in receipts]
        assert Counter(outcomes) == {PutOutcome.CREATED: 1, PutOutcome.DUPLICATE: THREADS - 1}
        creator = outcomes.index(PutOutcome.CREATED)
        assert known(table_store.queue(), str(number)).payload == creator


@pytest.mark.parametrize("verb", ["cancel", "redrive", "reprioritize"])
def test_of_a_claim_and_a_change_one_wins(table_store: StoreUnderTest, verb: str) -> None:
    def change() -> str:
        changes: dict[str, Callable[[Queue], object]] = {
            "cancel": lambda queue: queue.cancel("a"),
            "redrive": lambda queue: queue.redrive(["a"], as_new=True),
            "reprioritize": lambda queue: queue.reprioritize("a", priority=0),
        }
        try:
            changes[verb](table_store.queue())
        except IllegalTransition as refused:
            return "refused" if refused.status is TaskStatus.TAKEN else str(refused)
        return "changed"

    def claim() -> str:
        return "claimed" if table_store.queue().claim() else "nothing"

    queue = table_store.queue()
    seen = set()
    for number in range(20):
        queue.put(number, task_id="a")
        outcome = tuple(at_once(change, claim))
        seen.add(outcome)
        status = known(queue, "a").status
        if verb == "cancel":
            assert (*outcome, str(status)) in {
                ("changed", "nothing", "CANCELLED"),
                ("refused", "claimed", "TAKEN"),
            }
        else:
            # A claim may find a touched task at its new place, or leave it for the next one.
            assert outcome in {("changed", "claimed"), ("changed", "nothing"), ("refused", "claimed")}
            assert status is (TaskStatus.TAKEN if outcome[1] == "claimed" else TaskStatus.PENDING)
        queue.purge(confirm="default")
    assert seen


def test_of_a_sweep_and_a_settlement_one_wins(table_store: StoreUnderTest) -> None:
    for number in range(10):
        queue = table_store.queue()
        queue.put(number, task_id=str(number))
        (claim,) = queue.claim(lease_seconds=10)
        table_store.clock.advance(10)

        def complete(queue: Queue = queue, claim: object = claim) -> int:
            try:
                queue.complete(claim)  # type: ignore[arg-type]
            except LeaseLost:
                return 0
            return 1

        assert sum(at_once(complete, table_store.queue().admin.recover)) == 1
        if known(queue, str(number)).status is TaskStatus.PENDING:
            (again,) = queue.claim()
            assert again.task.payload == number
            queue.complete(again)  # or its lease would run out in a later round, and be counted there
