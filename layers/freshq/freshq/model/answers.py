"""Answers of the verbs, and the exceptions with which a runner ends an attempt."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from enum import StrEnum
from itertools import islice
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq.errors import FreshqError, Overloaded, PutIncomplete, TableMissing
from freshq.model.checks import checked_seconds
from freshq.model.fields import plain_token
from freshq.model.task import storable_text
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from freshq.model.task import Task


# Bounds of the delay before the next attempt at a task of an unknown kind.
UNKNOWN_KIND_SECONDS: Final = (1.0, 60.0)
# Responses in which a header Retry-After tells when requests are taken again (RFC 9110, RFC 6585), and where
# clients keep the status.
BUSY_STATUSES: Final = (429, 503)
STATUS_NAMES: Final = ("status_code", "status", "code", "http_status")
# No header keeps a task waiting longer.
MAX_RETRY_AFTER_SECONDS: Final = 86_400.0


class PutOutcome(StrEnum):
    """The outcome of a put.

    Examples:
        >>> queue.put("work", task_id="a").outcome  # the id is taken
        <PutOutcome.DUPLICATE: 'DUPLICATE'>
    """

    CREATED = "CREATED"
    DUPLICATE = "DUPLICATE"
    UPDATED = "UPDATED"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a put.

    Attributes:
        task_id: Id of the task.
        outcome: CREATED for a new task, also if it waits behind a running one; DUPLICATE if the id was taken,
            and nothing was changed; UPDATED if it replaced a live task, or the one that waited behind it.

    Examples:
        >>> queue.put("work", task_id="b").task_id
        'b'
    """

    task_id: str
    outcome: PutOutcome


@dataclass(frozen=True, slots=True)
class Claim:
    """A task held under a lease.

    Attributes:
        task: The task at the time of the claim.
        token: Proves who holds the task; every settling verb is conditional on it.
        lease_until: When the lease expires, in seconds since the epoch.

    Examples:
        >>> claim.task.payload, claim.redelivered
        ('work', False)
    """

    task: Task
    token: str = field(repr=False)
    lease_until: float

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the claim of a task that was just taken, or whose lease was extended."""
        token = task.lease_token if task.successor_record is None else plain_token(task.lease_token)
        return cls(task, token or "", task.lease_until or 0.0)

    @property
    def redelivered(self) -> bool:
        """Whether there was an earlier attempt since the task was put, updated or redriven."""
        return self.task.attempts > 1


class Claims(list[Claim]):
    """The answer to `claim`: a list that also knows whether the claim reached the end of the lines.

    Attributes:
        more: Whether the claim reached a bound of its work, such as much stale work to skip, before it had
            searched every line. It may then be short, or empty, although tasks wait: claim again.
        room_in_seconds: When the rate of a group at its limit leaves room for another task; infinite if no
            rate held a task back.

    Examples:
        >>> claims = queue.claim(10)
        >>> len(claims), claims.more
        (0, False)
    """

    more: bool = False
    room_in_seconds: float = inf


class DeadLetterCounts(NamedTuple):
    """Numbers of tasks that became dead letters without a failed run.

    Attributes:
        unreadable: Tasks that cannot be read.
        exhausted: Tasks whose last lease expired.
    """

    unreadable: int
    exhausted: int


class WaitsFor(StrEnum):
    """Reasons why claims do not take a task yet: its due time, a paused queue, its group's turn."""

    DUE = "due"
    RESUME = "resume"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting task, as `peek` shows it.

    Attributes:
        task: The task.
        waits_for: Why claims skip it or take other tasks first; None if only its position in the line
            matters.

    Examples:
        >>> receipt = queue.put("work", task_id="b")
        >>> [(each.task.task_id, each.waits_for) for each in queue.peek()]
        [('b', None)]
    """

    task: Task
    waits_for: WaitsFor | None


def receipts_of(outcomes: list[Receipt | FreshqError], task_ids: Sequence[str]) -> list[Receipt]:
    """Return the receipts of a put.

    Args:
        outcomes: The receipt or the error of each task, in order.
        task_ids: The ids of the tasks.

    Raises:
        FreshqError: If a task has no receipt: its own error if it is the only task or the table does not
            exist, otherwise PutIncomplete.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, FreshqError)]
    if errors:
        nothing_written = len(outcomes) == 1 or isinstance(errors[0], TableMissing)
        raise errors[0] if nothing_written else PutIncomplete(list(outcomes), task_ids)
    return [outcome for outcome in outcomes if isinstance(outcome, Receipt)]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing.

    Attributes:
        tasks: The tasks of this page.
        cursor: Where the next page starts; None on the last page. A page may be short, or empty, and have
            one.

    Examples:
        >>> page = queue.list(limit=100)
        >>> len(page), page.cursor
        (1, None)
    """

    tasks: tuple[Task, ...]
    cursor: str | None

    @classmethod
    def of(cls, tasks: Iterable[Task], limit: int, cursor_of: Callable[[Task], str]) -> Self:
        """Return the first `limit` tasks as a page.

        Args:
            tasks: The tasks, read only as far as needed.
            limit: Maximum number of tasks of the page.
            cursor_of: Returns the cursor of the page that follows a task.
        """
        found = list(islice(tasks, limit + 1))
        return cls(tuple(found[:limit]), cursor_of(found[limit - 1]) if len(found) > limit else None)

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the tasks of this page."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """Return the number of tasks on this page."""
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        """Return one task of this page."""
        return self.tasks[index]


class Retry(Exception):
    """Try the task again later.

    Attributes:
        delay_seconds: Delay before the next attempt; None for the queue's backoff.

    Examples:
        >>> def run(task):
        ...     raise Retry("status 503", delay_seconds=5)
    """

    def __init__(self, reason: str | None = None, *, delay_seconds: float | None = None) -> None:
        """Say why this attempt failed, and when to try again.

        Args:
            reason: Why it failed; the task keeps it as its error.
            delay_seconds: Delay before the next attempt; None for the queue's backoff.

        Raises:
            TypeError: If the reason is not a string, such as a delay that was not passed by name.
            ValueError: If the delay is not a number of seconds, 0 or more.
        """
        given: object = reason
        if given is not None and not isinstance(given, str):
            msg = f"reason: must be a string, got {type(given).__name__}; pass a delay as delay_seconds=..."
            raise TypeError(msg)
        if delay_seconds is not None:
            delay_seconds = checked_seconds("delay_seconds", delay_seconds)
        super().__init__(reason or "the runner asked for a retry")
        self.delay_seconds = delay_seconds


class Reject(Exception):
    """The task can never succeed: make it a dead letter now.

    Examples:
        >>> def run(task):
        ...     raise Reject("no such symbol")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Busy(Exception):
    """The downstream is overloaded: release the task without counting the attempt, and pause briefly.

    Attributes:
        delay_seconds: Delay before the next attempt.
        retry_after_seconds: When the downstream takes requests again, as it said; None if it did not.

    Examples:
        >>> def run(task):
        ...     raise Busy("all lines are in use", retry_after_seconds=2)
    """

    delay_seconds: float = 0.0
    retry_after_seconds: float | None = None

    def __init__(
        self, reason: str = "the runner is busy", *, retry_after_seconds: float | None = None
    ) -> None:
        """Say why, and when the downstream takes requests again.

        Args:
            reason: Why the task cannot run now.
            retry_after_seconds: The task is not run before, and the rate that the task counts towards is
                lowered for all workers: its group's, or the queue's. None: unknown.

        Raises:
            ValueError: If the time is not a number of seconds, 0 or more.
        """
        super().__init__(reason)
        if retry_after_seconds is not None:
            self.delay_seconds = checked_seconds("retry_after_seconds", retry_after_seconds)
            self.retry_after_seconds = self.delay_seconds


class UnknownKind(Busy):
    """No handler here has the task's kind: release the task for a worker that has such a handler.

    Attributes:
        delay_seconds: Delay before the next attempt. It doubles each time, because it equals the time since
            the task was first claimed without success.
    """

    def __init__(self, reason: str, task: Task) -> None:
        """Give the reason, and compute the delay from the times of the task's first and last claim."""
        super().__init__(reason)
        least, most = UNKNOWN_KIND_SECONDS
        tried_seconds = (task.last_claim_at or 0.0) - (task.first_claim_at or 0.0)
        self.delay_seconds = min(most, max(least, tried_seconds))


class RunnerExit(Exception):
    """The runner raised an exception that ends a process, such as SystemExit. It ends only the attempt."""


def raised_in_run(error: BaseException) -> BaseException:
    """Return the exception of a runner, taken out of the `RunnerExit` that carried it here."""
    carried = isinstance(error, RunnerExit) and error.__cause__ is not None
    return error.__cause__ or error if carried else error


def busy_of(error: BaseException, now: float) -> Busy | None:
    """Return the push-back that an exception of a client for HTTP carries; None if it carries none.

    That is a response with status 429 or 503 and a header Retry-After, as in the errors of requests, httpx,
    urllib, aiohttp, botocore and clients that are made from them. A later time than a day is cut to a day.

    Args:
        error: The exception.
        now: Current time, in seconds since the epoch.
    """
    try:
        status, headers = _http_answer(error)
        given = {str(name).lower(): value for name, value in (headers or {}).items()}
        text = given.get("retry-after") if status in BUSY_STATUSES else None
        seconds = None if text is None else _seconds_until(text, now)
    except Exception:  # noqa: BLE001 - the attributes of the user's exception may be, and raise, anything
        return None
    if seconds is None or not seconds >= 0:
        return None
    return Busy(error_text(error), retry_after_seconds=min(seconds, MAX_RETRY_AFTER_SECONDS))


def _http_answer(error: BaseException) -> tuple[Any, Any]:
    """Return the status and the headers of the response that an exception has, or is."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        metadata = response.get("ResponseMetadata", {})
        return metadata.get("HTTPStatusCode"), metadata.get("HTTPHeaders")
    source = error if response is None else response
    statuses = (getattr(source, name, None) for name in STATUS_NAMES)
    return next((each for each in statuses if isinstance(each, int)), None), getattr(source, "headers", None)


def _seconds_until(text: Any, now: float) -> float | None:
    """Return the time that a header Retry-After gives, in seconds or as a date; None if it is neither."""
    try:
        seconds = float(text)
    except ValueError:
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to load, and rarely needed

        at = parsedate_to_datetime(str(text))
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, at.timestamp() - now)
    return seconds if isfinite(seconds) else None


def ends_chain(error: BaseException, task: Task) -> bool:
    """Return whether a run failed because its child was refused for lack of time.

    Another run would end the same way, so the task is kept from claims until its deadline, when it is shed.
    """
    is_late = isinstance(error, Overloaded) and error.reason == ShedReason.DEADLINE
    return is_late and task.deadline is not None


class ChildTraceback(Exception):
    """The traceback of an exception of another process: the cause of its copy in this one.

    Attributes:
        text: The traceback.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def traceback_text(error: BaseException) -> str | None:
    """Return the traceback of an exception in a form that every store accepts; None if it cannot be read."""
    for there in (error, error.__cause__):
        if isinstance(there, ChildTraceback):
            return storable_text(there.text)
    try:
        return storable_text("".join(traceback.format_exception(error)))
    except BaseException:  # noqa: BLE001 - the user's `__str__`
        return None


def error_text(error: BaseException) -> str:
    """Return the text of an exception in a form that every store accepts; a substitute if it fails."""
    try:
        return str(error).replace("\0", "\\0")  # PostgreSQL has no NUL
    except BaseException:  # noqa: BLE001 - the user's `__str__`
        return "its text cannot be read"
