"""The place of a dead letter among those of its queue, and the cursor that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from freshq.errors import quoted

if TYPE_CHECKING:
    from freshq.model.task import Task


class DeadPlace(NamedTuple):
    """The place of a dead letter.

    Attributes:
        dead_at: When it became a dead letter, in seconds since the epoch.
        task_id: Its id.
    """

    dead_at: float
    task_id: str

    @property
    def cursor(self) -> str:
        """The place as a string: whole microseconds, then the id."""
        return f"{round(self.dead_at * 1e6)}/{self.task_id}"


def place_of(task: Task) -> DeadPlace:
    """Return the place of a dead letter.

    It changes only when the task leaves the dead letters or becomes one again.
    """
    return DeadPlace(task.updated, task.task_id)


def parse_place(cursor: str) -> DeadPlace:
    """Return the place that a cursor names.

    Raises:
        ValueError: If it names none.
    """
    micros, slash, task_id = cursor.partition("/") if isinstance(cursor, str) else ("", "", "")
    if not (micros.isdecimal() and micros.isascii() and slash and task_id):
        msg = f"cursor: must be that of a page of dead letters, got {quoted(cursor)}"
        raise ValueError(msg)
    return DeadPlace(int(micros) / 1e6, task_id)
