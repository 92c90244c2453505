"""The errors of freshq: one class for each case that a caller may want to handle.

A wrong argument is a ``ValueError`` that names the argument, raised before any write.
Every other error derives from `FreshqError`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Maximum length of a quoted value in an error.
MAX_QUOTED_CHARS: Final = 60


def quoted(value: object) -> str:
    """Return a wrong value for an error: as Python writes it, and only its beginning if it is long."""
    try:
        text = repr(value if not isinstance(value, str) else value[: MAX_QUOTED_CHARS + 1])
    except ValueError:  # an integer of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."


def plain(name: str) -> str:
    """Return a name chosen by a user as one line, shortened if it is long, for an error message."""
    text = repr(name[: MAX_QUOTED_CHARS + 1])[1:-1]
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."


class FreshqError(Exception):
    """Base class of the errors that freshq raises, except ``ValueError`` for wrong arguments."""


class RefusedError(FreshqError):
    """The queue's state does not allow the request; nothing was changed."""


class LeaseLost(RefusedError):
    """The claim no longer holds its task: its lease expired, or it was settled or cancelled.

    Attributes:
        task_id: The task.
        status: The status of the task now; None if it was deleted, or is not known.
    """

    status: str | None = None

    def __init__(self, task_id: str, why: str, status: str | None = None) -> None:
        """Name the task, say why the claim no longer holds it, and what the task is now."""
        super().__init__(
            f"task {task_id!r}: the claim no longer holds it ({why}); nothing was changed, stop working on it"
        )
        self.task_id = task_id
        self.status = status


class TaskNotFound(RefusedError):
    """The queue has no task with this id."""

    def __init__(self, task_id: str, queue: str, *, is_record: bool = False) -> None:
        """Name the task and its queue.

        Args:
            task_id: Its id.
            queue: The queue.
            is_record: Whether the id is of a missing record of an attached table.
        """
        msg = f"task {task_id!r}: not in queue {queue!r}; check the id and the queue's name"
        if is_record:
            msg = f"record {task_id!r}: the attached table has none with this id; check the id"
        super().__init__(msg)
        self.task_id = task_id


class IllegalTransition(RefusedError):
    """The verb does not apply to a task in this status."""

    def __init__(self, task_id: str, verb: str, status: str, allowed: str) -> None:
        """Name the task, the verb, the status of the task and the status that the verb needs."""
        super().__init__(f"task {task_id!r}: cannot {verb} a task that is {status}; {verb} needs {allowed}")
        self.task_id = task_id
        self.status = status


class NotReady(RefusedError):
    """The record is under construction and cannot be put yet."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"task {task_id!r}: cannot put a record that is UNDER_CONSTRUCTION; make it ready first"
        )
        self.task_id = task_id


class AlreadyQueued(RefusedError):
    """The record is already in a queue, PENDING or TAKEN, and keeps its position."""

    def __init__(self, task_id: str, queue: str, status: str) -> None:
        """Name the record, the queue that it is in, and its status there."""
        super().__init__(
            f"task {task_id!r}: already {status} in queue {queue!r}, nothing was changed; "
            "cancel it or wait until it is over"
        )
        self.task_id = task_id
        self.queue = queue
        self.status = status


class NoPosition(RefusedError):
    """The record lacks the attribute that orders its table, or has it with another type."""

    def __init__(self, task_id: str, attribute: str, attribute_type: str) -> None:
        """Name the record, the attribute, and the type that it must have: S, N or B."""
        super().__init__(
            f"task {task_id!r}: cannot be queued, because the table is in the order of {attribute!r} and the "
            f"record has none of type {attribute_type}, or one that is too long; "
            "set it, then put the record again"
        )
        self.task_id = task_id
        self.attribute = attribute


class LostRace(RefusedError):
    """Others changed the task during every attempt to change it."""

    def __init__(self, task_id: str, tries: int) -> None:
        """Name the task and the number of attempts."""
        super().__init__(f"task {task_id!r}: others changed it during each of {tries} attempts; try again")
        self.task_id = task_id


class Overloaded(RefusedError):
    """Admission control rejected the task: nothing was written for it.

    Attributes:
        task_id: The rejected task.
        reason: The `ShedReason` that it is counted under.
        retry_after_seconds: When to try again; the door adds jitter.
    """

    def __init__(self, task_id: str, reason: str, retry_after_seconds: float) -> None:
        """Name the task, the rule that rejected it, and when to try again."""
        super().__init__(
            f"task {task_id!r}: rejected ({reason}), the queue is overloaded; "
            f"try again in {retry_after_seconds:.1f} s if it is still useful then"
        )
        self.task_id = task_id
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class MatchLost(LeaseLost):
    """The match no longer holds its resource: its lease expired, or it was released."""

    def __init__(self, resource_id: str, why: str) -> None:
        """Name the resource and say why the match no longer holds it."""
        RefusedError.__init__(
            self, f"resource {resource_id!r}: the match no longer holds it ({why}); nothing was changed"
        )
        self.task_id = self.resource_id = resource_id


class ResourceNotFound(RefusedError):
    """No resource with this id is registered."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(f"resource {resource_id!r}: not registered; register it first")
        self.resource_id = resource_id


class WrongResourceState(RefusedError):
    """The verb does not apply to a resource in this status."""

    def __init__(self, resource_id: str, verb: str, status: str, advice: str) -> None:
        """Name the resource, the verb, the status of the resource, and what to do instead."""
        super().__init__(f"resource {resource_id!r}: cannot {verb} while it is {status}; {advice}")
        self.resource_id = resource_id
        self.status = status


class WaitTimeout(FreshqError, TimeoutError):
    """The task did not end in time. It is unchanged, and may still end.

    Attributes:
        task_id: The task.
        status: Its last known status.
    """

    def __init__(self, task_id: str, status: str, waited_seconds: float, others: int = 0) -> None:
        """Name the task, its status, the waited time, and how many other tasks have not ended either."""
        more = f", and so are {others} others" if others else ""
        super().__init__(
            f"task {task_id!r}: still {status} after {waited_seconds:.1f} s{more}; "
            "wait longer, or cancel the task"
        )
        self.task_id = task_id
        self.status = status


class StoreError(FreshqError):
    """A store call failed. A failed call never looks like an empty answer."""


class TableMissing(StoreError):
    """The table, or one of its indexes, does not exist."""


class Throttled(StoreError):
    """The store throttled the call, and its retries."""


class Unreachable(StoreError):
    """The store did not answer: check the network, the credentials and the region."""


class DamagedTaskError(StoreError):
    """A stored task cannot be read: it is damaged, or a newer version wrote it."""

    def __init__(self, task_id: str, error: Exception) -> None:
        """Name the task and what failed, but not the value: it may be part of a payload."""
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else type(error).__name__
        super().__init__(f"task {task_id!r} cannot be read: it is damaged or of a newer version ({what})")


class PutIncomplete(StoreError):
    """Some tasks of a `put_many` were not written.

    Attributes:
        receipts: The receipt or the error of each task, in order.
        task_ids: The id of each task, in order. Put a failed task again under its id, because only the
            reply may have been lost.
    """

    def __init__(self, receipts: list[object], task_ids: Sequence[str] = ()) -> None:
        """Keep the outcome of every task of the batch."""
        failed = [entry for entry in receipts if isinstance(entry, Exception)]
        super().__init__(
            f"{len(failed)} of {len(receipts)} tasks were not written; first error: {failed[0]}. "
            "Put the failed ones again: with the same task_id (see `task_ids`) none is created twice"
        )
        self.receipts = receipts
        self.task_ids = list(task_ids)


class MissingExtra(FreshqError, ImportError):
    """A package is missing that one of freshq's extras installs.

    Attributes:
        name: The missing package.
        extra: The extra to install.
    """

    def __init__(self, package: str, extra: str) -> None:
        """Name the missing package and the extra that installs it."""
        super().__init__(f"{package} is not installed; run: pip install 'freshq[{extra}]'", name=package)
        self.extra = extra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise `MissingExtra` if an import inside this block does not find its package.

    Args:
        extra: The extra of freshq that installs the package, such as "sql".

    Raises:
        MissingExtra: If a package is missing; names it and the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "freshq", "freshq_pipeline"}:
            raise
        raise MissingExtra(package, extra) from error


def __dir__() -> list[str]:
    classes = {name: found for name, found in globals().items() if isinstance(found, type)}
    return sorted(name for name, found in classes.items() if issubclass(found, FreshqError))
