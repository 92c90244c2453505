"""The transactions of `queue.transaction()` and their tasks, as the code inside them sees them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from freshq.model.answers import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Context

    import sqlalchemy as sa

    from freshq.model.codec import Codec
    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.stores.lines import ClaimRequest, LineReader, Stored

# The transactions that this code runs inside; some may have ended.
OPEN: Final[ContextVar[tuple[OpenTransaction, ...]]] = ContextVar("freshq_open_transactions", default=())


class HeldTask:
    """A task held by the lock of its row.

    Attributes:
        task: The task, as if it had been claimed.
        connection: Its transaction. Writes through it are committed with the task, or not at all.
        codec: Encodes the result, instead of the queue's codec.
        result: Set it to keep a JSON value with the task.
        settled: The completed task; None while it is held, and if the attempt failed.
        failed: The task after a failed attempt; None while it is held, and if that could not be stored.

    Examples:
        >>> queue = Queue.sql("sqlite:///tasks.db")
        >>> queue.create_table()
        >>> receipt = queue.put("work")
        >>> with queue.transaction() as held:
        ...     held.result = len(held.task.payload)
        >>> queue.get(receipt.task_id).result
        4
    """

    def __init__(self, task: Task, connection: sa.Connection) -> None:
        self.task = task
        self.connection = connection
        self.codec: Codec | None = None
        self.result: Any = None
        self.settled: Task | None = None
        self.failed: Task | None = None

    def as_claim(self) -> Claim:
        """Return the task in the form for observers: a claim without a lease."""
        return Claim(self.task, "", 0.0)


class OpenTransaction:
    """A transaction that lasts while the code of an application runs in it.

    Attributes:
        is_open: Whether it has not ended.
        task: The task that it holds.
    """

    def __init__(self, place: object) -> None:
        """Begin it in this thread, and in the coroutines and calls that it begins.

        Args:
            place: Identifies the database.
        """
        self._place = place
        self.is_open = True
        self.task: Task | None = None
        OPEN.set((*(other for other in OPEN.get() if other.is_open), self))

    def is_in(self, place: object) -> bool:
        """Return whether it is open, and in this database."""
        return self.is_open and self._place == place

    def holds(self, place: object, queue: str, task_id: str | None) -> bool:
        """Return whether it holds this task; None: any task of the queue."""
        task = self.task
        return (
            self.is_in(place) and task is not None and task.queue == queue and task_id in (None, task.task_id)
        )


def is_inside() -> bool:
    """Return whether this code runs inside such a transaction of any database."""
    opened = OPEN.get()
    return bool(opened) and any(each.is_open for each in opened)


def continue_from(context: Context) -> None:
    """Run on inside the transactions of another context."""
    OPEN.set(context.get(OPEN, ()))


class HeldSearch(Protocol):
    """The search for a task to hold."""

    def request(self) -> ClaimRequest:
        """Return a request for one task; after tasks were shed, another one."""

    def candidates(self, reader: LineReader, request: ClaimRequest) -> Iterator[Stored]:
        """Yield the claimable tasks of all lines, best first."""

    def shed_version(self, task: Task) -> Task | None:
        """Return the shed version of a task that was just claimed; None if it should run."""


class SettlingContext(Protocol):
    """The parts of a queue that a store needs to settle a held task in the same transaction."""

    @property
    def lifecycle(self) -> Lifecycle:
        """Computes the next version of a task."""

    @property
    def codec(self) -> Codec:
        """Turns results into JSON values."""

    def now(self) -> float:
        """Return the queue's time in seconds."""

    def uniform(self) -> float:
        """Return a random number from [0, 1)."""

    def bring_in_due(self) -> int:
        """Return a few expired leases and due tasks to their lines; return how many."""
