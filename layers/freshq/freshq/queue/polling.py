"""Wait for claims and for ends of tasks: poll until there is an answer, with an interval after each poll.

A poll neither sleeps nor knows who waits, so that threads and coroutines wait by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from freshq.errors import WaitTimeout
from freshq.model.checks import checked_id, checked_seconds
from freshq.model.task import LIVE

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.queue.core import Core
    from freshq.stores.base import Store

T = TypeVar("T")

# The first interval of a wait for a task; later ones are this part of the time waited so far. So the answer
# is late by at most a fifth of the wait, and a long wait costs few polls.
FIRST_INTERVAL_SECONDS: Final = 0.01
INTERVAL_PART: Final = 0.25


@dataclass(frozen=True, slots=True)
class Interval:
    """The pause before the next poll.

    Attributes:
        seconds: The longest time.
        seen: `Store.put_count` before the poll: a put ends the pause; None if puts do not end it.
    """

    seconds: float
    seen: int | None = None


# Returns the answer, or how long to wait for the next poll.
Poll: TypeAlias = Callable[[], T | Interval]


def answer_of(poll: Poll[T], store: Store) -> T:
    """Poll until there is an answer; between two polls this thread sleeps."""
    while isinstance(answer := poll(), Interval):
        if answer.seen is None:
            time.sleep(answer.seconds)
        else:
            store.wait_for_put(answer.seen, answer.seconds)
    return answer


def poll_for_claims(
    claim: Callable[[], list[T]], core: Core, timeout_seconds: float | None, poll_seconds: float
) -> Poll[list[T]]:
    """Return a poll that claims every `poll_seconds`.

    In a SQL database it also claims after each put of this process, and at each due time. Other stores
    neither count puts nor know the next due time.

    Args:
        claim: Returns what it could claim.
        core: The queue.
        timeout_seconds: Give up after this time; None: never.
        poll_seconds: Longest time between two claims.

    Returns:
        A poll for the first claims; its answer is an empty list after the timeout.

    Raises:
        ValueError: If an argument is wrong.
    """
    deadline = _deadline(timeout_seconds, poll_seconds)
    store = core.store

    def poll() -> list[T] | Interval:
        seen = store.put_count()
        if claims := claim():
            return claims
        left = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if left <= 0:
            return []
        now = core.now()
        due = store.next_due(core.name, now)
        return Interval(left if due is None else max(0.0, min(left, due - now)), seen)

    return poll


def poll_for_end(
    find: Callable[[str], Task], task_id: str, timeout_seconds: float | None, poll_seconds: float
) -> Poll[Task]:
    """Return a poll for the end of a task.

    Args:
        find: Returns a task with its current status; raises NotFound if there is none.
        task_id: The task.
        timeout_seconds: Give up after this time; None: never.
        poll_seconds: Longest time between two polls.

    Returns:
        A poll that answers with the task once it is over. It raises WaitTimeout after the timeout, and the
        errors of `find`.

    Raises:
        ValueError: If an argument is wrong.
    """
    checked_id(task_id)
    deadline = _deadline(timeout_seconds, poll_seconds)
    began = time.monotonic()

    def poll() -> Task | Interval:
        task = find(task_id)
        if task.status not in LIVE:
            return task
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(task_id, task.status, now - began)
        interval_seconds = max(FIRST_INTERVAL_SECONDS, min(INTERVAL_PART * (now - began), poll_seconds))
        return Interval(interval_seconds if deadline is None else min(interval_seconds, deadline - now))

    return poll


def _deadline(timeout_seconds: float | None, poll_seconds: float) -> float | None:
    """Check the arguments; return the end of the wait, by the monotonic clock."""
    checked_seconds("poll_seconds", poll_seconds, above_zero=True)
    if timeout_seconds is None:
        return None
    return time.monotonic() + checked_seconds("timeout_seconds", timeout_seconds)
