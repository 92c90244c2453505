"""What an operator does with tasks, and with the queue as a whole."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from freshq.errors import IllegalTransition, TaskNotFound, quoted
from freshq.model.checks import checked_count, checked_priority
from freshq.model.task import TaskStatus
from freshq.queue.core import Verbs
from freshq.stores.base import ConflictError, Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task


class Tending(Verbs):
    """Changes tasks that no worker holds; pauses and purges the queue."""

    def cancel(self, task_id: str) -> Task:
        """Cancel a PENDING task.

        Raises:
            TaskNotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING.
        """
        return self._core.change(task_id, self.lifecycle.cancelled)

    def touch(self, task_id: str) -> Task:
        """Set the creation time of a PENDING task to now; its max age stays the same.

        A delayed put that is not due keeps its times: it will be the newest of its line when it is due.

        Raises:
            TaskNotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING.
        """
        touched, stamp = self.lifecycle.touched, self._core.stamp
        return self._core.change(task_id, lambda task, now: touched(task, now, stamp()))

    def reprioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a PENDING task; its creation time stays the same.

        Raises:
            ValueError: If the priority is not 0 to 9.
            TaskNotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING.
        """
        checked_priority(priority)
        reprioritized = self.lifecycle.reprioritized
        return self._core.change(task_id, lambda task, now: reprioritized(task, now, priority))

    def redrive(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Return dead letters to their lines, with their attempts reset and their creation times kept.

        Dead letters past their deadline stay dead letters, because they could not be claimed.

        Args:
            limit: Most dead letters to redrive; None for all.
            task_id: Redrive only this one.

        Returns:
            How many were redriven.

        Raises:
            TaskNotFound: If the queue has no task `task_id`.
            IllegalTransition: If the task `task_id` is no dead letter, or is past its deadline.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            self._core.change(task_id, self.lifecycle.redriven)
            return 1
        live = (task for task in self._dead() if task.deadline > self.now())
        return sum(islice((1 for task in live if self._redrive_if_still_dead(task.task_id)), limit))

    def _redrive_if_still_dead(self, task_id: str) -> bool:
        try:
            self._core.change(task_id, self.lifecycle.redriven)
        except (TaskNotFound, IllegalTransition):
            return False  # another process changed it first
        return True

    def discard(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Delete dead letters. On an attached table the records stay, and become READY.

        Args:
            limit: Most dead letters to delete; None for all.
            task_id: Delete only this one.

        Returns:
            How many were deleted.

        Raises:
            TaskNotFound: If the queue has no task `task_id`.
            IllegalTransition: If the task `task_id` is no dead letter.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            task = self._core.stored(task_id)
            if not self._discard(task):
                state = (self._core.get(task_id) or task).status
                raise IllegalTransition(task_id, "discard", state, TaskStatus.FAILURE)
            return 1
        return sum(islice((1 for task in self._dead() if self._discard(task)), limit))

    def _discard(self, task: Task) -> bool:
        """Delete a dead letter; return False if it is not a dead letter."""
        try:
            self._core.store.delete(task, Guard(TaskStatus.FAILURE, request_token=task.request_token))
        except ConflictError:
            return False
        return True

    def _dead(self) -> Iterator[Task]:
        """Yield the dead letters of the queue."""
        return (task for task in self._core.store.scan(self.name) if task.status is TaskStatus.FAILURE)

    def purge(self, confirm: str) -> int:
        """Delete all tasks, also TAKEN ones. On an attached table the records stay, and become READY.

        Args:
            confirm: The name of the queue.

        Returns:
            How many were deleted.

        Raises:
            ValueError: If `confirm` is not the name of the queue; nothing was deleted.
        """
        if confirm != self.name:
            msg = (
                f"confirm: must be the queue's name {self.name!r}, got {quoted(confirm)}; nothing was deleted"
            )
            raise ValueError(msg)
        return self._core.store.purge(self.name)

    def pause(self) -> None:
        """Suspend claims, in this process at once and in others within seconds. Other verbs still work."""
        self._core.store.set_paused(self.name, paused=True)

    def resume(self) -> None:
        """Allow claims again."""
        self._core.store.set_paused(self.name, paused=False)

    @property
    def paused(self) -> bool:
        """Whether claims are suspended."""
        return self._core.store.paused(self.name)
