"""What a queue asks of a store. Every store passes the same contract suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from freshq.errors import FreshqError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from freshq.model.task import Task, TaskStatus
    from freshq.stores.conflicts import OnConflict, PutResult
    from freshq.stores.lines import LineOrders, LineTurns


@dataclass(frozen=True, slots=True)
class Guard:
    """What must still hold of a task for a change to be made.

    Attributes:
        status: Its stored state.
        lease_token: Its lease, where the caller holds one.
        request_token: Its version, where the change was computed from what was read.
    """

    status: TaskStatus
    lease_token: str | None = None
    request_token: str | None = None

    def admits(self, task: Task) -> bool:
        """Return whether the task still is as the guard demands."""
        return (
            task.status is self.status
            and self.lease_token in (None, task.lease_token)
            and self.request_token in (None, task.request_token)
        )


class ConflictError(FreshqError):
    """A guard did not hold; nothing was changed.

    Attributes:
        current: The task as it is now, None if there is none.
    """

    def __init__(self, current: Task | None) -> None:
        """Keep what stood in the way."""
        super().__init__(f"found {current.status if current else 'no task'}")
        self.current = current


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request for tasks to work on.

    Attributes:
        queue: Name of the queue.
        orders: Which end of each line is served; a line is a group within a priority level.
        turns: Which line of a level is served next.
        limit: How many tasks at the most.
        now: Current time in seconds.
        created_after: Tasks created at or before this time are too old by the queue's own max age.
        deadline_after: Tasks whose deadline is at or before this time are too late: now, or later by
            the time that a task is expected to take.
        lease_until: Until when the claimer will hold what it gets, in seconds.
        expires: When the store may delete what it gets, in whole seconds.
        tokens: One fresh lease token for each task it may get.
    """

    queue: str
    orders: LineOrders
    turns: LineTurns
    limit: int
    now: float
    created_after: float
    deadline_after: float
    lease_until: float
    expires: int
    tokens: Sequence[str]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing.

    Attributes:
        tasks: The tasks of this page.
        cursor: Where the next page starts; None after the last one.
    """

    tasks: tuple[Task, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the tasks of this page."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """Return how many tasks this page has."""
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        """Return one task of this page."""
        return self.tasks[index]


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """A small record that the processes of a queue share.

    Attributes:
        values: What it holds: JSON values by name.
        version: Names the write that made it.
    """

    values: Mapping[str, Any]
    version: str


@dataclass(frozen=True, slots=True)
class Stats:
    """How many tasks are in each state, and how old the waiting ones are.

    Attributes:
        pending: Claimable now.
        delayed: Waiting for their time to come.
        taken: Held by a worker.
        success: Done.
        failure: Dead letters.
        cancelled: Cancelled by request.
        shed: Waited past their deadline, or given up by a rule.
        oldest_pending_seconds: Age of the oldest claimable task; None if there is none.
        newest_pending_seconds: Age of the newest claimable task; None if there is none.
        shed_by_reason: The shed tasks by reason, and besides them those that were refused before they
            were put; a reason that has none is left out.
        bounded: For each field that is not exact, what it is: "at least", "at most" or "not counted".
    """

    pending: int = 0
    delayed: int = 0
    taken: int = 0
    success: int = 0
    failure: int = 0
    cancelled: int = 0
    shed: int = 0
    oldest_pending_seconds: float | None = None
    newest_pending_seconds: float | None = None
    shed_by_reason: Mapping[str, int] = field(default_factory=dict)
    bounded: Mapping[str, str] = field(default_factory=dict)


class Store(Protocol):
    """Durable home of the tasks of one or more queues."""

    def create_table(self) -> None:
        """Make what the store needs, unless it is there; return once it can be used."""

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free.

        Returns:
            For each task, in order: True if it was added, False if the id is taken, or the error
            that kept it out.
        """

    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> Sequence[PutResult]:
        """Put tasks in order, each over the one of its id, as `freshq.stores.conflicts.put_over` tells.

        Returns:
            For each task, in order: the value of its PutOutcome, or the error that kept it out. A task
            whose id another queue has is a DUPLICATE where ids are the table's.
        """

    def claim(self, request: ClaimRequest) -> list[Task]:
        """Take up to `request.limit` claimable tasks, best first, each by one conditional write."""

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task, all but its payload, group and queue.

        Raises:
            ConflictError: If the guard does not hold.
        """

    def delete(self, task: Task, guard: Guard) -> None:
        """Delete a task; one that is gone already is no error, so that a lost reply is none either.

        Raises:
            ConflictError: If the guard does not hold.
        """

    def due(self, queue: str, now: float) -> list[Task]:
        """Return some tasks that need attention: lease run out, or delay over. Empty: none is left."""

    def get(self, task_id: str) -> Task | None:
        """Return a task by its id, strongly consistent."""

    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        """Yield every task of the queue, in an order of the store's own that `start_after` continues."""

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        """Return counts that cost at most a page per shard whatever the backlog."""

    def purge(self, queue: str) -> int:
        """Delete every task of the queue; return how many."""

    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, reading little more than `at_most` of each line."""

    def oldest_created(self, queue: str, created_after: float) -> float | None:
        """Return when the oldest claimable task was created; None if there is none."""

    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first.

        Args:
            queue: Name of the queue.
            created_after: Tasks created at or before this time are stale.
            count: How many at the most.
            groups: Only of these groups; None for all.
        """

    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        """Return a shared record; None if there is none."""

    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a shared record unless it changed since it was read; return whether it was written.

        Args:
            queue: Name of the queue.
            name: Name of the record.
            values: What it is to hold.
            version: The version that was read; None if there was none.
        """

    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a shared record of counts; after a lost reply, perhaps twice.

        Args:
            queue: Name of the queue.
            name: Name of the record.
            counts: What to add, by name; each name a Python identifier.
            expires: When the store may delete the record, in whole seconds; None: never.
        """

    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended."""

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""

    def close(self) -> None:
        """Give back what is held for this process; claims that are still held stay safe."""
