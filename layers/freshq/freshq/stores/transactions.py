"""The protocol of a store with transactions, beyond `Store`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from freshq.model.answers import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from freshq.model.answers import PutOutcome
    from freshq.model.codec import Codec
    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.stores.claim_request import ClaimRequest
    from freshq.stores.conflicts import OnConflict

    # An open transaction of the application's database. Other rooms import it from here.
    Connection: TypeAlias = sa.Connection


class HeldTask:
    """A task held by the lock of its row.

    Attributes:
        task: The task, as if it had been claimed.
        connection: Its transaction. What you write through it is committed with the task, or not at all.
        result: Set it to keep a JSON value with the task.
        settled: The completed task; None while it is held, and if the attempt failed.
        failed: The task after a failed attempt; None while it is held, and if that could not be stored.
    """

    def __init__(self, task: Task, connection: Connection) -> None:
        self.task = task
        self.connection = connection
        self.result: Any = None
        self.settled: Task | None = None
        self.failed: Task | None = None

    def as_claim(self) -> Claim:
        """Return the task as observers know it: a claim without a lease."""
        return Claim(self.task, "", 0.0)


class SettlingContext(Protocol):
    """What a store needs from a queue to settle a held task in the same transaction."""

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


class Transactions(Protocol):
    """Verbs that share a transaction with the caller's own statements."""

    def put(
        self, tasks: Sequence[Task], on_conflict: OnConflict | None, connection: Connection
    ) -> list[PutOutcome]:
        """Put tasks in the caller's transaction; return what each put did."""

    def hold(
        self,
        request: Callable[[], ClaimRequest],
        context: SettlingContext,
        shed_version: Callable[[Task], Task | None],
    ) -> AbstractContextManager[HeldTask | None]:
        """Hold the best task by the lock of its row, and settle it when the block ends.

        Args:
            request: Returns a request for one task. It is called again after tasks were shed.
            context: The queue.
            shed_version: Returns the shed version of a task that must not run; None if it is to run.

        Returns:
            A context manager that yields the held task; None if nothing is claimable.
        """
