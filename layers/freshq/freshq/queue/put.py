"""Put tasks: validate, ask for admission, write."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from freshq.errors import FreshqError, Overloaded, StoreError
from freshq.model.answers import PutOutcome, Receipt, receipts_of
from freshq.model.codec import encoded
from freshq.model.new_task import NewTask, parse_new_task
from freshq.policy.shedding import ShedReason
from freshq.queue.core import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from freshq.model.task import Task
    from freshq.queue.core import Putter
    from freshq.stores.base import Connection, OnConflict, PutResult

logger = logging.getLogger(__name__)


class Putting(Verbs):
    """Adds tasks to a queue."""

    def put(
        self,
        payload: Any,
        task_id: str | None = None,
        priority: int = 0,
        delay_seconds: float = 0,
        max_age_seconds: float | None = None,
        group: str | None = None,
        *,
        kind: str | None = None,
        at: datetime | float | None = None,
        trace_context: str | None = None,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> Receipt:
        """Add a task.

        Args:
            payload: The work: any JSON value.
            task_id: The caller's id; None for a UUID. An id that the table still knows is a duplicate.
            priority: 0 to 9, higher first.
            delay_seconds: Delay before the task enters its line and can be claimed; its age counts from then.
            max_age_seconds: Seconds from then until the task is stale; at most the queue's max age.
            group: Tenant or key.
            kind: The type of the message; a worker may choose its handler by it.
            at: When it is due, instead of a delay: an aware datetime, or seconds since the epoch.
            trace_context: The trace that it belongs to, as in `NewTask`, if not the telemetry's.
            on_conflict: If the id is of a live task, "ignore" the new one or "update" that, which ends its
                claim. The id of a task that is over is free then. Not on attached tables.
            connection: Put in the transaction of this SQL connection.

        Raises:
            Overloaded: If admission control rejected the task; nothing was written.
        """
        new = parse_new_task(
            {"payload": encoded(self._core.codec, payload, "payload"), "task_id": task_id, "at": at}
            | {"priority": priority, "group": group, "kind": kind, "trace_context": trace_context}
            | {"delay_seconds": delay_seconds, "max_age_seconds": max_age_seconds}
        )
        return self._put([self._core.created(new)], self._core.putter(on_conflict, connection))[0]

    def put_many(
        self,
        tasks: Iterable[Mapping[str, Any] | NewTask],
        *,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> list[Receipt]:
        """Add several tasks.

        Args:
            tasks: Mappings of the arguments of `put`.
            on_conflict: As in `put`, for all tasks.
            connection: As in `put`, for all tasks.

        Returns:
            One receipt per task, in order.

        Raises:
            ValueError: If any task is wrong; nothing was written.
            PutIncomplete: If some tasks were rejected or not written.
        """
        try:
            numbered = enumerate(tasks)
        except TypeError as error:
            msg = f"tasks: must be a list of mappings, got {type(tasks).__name__}"
            raise ValueError(msg) from error
        places = [(f"tasks[{index}].", task) for index, task in numbered]
        how = self._core.putter(on_conflict, connection)
        created = [self._core.created(self._parsed(task, where), where) for where, task in places]
        return self._put(created, how)

    def check(self, task: Mapping[str, Any] | NewTask) -> NewTask:
        """Validate the arguments of a put without writing anything.

        Raises:
            ValueError: One line that names the first wrong field and what is allowed.
        """
        new = self._core.checked(self._parsed(task))
        self._core.lifecycle.created(new, now=self.now(), created=0.0)
        return new

    def _parsed(self, task: Mapping[str, Any] | NewTask, where: str = "") -> NewTask:
        """Return the arguments of a put, checked; those of `check` have been encoded already."""
        codec = self._core.codec
        if isinstance(task, Mapping) and "payload" in task:
            task = {**task, "payload": encoded(codec, task["payload"], f"{where}payload")}
        return parse_new_task(task, where)

    def _put(self, tasks: Sequence[Task], putter: Putter) -> list[Receipt]:
        return self._core.guarded_telemetry.put(self.name, tasks, lambda told: self._admit(told, putter))

    def _admit(self, tasks: Sequence[Task], putter: Putter) -> list[Receipt]:
        now = self.now()
        rejections = self._rejections(tasks, now)
        admitted = [index for index, rejection in enumerate(rejections) if rejection is None]
        added = putter([tasks[index] for index in admitted]) if admitted else []
        self._core.meter.offered(now, tasks)
        self._make_room(sum(result == PutOutcome.CREATED for result in added), now)
        results = dict(zip(admitted, added, strict=True))
        return receipts_of(
            [
                rejection or _outcome(task, results[index])
                for index, (task, rejection) in enumerate(zip(tasks, rejections, strict=True))
            ],
            [task.task_id for task in tasks],
        )

    def _rejections(self, tasks: Sequence[Task], now: float) -> list[Overloaded | None]:
        """Return why each task is rejected, None for those that are admitted; count the rejections."""
        rejections = [self._core.admission.rejection(task, now) for task in tasks]
        admitted = [index for index, rejection in enumerate(rejections) if rejection is None]
        by_backlog = self._core.backlog.rejections([tasks[index] for index in admitted], now)
        for index, rejection in zip(admitted, by_backlog, strict=True):
            rejections[index] = rejection
        for rejection in filter(None, rejections):
            self._core.meter.turned_away(now, ShedReason(rejection.reason), 1)
        full = sum(rejection is not None for rejection in by_backlog)
        if full:
            self._core.meter.shed_early(now, full)
        return rejections

    def _make_room(self, created: int, now: float) -> None:
        # The tasks are written: an error here must not look like a failed put.
        try:
            self._core.backlog.make_room(created, now)
        except StoreError:
            logger.warning("queue %r: could not enforce the backlog limit", self.name, exc_info=True)


def _outcome(task: Task, result: PutResult) -> Receipt | FreshqError:
    return result if isinstance(result, FreshqError) else Receipt(task.task_id, result)
