"""The protocol of a store, and its arguments and answers. Every store passes the same contract suite."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from freshq.errors import FreshqError, StoreError, quoted
from freshq.model.fields import plain_token
from freshq.model.forks import drained
from freshq.model.task import TaskStatus, changed, succession
from freshq.stores.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from freshq.model.answers import PutOutcome
    from freshq.model.task import Task
    from freshq.policy.reserve import ReserveSpans
    from freshq.stores.held import HeldSearch, HeldTask, SettlingContext
    from freshq.stores.lines import (
        Choice,
        ClaimRequest,
        LimitedLines,
        LineReader,
        Stored,
        WaitingReader,
    )

    Connection: TypeAlias = sa.Connection

    class DriverConnection(Protocol):
        """A connection of a database's driver, or Django's."""

        def cursor(self) -> Any:
            """Open a cursor."""

        def commit(self) -> Any:
            """Commit the transaction."""

        def rollback(self) -> Any:
            """Roll back the transaction."""

    # Connections that a put accepts: with `AsyncQueue` also connections for asyncio.
    CallersConnection: TypeAlias = (
        sa.Connection
        | DriverConnection
        | Session
        | scoped_session[Any]
        | AsyncConnection
        | AsyncSession
        | async_scoped_session[Any]
    )
    from collections.abc import Iterator

T = TypeVar("T")
# Maximum number of stale tasks that a count of recently expired tasks reads.
MOST_STALE: Final = 1_000
# Deadlines of expired tasks that a process keeps until they are counted.
MOST_EXPIRED: Final = 100_000
# The states that `Stats` counts.
STATES: Final = ("pending", "delayed", "taken", "success", "failure", "cancelled", "shed")
# The ends of tasks by which value is delivered or lost. Nobody loses a cancelled task.
VALUE_ENDS: Final = (TaskStatus.SUCCESS, TaskStatus.SHED, TaskStatus.FAILURE)
OnConflict: TypeAlias = Literal["ignore", "update", "after"]
# The outcome of the put, or the error that prevented it.
PutResult: TypeAlias = "PutOutcome | FreshqError"


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of a queue's history that is kept.

    Attributes:
        history_id: Names the history. A restarted history has another id.
        first_batch: The oldest batch of which no event was deleted.
        last_batch: The last batch; less than `first_batch` if there is none.
    """

    history_id: str
    first_batch: int
    last_batch: int


class History(Protocol):
    """The histories of the queues of a store. A batch never changes, but is eventually deleted.

    Attributes:
        command: The command that begins a history.
    """

    command: ClassVar[str]

    def kept(self, queue: str) -> Kept | None:
        """Return which part of a queue's history is kept; None if the queue has no history.

        Raises:
            StoreError: If the store did not answer. So for all methods.
        """

    def add_batches(self, queue: str) -> None:
        """Put the events that are in no batch yet into new ones."""

    def events(self, queue: str, batch: int) -> Sequence[Mapping[str, Any]]:
        """Return the events of a batch in landed form, in the order in which they were written."""


class DeadPlace(NamedTuple):
    """The place of a dead letter.

    Attributes:
        dead_at: When it became a dead letter, in seconds since the epoch.
        task_id: Its id.
    """

    dead_at: float
    task_id: str

    @property
    def cursor(self) -> str:
        """The place as a string: whole microseconds, then the id."""
        return f"{round(self.dead_at * 1e6)}/{self.task_id}"


class DeadLetters(NamedTuple):
    """The dead letters of a queue.

    Attributes:
        number: The number of dead letters; a lower bound if there are more than a page.
        more: Whether there are more.
        oldest_at: When the first of them died, in seconds since the epoch; None if there is none.
    """

    number: int
    more: bool
    oldest_at: float | None


def place_of(task: Task) -> DeadPlace:
    """Return the place of a dead letter.

    It changes only when the task leaves the dead letters or becomes one again.
    """
    return DeadPlace(task.updated, task.task_id)


def parse_place(cursor: str) -> DeadPlace:
    """Return the place that a cursor names.

    Raises:
        ValueError: If it names none.
    """
    micros, slash, task_id = cursor.partition("/") if isinstance(cursor, str) else ("", "", "")
    if not (micros.isdecimal() and micros.isascii() and slash and task_id):
        msg = f"cursor: must be that of a page of dead letters, got {quoted(cursor)}"
        raise ValueError(msg)
    return DeadPlace(int(micros) / 1e6, task_id)


class LentConnection:
    """A connection for asyncio that a coroutine lends to the thread of its call.

    Attributes:
        connection: The connection, unchecked.
    """

    connection: Any

    def run(self, work: Callable[[Connection], T]) -> T:
        """Call a function with the connection that the coroutine uses, and return its result."""
        raise NotImplementedError


class Transactions(Protocol):
    """Verbs that share a transaction with the caller's own statements."""

    def inside(self, connection: CallersConnection | LentConnection) -> AbstractContextManager[None]:
        """In this block, let this thread use the store only in the caller's transaction.

        Raises:
            ValueError: If the store cannot use the connection; names what it can use.
        """

    def put(self, on_conflict: OnConflict | None) -> Callable[[Sequence[Task]], list[PutOutcome]]:
        """Return a function that puts tasks in that transaction and returns each put's outcome."""

    def hold(self, search: HeldSearch, context: SettlingContext) -> AbstractContextManager[HeldTask | None]:
        """Hold the best task by the lock of its row, and settle it when the block ends.

        Args:
            search: Finds the task.
            context: The queue.

        Returns:
            A context manager that yields the held task; None if nothing is claimable.
        """


@dataclass(frozen=True, slots=True)
class Guard:
    """The condition of a write: properties of the stored task that must still hold.

    Attributes:
        status: Its stored status.
        lease_token: Its lease token, for a caller that holds it; None: any token.
        request_token: Its version, for a change computed from a read version; None: any version.
        is_followed: Whether a successor waited behind the task when it was read.
    """

    status: TaskStatus
    lease_token: str | None = None
    request_token: str | None = None
    is_followed: bool = False

    @classmethod
    def unchanged(cls, task: Task) -> Self:
        """Return the guard of a change computed from a task that was read, whoever waits behind it now."""
        is_followed = task.successor_record is not None
        lease_token = plain_token(task.lease_token) if is_followed else task.lease_token
        return cls(task.status, lease_token, task.request_token, is_followed)

    @classmethod
    def exact(cls, task: Task) -> Self:
        """Return the guard of a write that ends a task with its successor, or changes that."""
        return cls(task.status, task.lease_token, task.request_token)

    @classmethod
    def held(cls, token: str | None) -> Self:
        """Return the guard of a write by the holder of a lease."""
        return cls(TaskStatus.TAKEN, lease_token=token)

    def admits(self, task: Task) -> bool:
        """Return whether the guard holds for the task."""
        return (
            task.status is self.status
            and self.lease_token in (None, task.lease_token)
            and self.request_token in (None, task.request_token)
        )

    def admits_behind(self, task: Task) -> bool:
        """Return whether the guard holds for a task with a successor, apart from the mark of that."""
        return task.successor_record is not None and self.admits(
            changed(task, lease_token=plain_token(task.lease_token))
        )


class TooLarge(StoreError):
    """A task would not fit into the largest item of the store; nothing was changed."""


class Conflict(FreshqError):
    """A guard did not hold; nothing was changed.

    Attributes:
        current: The stored task; None if there is none.
    """

    def __init__(self, current: Task | None) -> None:
        super().__init__(f"found {current.status if current else 'no task'}")
        self.current = current


@dataclass(frozen=True, slots=True)
class Due:
    """Tasks that are due.

    Attributes:
        tasks: The tasks.
        more: Whether there may be more.
    """

    tasks: Sequence[Task]
    more: bool


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """A small record that the processes of a queue share.

    Attributes:
        values: JSON values by name.
        version: Token of the write that made it; None: it is not stored under its name yet.
    """

    values: Mapping[str, Any]
    version: str | None


class Health(StrEnum):
    """The result of a check of a queue."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a queue that an operator may have to know.

    Attributes:
        health: How bad it is.
        subject: The subject of the check, in a word or two.
        text: What was found.
        action: The remedy; empty if none is needed.
    """

    health: Health
    subject: str
    text: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """The number of tasks by status, and the age of waiting tasks.

    Attributes:
        pending: Claimable now.
        delayed: Waiting for their `not_before`.
        taken: Held under a lease.
        success: Completed.
        failure: Dead letters.
        cancelled: Cancelled by request.
        shed: Past their deadline, or shed early.
        oldest_pending_seconds: Age of the oldest claimable task; None if there is none.
        newest_pending_seconds: Age of the newest claimable task; None if there is none.
        oldest_dead_seconds: Time since the death of the oldest dead letter; None if there is none.
        oldest_snapshot_seconds: Age of the oldest snapshot, which keeps PostgreSQL from removing dead rows;
            None if there is none, its age is not known, or on other stores.
        dead_rows: Old versions of the tasks' rows that PostgreSQL has not removed, as it estimates; None on
            other stores.
        value_delivered: Value that the completed tasks still had when they were done; None if no task that
            ended has a value or a decay. Others are worth 1.
        value_lost: Value that these lost by then, and all of the shed tasks and the dead letters; None as
            above. Puts turned away have left no task.
        shed_by_reason: The shed tasks by reason, plus the puts turned away. Reasons with no task are
            left out.
        bounded: For each field that is not exact: "at least", "at most" or "not counted".
        ids: The first task ids of each state, if they were asked for.

    Examples:
        >>> queue.stats().taken
        1
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
    oldest_dead_seconds: float | None = None
    oldest_snapshot_seconds: float | None = None
    dead_rows: int | None = None
    value_delivered: float | None = None
    value_lost: float | None = None
    shed_by_reason: Mapping[str, int] = field(default_factory=dict)
    bounded: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# Approximate counts read no task, and so no value.
NO_VALUES: Final = dict.fromkeys(("value_delivered", "value_lost"), "not counted")


class ExpiredTasks:
    """The deadlines of stale tasks that this process took out of their lines. Thread-safe."""

    def __init__(self) -> None:
        self._deadlines: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=MOST_EXPIRED))

    def note(self, queue: str, deadlines: Iterable[float]) -> None:
        """Note the deadlines, in seconds, of tasks of a queue that were waiting until then."""
        self._deadlines[queue].extend(deadlines)

    def any(self, queue: str) -> bool:
        """Return whether there are any since the last call of `take`."""
        return bool(self._deadlines.get(queue))

    def take(self, queue: str) -> list[float]:
        """Return the deadlines of a queue's tasks since the last call."""
        noted = self._deadlines.get(queue)
        return [*drained(noted)] if noted else []


class Tasks(Protocol):
    """Tasks by their ids: put, read, change and delete them."""

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free.

        Returns:
            For each task, in order: True if it was added, False if the id is taken, or the error
            that prevented it.
        """

    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> Sequence[PutResult]:
        """Put tasks in order, each over the task of the same id, by the rule of `freshq.stores.base`.

        Returns:
            For each task, in order: what its put did, or the error that prevented it. If
            another queue of the table has the id, and ids are unique in the table, DUPLICATE.

        Raises:
            NotImplementedError: If its tasks are an application's records.
        """
        msg = f"{type(self).__name__} never replaces tasks"
        raise NotImplementedError(msg)

    def get(self, task_id: str) -> Task | None:
        """Return a task by its id, strongly consistent."""

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task, all but its payload, group and queue.

        Raises:
            Conflict: If the guard does not hold.
        """

    def replace_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        """Store the new versions of several tasks of one queue, each under its own guard.

        Returns:
            For each change, in order: the stored task, or None if the guard did not hold.
        """
        return [self._replaced_or_none(task, guard) for task, guard in changes]

    def succeed(self, current: Task, ended: Task, entered: Task) -> None:
        """End a held task and put its successor, in one transaction or write.

        Args:
            current: The held task as it is stored.
            ended: The task as it ends.
            entered: Its successor.

        Raises:
            Conflict: If the task has changed.
        """
        raise NotImplementedError(type(self).__name__)

    def _replaced_or_none(self, task: Task, guard: Guard) -> Task | None:
        try:
            return self.replace(task, guard)
        except Conflict:
            return None

    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        """Store how several claims of one queue ended, each under its own lease. No task may occur twice.

        Args:
            settled: For each claim, the next version of its task and the lease token.

        Returns:
            For each claim, in order: the stored task; Conflict if the lease no longer holds it; or the
            error that leaves open whether it was stored. An error for one does not affect the rest.
        """
        return [self._settled(task, lease_token) for task, lease_token in settled]

    def _settled(self, task: Task, lease_token: str) -> Task | FreshqError:
        try:
            return self.replace(task, Guard(TaskStatus.TAKEN, lease_token=lease_token))
        except Conflict as conflict:
            current = conflict.current
            # An earlier call may have stored it, and its reply was lost.
            return task if current and current.request_token == task.request_token else conflict
        except FreshqError as error:
            return error  # the caller reports it with the other answers

    def delete(self, task: Task, guard: Guard) -> None:
        """Delete a task. Missing tasks are ignored, so a delete whose reply was lost can be repeated.

        Raises:
            Conflict: If the guard does not hold.
        """

    def purge(self, queue: str) -> int:
        """Delete every task of the queue; return how many."""

    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        """Yield every task of the queue, in an order that `start_after`, a task id, continues."""

    def listed(
        self,
        queue: str,
        status: TaskStatus,
        now: float,
        created_after: float,
        start_after: str | None,
    ) -> Iterator[tuple[Task | None, str]] | None:
        """Return the PENDING or the TAKEN tasks, found by an index; None if `scan` is as good.

        Args:
            queue: Name of the queue.
            status: PENDING, without stale tasks, or TAKEN.
            now: Current time in seconds.
            created_after: Tasks created at or before this time are stale.
            start_after: The cursor of the task that the first one follows; None to begin.

        Returns:
            The tasks with their cursors. None instead of a task for each task that was read in vain.

        Raises:
            ValueError: If no listing returned this cursor.
        """
        return None

    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        """Yield the dead letters of a queue, the last to die first, at the cost of the dead letters only.

        Args:
            queue: Name of the queue.
            start_after: Place of the dead letter that the first one follows; None to begin.
        """

    def count_dead(self, queue: str) -> DeadLetters:
        """Count the dead letters of a queue, at most a page of each shard."""


def _missing(store: object) -> NotImplementedError:
    return NotImplementedError(f"{type(store).__name__} takes tasks in another way")


class Lines(Protocol):
    """The claimable tasks of a queue, by priority level and group.

    A claim asks lines for tasks: by `take`, by `take_locked` if the store must lock them first, or the claim
    counts what runs, or by `take_each` if no write takes tasks by their line. Which lines, and in what order,
    `freshq.queue.claim.Search` decides.

    Attributes:
        locks_to_take: Whether every claim must take under locks.
        takes_each: Whether every claim takes one task after the other.
    """

    locks_to_take: bool = False
    takes_each: bool = False

    def line_reader(self, queue: str) -> LineReader:
        """Return the reader of a queue's lines for claims."""
        raise _missing(self)

    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        """Take tasks of the chosen lines, in any order, each by one conditional write.

        Nothing is taken if a line is in a range of `choice.unless`, or if finding that out would take long.
        """
        raise _missing(self)

    def take_locked(self, request: ClaimRequest, work: Callable[[LimitedLines], list[Stored]]) -> list[Task]:
        """Call `work`, which chooses and takes tasks, under locks; return the tasks that it took.

        If the reply was lost, they may come in another order.
        """
        raise _missing(self)

    def take_each(
        self, request: ClaimRequest, work: Callable[[LineReader[Any]], Iterator[Any]]
    ) -> list[Task]:
        """Take the best of the tasks that a function finds, each by one conditional write; return them."""
        raise _missing(self)

    def look(self, request: ClaimRequest, work: Callable[[LineReader[Any]], T]) -> T:
        """Have a function look at the lines without a lock; return its answer."""
        raise _missing(self)

    def searches_again(self, queue: str) -> bool:
        """Return whether a claim that found nothing should search once more, with nothing left out."""
        return False

    def clear_stale(self, queue: str, now: float) -> int:
        """Take a portion of the stale tasks out of their lines; return how many. 0 if none is in the way."""
        return 0

    def reread_lines(self, queue: str) -> None:
        """Make the next call read the present lines, ignoring those that this process remembers."""
        return

    def read_waiting(self, queue: str, now: float, work: Callable[[WaitingReader], T]) -> T:
        """Have a function read what waits in the lines of a queue at a time; return its answer."""

    def count_stale(self, queue: str, since: float, now: float, life_seconds: float) -> int:
        """Count the tasks in the lines that went stale between two times; at least, if they are many.

        Args:
            queue: Name of the queue.
            since: Not those that were stale at this time, in seconds.
            now: Current time in seconds.
            life_seconds: Age at which most of the tasks are stale.
        """

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        """Return counts that cost at most a page per shard, whatever the backlog."""

    def exact_stats(
        self,
        queue: str,
        now: float,
        created_after: float,
        spans: ReserveSpans,
    ) -> Stats | None:
        """Return exact counts; None if the store has no better way than `tally` over every task.

        Args:
            queue: Name of the queue.
            now: The time to count at, in seconds.
            created_after: Tasks created at or before this time are stale.
            spans: When claims passed tasks over because of the reserve.
        """
        return None

    def shed_by_group(
        self,
        queue: str,
        now: float,
        created_after: float,
    ) -> dict[str | None, int] | None:
        """Count the stored tasks that were shed, by group; None if the store has to read every task.

        Args:
            queue: Name of the queue.
            now: The time to count at, in seconds.
            created_after: Waiting tasks created at or before this time are stale.
        """
        return None

    def exact_count_units(self) -> int | None:
        """Return about how many units the reads of an exact count are billed; None if they are not billed.

        Raises:
            StoreError: If the size of the table cannot be read.
        """
        return None


class Agenda(Protocol):
    """The tasks of a queue that have a due time: delayed, leased or stale."""

    def due(self, queue: str, now: float, limit: int) -> Due:
        """Return up to `limit` tasks with an expired lease or a delay that has passed.

        Tasks whose row another transaction holds are left out.
        """

    def delayed(self, queue: str, limit: int) -> list[Task]:
        """Return some of the delayed tasks, the next due first: at least one page of tasks that come due."""

    def leased(self, queue: str, limit: int) -> list[Task]:
        """Return a portion of the TAKEN tasks, the first lease to end first, as `delayed` does."""

    def tidy(self, queue: str, now: float, limit: int) -> int:
        """Take stale tasks out of their lines, and delete tasks past their retention.

        Returns:
            How many tasks, at most `limit`; 0 if the store does it by itself.
        """
        return 0

    def tidy_in_claim(self, queue: str, now: float, limit: int) -> int:
        """As `tidy`, but within a claim, where it may be too slow: a store may do less, or nothing."""
        return self.tidy(queue, now, limit)

    def next_due(self, queue: str, now: float) -> float | None:
        """Return when the next delay or lease ends, in seconds; None if there is none, or it is not known."""
        return None

    def take_unreadable(self) -> int:
        """Return how many tasks that cannot be read became dead letters here since the last call."""
        return 0


class Records(Protocol):
    """The small records that the processes of a queue share, its counts, and its pause."""

    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        """Return a shared record; None if there is none."""

    def read_records(self, queue: str, prefix: str) -> list[SharedRecord]:
        """Return the records whose names begin with a prefix; none if the store has no transactions."""
        return []

    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a shared record unless it changed since it was read; return whether it was written.

        Args:
            queue: Name of the queue.
            name: Name of the record.
            values: Its new values.
            version: The version that was read; None if there was none.
        """

    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a shared record of counts. After a lost reply they may be added twice.

        Args:
            queue: Name of the queue.
            name: Name of the record.
            counts: The amounts to add, by name; each name is a Python identifier.
            expires: When the store may delete the record, in whole seconds; None: never.
        """

    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended."""

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""


class Store(Tasks, Lines, Agenda, Records, Protocol):
    """Durable home of the tasks of one or more queues.

    Attributes:
        transactions: Present if tasks live in a database with transactions; otherwise None.
        bills_reads: Whether each read is billed, so that an exact count has a price.
        history: Present if the store can keep every change of a queue's tasks; otherwise None.
        place: Equal for two stores only if an id that is taken in one is taken in the other; None: not known.
        clock: Returns the time of the store, in seconds since the epoch, or of this machine if the store has
            no clock; raises StoreError if it was never read, and the store does not answer.
        named_shards: The number that the process named; None: none, so the stored number applies.
        counts_groups: Whether its claims enforce the limits of groups.
    """

    transactions: Transactions | None = None
    bills_reads: bool = False
    history: History | None = None
    place: object = None
    clock: Callable[[], float] = staticmethod(time.time)
    named_shards: int | None = None
    counts_groups: bool = False

    def of_queue(self, queue: str) -> Store:
        """Return a store for another queue in the same tables, on the same connections."""
        return self

    def aside(self) -> AbstractContextManager[None]:
        """In this block, let this thread wait for no lock that a transaction of another thread may hold.

        A call then raises Throttled instead. The locks of a server keep only their own rows waiting, so there
        nothing changes.
        """
        return nullcontext()

    def queue_names(self) -> list[str]:
        """Return the names of the queues in the tables, sorted; empty if the store cannot tell."""
        return []

    def create_table(self) -> None:
        """Create the tables unless they exist; return once they can be used."""

    def examine(self) -> Iterator[Finding]:
        """Look for reasons why the store is unsafe or out of date; change nothing.

        Raises:
            StoreError: If the store did not answer.
        """
        yield from ()

    def erase(self, queue: str, task_ids: Collection[str], group: str | None) -> Iterator[Finding]:
        """Erase data of deleted tasks that the store keeps elsewhere, such as their group in a history.

        Args:
            queue: Name of the queue.
            task_ids: The tasks; empty if `group` names them.
            group: The group of the tasks; None if `task_ids` names them.

        Yields:
            The erased data, and as a warning the data that could not be reached, and until when.
        """
        yield from ()

    def caller(self) -> str:
        """Return the identity of the store's user, by default the user of the operating system."""
        import getpass
        import platform

        try:
            user = getpass.getuser()
        except (ImportError, KeyError, OSError):  # a container's user may have no name
            user = f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"
        return f"{user}@{platform.node()}"

    def replace_followed(self, task: Task, guard: Guard, current: Task | None) -> Task:
        """Store the new version of a held task behind which a successor waits; return it as it is or ended.

        Args:
            task: The new version.
            guard: The guard of the caller, which does not know of the successor.
            current: The stored task, for which it did not hold.

        Raises:
            Conflict: If the guard does not hold, even without the successor.
        """
        while current is not None and guard.admits_behind(current):
            try:
                if task.status is TaskStatus.TAKEN:
                    kept = {"lease_token": current.lease_token, "successor_record": current.successor_record}
                    expires = max(task.expires, current.expires)
                    self.replace(changed(task, expires=expires, **kept), Guard.exact(current))
                    return task
                ended, entered = succession(task, current)
                self.succeed(current, ended, entered)
            except Conflict as conflict:  # another successor
                current = conflict.current
            else:
                self.notifier.changed(entered.queue, [entered])
                return ended
        # An earlier try may have been stored, and its reply lost.
        if current is None or current.request_token != task.request_token:
            raise Conflict(current)
        return task

    def with_dead_rows(self, stats: Stats) -> Stats:
        """Return stats with the store's figures about dead rows."""
        return stats

    @cached_property
    def notifier(self) -> Notifier:
        """Wakes waiters for tasks: shared by all stores of this process on the same table."""
        return Notifier()

    @cached_property
    def expired(self) -> ExpiredTasks:
        """The stale tasks that this process took out of their lines."""
        return ExpiredTasks()

    @property
    def shards(self) -> int | None:
        """Partitions of each line; None if the store has no partitions."""
        return None

    def use_shards(self, shards: int) -> None:
        """Use a number of partitions from now on."""
        msg = f"{type(self).__name__} has no shards, and cannot have {shards}"
        raise NotImplementedError(msg)

    def close(self) -> None:
        """Release this process's resources; leases that are still held stay safe."""
