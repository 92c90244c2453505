"""Single tasks of the memory store: copies for callers, and when something is due."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from freshq.model.task import Task, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def copied(task: Task) -> Task:
    """Return a task whose payload the caller may change."""
    return replace(task, payload=deepcopy(task.payload))


def when_needed(candidates: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Yield what a function returns that is not called before the first is asked for."""
    yield from candidates()


def due_time(task: Task) -> float | None:
    """Return when the lease or the delay of a task ends; None if it has neither."""
    return task.lease_until if task.status is TaskStatus.TAKEN else task.not_before if task.delayed else None


def is_due(task: Task, now: float) -> bool:
    """Return whether the lease or the delay of a task has ended."""
    due_at = due_time(task)
    return due_at is not None and due_at <= now
