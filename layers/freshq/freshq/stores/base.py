"""What a queue asks of a store. Every store passes the same contract suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from freshq.errors import FreshqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq.policy.order import Order
    from freshq.task import Task, TaskStatus


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
        order: Order of service within a priority level.
        limit: How many tasks at the most.
        now: Current time in seconds.
        created_after: Tasks created at or before this time are stale by the queue's own max age.
        lease_until: Until when the claimer will hold what it gets, in seconds.
        expires: When the store may delete what it gets, in whole seconds.
        tokens: One fresh lease token for each task it may get.
    """

    queue: str
    order: Order
    limit: int
    now: float
    created_after: float
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
class Stats:
    """How many tasks are in each state, and how old the waiting ones are.

    Attributes:
        pending: Claimable now.
        delayed: Waiting for their time to come.
        taken: Held by a worker.
        success: Done.
        failure: Dead letters.
        cancelled: Cancelled by request.
        shed: Waited past their deadline.
        oldest_pending_seconds: Age of the oldest claimable task; None if there is none.
        newest_pending_seconds: Age of the newest claimable task; None if there is none.
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

    def claim(self, request: ClaimRequest) -> list[Task]:
        """Take up to `request.limit` claimable tasks, best first, each by one conditional write."""

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task, all but its payload, group and queue.

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

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended."""

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""

    def close(self) -> None:
        """Give back what is held for this process; claims that are still held stay safe."""
