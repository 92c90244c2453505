"""Waiting for tasks: a claim that is repeated until it returns something."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.queue.core import Core

T = TypeVar("T")


def poll(
    claim: Callable[[], list[T]], core: Core, timeout_seconds: float | None, poll_seconds: float
) -> list[T]:
    """Claim after each put of this process, at each due time, and at least every `poll_seconds`.

    Args:
        claim: Returns what it could claim.
        core: The queue.
        timeout_seconds: Give up after this time; None: never.
        poll_seconds: Longest time between two claims.

    Returns:
        The first non-empty answer of `claim`; an empty list after the timeout.
    """
    store = core.store
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        seen = store.put_count()
        if claims := claim():
            return claims
        left = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if left <= 0:
            return []
        now = core.now()
        due = store.next_due(core.name, now)
        store.wait_for_put(seen, left if due is None else max(0.0, min(left, due - now)))
