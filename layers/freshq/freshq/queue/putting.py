"""Tasks in: checked, let in at the door, put."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from freshq.errors import FreshqError, StoreError
from freshq.model.answers import PutOutcome, Receipt, receipts_of
from freshq.model.new_task import NewTask, parse_new_task
from freshq.policy.shedding import ShedReason
from freshq.queue.core import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from freshq.model.task import Task
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.transactional import Putter

logger = logging.getLogger(__name__)


class Putting(Verbs):
    """Puts tasks into a queue."""

    def put(
        self,
        payload: Any,  # noqa: ANN401 - any JSON value
        task_id: str | None = None,
        priority: int = 0,
        delay_seconds: float = 0,
        max_age_seconds: float | None = None,
        group: str | None = None,
        *,
        at: datetime | float | None = None,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> Receipt:
        """Add a task.

        Args:
            payload: The work: any JSON value.
            task_id: The caller's id; None for a UUID. An id that the table still knows is a duplicate.
            priority: 0 to 9, higher first.
            delay_seconds: Not claimable before so many seconds from now.
            max_age_seconds: Stale so many seconds from now; at most the queue's max age.
            group: Tenant or key.
            at: Not claimable before this time: with a time zone, or in seconds since the epoch; instead
                of `delay_seconds`.
            on_conflict: What to do if a task of this id is waiting or in work: "ignore" the new one, or
                "update" the old one, which takes it from its holder. With either, the id of a task that
                is over is free. Not on an attached table.
            connection: Put it in the transaction of this connection: if that is rolled back, nothing was
                put. Only in a SQL database.

        Raises:
            ValueError: If an argument is wrong; nothing was written.
            Overloaded: If the door, or the bound on the backlog, refused it; nothing was written.
            StoreError: If the store did not take it.
        """
        arguments = {
            "payload": payload,
            "task_id": task_id,
            "priority": priority,
            "delay_seconds": delay_seconds,
            "max_age_seconds": max_age_seconds,
            "group": group,
            "at": at,
        }
        how = self._core.putter(on_conflict, connection)
        return self._put([self._core.created(parse_new_task(arguments))], how)[0]

    def put_many(
        self,
        tasks: Iterable[Mapping[str, Any] | NewTask],
        *,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> list[Receipt]:
        """Add several tasks, each given as the arguments of `put`; the others hold for all of them.

        Returns:
            One receipt a task, in order.

        Raises:
            ValueError: If any task is wrong; nothing was written.
            PutIncomplete: If some were refused, or the store took only some of them.
        """
        try:
            numbered = enumerate(tasks)
        except TypeError as error:
            msg = f"tasks: must be a list of tasks, got {tasks!r}"
            raise ValueError(msg) from error
        places = [(f"tasks[{index}].", task) for index, task in numbered]
        how = self._core.putter(on_conflict, connection)
        created = [self._core.created(parse_new_task(task, where), where) for where, task in places]
        return self._put(created, how)

    def check(self, task: Mapping[str, Any] | NewTask) -> NewTask:
        """Return the task if this queue would take it, without writing anything.

        Raises:
            ValueError: One line that names the field and what is allowed.
        """
        new = parse_new_task(task)
        self._core.lifecycle.created(new, now=self.now(), created=0.0)
        return new

    def _put(self, tasks: list[Task], putter: Putter) -> list[Receipt]:
        now = self.now()
        outcomes: dict[int, Receipt | FreshqError] = {}
        admitted = self._admitted(tasks, now, outcomes)
        added = putter([tasks[index] for index in admitted]) if admitted else []
        for index, result in zip(admitted, added, strict=True):
            if isinstance(result, FreshqError):
                outcomes[index] = result
            else:
                outcomes[index] = Receipt(tasks[index].task_id, PutOutcome(result))
        self._core.meter.offered(now, len(tasks))
        self._make_room(sum(result == PutOutcome.CREATED for result in added), now)
        return receipts_of([outcomes[index] for index in range(len(tasks))])

    def _admitted(
        self, tasks: Sequence[Task], now: float, outcomes: dict[int, Receipt | FreshqError]
    ) -> Sequence[int]:
        """Return which tasks are let in, noting the rejections among the outcomes."""
        rejections = [self._core.admission.rejection(task, now) for task in tasks]
        inside = [index for index, rejection in enumerate(rejections) if rejection is None]
        full = self._core.backlog.rejections([tasks[index] for index in inside], now)
        for index, rejection in [*enumerate(rejections), *zip(inside, full, strict=True)]:
            if rejection is not None:
                outcomes[index] = rejection
                self._core.meter.refused(now, ShedReason(rejection.reason), 1)
        return [index for index in inside if index not in outcomes]

    def _make_room(self, created: int, now: float) -> None:
        """Let the oldest give way to what was put; the tasks are in, so a failure is not theirs."""
        try:
            self._core.backlog.make_room(created, now)
        except StoreError:
            logger.warning("queue %r: could not enforce the backlog limit", self.name, exc_info=True)
