"""A queue of records that an application has already, in the table where they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

from freshq.errors import IllegalTransition, TaskNotFound, needs
from freshq.model.answers import Claim, Page, Receipt
from freshq.model.checks import checked_count, checked_id, checked_seconds, checked_status
from freshq.model.lifecycle import new_token
from freshq.model.task import MAX_SECONDS, Task, TaskStatus
from freshq.queue.base import BaseQueue
from freshq.queue.claiming import MAX_CLAIM
from freshq.queue.core import Core
from freshq.stores.base import ConflictError, Guard, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from sqlalchemy import Connection

    from freshq.model.new_task import NewTask
    from freshq.model.options import QueueOptions
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.transactional import Putter

# Records are not stale by age, unless a queue or a put says so.
NEVER_STALE_SECONDS = MAX_SECONDS
# From these a record can be made ready, or taken back under construction. A dead letter is redriven or
# purged; what waits is cancelled first.
UNQUEUED = frozenset(
    {
        TaskStatus.READY,
        TaskStatus.UNDER_CONSTRUCTION,
        TaskStatus.SUCCESS,
        TaskStatus.CANCELLED,
        TaskStatus.SHED,
    }
)


class AttachedStore(Store, Protocol):
    """What an attached queue asks of its store besides."""

    def dead(self, queue: str) -> Iterator[Task]:
        """Yield the dead letters of a queue."""


class AttachedCore(Core):
    """A queue whose tasks are an application's records, as a process knows it."""

    def putter(self, on_conflict: OnConflict | None, connection: Connection | None) -> Putter:
        """Return what puts records, as `Core.putter`."""
        if on_conflict is not None:
            msg = "on_conflict: not on an attached table, whose records are not the queue's to replace; "
            raise ValueError(msg + "cancel the record, or wait for its end, and put it again")
        return super().putter(on_conflict, connection)

    def created(self, new: NewTask, where: str = "") -> Task:
        """Return the task that a put makes of a record, as `Core.created`."""
        if new.payload is not None:
            msg = f"{where}payload: must be None, since the record itself is the payload"
            raise ValueError(msg)
        if new.task_id is None:
            msg = f"{where}task_id: must name a record of the table"
            raise ValueError(msg)
        return super().created(new, where)

    def stored(self, task_id: str) -> Task:
        """Return a record as it is stored; one in no queue is as good as one of this queue."""
        task = self.store.get(checked_id(task_id))
        if task is not None and task.status is TaskStatus.READY:
            return replace(task, queue=self.name)
        if task is None or task.queue != self.name:
            raise TaskNotFound(task_id, self.name)
        return task


class AttachedQueue(BaseQueue):
    """A queue whose tasks are an application's records; `Queue.dynamodb(..., attach=True)` returns it.

    A task's payload is the record: the application's attributes as JSON values. They are only read; what
    leaves the queue stays in the table.
    """

    _core_class = AttachedCore

    def __init__(self, store: AttachedStore, **options: Unpack[QueueOptions]) -> None:
        """Use a store whose records are an application's.

        Args:
            store: Home of the records.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an option is wrong.
        """
        super().__init__(store, **options)
        self._records = store

    def enqueue(
        self,
        task_id: str,
        priority: int = 0,
        delay_seconds: float = 0,
        max_age_seconds: float | None = None,
        group: str | None = None,
    ) -> Receipt:
        """Put a record into the queue. The other arguments are those of `put`.

        Args:
            task_id: The record's id.
            priority: 0 to 9, higher first.
            delay_seconds: Not claimable before so many seconds from now.
            max_age_seconds: Stale so many seconds from now.
            group: Tenant or key.

        Raises:
            ValueError: If an argument is wrong; nothing was written.
            TaskNotFound: If there is no such record.
            NotReady: If it is under construction.
            AlreadyQueued: If it waits or is in work already.
            IllegalTransition: If it is completed, or a dead letter.
            Overloaded: If the door, or the bound on the backlog, refused it.
            StoreError: If the store did not take it.
        """
        return self.put(None, task_id, priority, delay_seconds, max_age_seconds, group)

    def hold(self, task_id: str) -> Task:
        """Take a record that is in no queue under construction: it cannot be put until it is made ready.

        Raises:
            TaskNotFound: If there is no such record.
            IllegalTransition: If it is in the queue, or a dead letter.
        """
        return self._change_unqueued(task_id, TaskStatus.UNDER_CONSTRUCTION, "hold")

    def ready(self, task_id: str) -> Task:
        """Make a record ready to be put, be it under construction, completed or cancelled.

        A record that freshq never saw is ready.

        Raises:
            TaskNotFound: If there is no such record.
            IllegalTransition: If it is in the queue, or a dead letter.
        """
        return self._change_unqueued(task_id, TaskStatus.READY, "make ready")

    def claim_dead(self, limit: int = 1, lease_seconds: float | None = None) -> list[Claim]:
        """Take dead letters to work on, under leases like those of `claim`.

        Complete one, fail it again, or release it into the queue; a lease that runs out, and a retry,
        leave it a dead letter.

        Args:
            limit: How many at the most.
            lease_seconds: How long they are held; None for the queue's own.

        Returns:
            The claims; empty if there are no dead letters.
        """
        checked_count("limit", limit, at_most=MAX_CLAIM)
        if lease_seconds is None:
            lease_seconds = self.lease_seconds
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        claims: list[Claim] = []
        for task in self._records.dead(self.name):
            if len(claims) == limit:
                break
            now = self.now()
            until, token = round(now + lease_seconds, 6), new_token()
            guard = Guard(TaskStatus.FAILURE, request_token=task.request_token)
            try:
                held = self._core.store.replace(
                    self._core.lifecycle.claimed_dead(task, now, token, until), guard
                )
            except ConflictError:
                continue  # somebody else was faster
            claims.append(Claim(held, token, until))
        return claims

    def list(
        self, status: TaskStatus | str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return part of the queue's tasks, as `Queue.list`; dead letters at the cost of those only."""
        if checked_status(status) is not TaskStatus.FAILURE:
            return super().list(status, limit, cursor)
        checked_count("limit", limit)
        dead = self._records.dead(self.name)
        if cursor is not None:
            checked_id(cursor, "cursor")
            dead = (task for task in dead if task.task_id > cursor)
        found = sorted(dead, key=lambda task: task.task_id)[: limit + 1]
        more = len(found) > limit
        return Page(tuple(found[:limit]), found[limit - 1].task_id if more else None)

    def redrive(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Bring dead letters back, as `Queue.redrive`, at the cost of the dead letters only."""
        if task_id is not None:
            return super().redrive(limit, task_id)
        if limit is not None:
            checked_count("limit", limit)
        live = (task for task in self._records.dead(self.name) if task.deadline > self.now())
        return sum(self._redrive_if_still_dead(task.task_id) for task in islice(live, limit))

    def purge(self, confirm: str) -> int:
        """Take every record out of the queue, those in work included; the records stay, and are READY.

        Args:
            confirm: The queue's name.

        Returns:
            How many were taken out.
        """
        return super().purge(confirm)

    def discard(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Take dead letters out of the queue, as `Queue.discard`; the records stay, and are READY."""
        if task_id is not None:
            return super().discard(limit, task_id)
        if limit is not None:
            checked_count("limit", limit)
        return sum(self._discard(task) for task in islice(self._records.dead(self.name), limit))

    def _change_unqueued(self, task_id: str, to: TaskStatus, verb: str) -> Task:
        def changed(task: Task, now: float) -> Task:
            status = task.status_at(now)
            if status not in UNQUEUED:
                allowed = ", ".join(sorted(UNQUEUED))
                raise IllegalTransition(task_id, verb, status, allowed)
            return self._core.lifecycle.unqueued(task, to, now)

        task = self._core.stored(task_id)
        return task if task.status is to else self._core.change(task_id, changed)


def open_dynamodb(
    table: str,
    client: Any,  # noqa: ANN401 - a boto3 client, or None
    key: str | None,
    shards: int,
    options: QueueOptions,
) -> AttachedQueue:
    """Return a queue on an attached table, with the order and shards that it was attached with.

    Raises:
        ValueError: If an argument is wrong, or does not agree with how the table was attached.
        TableMissing: If the table is not attached.
    """
    with needs("aws"):
        from freshq.stores.dynamodb.attached_store import AttachedDynamoDBStore  # noqa: PLC0415 - as in Queue
        from freshq.stores.dynamodb.attachment import open_attachment  # noqa: PLC0415 - as in Queue

    attachment, used_client = open_attachment(table, client, key, shards)
    defaults: QueueOptions = {"order": attachment.order, "max_age_seconds": NEVER_STALE_SECONDS}
    return AttachedQueue(
        AttachedDynamoDBStore(attachment, used_client), **cast("QueueOptions", {**defaults, **options})
    )
