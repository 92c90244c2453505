"""A queue over the records of an application's DynamoDB table."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

from typing_extensions import override

from freshq.errors import IllegalTransition, NotFound, needs
from freshq.model.answers import Claim, Page, Receipt
from freshq.model.checks import checked_count, checked_id, checked_status
from freshq.model.lifecycle import new_token
from freshq.model.storable_options import QueueRules
from freshq.model.task import LIVE, Task, TaskStatus
from freshq.model.telemetry import ClaimSpan
from freshq.queue.base import BaseQueue
from freshq.queue.claim import checked_claim
from freshq.queue.core import Core, Verbs
from freshq.stores.base import Conflict, Guard, Store, TooLarge, parse_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Unpack

    from freshq.model.new_task import NewTask
    from freshq.model.options import QueueConfig, QueueOptions
    from freshq.policy.order import Order
    from freshq.policy.value import Decay
    from freshq.queue.core import Write
    from freshq.stores.base import CallersConnection, OnConflict
    from freshq.stores.dynamodb.key import KeyValue

logger = logging.getLogger(__name__)
# Records in these states can be held or made ready; others must first be cancelled, redriven or purged.
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
    """A store whose tasks are an application's records."""

    @property
    def is_by_time(self) -> bool:
        """Whether the creation time orders the lines, and not an attribute of the records."""

    def move(self, task: Task, guard: Guard) -> Task:
        """Replace a waiting task as `replace` does; read the attribute that orders the table again, if any.

        Raises:
            Conflict: If the guard does not hold.
            IllegalTransition: If the attribute is missing or of another type; nothing was changed.
        """

    def checked_id(self, task_id: str, name: str = "task_id") -> str:
        """Return the id of a record in its canonical form.

        Raises:
            ValueError: If no record can have this id; names the argument.
        """

    def record_id(self, hash_key: KeyValue, range_key: KeyValue | None) -> str:
        """Return the id of the record with a key.

        Raises:
            ValueError: If it is no key of the table.
        """

    def put_record(self, record: Mapping[str, Any], *, merge: bool) -> str:
        """Write a record, or with `merge` only the given attributes; return its id."""

    def get_record(self, record_id: str) -> dict[str, Any] | None:
        """Return the attributes of a record as JSON values; None if it does not exist."""

    def record_key(self, record_id: str) -> dict[str, Any]:
        """Return the key attributes of the record with an id."""

    def delete_record(self, record_id: str, now: float, *, force: bool) -> None:
        """Delete a record; with `force` even if it is in a queue."""

    def unqueued(self, start_after: str | None = None) -> Iterator[Task]:
        """Yield the records that are READY, in the order of the table."""


class AttachedCore(Core):
    """The core of an attached queue."""

    store: AttachedStore

    @property
    @override
    def time_order(self) -> Order | None:
        return super().time_order if self.store.is_by_time else None

    def __init__(self, store: AttachedStore, config: QueueConfig) -> None:
        self.store = store
        self._check_order(config)
        super().__init__(store, config)
        self.parse = self._parsed

    @override
    def _defaults(self) -> Mapping[str, Any]:
        return {"max_age_seconds": None}  # by default records do not become stale

    @override
    def _storable(self) -> Iterable[str]:
        return [name for name in QueueRules.model_fields if name != "order"]

    @override
    def _follow(self, config: QueueConfig) -> None:
        self._check_order(config)
        super()._follow(config)

    def _check_order(self, config: QueueConfig) -> None:
        """Reject options that need lines ordered by creation time, or lines of several classes."""
        if config.order.plans:
            msg = f"order: {config.order} is not supported on an attached table; use fifo or lifo"
            raise ValueError(msg)
        switches = config.order.switches
        if (switches or config.codel is not None) and not self.store.is_by_time:
            name, given = ("order", config.order) if switches else ("codel", "CoDel")
            msg = f"{name}: {given} needs lines in the order of time; this table's are by an attribute"
            raise ValueError(msg)

    @override
    def checked_write(self, on_conflict: OnConflict | None, connection: CallersConnection | None) -> Write:
        if on_conflict is not None:
            msg = "on_conflict: not supported on an attached table, whose records belong to the application; "
            raise ValueError(msg + "cancel the record, or wait until it ends, and put it again")
        return super().checked_write(on_conflict, connection)

    @override
    def move(self, task: Task, guard: Guard) -> Task:
        return self.store.move(task, guard)

    @override
    def move_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        return [self._moved(task, guard) for task, guard in changes]

    def _moved(self, task: Task, guard: Guard) -> Task | None:
        try:
            return self.move(task, guard)
        except (Conflict, IllegalTransition):
            return None

    @override
    def checked(self, new: NewTask, where: str = "") -> NewTask:
        if new.payload is not None:
            msg = f"{where}payload: must be None, because the record itself is the payload"
            raise ValueError(msg)
        if new.task_id is None:
            msg = f"{where}task_id: required, the id of a record in the table"
            raise ValueError(msg)
        try:
            task_id = self.store.checked_id(new.task_id)
        except ValueError as error:
            msg = f"{where}{error}"
            raise ValueError(msg) from None
        return new.model_copy(update={"task_id": task_id})

    @override
    def stored(self, task_id: str) -> Task:
        task = self.store.get(checked_id(task_id))
        if task is not None and task.status is TaskStatus.READY:
            return replace(task, queue=self.name)  # an unqueued record belongs to every queue
        if task is None or task.queue != self.name:
            raise NotFound.of_task(task_id, self.name) if task else NotFound.of_record(task_id)
        return task


class Records(Verbs):
    """Verbs on the records of an attached table, available as `AttachedQueue.records`.

    Attributes:
        name: Name of the queue.
    """

    _core: AttachedCore

    def __init__(self, core: AttachedCore) -> None:
        super().__init__(core)

    def put(self, record: Mapping[str, Any]) -> str:
        """Write a new record, or replace the record with its key, which keeps its state in the queue.

        Other attributes of the application are removed. Attributes with the same JSON value keep their stored
        form. The last of two writers wins.

        Args:
            record: Its attributes, including the table's key: JSON values, Decimal, bytes and sets.

        Returns:
            Its id.

        Raises:
            ValueError: If the key is missing or wrong, a name begins with `freshq_`, or DynamoDB has no such
                value; nothing was written.
            StoreError: If DynamoDB did not answer.
        """
        return self._core.store.put_record(record, merge=False)

    def upsert(self, record: Mapping[str, Any]) -> str:
        """Write the given attributes of a record, or a new record. Like `put`, but removes nothing.

        Raises:
            ValueError: As for `put`.
            StoreError: If DynamoDB did not answer.
        """
        return self._core.store.put_record(record, merge=True)

    def get(self, record_id: str) -> dict[str, Any] | None:
        """Return the application's attributes of a record as JSON values; None if it does not exist.

        Raises:
            ValueError: If no record can have this id.
        """
        return self._core.store.get_record(checked_id(record_id, "record_id"))

    def key(self, record_id: str) -> dict[str, Any]:
        """Return the key attributes of the record with an id, as JSON values.

        Raises:
            ValueError: If no record can have this id.
        """
        return self._core.store.record_key(checked_id(record_id, "record_id"))

    def delete(self, record_id: str, *, force: bool = False) -> None:
        """Delete a record from the table.

        Args:
            record_id: Its id.
            force: Delete it even if it is in a queue. A worker that holds it gets LeaseLost.

        Raises:
            ValueError: If no record can have this id.
            NotFound: If the record does not exist.
            IllegalTransition: If it is PENDING or TAKEN, and `force` is not set.
        """
        self._core.store.delete_record(checked_id(record_id, "record_id"), self._core.now(), force=force)

    def id_of(self, hash_key: KeyValue, range_key: KeyValue | None = None) -> str:
        """Return the id of the record with a key, as `Queue.put` and the other verbs take it.

        Args:
            hash_key: Value of the table's hash key: a str, an int or Decimal, or bytes.
            range_key: Value of its range key; None if it has none.

        Raises:
            ValueError: If it is no key of the table.
        """
        return self._core.store.record_id(hash_key, range_key)

    def hold(self, record_id: str) -> Task:
        """Put an unqueued record under construction: it cannot be queued until `ready` is called.

        Raises:
            NotFound: If the record does not exist.
            IllegalTransition: If the record is in the queue, or a dead letter.
        """
        return self._change_unqueued(record_id, TaskStatus.UNDER_CONSTRUCTION, "hold")

    def ready(self, record_id: str) -> Task:
        """Make an unqueued record ready to be put. A record that was never queued is ready already.

        Raises:
            NotFound: If the record does not exist.
            IllegalTransition: If the record is in the queue, or a dead letter.
        """
        return self._change_unqueued(record_id, TaskStatus.READY, "make ready")

    def claim_dead(self, limit: int = 1, *, lease_seconds: float | None = None) -> list[Claim]:
        """Claim dead letters, the latest first, under leases as in `Queue.claim`.

        Complete, fail or release the claims. A retry or an expired lease makes a task a dead letter again.

        Args:
            limit: Maximum number of claims to return.
            lease_seconds: Length of the leases; None for the queue's default.

        Returns:
            The claims; empty if there are no dead letters.

        Raises:
            ValueError: If an argument is wrong.
        """
        lease_seconds = checked_claim(self._core, limit, lease_seconds)
        dead = (self._claim_dead(task, lease_seconds) for task in self._core.store.dead(self.name))
        claims = (claim for claim in dead if claim is not None)
        observer, span = self._core.observer, ClaimSpan(self.name)
        with nullcontext() if observer is None else observer.claim(span):
            span.claims = claimed = list(islice(claims, limit))
        return claimed

    def _claim_dead(self, task: Task, lease_seconds: float) -> Claim | None:
        """Claim one dead letter; return None if another process changed it first."""
        now = self._core.now()
        until, token = round(now + lease_seconds, 6), new_token()
        claimed = self._core.rules.lifecycle.claimed_dead(task, now, token, until)
        try:
            held = self._core.store.replace(claimed, Guard.unchanged(task))
        except Conflict:
            return None
        except TooLarge:
            logger.warning("dead letter %s cannot be claimed", task.task_id, exc_info=True)
            return None
        return Claim.of(held)

    def _change_unqueued(self, record_id: str, to: TaskStatus, verb: str) -> Task:
        def changed(task: Task, now: float) -> Task:
            status = task.status_at(now)
            if status not in UNQUEUED:
                allowed = ", ".join(sorted(UNQUEUED))
                raise IllegalTransition.of_task(record_id, verb, status, allowed)
            return self._core.rules.lifecycle.unqueued(task, to, now)

        task = self._core.stored(record_id)
        return task if task.status is to else self._core.change(record_id, changed)


class AttachedQueue(BaseQueue):
    """A queue of an application's records, as returned by `Queue.dynamodb(..., attach=True)`.

    The payload of a task is the record: the application's attributes as JSON values. The verbs of a queue
    never change them, and a record that leaves the queue stays in the table. `put` also raises NotFound if
    the record does not exist, and IllegalTransition if it cannot be put, or lacks what orders the table.

    Attributes:
        name: Name of the queue.
        admin: The methods for operators, workers and functions.
        records: Verbs on the records themselves.
    """

    _core_class = AttachedCore
    _core: AttachedCore

    def __init__(self, store: AttachedStore, **options: Unpack[QueueOptions]) -> None:
        """Use a store of an application's records.

        Args:
            store: Home of the records.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an option is wrong.
        """
        super().__init__(store, **options)
        if self._core.kinds is not None:
            raise ValueError("kinds: not on an attached table, whose payloads are the records themselves")
        self.records: Records = Records(self._core)

    @override
    def put(
        self,
        payload: Any = None,
        *,
        task_id: str | None = None,
        priority: int = 0,
        delay_seconds: float = 0,
        at: datetime | float | None = None,
        max_age_seconds: float | None = None,
        group: str | None = None,
        kind: str | None = None,
        value: float | None = None,
        decay: Decay | str | None = None,
        trace_context: str | None = None,
        parent: Task | Claim | Mapping[str, Any] | None = None,
        on_conflict: OnConflict | None = None,
        debounce_max_seconds: float | None = None,
        cost: float | None = None,
        connection: CallersConnection | None = None,
    ) -> Receipt:
        """Put the record `task_id` into the queue; arguments and errors are as in `Queue.put`."""
        return super().put(
            payload,
            task_id=task_id,
            priority=priority,
            delay_seconds=delay_seconds,
            at=at,
            max_age_seconds=max_age_seconds,
            group=group,
            kind=kind,
            value=value,
            decay=decay,
            trace_context=trace_context,
            parent=parent,
            on_conflict=on_conflict,
            debounce_max_seconds=debounce_max_seconds,
            cost=cost,
            connection=connection,
        )

    @override
    def list(
        self, status: TaskStatus | str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        if checked_status(status) is TaskStatus.READY:
            return self._list_ready(limit, cursor)
        if cursor is not None:
            if checked_status(status) is TaskStatus.FAILURE:
                self._core.store.checked_id(parse_place(cursor).task_id, "cursor")
            elif checked_status(status) not in LIVE:
                cursor = self._core.store.checked_id(checked_id(cursor, "cursor"), "cursor")
        return super().list(status, limit=limit, cursor=cursor)

    def _list_ready(self, limit: int, cursor: str | None) -> Page:
        """Return a page of the records that may be put and are in no queue, by a scan of the table."""
        checked_count("limit", limit)
        if cursor is not None:
            cursor = self._core.store.checked_id(checked_id(cursor, "cursor"), "cursor")
        return Page.of(self._core.store.unqueued(cursor), limit, lambda task: task.task_id)


def open_dynamodb(
    table: str,
    client: Any,
    key: str | None,
    shards: int | None,
    options: QueueOptions,
) -> AttachedQueue:
    """Return a queue on an attached table, by default with the order of its attachment.

    Raises:
        ValueError: If an argument is wrong, or contradicts the attachment.
        TableMissing: If the table is not attached.
        MissingExtra: If the extra `aws` is not installed.
    """
    with needs("aws"):
        from freshq.stores.dynamodb.attached.attach import open_attachment
        from freshq.stores.dynamodb.attached.store import AttachedDynamoDBStore

    attachment, used_client = open_attachment(table, client, key, shards)
    merged = cast("QueueOptions", {"order": attachment.order, **options})
    return AttachedQueue(AttachedDynamoDBStore(attachment, used_client), **merged)
