"""Copy tasks from one queue to another as they are, for restores and for moves between stores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.errors import FreshqError, NotFound, Throttled, Unreachable
from freshq.feeds.relay import check_apart
from freshq.model.lifecycle import new_token
from freshq.model.task import LIVE, TaskStatus, changed
from freshq.queue.attached import AttachedQueue
from freshq.queue.core import core_of
from freshq.stores.base import Conflict, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue

BATCH: Final = 100
# Errors of the store, and not of one task: the copy ends, and can be repeated.
OF_STORE: Final = (Throttled, Unreachable)


@dataclass(slots=True)
class CopyReport:
    """The tasks of a source, by what became of them.

    Attributes:
        copied: By status in the source. A TAKEN task waits again in the destination, which nobody works on.
        present: Tasks that the destination has already, as they are in the source.
        skipped: By reason: tasks that were asked for, and are not in the destination as they are here.
        left: By status: tasks that were not asked for.
    """

    copied: Counter[TaskStatus] = field(default_factory=Counter)
    present: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    left: Counter[TaskStatus] = field(default_factory=Counter)


class TaskCopy:
    """Copies whole tasks: id, payload, place in the line, attempts, times, result and error.

    Each task is put on condition that the destination has none of its id, or an ended one that may be
    replaced. A copy that is interrupted can be repeated: what has arrived is present then.
    """

    def __init__(
        self,
        source: BaseQueue,
        destination: BaseQueue,
        *,
        only: Collection[TaskStatus] = tuple(TaskStatus),
        over: Collection[TaskStatus] = (),
    ) -> None:
        """Prepare a copy.

        Args:
            source: The queue to read.
            destination: The queue to put the tasks into, which has a table.
            only: The states to copy.
            over: States of tasks of the destination that a copy of the same id may replace; ended ones.

        Raises:
            ValueError: If an argument is wrong, the destination is the source, or one is an attached table.
        """
        for name, queue in (("source", source), ("destination", destination)):
            if isinstance(queue, AttachedQueue):
                msg = f"{name}: is an attached table, whose tasks are the application's records"
                raise ValueError(msg)
        check_apart(source, destination)
        live = sorted({*LIVE}.intersection(over))
        if live:
            msg = f"over: a task that is {live[0]} is never replaced; cancel it first"
            raise ValueError(msg)
        self._source = core_of(source)
        self._destination = core_of(destination)
        self._only = frozenset(only)
        self._over = frozenset(over)
        self.report = CopyReport()

    def run(self, on_batch: Callable[[CopyReport], object] = lambda _report: None) -> CopyReport:
        """Copy every task that was asked for; return what became of each.

        Args:
            on_batch: Called after each batch.

        Raises:
            StoreError: If a store did not answer; call again to go on.
        """
        tasks = self._asked_for()
        while batch := list(islice(tasks, BATCH)):
            self._copy(batch)
            on_batch(self.report)
        return self.report

    def _asked_for(self) -> Iterator[tuple[Task, TaskStatus]]:
        """Yield the tasks to copy, as the destination will have them, with their status in the source."""
        for task in self._source.store.scan(self._source.name):
            status = self._source.with_current_status(task).status
            if status not in self._only:
                self.report.left[status] += 1
                continue
            # Of its own: a store takes the second put of a token for the repetition of the first.
            copy = changed(task, queue=self._destination.name, request_token=new_token())
            if status is TaskStatus.TAKEN:
                copy = changed(copy, status=TaskStatus.PENDING, lease_token=None, lease_until=None)
            yield copy, status

    def _copy(self, batch: list[tuple[Task, TaskStatus]]) -> None:
        answers = self._destination.insert([task for task, _status in batch])
        for (task, status), answer in zip(batch, answers, strict=True):
            if isinstance(answer, OF_STORE):
                raise answer
            if isinstance(answer, FreshqError):
                self.report.skipped[str(answer).removeprefix(f"task {task.task_id!r}: ")] += 1
            elif answer is True or self._replaced(task):
                self.report.copied[status] += 1

    def _replaced(self, task: Task) -> bool:
        """Return whether a task could replace the one of its id; otherwise note why not."""
        try:
            current = self._destination.stored(task.task_id)
        except NotFound:
            self.report.skipped["its id is taken in another queue of the table"] += 1
            return False
        if changed(current, request_token=task.request_token) == task:
            self.report.present += 1
            return False
        status = self._destination.with_current_status(current).status
        if status not in self._over or not self._freed(current):
            self.report.skipped[f"is {status} in the destination"] += 1
            return False
        return self._destination.insert([task])[0] is True

    def _freed(self, current: Task) -> bool:
        """Delete a task of the destination unless it has changed; return whether its id is free."""
        try:
            self._destination.store.delete(current, Guard.unchanged(current))
        except Conflict:
            return False
        return True
