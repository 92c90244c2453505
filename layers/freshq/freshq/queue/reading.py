"""Reading tasks, counts and pressure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from freshq.model.answers import Page
from freshq.model.checks import checked_count, checked_id, checked_status
from freshq.model.task import LIVE, TaskStatus
from freshq.queue.core import Verbs
from freshq.queue.polling import answer_of, poll_for_end
from freshq.queue.shared.flow import REFUSED
from freshq.stores.dead_letters import parse_place, place_of
from freshq.stores.tally import FirstIds, tally

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.stores.base import Stats


class Reading(Verbs):
    """Reads a queue without changing it."""

    def get(self, task_id: str) -> Task | None:
        """Return a task with its current status; None if the queue has no task with this id."""
        return self._core.get(task_id)

    def find(self, task_id: str) -> Task:
        """Return a task with its current status.

        Raises:
            TaskNotFound: If the queue has no task with this id; on an attached table the error says whether
                the record exists.
        """
        return self._core.with_current_status(self._core.stored(task_id))

    def contains(self, task_id: str) -> bool:
        """Return whether the task with this id is PENDING or TAKEN."""
        task = self.get(task_id)
        return task is not None and task.status in LIVE

    def wait(self, task_id: str, timeout_seconds: float | None = None, poll_seconds: float = 1.0) -> Task:
        """Return a task once it is over, whoever runs it: for its status, its result or its error.

        The task is read again and again, with growing intervals: the answer is late by a fifth of the wait at
        most, and by `poll_seconds` at most. Each poll is one read of the store.

        Args:
            task_id: The task.
            timeout_seconds: Stop waiting after this time; None: never.
            poll_seconds: Longest time between two polls.

        Raises:
            ValueError: If an argument is wrong.
            TaskNotFound: If the queue has no such task: it was never put, or its retention is over.
            WaitTimeout: If the task is not over after `timeout_seconds`; it stays as it is.
            StoreError: If the store did not answer.
        """
        return answer_of(poll_for_end(self, task_id, timeout_seconds, poll_seconds), self._core.store)

    def list(
        self, status: TaskStatus | str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return a page of the queue's tasks, in an order that depends on the store.

        Dead letters (FAILURE) come the last to die first, at the cost of the page. Other listings read tasks
        of every status until the page is full.

        Args:
            status: Return only tasks with this status.
            limit: Most tasks to return.
            cursor: `cursor` of the previous page; None for the first page.

        Raises:
            ValueError: If an argument is wrong.
        """
        wanted = checked_status(status)
        checked_count("limit", limit)
        if wanted is TaskStatus.FAILURE:
            return self._list_dead(limit, cursor)
        if cursor is not None:
            checked_id(cursor, "cursor")
        found: list[Task] = []
        for task in map(self._core.with_current_status, self._core.store.scan(self.name, start_after=cursor)):
            if wanted in (None, task.status):
                if len(found) == limit:
                    return Page(tuple(found), found[-1].task_id)
                found.append(task)
        return Page(tuple(found), None)

    def _list_dead(self, limit: int, cursor: str | None) -> Page:
        after = None if cursor is None else parse_place(cursor)
        found = list(islice(self._core.store.dead(self.name, after), limit + 1))
        more = len(found) > limit
        return Page(tuple(found[:limit]), place_of(found[limit - 1]).cursor if more else None)

    def stats(self, *, approximate: bool = False, ids: int | None = None) -> Stats:
        """Count the tasks by status.

        Args:
            approximate: Read at most one page per shard; `Stats.bounded` then says which counts are
                bounds. Otherwise every task is read, and the counts are exact.
            ids: How many ids to return of each state as `Stats.ids`: of pending tasks in the order of claims
                but for the turns of groups, in an adaptive order the newest first; of delayed ones the next
                due first, of held ones the next lease to end first, and of the others the last to change
                first. None for no ids.

        Raises:
            ValueError: If `ids` is not a number of 1 or more, or goes with `approximate`.
        """
        if ids is not None:
            checked_count("ids", ids)
            if approximate:
                raise ValueError("ids: only with exact counts; leave out approximate")
        now = self.now()
        if approximate:
            return self._core.store.approximate_stats(self.name, now, now - self._core.config.max_age_seconds)
        self._core.meter.flush(now)
        first = None if ids is None else FirstIds(ids, newest_first=not self._core.config.order.oldest_first)
        tasks = map(self._core.with_own_deadline, self._core.store.scan(self.name))
        stats = tally(tasks, now, self._core.reserve.spans(), first)
        refused = self._core.store.read_counts(self.name, REFUSED)
        return replace(stats, shed_by_reason=dict(Counter(stats.shed_by_reason) + Counter(refused)))

    def pressure(self) -> Pressure:
        """Return how overloaded the queue is.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.gauge.pressure(self.now(), self.uniform())
