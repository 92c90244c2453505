"""The errors of freshq, one class for each answer a caller may want to tell apart.

A wrong argument is a ``ValueError`` that names the argument, raised before any write.
Everything else derives from `FreshqError`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class FreshqError(Exception):
    """Base class of every error that freshq raises on purpose, bad arguments aside."""


class RefusedError(FreshqError):
    """The queue's state does not allow the request; nothing was changed."""


class LeaseLost(RefusedError):  # noqa: N818 - the public contract fixes this name
    """The claim no longer holds its task: the lease ran out, or it was settled already."""

    def __init__(self, task_id: str, why: str) -> None:
        """Name the task and say why the claim holds it no more."""
        super().__init__(f"task {task_id!r}: the claim no longer holds it ({why}); nothing was changed")
        self.task_id = task_id


class TaskNotFound(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The queue has no task of this id."""

    def __init__(self, task_id: str, queue: str) -> None:
        """Name the task and the queue that was searched."""
        super().__init__(f"task {task_id!r}: not in queue {queue!r}; check the id and the queue's name")
        self.task_id = task_id


class IllegalTransition(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The verb does not apply to a task in this state."""

    def __init__(self, task_id: str, verb: str, status: str, allowed: str) -> None:
        """Name the task, the verb, the state the task is in and the one the verb needs."""
        super().__init__(f"task {task_id!r}: cannot {verb} a task that is {status}; {verb} needs {allowed}")
        self.task_id = task_id
        self.status = status


class NotReady(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The record is under construction: it cannot be queued yet."""

    def __init__(self, task_id: str) -> None:
        """Name the record."""
        super().__init__(
            f"task {task_id!r}: cannot put a record that is UNDER_CONSTRUCTION; make it ready first"
        )
        self.task_id = task_id


class AlreadyQueued(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The record is in a queue already, waiting or in work; it keeps its place."""

    def __init__(self, task_id: str, queue: str, status: str) -> None:
        """Name the record, the queue that it is in, and its state there."""
        super().__init__(f"task {task_id!r}: already in queue {queue!r}, it is {status}; nothing was changed")
        self.task_id = task_id
        self.queue = queue
        self.status = status


class LostRace(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The task changed at each try to change it."""

    def __init__(self, task_id: str, tries: int) -> None:
        """Name the task and say how often it was tried."""
        super().__init__(f"task {task_id!r}: changed at each of {tries} tries to change it; try again")
        self.task_id = task_id


class Overloaded(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The queue takes no more work for now: nothing was written for this task.

    Attributes:
        task_id: The task that was refused.
        reason: What it is counted as, a `ShedReason`.
        retry_after_seconds: When to try again, different for everyone.
    """

    def __init__(self, task_id: str, reason: str, retry_after_seconds: float) -> None:
        """Name the task, the rule that refused it, and when to come back."""
        super().__init__(
            f"task {task_id!r}: refused ({reason}), the queue is overloaded; "
            f"try again in {retry_after_seconds:.1f} s, if it is still worth it then"
        )
        self.task_id = task_id
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class MatchLost(LeaseLost):
    """The match no longer holds its resource: the lease ran out, or it was released already."""

    def __init__(self, resource_id: str, why: str) -> None:
        """Name the resource and say why the match holds it no more."""
        RefusedError.__init__(
            self, f"resource {resource_id!r}: the match no longer holds it ({why}); nothing was changed"
        )
        self.task_id = self.resource_id = resource_id


class ResourceNotFound(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """No resource of this id is registered."""

    def __init__(self, resource_id: str) -> None:
        """Name the resource."""
        super().__init__(f"resource {resource_id!r}: not registered; register it first")
        self.resource_id = resource_id


class WrongResourceState(RefusedError):  # noqa: N818 - reads as the outcome that it is
    """The verb does not apply to a resource in this state."""

    def __init__(self, resource_id: str, verb: str, status: str, advice: str) -> None:
        """Name the resource, the verb, the state the resource is in, and what may be done instead."""
        super().__init__(f"resource {resource_id!r}: cannot {verb} while it is {status}; {advice}")
        self.resource_id = resource_id
        self.status = status


class StoreError(FreshqError):
    """The store did not carry out a call. Never to be read as an empty answer."""


class TableMissing(StoreError):  # noqa: N818 - reads as the outcome that it is
    """The table, or an index of it, does not exist."""


class Throttled(StoreError):  # noqa: N818 - reads as the outcome that it is
    """The store refused the call for its rate, and went on refusing it when it was retried."""


class Unreachable(StoreError):  # noqa: N818 - reads as the outcome that it is
    """The store did not answer: network, credentials or region."""


class PutIncomplete(StoreError):  # noqa: N818 - reads as the outcome that it is
    """Some tasks of a `put_many` were written, others were not.

    Attributes:
        receipts: One entry a task, in order: its receipt, or the error that kept it out.
    """

    def __init__(self, receipts: list[object]) -> None:
        """Keep the outcome of every task of the batch."""
        failed = [entry for entry in receipts if isinstance(entry, Exception)]
        super().__init__(
            f"{len(failed)} of {len(receipts)} tasks were not written; the first error: {failed[0]}. "
            "Put the failed ones again: with the same task_id none is created twice"
        )
        self.receipts = receipts


class MissingExtra(FreshqError, ImportError):  # noqa: N818 - reads as the outcome that it is
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
    """Raise `MissingExtra` if a package cannot be found that is imported inside this block.

    Args:
        extra: The extra of freshq that installs the package, such as "sql".

    Raises:
        MissingExtra: With the missing package and the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "freshq"}:
            raise
        raise MissingExtra(package, extra) from error
