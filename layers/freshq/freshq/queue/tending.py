"""What an operator does to tasks, and to the queue as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.errors import IllegalTransition, TaskNotFound
from freshq.model.checks import checked_count, checked_priority
from freshq.model.task import TaskStatus
from freshq.queue.core import Verbs
from freshq.stores.base import ConflictError, Guard

if TYPE_CHECKING:
    from freshq.model.task import Task


class Tending(Verbs):
    """Changes tasks that nobody holds, and lets claims go on or not."""

    def cancel(self, task_id: str) -> Task:
        """Cancel a waiting task.

        Raises:
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait.
        """
        return self._core.change(task_id, self._core.lifecycle.cancelled)

    def touch(self, task_id: str) -> Task:
        """Make a waiting task new: created now, with the max age it was put with.

        Raises:
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait, or is stale.
        """
        core = self._core
        return core.change(task_id, lambda task, now: core.lifecycle.touched(task, now, core.stamp()))

    def reprioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a waiting task; its place in time stays.

        Raises:
            ValueError: If the priority is not 0 to 9.
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait, or is stale.
        """
        checked_priority(priority)
        reprioritized = self._core.lifecycle.reprioritized
        return self._core.change(task_id, lambda task, now: reprioritized(task, now, priority))

    def redrive(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Bring dead letters back, with no attempts counted and their place in time kept.

        Dead letters past their deadline stay where they are: nobody would claim them.

        Args:
            limit: How many at the most; None for all.
            task_id: Only this one.

        Returns:
            How many were brought back.

        Raises:
            TaskNotFound: If `task_id` names no task.
            IllegalTransition: If the task it names is no dead letter, or is past its deadline.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            self._core.change(task_id, self._core.lifecycle.redriven)
            return 1
        brought_back = 0
        for task in self._core.store.scan(self.name):
            if brought_back == limit:
                break
            if task.status is TaskStatus.FAILURE and task.deadline > self.now():
                brought_back += self._redrive_if_still_dead(task.task_id)
        return brought_back

    def _redrive_if_still_dead(self, task_id: str) -> int:
        try:
            self._core.change(task_id, self._core.lifecycle.redriven)
        except (TaskNotFound, IllegalTransition):
            return 0  # somebody else changed it first: not ours to count
        return 1

    def discard(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Delete dead letters, and nothing else.

        Args:
            limit: How many at the most; None for all.
            task_id: Only this one.

        Returns:
            How many were deleted.

        Raises:
            TaskNotFound: If `task_id` names no task.
            IllegalTransition: If the task it names is no dead letter.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            task = self._core.stored(task_id)
            if not self._discard(task):
                state = (self._core.get(task_id) or task).status
                raise IllegalTransition(task_id, "discard", state, TaskStatus.FAILURE)
            return 1
        dead = (task for task in self._core.store.scan(self.name) if task.status is TaskStatus.FAILURE)
        discarded = 0
        for task in dead:
            if discarded == limit:
                break
            discarded += self._discard(task)
        return discarded

    def _discard(self, task: Task) -> bool:
        """Delete a dead letter; return False if it is none, or is none any more."""
        try:
            self._core.store.delete(task, Guard(TaskStatus.FAILURE, request_token=task.request_token))
        except ConflictError:
            return False
        return True

    def purge(self, confirm: str) -> int:
        """Delete every task of the queue, those in work included.

        Args:
            confirm: The queue's name.

        Returns:
            How many were deleted.
        """
        if confirm != self.name:
            msg = f"confirm: must be the queue's name {self.name!r}, got {confirm!r}; nothing was deleted"
            raise ValueError(msg)
        return self._core.store.purge(self.name)

    def pause(self) -> None:
        """Suspend claims, here at once and elsewhere within seconds; puts and settling go on."""
        self._core.store.set_paused(self.name, paused=True)

    def resume(self) -> None:
        """Allow claims again."""
        self._core.store.set_paused(self.name, paused=False)

    @property
    def paused(self) -> bool:
        """Whether claims are suspended."""
        return self._core.store.paused(self.name)
