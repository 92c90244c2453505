"""Define tasks, their statuses, and the table of transitions between them."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from enum import StrEnum
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec

from typing_extensions import TypeVar

from freshq.errors import IllegalTransition, RefusedError, quoted
from freshq.model.fields import FIELDS, NEVER, SUCCESSOR_MARK, FieldType, StoredField, plain_token
from freshq.model.validation import json_text
from freshq.policy.retry import QUEUES
from freshq.policy.value import DEFAULT_COST, DEFAULT_VALUE, LARGEST_COST, Decay, value_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from freshq.errors import LeaseLost
    from freshq.policy.retry import AttemptLimit, Backoff
    from freshq.policy.shedding import ShedReason

PayloadT = TypeVar("PayloadT", default=Any)

# Version, trace id, id of the span, flags. Ids of only zeros are invalid; version 00 has no more parts.
TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACEPARENT_BYTES: Final = 55
# The length that vendors should propagate by W3C Trace Context; they may drop longer values.
MAX_TRACESTATE_BYTES: Final = 512
MAX_TRACE_CONTEXT_BYTES: Final = _TRACEPARENT_BYTES + 1 + MAX_TRACESTATE_BYTES
_TRACE_ID: Final = slice(3, 35)
# Longer strings are truncated: progress must always fit next to the largest payload.
MAX_STEP_CHARS: Final = 200
# Stores keep the fraction in whole millionths, so that all of them return the same value.
FRACTION_DIGITS: Final = 6
# Not shown to users: the store's bookkeeping, and the token, which is a secret of the holder.
INTERNAL: Final = (
    "expires",
    "request_token",
    "lease_token",
    "line_class",
    "attempt_record",
    "successor_record",
)
MAX_PRIORITY: Final = 9
MAX_ATTEMPTS_KEPT: Final = 5
# The fields that a put sets.
SUCCESSOR_FIELDS: Final = (
    *("created", "updated", "deadline", "expires", "request_token", "payload", "priority", "group", "kind"),
    *("not_before", "put_at", "first_due", "trace_context", "parent_id", "root_id"),
    *("value", "decay", "cost", "line_class"),
)
REPLACED: Final = "not run again: a later put takes its place"
# A century. Longer spans are mistakes, and may not fit into a store's numbers.
MAX_SECONDS: Final = 100 * 365 * 86_400.0


def joined(traceparent: str, tracestate: str = "") -> str:
    """Return the text of two headers; a tracestate that is too long is left out."""
    keeps = 0 < len(tracestate) <= MAX_TRACESTATE_BYTES
    return f"{traceparent} {tracestate}" if keeps else traceparent


def headers(trace_context: str) -> dict[str, str]:
    """Return the headers of a string, by name."""
    traceparent, _, tracestate = trace_context.partition(" ")
    return {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})


def trace_id_of(trace_context: str) -> str:
    """Return the trace id in a string: 32 hexadecimal digits."""
    return trace_context[_TRACE_ID]


def checked_trace_context(trace_context: str) -> str:
    """Check the form of a trace context, and return it.

    Raises:
        ValueError: If the form is wrong.
    """
    traceparent, _, tracestate = trace_context.partition(" ")
    if not TRACEPARENT.fullmatch(traceparent):
        example = "00-<32 hex digits>-<16 hex digits>-01"
        msg = f"must begin with a W3C traceparent, such as {example}, got {quoted(traceparent)}"
        raise ValueError(msg)
    if len(tracestate) > MAX_TRACESTATE_BYTES or not (tracestate.isascii() and tracestate.isprintable()):
        msg = (
            f"the tracestate must be at most {MAX_TRACESTATE_BYTES} printable ASCII characters; leave it out"
        )
        raise ValueError(msg)
    return trace_context


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        fraction: The finished part of its work, from 0 to 1, to the millionth.
        step: Its current step; None if it reports none.
    """

    fraction: float
    step: str | None = None


def checked_progress(fraction: object, step: object = None) -> Progress:
    """Return the progress of a run; a step of more than `MAX_STEP_CHARS` characters is truncated.

    Raises:
        ValueError: If the fraction is not a number from 0 to 1, or the step is not a string.
    """
    # A bool is an int, but says nothing about a part.
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        msg = f"progress: must be a number from 0 to 1, got {quoted(fraction)}; divide percent by 100"
        raise ValueError(msg)
    if step is not None and not isinstance(step, str):
        msg = f"step: must be a string or None, got {type(step).__name__}"
        raise ValueError(msg)
    return Progress(round(float(fraction), FRACTION_DIGITS), None if step is None else _storable(step))


def storable_text(text: str) -> str:
    """Return a text without lone surrogates, which are not UTF-8, and NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\\0").encode(errors="replace").decode()


def _storable(step: str) -> str:
    text = storable_text(step)
    return text if len(text) <= MAX_STEP_CHARS else f"{text[: MAX_STEP_CHARS - 1]}…"


class Attempt(NamedTuple):
    """One ended attempt at a task.

    Attributes:
        number: Its number, from 1 on.
        started: When the task was claimed, in seconds since the epoch; None if that is not known.
        ended: When the attempt ended.
        worker: The name of the worker; None if it is not known.
        outcome: "retried", "failed", "lease_lost" or "succeeded".
        error: Why it did not succeed.
        traceback: The end of the traceback of its exception, or of the exception from which its Retry or
            Reject was raised, if it is kept.
    """

    number: int
    started: float | None
    ended: float
    worker: str | None
    outcome: str
    error: str | None = None
    traceback: str | None = None


def attempts_of(record: str | None) -> tuple[Attempt, ...]:
    """Return the attempts of a record; none if it is damaged."""
    try:
        return tuple(Attempt(*values) for values in json.loads(record or "[]"))
    except (TypeError, ValueError):
        return ()


def record_with(record: str | None, attempt: Attempt, room_bytes: int) -> str | None:
    """Return the record of the last attempts after another one; None if nothing fits.

    Args:
        record: The record before.
        attempt: The attempt.
        room_bytes: Maximum size of the record in bytes. Old tracebacks make room first, then old attempts.
    """
    kept = [*attempts_of(record), attempt][-MAX_ATTEMPTS_KEPT:]
    for place in range(-1, len(kept)):
        if place >= 0:
            kept[place] = kept[place]._replace(traceback=None)
        if len(text := _record(kept)) <= room_bytes:
            return text
    while kept and len(_record(kept)) > room_bytes:
        del kept[0]
    return _record(kept) if kept else None


def _record(attempts: Sequence[Attempt]) -> str:
    """Return attempts as ASCII text, whose length is its size in bytes."""
    return json.dumps(attempts, separators=(",", ":"))


class RunHandle:
    """State shared by the function that runs a task and its worker. Both may use it at any time.

    Attributes:
        is_leased: Whether the run has a lease, whose renewals keep its progress.
        reported: The last report; None if there is none.
        why_cancelled: Why the run should stop; None while it should continue.
        lost: Why its claim no longer holds the task; None while the claim is not known to be lost.
        backoff: Delays before its next attempts, set by its handler; None for the queue's.
        max_attempts: Its attempts in all, set by its handler; QUEUES for the queue's, None for no limit.
        raised: The unexpected exception that ended it, for the log; None if there is none.
        shared_by: Tasks that are run by the same call, and share its time.
        overran: Whether it was ended because it took too long.
        units: The units that it took; None if it did not say.
    """

    __slots__ = (
        *("backoff", "is_leased", "lost", "max_attempts", "overran", "raised", "reported", "shared_by"),
        *("units", "why_cancelled"),
    )

    def __init__(self, *, is_leased: bool = True) -> None:
        self.is_leased = is_leased
        self.reported: Progress | None = None
        self.why_cancelled: str | None = None
        self.lost: LeaseLost | None = None
        self.backoff: Backoff | None = None
        self.max_attempts: AttemptLimit = QUEUES
        self.raised: BaseException | None = None
        self.shared_by = 1
        self.overran = False
        self.units: float | None = None

    def report(self, progress: Progress) -> None:
        """Note the progress of the run.

        Raises:
            LeaseLost: If the claim is known to hold the task no longer.
        """
        if self.lost is not None:
            raise self.lost
        self.reported = progress


class TaskStatus(StrEnum):
    """The state of a task.

    SHED is stored if a rule shed the task before its deadline. Otherwise it is derived: a PENDING task
    whose deadline has passed is SHED, and nothing is written.

    UNDER_CONSTRUCTION and READY are states of an application's record in an attached table while it is
    in no queue: it may not be put yet, or it may be put.

    Examples:
        >>> queue.get("a").status is TaskStatus.TAKEN
        True
    """

    PENDING = "PENDING"
    TAKEN = "TAKEN"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"
    SHED = "SHED"
    UNDER_CONSTRUCTION = "UNDER_CONSTRUCTION"
    READY = "READY"


# A PENDING task is live only before its deadline: compare with the result of `status_at`.
LIVE: Final = (TaskStatus.PENDING, TaskStatus.TAKEN)


OVER: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE, TaskStatus.CANCELLED, TaskStatus.SHED)


class Verb(StrEnum):
    """The verbs that change a task in a queue."""

    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    EXTEND = "extend"
    RECOVER = "recover"
    PROMOTE = "promote"
    CANCEL = "cancel"
    REPRIORITIZE = "reprioritize"
    REDRIVE = "redrive"
    SHED = "shed"
    SHED_CLAIMED = "shed claimed"
    CLAIM_DEAD = "claim dead"
    CANCEL_AS_DEAD = "cancel as dead"
    REDRIVE_AS_NEW = "redrive as new"
    FORCED_CANCEL = "cancel by force"
    FORCED_CANCEL_AS_DEAD = "cancel as dead by force"
    FORCED_REDRIVE = "redrive by force"


_RESTORABLE: Final = (TaskStatus.PENDING, TaskStatus.FAILURE)


# The statuses that each verb needs, and the statuses that it may set.
TRANSITIONS: Final[Mapping[Verb, tuple[tuple[TaskStatus, ...], frozenset[TaskStatus]]]] = {
    Verb.CLAIM: ((TaskStatus.PENDING,), frozenset({TaskStatus.TAKEN})),
    Verb.COMPLETE: ((TaskStatus.TAKEN,), frozenset({TaskStatus.SUCCESS})),
    Verb.FAIL: ((TaskStatus.TAKEN,), frozenset({TaskStatus.FAILURE})),
    Verb.RETRY: ((TaskStatus.TAKEN,), frozenset({TaskStatus.PENDING, TaskStatus.FAILURE})),
    Verb.RELEASE: ((TaskStatus.TAKEN,), frozenset({TaskStatus.PENDING})),
    Verb.EXTEND: ((TaskStatus.TAKEN,), frozenset({TaskStatus.TAKEN})),
    Verb.RECOVER: ((TaskStatus.TAKEN,), frozenset({TaskStatus.PENDING, TaskStatus.FAILURE})),
    Verb.PROMOTE: ((TaskStatus.PENDING,), frozenset({TaskStatus.PENDING})),
    Verb.CANCEL: ((TaskStatus.PENDING,), frozenset({TaskStatus.CANCELLED})),
    Verb.REPRIORITIZE: ((TaskStatus.PENDING,), frozenset({TaskStatus.PENDING})),
    Verb.REDRIVE: ((TaskStatus.FAILURE,), frozenset({TaskStatus.PENDING})),
    Verb.SHED: ((TaskStatus.PENDING,), frozenset({TaskStatus.SHED})),
    Verb.SHED_CLAIMED: ((TaskStatus.TAKEN,), frozenset({TaskStatus.SHED})),
    Verb.CLAIM_DEAD: ((TaskStatus.FAILURE,), frozenset({TaskStatus.TAKEN})),
    Verb.CANCEL_AS_DEAD: ((TaskStatus.PENDING,), frozenset({TaskStatus.FAILURE})),
    Verb.REDRIVE_AS_NEW: (_RESTORABLE, frozenset({TaskStatus.PENDING})),
    Verb.FORCED_CANCEL: (LIVE, frozenset({TaskStatus.CANCELLED})),
    Verb.FORCED_CANCEL_AS_DEAD: (LIVE, frozenset({TaskStatus.FAILURE})),
    Verb.FORCED_REDRIVE: ((*_RESTORABLE, TaskStatus.TAKEN), frozenset({TaskStatus.PENDING})),
}


class _Beside:
    """Keeps what a task knows beside its fields: clock, run, JSON texts, origin. Copies do not have it."""

    __slots__ = (
        *("_clock", "_debounced", "_handle", "_has_made_id", "_payload_text", "_result_text", "_units"),
    )


@dataclass(frozen=True, slots=True)
class Task(_Beside, Generic[PayloadT]):
    """One unit of work as a store keeps it.

    `Task[Quote]` annotates the task of a handler that gets its payload as a `Quote`.

    Attributes:
        task_id: The caller's id, or a UUID.
        queue: Name of its queue.
        status: The stored status; `status_at` adds SHED.
        created: When it became, or will become, a candidate: its put, or its due time if the put was delayed.
            Sets its position in its line; its age counts from it. Retry, release, lease expiry and redrive
            keep it.
        updated: When it last changed.
        deadline: When it becomes stale; a stale task is never claimed. None: never.
        expires: When the store may delete it, in whole seconds.
        request_token: Names the write that made this version. A write repeated after a lost reply is
            recognized by it, and so is a change in between.
        payload: The work: any JSON value.
        priority: 0 to 9, higher first.
        group: Tenant or key.
        kind: The type of the message; a worker may choose its handler by it.
        attempts: Claims so far.
        not_before: If set, the task is delayed until then.
        lease_token: Proves who holds it.
        lease_until: When the lease expires.
        error: Why the last attempt failed.
        result: The return value of the runner.
        shed_reason: Why a rule shed it before its deadline.
        version: On an attached table, how many times freshq changed the record; otherwise 0.
        put_at: When it was put; None for a record that was never put.
        first_due: When a delayed put was due first; it stays after the claim. None if it was not delayed.
        first_claim_at: When it was claimed for the first time; None if it never was.
        last_claim_at: When it was claimed for the last time; None if it never was.
        dead_at: When it last became a dead letter; it stays after a redrive. None if it never did.
        progress_fraction: The part of its work that its last run reported as done, from 0 to 1; None if it
            reported nothing. A task that returns to its line has no progress.
        progress_step: The step that it reported; None without a step.
        trace_context: The trace of its put: a W3C traceparent, and after a space the tracestate, if any.
        parent_id: The task whose run put it; None if no run did.
        root_id: The first task of its chain of parents; None if it has no parent.
        value: Its value if it is done in time, relative to the other tasks of the queue.
        decay: "linear" if the value falls steadily to 0 at the deadline; None if it does not fall.
        cost: The units that a run of it is expected to take of limits in units; None counts as 1. Once it has
            ended, what its run took, if that called `set_cost`.
        line_class: The code of its `ValueClass` in a queue that serves by value; otherwise None.
        attempt_record: Its last failed attempts as text; `attempt_log` has them.
        successor_record: The task that takes its place when its run ends, as text; `successor` has it.

    Examples:
        >>> task = queue.get("a")
        >>> task.payload, task.attempts
        ('work', 1)
    """

    task_id: str
    queue: str
    status: TaskStatus
    created: float
    updated: float
    deadline: float | None
    expires: int
    request_token: str = field(repr=False)
    payload: PayloadT = None  # type: ignore[assignment]  # of a task without one
    priority: int = 0
    group: str | None = None
    attempts: int = 0
    not_before: float | None = None
    lease_token: str | None = field(default=None, repr=False)
    lease_until: float | None = None
    error: str | None = None
    result: Any = None
    shed_reason: ShedReason | None = None
    version: int = 0
    put_at: float | None = None
    first_due: float | None = None
    kind: str | None = None
    first_claim_at: float | None = None
    last_claim_at: float | None = None
    dead_at: float | None = None
    progress_fraction: float | None = None
    progress_step: str | None = None
    trace_context: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    value: float | None = None
    decay: str | None = None
    cost: float | None = None
    line_class: str | None = None
    attempt_record: str | None = field(default=None, repr=False)
    successor_record: str | None = field(default=None, repr=False)

    def status_at(self, now: float) -> TaskStatus:
        """Return the status at `now`: the stored one, or SHED if the task is PENDING past its deadline."""
        if self.status is TaskStatus.PENDING and self.stale_at <= now:
            return TaskStatus.SHED
        return self.status

    def ended_at(self, now: float) -> float | None:
        """Return when it ended, including as a dead letter; None if it has not ended at `now`."""
        status = self.status_at(now)
        if status not in OVER:
            return None
        went_stale = (
            status is TaskStatus.SHED and self.shed_reason is None
        )  # no rule shed it, so nothing is stored
        return self.stale_at if went_stale else self.updated

    @property
    def has_value(self) -> bool:
        """Whether it was put with a value or a decay."""
        return self.value is not None or self.decay is not None

    @property
    def units(self) -> float:
        """The units that limits charge for a run of it: its cost; 1 if it was put without one."""
        return DEFAULT_COST if self.cost is None else self.cost

    @property
    def worth(self) -> float:
        """Its value; 1 if it was put without one."""
        return DEFAULT_VALUE if self.value is None else self.value

    def value_at(self, moment: float) -> float:
        """Return what the task is worth if it is done at a time in seconds: nothing after its deadline."""
        deadline = inf if self.deadline is None else self.deadline
        return value_at(moment, self.worth, self.created, deadline, decays=self.decay == Decay.LINEAR)

    @property
    def stale_at(self) -> float:
        """Its deadline as a number to compare with: the year 9999 if it is never stale."""
        return NEVER if self.deadline is None else self.deadline

    @property
    def trace_id(self) -> str | None:
        """The trace of its put, 32 hexadecimal digits; None if it carries none."""
        return None if self.trace_context is None else trace_id_of(self.trace_context)

    @property
    def trace_headers(self) -> dict[str, str]:
        """Its trace context as the W3C headers, which any propagator takes; empty if it carries none."""
        return {} if self.trace_context is None else headers(self.trace_context)

    @property
    def payload_text(self) -> str:
        """The payload as JSON: the text of its check, if this task was made from a checked value."""
        return getattr(self, "_payload_text", None) or json_text(self.payload)

    @property
    def result_text(self) -> str | None:
        """The result as JSON, in the same way; None if there is no result."""
        if self.result is None:
            return None
        return getattr(self, "_result_text", None) or json_text(self.result)

    @property
    def delayed(self) -> bool:
        """Whether it is PENDING but cannot be claimed before `not_before`."""
        return self.status is TaskStatus.PENDING and self.not_before is not None

    @property
    def attempt_log(self) -> tuple[Attempt, ...]:
        """Its last five attempts, oldest first; a successful attempt lacks its worker."""
        attempts = attempts_of(self.attempt_record)
        if self.status is not TaskStatus.SUCCESS:
            return attempts
        done = Attempt(self.attempts, self.last_claim_at, self.updated, None, "succeeded")
        return (*attempts, done)[-MAX_ATTEMPTS_KEPT:]

    @property
    def successor(self) -> Task[Any] | None:
        """The task that was put while this one runs, by `on_conflict="after"`; None if there is none.

        If its record is damaged, it is a dead letter with the text of the record as its payload.
        """
        if self.successor_record is None:
            return None
        try:
            values = _successor_values(self.successor_record)
        except ValueError as damage:
            return _damaged_successor(self, str(damage))
        return make_task(self.task_id, self.queue, TaskStatus.PENDING, **values)

    @property
    def as_parent(self) -> dict[str, Any]:
        """The values that its children inherit, as JSON: another process passes them to `put(parent=...)`."""
        return {
            "task_id": self.task_id,
            "root_id": self.root_id or self.task_id,
            "deadline": self.deadline,
            "group": self.group,
            "trace_context": self.trace_context,
        }

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the time until its deadline, such as the timeout of a call; 0 afterwards, None without one.

        Args:
            now: Current time in seconds since the epoch; None for the clock of the queue that it was claimed
                from.

        Raises:
            RefusedError: If `now` is missing, and this object was not claimed.
        """
        if self.deadline is None:
            return None
        if now is None:
            clock = getattr(self, "_clock", None)
            if clock is None:
                msg = (
                    f"task {self.task_id!r}: it was not claimed, or is a copy, so it has no clock; "
                    "pass the time, as in task.seconds_left(queue.admin.now())"
                )
                raise RefusedError(msg)
            now = clock()
        return max(0.0, round(self.deadline - now, 6))

    def progress(self, fraction: float, step: str | None = None) -> None:
        """Report the progress of the run, from the function that runs this task. Never waits.

        The worker stores the last report with each renewal of the lease, at most every 5 s in between, and at
        the end of the run. Under `at_most_once` the task has ended before its run, and reports are not kept.

        Args:
            fraction: The finished part of the work, from 0 to 1.
            step: The current step, up to 200 characters; longer strings are truncated.

        Raises:
            ValueError: If an argument is wrong.
            LeaseLost: If the worker knows that it no longer holds the task: stop working on it.
            RefusedError: If the task does not run under a lease here.
        """
        reported = checked_progress(fraction, step)
        handle = handle_of(self)
        if handle is None or not handle.is_leased:
            msg = (
                f"task {self.task_id!r}: it is not run under a lease here, so its progress cannot be kept; "
                "report it from the function that a worker calls, or use extend(claim, ..., progress=...)"
            )
            raise RefusedError(msg)
        handle.report(reported)

    def set_cost(self, cost: float) -> None:
        """Say what the run really takes of limits in units, from the function that runs this task.

        The difference to the cost of its put is charged to its group, kind and queue, or returned to them,
        when the run ends. An ended task keeps this cost, also in its events. A retry is charged the cost of
        the put again; a dead letter that is redriven this cost, or 1 if it is 0. Without a worker, call it on
        the task of the claim that you settle.

        Args:
            cost: In units, 0 or more.

        Raises:
            ValueError: If it is not a number from 0 to 10^9.
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= LARGEST_COST:
            msg = f"cost: must be a number from 0 to {LARGEST_COST:.0f}, got {quoted(cost)}"
            raise ValueError(msg)
        handle = handle_of(self)
        if handle is None:
            object.__setattr__(self, "_units", float(cost))
        else:
            handle.units = float(cost)

    @property
    def units_taken(self) -> float | None:
        """The units that its run took, as `set_cost` said here; None if it did not."""
        handle = handle_of(self)
        return getattr(self, "_units", None) if handle is None else handle.units

    @property
    def cancelled(self) -> bool:
        """Whether the function that runs this task should stop, because its result is no longer needed.

        The task was cancelled, its lease is lost, the run exceeded `max_run_seconds`, or the worker was
        stopped immediately. Coroutines are cancelled as well. For a task that does not run here: whether it
        is CANCELLED.
        """
        handle = handle_of(self)
        return self.status is TaskStatus.CANCELLED if handle is None else handle.why_cancelled is not None


# A frozen dataclass sets each field by a call, which takes most of the time of making a task. A draft has the
# same slots, sets them plainly, and then changes its class.
_Draft: Final[Any] = make_dataclass(
    "_Draft",
    [(each.name, each.type, *([] if each.default is MISSING else [each.default])) for each in fields(Task)],
    bases=(_Beside,),
    slots=True,
)
_values_of: Final = attrgetter(*(each.name for each in fields(Task)))
P = ParamSpec("P")


def _by_draft(task_class: Callable[P, Task]) -> Callable[P, Task]:
    """Return a function that makes a task as its class does, in a quarter of the time."""

    def finish(draft: Any) -> None:
        draft.__class__ = task_class

    namespace = {"__post_init__": finish}
    finished: Any = make_dataclass("_Finished", [], bases=(_Draft,), namespace=namespace, slots=True)
    make: Callable[P, Task] = finished
    return make


make_task: Final = _by_draft(Task)


def changed(task: Task, **changes: Any) -> Task:
    """Return a copy of a task with other values, like `dataclasses.replace`, in a third of the time.

    Args:
        task: The task.
        **changes: The other values, and what the copy shall keep beside its fields, such as `_result_text`.
    """
    draft = _Draft(*_values_of(task))
    for name, value in changes.items():
        setattr(draft, name, value)
    draft.__class__ = Task
    copy: Task = draft
    return copy


def handle_of(task: Task) -> RunHandle | None:
    """Return the handle of the run of a task; None if the task does not run here."""
    return getattr(task, "_handle", None)


def give_handle(task: Task, handle: RunHandle) -> None:
    """Let the function that runs a task report on its run."""
    object.__setattr__(task, "_handle", handle)  # the task is frozen, and no field of it changes


def keep_clock(task: Task, clock: Callable[[], float]) -> None:
    """Let a claimed task report its remaining time; the clock is in seconds since the epoch."""
    object.__setattr__(task, "_clock", clock)


def keep_run(copy: Task[Any], task: Task[Any]) -> None:
    """Let a copy of a task stand for the task in its run."""
    for name in ("_clock", "_handle"):
        if hasattr(task, name):
            object.__setattr__(copy, name, getattr(task, name))


def followed_by(task: Task, successor: Task) -> Task:
    """Return a held task with a successor.

    The mark on its lease token differs for each successor. So no write ends the task that only knows the
    token of the claim, or another successor.
    """
    values = {name: getattr(successor, name) for name in SUCCESSOR_FIELDS}
    record = {name: value for name, value in values.items() if value is not None or name == "deadline"}
    return changed(
        task,
        successor_record=json_text(record),
        lease_token=f"{plain_token(task.lease_token)}{SUCCESSOR_MARK}{successor.request_token}",
        expires=max(task.expires, successor.expires),
    )


def _successor_values(record: str) -> dict[str, Any]:
    """Return the fields of a successor from its record.

    Raises:
        ValueError: If the record is damaged.
    """
    values = json.loads(record)
    if not isinstance(values, dict):
        msg = "it is not an object"
        raise ValueError(msg)
    # A newer program may have added fields that this one does not know.
    known = {name: values[name] for name in SUCCESSOR_FIELDS if name in values}
    wrong = [each.field for each in FIELDS if each.field in SUCCESSOR_FIELDS and not _is_sound(each, known)]
    if wrong:
        msg = f"{', '.join(wrong)} cannot be read"
        raise ValueError(msg)
    return known


def _is_sound(stored: StoredField, values: Mapping[str, Any]) -> bool:
    value = values.get(stored.field)
    if value is None:
        return stored.field == "deadline" or not (stored.required or stored.field == "expires")
    if stored.kind in (FieldType.TEXT, FieldType.JSON):
        return stored.kind is FieldType.JSON or isinstance(value, str)
    # The type itself, because a bool is an int.
    if type(value) is not int and (type(value) is not float or stored.kind is FieldType.WHOLE):
        return False
    return 0 <= value <= (MAX_PRIORITY if stored.field == "priority" else 2 * NEVER)


def _damaged_successor(current: Task, damage: str) -> Task:
    # A person must repair it, so it stays until it is purged.
    return make_task(
        current.task_id,
        current.queue,
        TaskStatus.FAILURE,
        created=current.updated,
        updated=current.updated,
        deadline=None,
        expires=int(NEVER),
        request_token=current.request_token,
        payload=current.successor_record,
        dead_at=current.updated,
        error=f"the record of this successor, now the payload, is damaged: {damage}",
    )


def succession(task: Task, current: Task) -> tuple[Task, Task]:
    """Return a held task as it ends, and its successor as it enters its line.

    Args:
        task: The next version of the held task. If that would wait for another run, it ends as CANCELLED.
        current: Its stored version, with the successor.
    """
    successor = current.successor
    assert successor is not None  # noqa: S101  # nosec B101 - only a task with a successor gets here
    ended = task
    if task.status not in OVER:
        ended = changed(task, status=TaskStatus.CANCELLED, not_before=None, error=REPLACED)
    # Their events have an order, although one write makes both.
    entered_at = round(task.updated + 1e-6, 6)
    if successor.status is TaskStatus.FAILURE:
        dead = {"created": entered_at, "dead_at": entered_at}
        return ended, changed(successor, updated=entered_at, request_token=task.request_token, **dead)
    due = successor.not_before if (successor.not_before or 0.0) > entered_at else None
    return ended, changed(successor, updated=entered_at, not_before=due, request_token=task.request_token)


def keep_put(task: Task, payload_text: str, *, has_made_id: bool) -> Task:
    """Return a new task that keeps what stores need not compute again.

    Args:
        task: The task.
        payload_text: The JSON text of its checked payload.
        has_made_id: Whether freshq made its id, so that no other task can have it.
    """
    object.__setattr__(task, "_payload_text", payload_text)
    object.__setattr__(task, "_has_made_id", has_made_id)
    return task


def keep_origin(copy: Task[Any], task: Task[Any]) -> Task[Any]:
    """Return a copy that is put in place of a new task, with what that one keeps."""
    if hasattr(task, "_debounced"):
        keep_debounced(copy, task._debounced)  # noqa: SLF001 - this module's own slot
    return keep_put(copy, task.payload_text, has_made_id=has_made_id(task))


def keep_debounced(task: Task, debounced: Callable[[Task, float], Task]) -> None:
    """Let a new task tell its version for a put that replaces a waiting task; see `debounced_by`."""
    object.__setattr__(task, "_debounced", debounced)


def debounced_by(task: Task, waiting: Task) -> Task:
    """Return a new task as it replaces a waiting one: with `debounce_max_seconds` it may be due earlier."""
    if waiting.put_at is None or not hasattr(task, "_debounced"):
        return task
    debounced: Task = task._debounced(task, waiting.put_at)  # noqa: SLF001 - this module's own slot
    return debounced


def has_made_id(task: Task) -> bool:
    """Return whether no other task can have the id of a new task; False for a copy."""
    return getattr(task, "_has_made_id", False)


def advance(task: Task, verb: Verb, to: TaskStatus, now: float, **changes: Any) -> Task:
    """Return the task after `verb`.

    Args:
        task: The task before.
        verb: The verb to apply.
        to: The new status.
        now: Time of the change.
        **changes: Other fields to change.

    Raises:
        IllegalTransition: If the verb does not apply to the status of the task at `now`.
    """
    sources, targets = TRANSITIONS[verb]
    status = task.status
    if status is TaskStatus.PENDING:
        status = task.status_at(now)
    # A stale delayed task is still promoted, which removes it from the due index.
    if status not in sources and not (verb is Verb.PROMOTE and status is TaskStatus.SHED):
        allowed = " or ".join(sources)
        if status is TaskStatus.TAKEN and verb in (Verb.CANCEL, Verb.CANCEL_AS_DEAD, Verb.REDRIVE_AS_NEW):
            allowed += ", or force"
        raise IllegalTransition.of_task(task.task_id, verb, status, allowed)
    if to not in targets:
        msg = f"{verb} cannot lead to {to}"
        raise AssertionError(msg)
    if to is TaskStatus.FAILURE:
        changes["dead_at"] = now
    return changed(task, status=to, updated=now, **changes)
