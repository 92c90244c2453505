"""The concurrency limit of a worker whose tasks are shorter than the time between its looks."""

from __future__ import annotations

from freshq import ConcurrencyLimit
from freshq.queue.shared.limits import SharedSlots
from freshq.stores.memory import MemoryStore

WINDOW_SECONDS = 10.0


def slots_after(windows: int, *, per_look: int) -> int:
    """Return the slots of a worker after some windows of ten looks each.

    At each look it starts as many tasks as it may, up to `per_look`. All of them end before the next look.
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
