"""What a store in a SQL database offers beyond the protocol that all stores share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from freshq.stores.conflicts import OnConflict, PutResult, put_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.stores.base import ClaimRequest, Store

T = TypeVar("T")

# What a rule makes of a task that was just taken, if it is not to be run.
GivenUp: TypeAlias = "Callable[[Task], Task | None]"
Putter: TypeAlias = "Callable[[Sequence[Task]], Sequence[PutResult]]"


class Work:
    """A task held by the lock of its row.

    Attributes:
        task: The task, as it is while it is worked on.
        connection: What is written through it is committed with the task, or not at all.
        result: Set it to keep a JSON value with the task.
        settled: The task once it is done; None before, and if the attempt failed.
    """

    def __init__(self, task: Task, connection: Connection) -> None:
        """Start with no result."""
        self.task = task
        self.connection = connection
        self.result: Any = None
        self.settled: Task | None = None


class Settling(Protocol):
    """What a store needs of a queue to settle a task by itself."""

    @property
    def lifecycle(self) -> Lifecycle:
        """What each verb makes of a task."""

    def now(self) -> float:
        """Return the queue's time in seconds."""

    def uniform(self) -> float:
        """Return a random number from [0, 1)."""

    def recover(self) -> int:
        """Bring in what is due; return how many."""


@runtime_checkable
class TransactionalStore(Protocol):
    """A store whose tasks live beside the data of their work."""

    def put_rows(
        self, tasks: Sequence[Task], on_conflict: OnConflict | None, connection: Connection | None
    ) -> list[str]:
        """Put tasks; return the value of the PutOutcome of each."""

    def hold(
        self, request: Callable[[], ClaimRequest], queue: Settling, given_up: GivenUp
    ) -> AbstractContextManager[Work | None]:
        """Hold the best task that is not given up, by the lock of its row while the context lasts."""


@runtime_checkable
class BatchStore(Protocol):
    """A store that can end several tasks at once."""

    def end_many(self, tasks: Sequence[Task], lease_token: str) -> set[str]:
        """Store the ends of tasks of one queue and lease, equal but for their ids; return whose it was."""


@runtime_checkable
class WaitingStore(Protocol):
    """A store that knows when there will be something to claim."""

    def next_due(self, queue: str, now: float) -> float | None:
        """Return when the next delay or lease ends, in seconds; None if there is none."""

    def arrivals(self) -> int:
        """Return a number that grows with each put of this process."""

    def await_arrival(self, seen: int, seconds: float) -> None:
        """Wait until `arrivals` is no longer what was seen, or so many seconds."""


class Waiting(Protocol):
    """What waiting needs of a queue."""

    @property
    def name(self) -> str:
        """Name of the queue."""

    @property
    def store(self) -> Store:
        """Home of its tasks."""

    def now(self) -> float:
        """Return the queue's time in seconds."""


def transactional(store: object, what: str) -> TransactionalStore:
    """Return the store as one that has transactions.

    Args:
        store: The store.
        what: The argument or verb that needs them.

    Raises:
        ValueError: If it has none.
    """
    if not isinstance(store, TransactionalStore):
        msg = f"{what}: needs a queue in a SQL database (Queue.sql), this one is in {type(store).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - a wrong argument is a ValueError throughout
    return store


def putter(store: Store, on_conflict: OnConflict | None, connection: Connection | None) -> Putter:
    """Return what puts tasks into a store in the way that was asked for.

    Raises:
        ValueError: If an argument is wrong, or the store cannot do it.
    """
    if on_conflict not in (None, *get_args(OnConflict)):
        msg = f"on_conflict: must be 'ignore', 'update' or None, got {on_conflict!r}"
        raise ValueError(msg)
    if connection is not None:
        rows = transactional(store, "connection")
        return lambda tasks: rows.put_rows(tasks, on_conflict, connection)
    if on_conflict is None:
        return lambda tasks: [put_result(added) for added in store.insert(tasks)]
    return lambda tasks: store.put_over(tasks, on_conflict)


def end_together(store: object, ended: Sequence[Task], tokens: Sequence[str]) -> set[tuple[str, str]]:
    """Store the ends of tasks with no result, by one statement a lease; return whose it was, by id and token.

    Args:
        store: The store; one that cannot do it does nothing.
        ended: The tasks as they end, equal but for what was put and claimed.
        tokens: The lease token of each.
    """
    if not isinstance(store, BatchStore):
        return set()
    by_token: dict[str, list[Task]] = {}
    for task, token in zip(ended, tokens, strict=True):
        if task.result is None:
            by_token.setdefault(token, []).append(task)
    return {(task_id, token) for token, tasks in by_token.items() for task_id in store.end_many(tasks, token)}


def wait_for(
    claim: Callable[[], list[T]], queue: Waiting, timeout_seconds: float | None, poll_seconds: float
) -> list[T]:
    """Claim until there is something: after each put here, at each due time, and every so often."""
    store = queue.store
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        seen = store.arrivals() if isinstance(store, WaitingStore) else 0
        if claims := claim():
            return claims
        left = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if left <= 0:
            return []
        if not isinstance(store, WaitingStore):
            time.sleep(left)
            continue
        now = queue.now()
        due = store.next_due(queue.name, now)
        store.await_arrival(seen, left if due is None else max(0.0, min(left, due - now)))
