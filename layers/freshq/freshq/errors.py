"""The errors of freshq: one class for each case that a caller may want to handle.

A wrong argument is a ``ValueError`` that names the argument, raised before any write.
Every other error derives from `FreshqError`. `freshq explain` prints the docstrings of the classes.
"""

from __future__ import annotations

import errno
import io
import json
import math
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

# Maximum length of a quoted value in an error.
MAX_QUOTED_CHARS: Final = 60
_ENOUGH: Final = MAX_QUOTED_CHARS + 1
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*(?::/+|//)", re.IGNORECASE)
_AT: Final = re.compile("@|%40")
# Each part before the value is bounded: otherwise the time of a search grows with the square of the text's
# length. A value that follows a longer part is cut off anyway.
_PASSWORD_OPTION: Final = re.compile(
    rf"((?:pass|pwd|secret|token|credential)\w{{0,{_ENOUGH}}}+['\"]?+\s{{0,{_ENOUGH}}}+(?:=|:|%3d)).*",
    re.DOTALL | re.IGNORECASE,
)
# Not in the name of a mail address.
_NO_NAME: Final = re.compile(r"[^\w.+-]")
# The system has no file descriptor, thread, memory or buffer left. It may have one again soon.
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
# What to do about an address that a character of its user or password ended too early.
ENCODED: Final = (
    "in its user and password, write %23 for '#', %3F for '?', %2F for '/', %40 for '@' and %3A for ':'"
)


def without_secrets(address: str) -> str:
    """Return an address, even a malformed one, without any part that may belong to a secret.

    That is everything before the last "@", except the scheme, and everything after the name of an option for
    a password: a character that was not encoded may have ended a password too early.
    """
    shown = _PASSWORD_OPTION.sub(r"\1***", address)
    ends = [found.end() for found in _AT.finditer(shown)]
    if not ends:
        return shown
    scheme = _SCHEME.match(shown)
    return f"{scheme.group() if scheme else ''}***@{shown[ends[-1] :]}"


def quoted(value: object) -> str:
    """Return a wrong value as an error shows it: in Python's notation, truncated if it is long.

    If it may be an address, or hold one, it is shown without secrets.
    """
    if isinstance(value, str):
        is_address = _has_secret_place(value) or _NO_NAME.search(value, 0, max(0, value.rfind("@")))
        return quoted_address(value) if is_address else _shortened(repr(value[:_ENOUGH]))
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a very large {type(value).__name__}"
    return _shortened(without_secrets(text) if _has_secret_place(text) else text)


def _has_secret_place(text: str) -> bool:
    return "://" in text or _PASSWORD_OPTION.search(text) is not None


def quoted_address(address: str) -> str:
    """Return a wrong address as an error shows it: as `quoted`, and without secrets."""
    return _shortened(repr(without_secrets(address)[:_ENOUGH]))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."


def plain(name: str) -> str:
    """Return a name chosen by a user as one line, shortened if it is long, for an error message."""
    text = repr(name[: MAX_QUOTED_CHARS + 1])[1:-1]
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}..."


def printable(text: str) -> str:
    """Return a string with control characters escaped as in JSON, not interpreted by a terminal."""
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def escape_unencodable() -> None:
    """Have standard output escape what it cannot encode: a command must not fail after its work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_shortage(error: BaseException | None) -> bool:
    """Return whether the system lacked a resource, such as a thread or a file descriptor."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    is_of_threads = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return is_of_threads or isinstance(error, MemoryError)


class FreshqError(Exception):
    """Base class of the errors that freshq raises, except ``ValueError`` for wrong arguments.

    Examples:
        >>> try:
        ...     queue.cancel("nobody")
        ... except FreshqError as error:
        ...     print(type(error).__name__)
        NotFound
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy the error, as pools of processes do: by its message, not by its constructor."""
        state = super().__reduce__()[2:]
        return restored, (type(self), self.args), *state


def restored(kind: type[FreshqError], args: tuple[Any, ...]) -> FreshqError:
    """Return an error without calling its constructor, which may take other arguments than the message."""
    error = kind.__new__(kind, *args)
    error.args = args  # of an OSError, only the constructor sets them
    return error


class RefusedError(FreshqError):
    """The state of the queue does not allow the request; nothing was changed.

    What to do: read the message, which names what the state allows. Open another queue if this one is closed.

    Attributes:
        task_id: The task, or the record of an attached table; None if the error is of neither.
        resource_id: The resource of a matching queue; None if the error is of none.
        status: The status of the subject of the message; None if it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        task_id: str | None = None,
        resource_id: str | None = None,
        status: str | None = None,
    ) -> None:
        """Say what was refused and what to do instead."""
        super().__init__(message)
        self.task_id = task_id
        self.resource_id = resource_id
        self.status = status


class NotFound(RefusedError):
    """There is no task, record or resource with this id.

    What to do: check the id and the name of the queue. A task that ended is deleted after its retention; put
    it again if the work is still useful.

    Examples:
        >>> queue.cancel("nobody")
        Traceback (most recent call last):
        freshq.errors.NotFound: ...
    """

    @classmethod
    def of_task(cls, task_id: str, queue: str) -> Self:
        """Return the error of a task that its queue does not have."""
        return cls(
            f"task {task_id!r}: not in queue {queue!r}; check the id and the queue's name", task_id=task_id
        )

    @classmethod
    def of_record(cls, record_id: str) -> Self:
        """Return the error of a record that an attached table does not have."""
        return cls(
            f"record {record_id!r}: the attached table has none with this id; check the id", task_id=record_id
        )

    @classmethod
    def of_resource(cls, resource_id: str) -> Self:
        """Return the error of a resource that is not registered."""
        return cls(f"resource {resource_id!r}: not registered; register it first", resource_id=resource_id)


class LeaseLost(RefusedError):
    """The claim no longer holds its task, or the match its resource: its lease expired, or it was settled.

    What to do: stop working on it and write nothing, because another worker may have it. If it happens often,
    give the queue longer leases, or extend them while the work runs; a `Worker` does so by itself.

    Examples:
        >>> task = queue.cancel("a", force=True)
        >>> queue.complete(claim)
        Traceback (most recent call last):
        freshq.errors.LeaseLost: ...
    """

    @classmethod
    def of_task(cls, task_id: str, why: str, status: str | None = None) -> Self:
        """Name the task, say why the claim no longer holds it, and what the task is now."""
        stop = "nothing was changed, stop working on it"
        message = f"task {task_id!r}: the claim no longer holds it ({why}); {stop}"
        return cls(message, task_id=task_id, status=status)

    @classmethod
    def of_resource(cls, resource_id: str, why: str, status: str | None = None) -> Self:
        """Name the resource, say why the match no longer holds it, and what the resource is now."""
        message = f"resource {resource_id!r}: the match no longer holds it ({why}); nothing was changed"
        return cls(message, resource_id=resource_id, status=status)


class IllegalTransition(RefusedError):
    """The verb does not apply to a task, record or resource in this status; `status` names it.

    What to do: read the message, which names the status that the verb needs. A TAKEN task is cancelled with
    `force`; a dead letter past its deadline is redriven as new.
    """

    @classmethod
    def of_task(cls, task_id: str, verb: str, status: str, allowed: str) -> Self:
        """Name the task, the verb, the status of the task and the status that the verb needs."""
        message = f"task {task_id!r}: cannot {verb} a task that is {status}; {verb} needs {allowed}"
        return cls(message, task_id=task_id, status=status)

    @classmethod
    def of_stale(cls, task_id: str, verb: str, status: str) -> Self:
        """Return the error of a dead letter that could not be claimed again."""
        message = f"task {task_id!r}: cannot {verb} a task that is {status}; it is past its deadline"
        return cls(f"{message}, {verb} it as new", task_id=task_id, status=status)

    @classmethod
    def of_resource(cls, resource_id: str, verb: str, status: str, advice: str) -> Self:
        """Name the resource, the verb, the status of the resource, and what to do instead."""
        message = f"resource {resource_id!r}: cannot {verb} while it is {status}; {advice}"
        return cls(message, resource_id=resource_id, status=status)

    @classmethod
    def not_ready(cls, task_id: str, status: str) -> Self:
        """Return the error of a record that is under construction."""
        message = f"task {task_id!r}: cannot put a record that is {status}; make it ready first"
        return cls(message, task_id=task_id, status=status)

    @classmethod
    def already_queued(cls, task_id: str, status: str, queue: str) -> Self:
        """Return the error for a record that is in a queue, PENDING or TAKEN, and keeps its position."""
        message = (
            f"task {task_id!r}: already {status} in queue {queue!r}, nothing was changed; "
            "cancel it or wait until it ends"
        )
        return cls(message, task_id=task_id, status=status)

    @classmethod
    def no_position(cls, task_id: str, status: str, attribute: str, attribute_type: str) -> Self:
        """Name the attribute that orders the table, and the type that it must have: S, N or B."""
        message = (
            f"task {task_id!r}: cannot be queued, because the table is in the order of {attribute!r} and the "
            f"record has none of type {attribute_type}, or one that is too long; "
            "set it, then put the record again"
        )
        return cls(message, task_id=task_id, status=status)


class LostRace(RefusedError):
    """Others changed the task, the resource or the caller during every attempt to change it.

    What to do: call again. Nothing was changed.
    """

    @classmethod
    def of_task(cls, task_id: str, tries: int) -> Self:
        """Name the task and the number of attempts."""
        return cls(_raced(f"task {task_id!r}", tries), task_id=task_id)

    @classmethod
    def of_resource(cls, resource_id: str, tries: int) -> Self:
        """Name the resource and the number of attempts."""
        return cls(_raced(f"resource {resource_id!r}", tries), resource_id=resource_id)

    @classmethod
    def of_caller(cls, caller_id: str, tries: int) -> Self:
        """Name the caller and the number of attempts."""
        return cls(_raced(f"caller {quoted(caller_id)}", tries))


def _raced(what: str, tries: int) -> str:
    return f"{what}: other processes changed it during each of {tries} attempts; try again"


class Overloaded(RefusedError):
    """The task was rejected: nothing was written for it.

    What to do: tell the client to come back after `retry_after_seconds`, as HTTP's 503 does, or drop the
    work. For the reason `deadline`, end the chain. If the load is normal, add workers; `freshq pressure`
    shows it.

    Attributes:
        task_id: The rejected task.
        reason: The `ShedReason` that it is counted under.
        retry_after_seconds: When to try again, jittered for `admission`; infinite for `deadline`.
        least_value: The price of an overloaded queue by value, as in `Pressure`; 0 in other queues.

    Examples:
        >>> from freshq.policy import BacklogLimit, WhenFull
        >>> queue = Queue.memory(backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
        >>> receipt = queue.put("first")
        >>> queue.put("second")
        Traceback (most recent call last):
        freshq.errors.Overloaded: ...
    """

    def __init__(
        self,
        task_id: str,
        reason: str,
        retry_after_seconds: float,
        message: str | None = None,
        *,
        least_value: float = 0.0,
    ) -> None:
        """Name the task, the rule that rejected it, and when to try again; or give the whole message."""
        serves = f", and serves what is worth {least_value:.3g} or more per second" if least_value else ""
        super().__init__(
            message
            or f"task {task_id!r}: rejected ({reason}), the queue is overloaded{serves}; "
            f"try again in {retry_after_seconds:.1f} s if it is still useful then"
        )
        self.least_value = least_value
        self.task_id = task_id
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds

    @classmethod
    def of_late_child(cls, task_id: str, left_seconds: float, needed_seconds: float) -> Self:
        """Return the error of a task that its parent's deadline leaves too little time."""
        takes = f", and its kind takes {needed_seconds:.3g} s" if needed_seconds else ""
        message = (
            f"task {task_id!r}: rejected (deadline), its parent leaves it "
            f"{max(0.0, left_seconds):.3g} s{takes}; end the chain here, its result would be late"
        )
        return cls(task_id, "deadline", math.inf, message)


class WaitTimeout(FreshqError, TimeoutError):
    """The task did not end in time. It is unchanged, and may still end.

    What to do: wait longer, or cancel the task. If it stays PENDING, see whether a worker serves its queue
    and kind: `freshq stats`, `freshq doctor`.

    Attributes:
        task_id: The task.
        status: Its last known status.
        not_ended: Number of awaited tasks that have not ended.
    """

    def __init__(self, task_id: str, status: str, waited_seconds: float, others: int = 0) -> None:
        """Name the task, its status, the time waited, and how many other tasks have not ended either."""
        more = f", and {others + 1} tasks have not ended" if others else ""
        super().__init__(
            f"task {task_id!r}: still {status} after {waited_seconds:.1f} s{more}; "
            "wait longer, or cancel the task"
        )
        self.task_id = task_id
        self.status = status
        self.not_ended = others + 1


class StoreError(FreshqError):
    """A store call failed. A failed call never looks like an empty answer.

    What to do: read the message, which has the reason of the database. `freshq doctor` looks at the rest.

    Examples:
        >>> from freshq.testing import FaultyStore
        >>> store = FaultyStore()
        >>> with store.down():
        ...     store.queue().put("work")
        Traceback (most recent call last):
        freshq.errors.Unreachable: ...
    """


class TableMissing(StoreError):
    """The table, or one of its indexes, does not exist.

    What to do: run `freshq table create` with the address of the queue when you deploy, or in a Django
    project `manage.py migrate`. If the table exists, check the database, the schema and the table of the
    address.
    """


class Throttled(StoreError):
    """The store throttled the call, and its retries.

    What to do: call again later. On DynamoDB, raise the table's limits or its number of shards; in a SQL
    database, allow more connections, or find out who holds the locks.
    """


class Unreachable(StoreError):
    """The store did not answer, or takes no writes.

    What to do: check that it runs, and the host, the credentials and the region of the address. A worker
    waits for the store by itself.
    """


class DamagedTask(StoreError):
    """A stored task cannot be read: it is damaged, or a newer version wrote it.

    What to do: update freshq. A claim makes such a task a dead letter, and other tasks are not affected.
    """

    def __init__(self, task_id: str, error: Exception) -> None:
        """Name the task and what failed, but not the value: it may be part of a payload."""
        self.task_id = task_id
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else type(error).__name__
        super().__init__(f"task {task_id!r} cannot be read: it is damaged or of a newer version ({what})")


class PutIncomplete(StoreError):
    """Some tasks of a `put_many` were not written.

    What to do: put the failed ones again under the ids in `task_ids`; none is created twice.

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
    """A package that one of freshq's extras installs is missing.

    What to do: run the command in the message, such as `pip install 'freshq[sql]'`.

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
