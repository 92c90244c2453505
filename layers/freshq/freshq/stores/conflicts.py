"""Decides what a put does if its id is already in use: one rule for all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from freshq.model.answers import PutOutcome
from freshq.model.task import LIVE

if TYPE_CHECKING:
    from freshq.errors import FreshqError
    from freshq.model.task import Task

OnConflict: TypeAlias = Literal["ignore", "update"]
# What the put did, or the error that prevented it.
PutResult: TypeAlias = "PutOutcome | FreshqError"


def put_over(current: Task, task: Task, on_conflict: OnConflict) -> PutOutcome:
    """Return the outcome of putting a task over one of the same id and queue.

    Args:
        current: The stored task.
        task: The new task.
        on_conflict: What to do if the stored task is live.

    Returns:
        DUPLICATE: change nothing. UPDATED: the new task replaces a live one. CREATED: it replaces one
        that is over.
    """
    if current.status_at(task.updated) not in LIVE:
        return PutOutcome.CREATED
    # An update with the same work would only take the task from its holder.
    same = _work(current, task.updated) == _work(task, task.updated)
    return PutOutcome.DUPLICATE if on_conflict == "ignore" or same else PutOutcome.UPDATED


def _work(task: Task, now: float) -> tuple[object, ...]:
    """Return what an update may change."""
    # Ignore a delay that has passed, whether or not the task was promoted.
    due = task.not_before if task.not_before is not None and task.not_before > now else None
    return (task.payload, due, task.priority, task.group, task.kind)


def put_result(added: bool | FreshqError) -> PutResult:  # noqa: FBT001 - an answer of the store
    """Return the put result for one answer of `Store.insert`."""
    if isinstance(added, bool):
        return PutOutcome.CREATED if added else PutOutcome.DUPLICATE
    return added
