"""Waiting: looking for something again and again, with a pause after each look that found nothing.

A look neither sleeps nor knows who waits. So a thread and a coroutine wait by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from freshq.errors import TaskNotFound, WaitTimeout
from freshq.model.checks import checked_id, checked_seconds
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.base import Store

T = TypeVar("T")

# The first pause of a wait for a task, and how pauses grow: by this part of the time waited so far. So the
# answer is late by a fifth of the wait at most, and a long wait costs few looks.
FIRST_PAUSE_SECONDS: Final = 0.01
PAUSE_PART: Final = 0.25
LIVE: Final = frozenset({TaskStatus.PENDING, TaskStatus.TAKEN})


@dataclass(frozen=True, slots=True)
class Pause:
    """What to wait for before the next look.

    Attributes:
        seconds: The longest time.
        seen: `Store.put_count` before the look: a put ends the pause; None if puts do not.
    """

    seconds: float
    seen: int | None = None


# Returns the answer, or how long to wait for the next look.
Look: TypeAlias = Callable[[], T | Pause]


class Looked(Protocol):
    """What a look needs of a queue."""

    @property
    def name(self) -> str:
        """Name of the queue."""

    @property
    def store(self) -> Store:
        """Home of the tasks."""

    def now(self) -> float:
        """Return the queue's time in seconds."""

    def get(self, task_id: str) -> Task | None:
        """Return a task with its current status."""


def answer_of(look: Look[T], store: Store) -> T:
    """Look until there is an answer; between two looks this thread sleeps."""
    while isinstance(answer := look(), Pause):
        if answer.seen is None:
            time.sleep(answer.seconds)
        else:
            store.wait_for_put(answer.seen, answer.seconds)
    return answer


def look_for_claims(
    claim: Callable[[], list[T]], queue: Looked, timeout_seconds: float | None, poll_seconds: float
) -> Look[list[T]]:
    """Return a look that claims after each put of this process, at each due time, and every `poll_seconds`.

    Args:
        claim: Returns what it could claim.
        queue: The queue.
        timeout_seconds: Give up after this time; None: never.
        poll_seconds: Longest time between two claims.

    Returns:
        A look for the first claims; its answer is an empty list after the timeout.

    Raises:
        ValueError: If an argument is wrong.
    """
    deadline = _deadline(timeout_seconds, poll_seconds)
    store = queue.store

    def look() -> list[T] | Pause:
        seen = store.put_count()
        if claims := claim():
            return claims
        left = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if left <= 0:
            return []
        now = queue.now()
        due = store.next_due(queue.name, now)
        return Pause(left if due is None else max(0.0, min(left, due - now)), seen)

    return look


def look_for_end(
    queue: Looked, task_id: str, timeout_seconds: float | None, poll_seconds: float
) -> Look[Task]:
    """Return a look for the end of a task.

    Args:
        queue: The queue.
        task_id: The task.
        timeout_seconds: Give up after this time; None: never.
        poll_seconds: Longest time between two looks.

    Returns:
        A look that answers with the task once it is over. It raises TaskNotFound if the queue has no such
        task, and WaitTimeout after the timeout.

    Raises:
        ValueError: If an argument is wrong.
    """
    checked_id(task_id)
    deadline = _deadline(timeout_seconds, poll_seconds)
    began = time.monotonic()

    def look() -> Task | Pause:
        task = queue.get(task_id)
        if task is None:
            raise TaskNotFound(task_id, queue.name)
        if task.status not in LIVE:
            return task
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(task_id, task.status, now - began)
        pause_seconds = max(FIRST_PAUSE_SECONDS, min(PAUSE_PART * (now - began), poll_seconds))
        return Pause(pause_seconds if deadline is None else min(pause_seconds, deadline - now))

    return look


def _deadline(timeout_seconds: float | None, poll_seconds: float) -> float | None:
    """Check the arguments; return when the waiting ends, by the monotonic clock."""
    checked_seconds("poll_seconds", poll_seconds, above_zero=True)
    if timeout_seconds is None:
        return None
    return time.monotonic() + checked_seconds("timeout_seconds", timeout_seconds)
