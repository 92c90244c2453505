"""What a put does where a task of its id is known: one rule for all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from freshq.errors import FreshqError
    from freshq.model.task import Task

OnConflict: TypeAlias = Literal["ignore", "update"]
# The value of a PutOutcome, or why a task was not put.
PutResult: TypeAlias = "str | FreshqError"

CREATED: Final = "CREATED"
DUPLICATE: Final = "DUPLICATE"
UPDATED: Final = "UPDATED"

ALIVE: Final = (TaskStatus.PENDING, TaskStatus.TAKEN)


def put_over(current: Task, task: Task, on_conflict: OnConflict) -> str:
    """Return what putting a task over one of the same id and queue comes to.

    Args:
        current: The task that is there.
        task: The task that is put.
        on_conflict: What becomes of one that waits or is in work.

    Returns:
        DUPLICATE: nothing is to be changed. UPDATED or CREATED: the task takes the place of the one
        that lives, or of the one that is over.
    """
    if current.status_at(task.updated) not in ALIVE:
        return CREATED
    # The same work at the same time is no update: it would only take the task from its holder.
    same = _work(current) == _work(task)
    return DUPLICATE if on_conflict == "ignore" or same else UPDATED


def _work(task: Task) -> tuple[object, ...]:
    """Return what an update may change, but for the time it was put at."""
    return (task.payload, task.not_before, task.priority, task.group)


def put_result(added: bool | FreshqError) -> PutResult:  # noqa: FBT001 - as a store answers
    """Return what the answer of `Store.insert` to one task comes to."""
    if isinstance(added, bool):
        return CREATED if added else DUPLICATE
    return added
