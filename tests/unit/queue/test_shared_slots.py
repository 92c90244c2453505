"""Shared limits: of a worker whose tasks are shorter than the time between its looks, and of retries."""

import pytest

from freshq.policy import ConcurrencyLimit
from freshq.policy.limits import RetryBudget, SharedBucket
from freshq.queue.shared import limits
from freshq.queue.shared.limits import DEPOSIT_EVERY, SharedRetries, SharedSlots, SharedTokens
from freshq.stores.memory import MemoryStore

WINDOW_SECONDS = 10.0


def slots_after(windows: int, *, per_look: int) -> int:
    """Return the slots of a worker after some windows of ten looks each.

    At each look the worker starts as many tasks as allowed, up to `per_look`. All of them end before the next
    look.
    """
    limit = ConcurrencyLimit(1, 40, window_seconds=WINDOW_SECONDS)
    slots = SharedSlots(MemoryStore(), "default", limit, wanted=40)
    free = 0
    for look in range(windows * 10 + 1):
        free = slots.free(in_flight=0, now=1000.0 + look * WINDOW_SECONDS / 10)
        for _ in range(min(free, per_look)):
            slots.started()
            slots.succeeded()
    return free


def test_the_limit_grows_by_one_a_window_however_short_the_tasks() -> None:
    assert slots_after(8, per_look=40) == 9


def test_it_does_not_grow_beyond_twice_what_is_used() -> None:
    assert slots_after(30, per_look=3) == 7


def test_it_does_not_grow_by_a_success_that_was_counted_before() -> None:
    slots = SharedSlots(MemoryStore(), "default", ConcurrencyLimit(1, 8, window_seconds=10.0), wanted=8)
    assert slots.free(0, 1000.0) == 1
    slots.started()
    slots.succeeded()
    assert slots.free(0, 1010.0) == 2
    slots.started()
    slots.started()
    assert slots.free(0, 1020.0) == 2


def test_without_a_share_nothing_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = SharedSlots(MemoryStore(), "default", ConcurrencyLimit(4, 4, window_seconds=10.0), wanted=4)
    monkeypatch.setattr(limits, "change_record", lambda *_arguments: False)  # each write lost a race
    assert slots.free(0, 1000.0) == 0


def test_first_attempts_reach_the_budget_of_other_workers() -> None:
    store = MemoryStore()
    worker, other = (SharedRetries(store, "default", RetryBudget(0.5, reserve=0)) for _ in range(2))
    for _ in range(DEPOSIT_EVERY - 1):
        worker.first_attempt()
    assert not other.spend()
    worker.first_attempt()
    assert [other.spend() for _ in range(DEPOSIT_EVERY // 2 + 1)] == [True] * (DEPOSIT_EVERY // 2) + [False]


def test_a_worker_that_has_tokens_need_not_wait() -> None:
    tokens = SharedTokens(MemoryStore(), "default", SharedBucket(1.0, burst=2, block=2))
    assert tokens.available(1000.0, wanted=5) == 2
    assert tokens.seconds_until_next(1000.0) == 0.0


def test_a_forked_child_takes_its_own_slots() -> None:
    """Under its parent's name, it would take the parent's slots from it."""
    store, limit = MemoryStore(), ConcurrencyLimit(4, 4, window_seconds=10.0)
    parent, child = (SharedSlots(store, "default", limit, wanted=3) for _ in range(2))
    assert child.free(0, 1000.0) == 3
    child.forget_parent()  # what a fork calls in the child
    assert child.free(0, 1000.0) == 1
    assert parent.free(0, 1000.0) == 0


def test_a_forked_child_reports_no_success_of_its_parent() -> None:
    slots = SharedSlots(MemoryStore(), "default", ConcurrencyLimit(1, 8, window_seconds=10.0), wanted=8)
    assert slots.free(0, 1000.0) == 1
    slots.started()
    slots.succeeded()
    slots.forget_parent()
    assert slots.free(0, 1030.0) == 1


def test_a_forked_child_spends_no_token_of_its_parent_and_pays_none_of_its_debts() -> None:
    store = MemoryStore()
    child, other = (SharedTokens(store, "default", SharedBucket(1.0, burst=4, block=4)) for _ in range(2))
    assert child.available(1000.0, wanted=2) == 2
    child.correct(2.0)
    child.forget_parent()
    assert child.available(1000.0, wanted=2) == 0
    assert other.available(1002.0, wanted=2) == 2
