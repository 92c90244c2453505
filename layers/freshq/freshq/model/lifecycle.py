"""Compute the next version of a task under each verb, and hold the settlements that choose the verb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from os import urandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq.errors import IllegalTransition, quoted
from freshq.model.answers import Claim, PutOutcome
from freshq.model.checks import checked_error, checked_seconds
from freshq.model.codec import WORKER_SEPARATOR
from freshq.model.fields import NEVER
from freshq.model.forks import new_lock
from freshq.model.task import (
    LIVE,
    MAX_SECONDS,
    Attempt,
    Task,
    TaskStatus,
    Verb,
    advance,
    changed,
    debounced_by,
    followed_by,
    keep_origin,
    keep_put,
    make_task,
    record_with,
)
from freshq.model.validation import MAX_PAYLOAD_BYTES, json_text, result_and_text
from freshq.policy.order import Order
from freshq.policy.retry import QUEUES, Backoff, PatientBackoff, is_last_attempt
from freshq.policy.value import DEFAULT_VALUE, Decay, ValueClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.model.new_task import NewTask, Parent
    from freshq.model.options import QueueConfig
    from freshq.model.task import Progress
    from freshq.policy.retry import AttemptLimit
    from freshq.policy.shedding import ShedReason

# Longer strings are truncated: an error must always fit next to the largest payload.
MAX_ERROR_CHARS: Final = 500
# The record of the last attempts: five errors, and as many tracebacks of the default size.
MAX_RECORD_BYTES: Final = 16 * 1024
# Length of a token without the name of a worker.
TOKEN_CHARS: Final = 32
UNHELD: Final = {"lease_token": None, "lease_until": None}
# Progress belongs to one run: a task that returns to its line loses it.
NO_PROGRESS: Final = {"progress_fraction": None, "progress_step": None}
MICROSECONDS: Final = 1_000_000
# If a clock is set back by less than this, stamps continue from the last one, so that times stay in order.
MAX_AHEAD_US: Final = 1 * MICROSECONDS
# A child with a deadline enters its line this far ahead: under newest first, roots that arrive before its
# parent's slot claims again would bury it, and the work done for it would be lost.
CHILD_LEAD_SECONDS: Final = 0.02
# Verbs after finished work, successful or not.
SERVED: Final = (Verb.COMPLETE, Verb.FAIL)
SETTLING: Final = (Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.RELEASE)
# The digit of a random UUID that names its variant has two random bits.
_VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


class ClaimMoment(NamedTuple):
    """The times of one write that takes tasks, in seconds since the epoch.

    Attributes:
        now: Current time.
        created_after: Tasks created at or before this time are past the queue's max age, or waited longer
            than this take allows.
        deadline_after: Tasks with a deadline at or before this time are too late: now plus the reserve.
        lease_until: When the lease of the taken tasks expires.
        expires: When the store may delete the taken tasks, in whole seconds since the epoch.
    """

    now: float
    created_after: float
    deadline_after: float
    lease_until: float
    expires: int


def new_token() -> str:
    """Return a unique random token; `secrets.token_hex(16)` takes twice the time for the same."""
    return urandom(16).hex()


def new_task_id() -> str:
    """Return a random UUID, as `str(uuid.uuid4())` does in three times the time."""
    digits = urandom(16).hex()
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The verbs under the options of one queue.

    Attributes:
        config: The options.
    """

    config: QueueConfig

    def created(self, new: NewTask, now: float, created: float, where: str = "") -> Task:
        """Return a new task.

        Args:
            new: The arguments of the put.
            now: Current time in seconds.
            created: `now` in whole microseconds, or slightly later so that no two tasks of a producer tie.
            where: Prefix for field names in errors.

        Raises:
            ValueError: If the max age is longer than the queue's, or the task is due in over a century.
        """
        max_age_seconds = self._max_age_of(new, where) if new.max_age_seconds else self.config.max_age_seconds
        first_due = _first_due(new, now, where) if new.delay_seconds or new.at is not None else None
        since = now if first_due is None else first_due
        deadline = None if max_age_seconds is None else round((since + max_age_seconds) * 1e6) / 1e6
        family = _inherited(new.parent, deadline) if new.parent else (None, None, deadline)
        parent_id, root_id, deadline = family
        task = make_task(
            task_id=new.task_id or new_task_id(),
            queue=self.config.name,
            status=TaskStatus.PENDING,
            created=_enters(new, created, first_due, deadline),
            updated=now,
            deadline=deadline,
            expires=self.expires(deadline),
            request_token=new_token(),
            payload=new.payload,
            priority=new.priority,
            group=new.group,
            kind=new.kind,
            not_before=first_due if (first_due or 0.0) > now else None,
            put_at=created,
            first_due=first_due,
            trace_context=new.trace_context,
            parent_id=parent_id,
            root_id=root_id,
            **self._worth_of(new, since, deadline),
        )
        return keep_put(task, new.payload_text, has_made_id=new.task_id is None)

    def debounced(self, new: NewTask, task: Task, first_put: float) -> Task:
        """Return a new task as one of several puts of its id, the first of which was at a time in seconds."""
        latest = round(first_put + (new.debounce_max_seconds or 0.0), 6)
        changes: dict[str, Any] = {"put_at": first_put}
        if latest < (task.first_due or 0.0):
            due = max(latest, task.updated)
            max_age_seconds = new.max_age_seconds or self.config.max_age_seconds
            deadline = None if max_age_seconds is None else round((due + max_age_seconds) * 1e6) / 1e6
            if new.parent is not None:
                deadline = _inherited(new.parent, deadline)[2]
            changes |= {"created": due, "first_due": due, "not_before": due if due > task.updated else None}
            changes |= {"deadline": deadline, "expires": self.expires(deadline)}
            changes |= self._worth_of(new, due, deadline)
        return keep_origin(changed(task, **changes), task)

    def _worth_of(self, new: NewTask, since: float, deadline: float | None) -> dict[str, Any]:
        """Return the cost, value, decay and class of a new task whose age counts from a time in seconds."""
        decay, order = new.decay or Decay.STEP, self.config.order
        if new.value is None and decay is Decay.STEP and not order.plans:
            return {"cost": new.cost}
        worth: dict[str, Any] = {"cost": new.cost, "value": new.value}
        if decay is not Decay.STEP:
            worth["decay"] = decay.value
        if order.plans:
            life_seconds = inf if deadline is None else deadline - since
            if order is Order.DEADLINE:
                line_class = ValueClass.of(DEFAULT_VALUE, life_seconds, Decay.STEP)
            else:
                line_class = ValueClass.of(new.value or DEFAULT_VALUE, life_seconds, decay)
            worth["line_class"] = line_class.code
        return worth

    def completed(
        self,
        task: Task,
        now: float,
        result: Any,
        request_token: str | None = None,
        result_text: str | None = None,
    ) -> Task:
        """Return the task after success.

        Args:
            task: The task that was run.
            now: Current time in seconds.
            result: The return value of the runner.
            request_token: Names the write; None for a new one.
            result_text: The result as JSON, if it is known.
        """
        changes = {"result": result, "_result_text": result_text, "error": None} | UNHELD
        changes |= {"expires": self.expires(now), "request_token": request_token or new_token()}
        if (units := task.units_taken) is not None:
            changes["cost"] = units
        if task.attempt_record is not None and result is not None:
            sizes = (task.attempt_record, task.payload_text, result_text or json_text(result))
            if sum(len(text.encode()) for text in sizes) > MAX_PAYLOAD_BYTES:
                changes["attempt_record"] = None
        return advance(task, Verb.COMPLETE, TaskStatus.SUCCESS, now, **changes)

    def failed(
        self,
        task: Task,
        now: float,
        error: str | None,
        request_token: str | None = None,
        traceback: str | None = None,
    ) -> Task:
        """Return the task as a dead letter."""
        changes = {"error": truncated(error), "request_token": request_token}
        changes |= self._logged(task, now, "failed", error, traceback)
        return self._settled(task, Verb.FAIL, TaskStatus.FAILURE, now, **changes)

    def retried(
        self,
        task: Task,
        now: float,
        error: str | None,
        delay_seconds: float | None,
        uniform: float,
        request_token: str | None = None,
        traceback: str | None = None,
        max_attempts: AttemptLimit = QUEUES,
    ) -> Task:
        """Return the task delayed until its next attempt, or as a dead letter after its last one.

        Args:
            task: The task that failed.
            now: Current time in seconds.
            error: Why it failed.
            delay_seconds: Before the next attempt; None for the queue's backoff.
            uniform: A random number from [0, 1), for the backoff's jitter.
            request_token: Names the write; None for a new one.
            traceback: The traceback of the exception that ended the attempt.
            max_attempts: The limit of its handler, which replaces the queue's.
        """
        changes = {"error": truncated(error), "request_token": request_token}
        limit = self.config.max_attempts if max_attempts == QUEUES else max_attempts
        is_last = is_last_attempt(task.attempts, limit)
        changes |= self._logged(task, now, "failed" if is_last else "retried", error, traceback)
        if is_last:
            return self._settled(task, Verb.RETRY, TaskStatus.FAILURE, now, **changes)
        if delay_seconds is None:
            has_max_age = self.config.max_age_seconds is not None or task.deadline is not None
            named = self.config.backoff
            default = Backoff() if has_max_age else PatientBackoff(limit)
            backoff = named if isinstance(named, Backoff) else default
            delay_seconds = backoff.delay_seconds(task.attempts, uniform)
        not_before = _not_before(task, now, delay_seconds)
        return self._settled(task, Verb.RETRY, TaskStatus.PENDING, now, not_before=not_before, **changes)

    def released(
        self, task: Task, now: float, delay_seconds: float = 0, request_token: str | None = None
    ) -> Task:
        """Return the task as claimable again after a delay, the attempt not counted."""
        return self._settled(
            task,
            Verb.RELEASE,
            TaskStatus.PENDING,
            now,
            request_token=request_token,
            attempts=max(0, task.attempts - 1),
            not_before=_not_before(task, now, delay_seconds),
        )

    def extended(self, task: Task, now: float, lease_until: float, progress: Progress | None = None) -> Task:
        """Return the task with its lease extended to `lease_until`; a lease is never shortened.

        Args:
            task: The held task.
            now: Current time in seconds.
            lease_until: When the lease should end, in seconds since the epoch.
            progress: The progress of its run; None: unchanged.
        """
        changes: dict[str, Any] = {"lease_until": max(lease_until, task.lease_until or 0.0)}
        if progress is not None:
            changes |= {"progress_fraction": progress.fraction, "progress_step": progress.step}
        return self._next(task, Verb.EXTEND, TaskStatus.TAKEN, now, **changes)

    def recovered(self, task: Task, now: float) -> Task:
        """Return a task whose lease expired: claimable again, or a dead letter after its last attempt."""
        logged = self._logged(task, now, "lease_lost", "the lease expired", None)
        if not is_last_attempt(task.attempts, self.config.max_attempts):
            return self._settled(task, Verb.RECOVER, TaskStatus.PENDING, now, **logged)
        error = f"lease expired in attempt {task.attempts} of {self.config.max_attempts}"
        if task.error:
            error += f"; previous error: {task.error}"
        return self._settled(task, Verb.RECOVER, TaskStatus.FAILURE, now, error=truncated(error), **logged)

    def _logged(
        self, task: Task, now: float, outcome: str, error: str | None, traceback: str | None
    ) -> dict[str, str | None]:
        """Return the change that adds the attempt that ends to the record of a held task."""
        limit_bytes = self.config.traceback_bytes
        kept = traceback[-limit_bytes:] if traceback and limit_bytes else None
        worker = (task.lease_token or "").rpartition(WORKER_SEPARATOR)[0] or None
        attempt = Attempt(task.attempts, task.last_claim_at, now, worker, outcome, truncated(error), kept)
        room_bytes = min(MAX_RECORD_BYTES, MAX_PAYLOAD_BYTES - len(task.payload_text.encode()))
        return {"attempt_record": record_with(task.attempt_record, attempt, room_bytes)}

    def promoted(self, task: Task, now: float) -> Task:
        """Return a delayed task as claimable."""
        return self._next(task, Verb.PROMOTE, TaskStatus.PENDING, now, not_before=None)

    def cancelled(self, task: Task, now: float, *, force: bool = False) -> Task:
        """Return a waiting task as cancelled; with `force` also a held task."""
        verb = Verb.FORCED_CANCEL if force else Verb.CANCEL
        return self._settled(task, verb, TaskStatus.CANCELLED, now, not_before=None)

    def cancelled_as_dead(self, task: Task, now: float, error: str | None, *, force: bool = False) -> Task:
        """Return a waiting task as a dead letter; with `force` also a held task."""
        verb = Verb.FORCED_CANCEL_AS_DEAD if force else Verb.CANCEL_AS_DEAD
        return self._settled(task, verb, TaskStatus.FAILURE, now, not_before=None, error=truncated(error))

    def renewed(self, task: Task, now: float, created: float, *, force: bool = False) -> Task:
        """Return a waiting task or dead letter as if it were put at `created`; with `force` also a held one.

        Its payload, priority, group and the length of its max age stay; a waiting task also keeps its
        attempts and its delay. A delayed put that is not due yet becomes the newest when it is due.
        """
        verb = Verb.FORCED_REDRIVE if force else Verb.REDRIVE_AS_NEW
        if task.status is TaskStatus.PENDING:
            created = max(created, task.created) if task.delayed else created
            changes: dict[str, Any] = {}
        else:
            changes = {"attempts": 0, "not_before": None} | UNHELD
        changes |= {"created": created, "deadline": _moved_deadline(task, created)}
        return self._next(task, verb, TaskStatus.PENDING, now, **changes)

    def shed(self, task: Task, now: float, reason: ShedReason) -> Task:
        """Return a PENDING task as shed by a rule."""
        return self._next(task, Verb.SHED, TaskStatus.SHED, now, not_before=None, shed_reason=reason)

    def shed_claimed(self, task: Task, now: float, reason: ShedReason) -> Task:
        """Return a task as shed by a rule right after it was claimed."""
        return self._settled(task, Verb.SHED_CLAIMED, TaskStatus.SHED, now, shed_reason=reason)

    def reprioritized(self, task: Task, now: float, priority: int) -> Task:
        """Return the task in another priority level."""
        return self._next(task, Verb.REPRIORITIZE, TaskStatus.PENDING, now, priority=priority)

    def redriven(self, task: Task, now: float) -> Task:
        """Return a dead letter as claimable, its attempts reset.

        Raises:
            IllegalTransition: If it is no dead letter, or is stale and could not be claimed.
        """
        if task.status is TaskStatus.FAILURE and self.live_until(task) <= now:
            raise IllegalTransition.of_stale(task.task_id, Verb.REDRIVE, TaskStatus.FAILURE)
        # A run that took nothing says nothing about the next one, which would be free.
        return self._next(task, Verb.REDRIVE, TaskStatus.PENDING, now, attempts=0, cost=task.cost or None)

    def claimed_dead(self, task: Task, now: float, token: str, lease_until: float) -> Task:
        """Return a dead letter as held under a lease."""
        first = now if task.first_claim_at is None else task.first_claim_at
        changes: dict[str, Any] = {"first_claim_at": first, "last_claim_at": now, "lease_token": token}
        changes |= {"lease_until": lease_until} | NO_PROGRESS
        return self._next(task, Verb.CLAIM_DEAD, TaskStatus.TAKEN, now, **changes)

    def unqueued(self, task: Task, to: TaskStatus, now: float) -> Task:
        """Return an application's record as in no queue: UNDER_CONSTRUCTION or READY."""
        return Task(
            task_id=task.task_id,
            queue=self.config.name,
            status=to,
            created=now,
            updated=now,
            deadline=now,
            expires=self.expires(now),
            request_token=new_token(),
            payload=task.payload,
        )

    def live_until(self, task: Task) -> float:
        """Return when a task becomes stale to the claims of this queue, in seconds since the epoch.

        That is its deadline, or earlier by this queue's max age: its producer may have a longer one, or none.
        """
        max_age_seconds = self.config.max_age_seconds
        if max_age_seconds is None:
            return task.stale_at
        return min(task.stale_at, round((task.created + max_age_seconds) * 1e6) / 1e6)

    def expires(self, useful_until: float | None) -> int:
        """Return when the store may delete a task that ends at a time (None: never), in whole seconds."""
        return ceil((NEVER if useful_until is None else useful_until) + self.config.retention_seconds)

    def _dead_letter_expires(self, now: float) -> int:
        """Return when the store may delete a task that dies at `now`, in whole seconds."""
        retention_seconds = self.config.dead_letter_retention_seconds
        return int(NEVER) if retention_seconds is None else ceil(now + retention_seconds)

    def _max_age_of(self, new: NewTask, where: str) -> float | None:
        """Return the max age that a put gives its task.

        Raises:
            ValueError: If it is longer than the queue's; `where` is a prefix for the field's name.
        """
        max_age_seconds, limit_seconds = new.max_age_seconds, self.config.stale_after_seconds
        if max_age_seconds is not None and max_age_seconds > limit_seconds:
            allowed = f"must be at most the queue's {limit_seconds}"
            msg = f"{where}max_age_seconds: {allowed}, got {max_age_seconds}"
            raise ValueError(msg)
        return max_age_seconds

    def _settled(self, task: Task, verb: Verb, to: TaskStatus, now: float, **changes: Any) -> Task:
        return self._next(task, verb, to, now, **UNHELD, **changes)

    def _next(
        self,
        task: Task,
        verb: Verb,
        to: TaskStatus,
        now: float,
        request_token: str | None = None,
        **changes: Any,
    ) -> Task:
        """Apply a verb; set the expiry and the request token of the new version."""
        if to is TaskStatus.PENDING:
            useful_until = changes.get("deadline", task.deadline)
            changes |= NO_PROGRESS
        elif to is TaskStatus.TAKEN:
            useful_until = max(task.stale_at, changes["lease_until"])
        else:
            useful_until = now
        is_dead = to is TaskStatus.FAILURE
        if is_dead and (units := task.units_taken) is not None:
            changes["cost"] = units
        changes["expires"] = self._dead_letter_expires(now) if is_dead else self.expires(useful_until)
        changes["request_token"] = request_token or new_token()
        return advance(task, verb, to, now, **changes)


def _enters(new: NewTask, created: float, first_due: float | None, deadline: float | None) -> float:
    """Return when a new task enters its line; tasks with the same delay keep the order of their puts."""
    if first_due is None:
        if deadline is None or new.parent is None or new.parent.deadline is None:
            return created
        return round(created + max(0.0, min(CHILD_LEAD_SECONDS, (deadline - created) / 2)), 6)
    return round(created + new.delay_seconds, 6) if new.at is None else first_due


def _inherited(parent: Parent, deadline: float | None) -> tuple[str, str, float | None]:
    """Return the ids of the parent and the root of a task, and the earlier one of two deadlines."""
    if deadline is None or (parent.deadline is not None and parent.deadline < deadline):
        deadline = parent.deadline
    return parent.task_id, parent.root_id or parent.task_id, deadline


def _first_due(new: NewTask, now: float, where: str) -> float | None:
    """Return when a put with a delay or a time is due, perhaps in the past; None if the time is now."""
    if new.at is None:
        return round(now + new.delay_seconds, 6)
    if new.at > now + MAX_SECONDS:
        msg = f"{where}at: more than a century ahead, got {new.at}; use seconds since the epoch"
        raise ValueError(msg)
    return None if new.at == now else round(new.at, 6)


def claimed(task: Task, moment: ClaimMoment, token: str, version: str) -> Task:
    """Return a waiting task as held under a lease.

    Every store claims by it, or by a statement that makes the same changes.

    Args:
        task: The task.
        moment: The times of the write that claims it.
        token: Proves who holds it.
        version: Identifies the write. A claim slower than its lease may take a task that a sweep has
            recovered in between, again under its token. Another sweep that read the lost lease must not
            mistake the new one for it.
    """
    return changed(
        task,
        status=TaskStatus.TAKEN,
        updated=moment.now,
        attempts=task.attempts + 1,
        lease_token=token,
        lease_until=moment.lease_until,
        expires=moment.expires,
        request_token=version,
        first_claim_at=moment.now if task.first_claim_at is None else task.first_claim_at,
        last_claim_at=moment.now,
    )


def _moved_deadline(task: Task, created: float) -> float | None:
    """Return the deadline of a task that is moved in time with the same max age."""
    return None if task.deadline is None else round(created + task.deadline - task.created, 6)


def _not_before(task: Task, now: float, delay_seconds: float) -> float | None:
    """Return the time until which a task is delayed; None for a stale task, which needs no delay."""
    return round(now + delay_seconds, 6) if delay_seconds and task.stale_at > now else None


def truncated(error: str | None) -> str | None:
    """Return an error text, truncated to `MAX_ERROR_CHARS`."""
    if error is None or len(error) <= MAX_ERROR_CHARS:
        return error
    return error[: MAX_ERROR_CHARS - 1] + "…"


class Stamps:
    """Generates times, each at least a microsecond later than the one before. Thread-safe.

    If the clock goes back by more than a second, the times follow it, so that one wrong reading has no
    lasting effect.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
        """
        self._clock = clock
        self._lock = new_lock()
        self._latest_reading_us = self._last_us = 0

    def next(self) -> float:
        """Return the time in seconds since the epoch, later than any before unless the clock went back."""
        return self.take(self._clock(), 1)[0]

    def take(self, now: float, count: int) -> list[float]:
        """Return `count` times, each later than any before unless the clock went back.

        Args:
            now: A reading of the clock a moment ago, in seconds since the epoch.
            count: How many times to return, 1 or more.
        """
        with self._lock:
            reading_us = round(now * MICROSECONDS)
            if reading_us < self._latest_reading_us - MAX_AHEAD_US:
                # This thread may have waited for the lock: only a new reading proves a jump back.
                reading_us = round(self._clock() * MICROSECONDS)
                if reading_us < self._latest_reading_us - MAX_AHEAD_US:
                    self._latest_reading_us = self._last_us = reading_us - 1
            self._latest_reading_us = max(self._latest_reading_us, reading_us)
            first_us = max(reading_us, self._last_us + 1)
            self._last_us = first_us + count - 1
        return [us / MICROSECONDS for us in range(first_us, first_us + count)]


def put_over(current: Task, task: Task, on_conflict: str) -> tuple[PutOutcome, Task]:
    """Return the outcome of putting a task over one of the same id and queue, and the task to store.

    Args:
        current: The stored task.
        task: The new task.
        on_conflict: "ignore", "update" or "after": what to do if the stored task is live.

    Returns:
        DUPLICATE: change nothing. UPDATED: the new task replaces a live one. CREATED: it replaces an ended
        task, or waits behind a running one.
    """
    status = current.status_at(task.updated)
    if status not in LIVE:
        return PutOutcome.CREATED, task
    if status is TaskStatus.TAKEN and on_conflict == "after":
        return _put_after(current, task)
    if status is TaskStatus.PENDING:
        task = debounced_by(task, current)
    # An update with the same work would only take the task from its holder. But a successor is outdated now.
    same = current.successor_record is None and _work(current, task.updated) == _work(task, task.updated)
    return PutOutcome.DUPLICATE if on_conflict == "ignore" or same else PutOutcome.UPDATED, task


def _put_after(current: Task, task: Task) -> tuple[PutOutcome, Task]:
    """Return the outcome of putting a task behind a running one, and the running task to store."""
    waiting = current.successor
    if waiting is None:
        return PutOutcome.CREATED, followed_by(current, task)
    task = debounced_by(task, waiting)
    same = waiting.stale_at > task.updated and _work(waiting, task.updated) == _work(task, task.updated)
    return PutOutcome.DUPLICATE if same else PutOutcome.UPDATED, followed_by(current, task)


def _work(task: Task, now: float) -> tuple[object, ...]:
    """Return the fields that an update may change."""
    # Ignore a delay that has passed, whether or not the task was promoted.
    due = task.not_before if task.not_before is not None and task.not_before > now else None
    worth = (task.worth, task.decay or Decay.STEP, task.units)
    return (task.payload, due, task.priority, task.group, task.kind, *worth)


def held_task(claim: object) -> Task:
    """Return the claimed task as TAKEN.

    Raises:
        ValueError: If the argument is not a Claim.
    """
    if not isinstance(claim, Claim):
        msg = f"claim: must be a Claim, as returned by claim(), got {type(claim).__name__}"
        raise ValueError(msg)
    task = claim.task
    return task if task.status is TaskStatus.TAKEN else changed(task, status=TaskStatus.TAKEN)


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one claim should end. Create it with `complete`, `fail`, `retry` or `release`.

    After a lost answer it may be settled again: its own earlier write is recognized.

    Attributes:
        claim: A claim, as returned by `claim`.
        verb: The verb that settles the task.
        result: For `complete`: any JSON value, kept with the task.
        error: For `fail` and `retry`: why the attempt failed.
        delay_seconds: For `retry` and `release`: delay before the task can be claimed again; None for the
            default of the verb.
        request_token: Identifies the write; empty until it is first settled.
        traceback: For `fail` and `retry`: the traceback, of which the queue keeps the end.
        max_attempts: For `retry`: the attempts of the task in all; "queue" for the queue's limit, None for
            no limit.

    Examples:
        >>> (task,) = queue.settle_many([Settlement.complete(claim, 42)])
        >>> task.result
        42
    """

    claim: Claim
    verb: Verb
    result: Any = None
    error: str | None = None
    delay_seconds: float | None = None
    request_token: str = field(default="", compare=False)
    traceback: str | None = field(default=None, compare=False, repr=False)
    max_attempts: AttemptLimit = field(default=QUEUES, compare=False, repr=False)
    _held: Task = field(init=False, repr=False, compare=False)
    _result_text: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is wrong.
        """
        object.__setattr__(self, "_held", held_task(self.claim))
        if self.verb not in SETTLING:
            msg = f"verb: must be one of {', '.join(SETTLING)}, got {quoted(self.verb)}"
            raise ValueError(msg)
        if self.delay_seconds is not None:
            checked_seconds("delay_seconds", self.delay_seconds)
        if self.error is not None:
            object.__setattr__(self, "error", checked_error(self.error))
        if self.result is not None:
            result, text = result_and_text(self.result, self._held.payload)
            token = self.claim.token
            if text is not None and len(token) >= TOKEN_CHARS and token in text:
                raise ValueError("result: contains the token of the claim; return only what others may read")
            object.__setattr__(self, "result", result)
            object.__setattr__(self, "_result_text", text)

    @classmethod
    def complete(cls, claim: Claim, result: Any = None) -> Settlement:
        """Return a settlement as SUCCESS.

        Args:
            claim: A claim, as returned by `claim`.
            result: Any JSON value, kept with the task.

        Raises:
            ValueError: If the result is not JSON, or too large.
        """
        return cls(claim, Verb.COMPLETE, result=result)

    @classmethod
    def fail(cls, claim: Claim, error: str | None = None) -> Settlement:
        """Return a settlement as FAILURE, a dead letter, even if attempts are left."""
        return cls(claim, Verb.FAIL, error=error)

    @classmethod
    def retry(cls, claim: Claim, error: str | None = None, delay_seconds: float | None = None) -> Settlement:
        """Return a settlement that asks for another attempt, or is FAILURE after the last one.

        Args:
            claim: A claim, as returned by `claim`.
            error: Why the attempt failed.
            delay_seconds: Delay before the next attempt; None for exponential backoff with full jitter.

        Raises:
            ValueError: If an argument is wrong.
        """
        return cls(claim, Verb.RETRY, error=error, delay_seconds=delay_seconds)

    @classmethod
    def release(cls, claim: Claim, delay_seconds: float = 0) -> Settlement:
        """Return a settlement that returns the task to its line, the attempt not counted.

        Args:
            claim: A claim, as returned by `claim`.
            delay_seconds: Delay before the task can be claimed again.

        Raises:
            ValueError: If an argument is wrong.
        """
        return cls(claim, Verb.RELEASE, delay_seconds=checked_seconds("delay_seconds", delay_seconds))

    def next_version(self, life: Lifecycle, now: float, uniform: Callable[[], float]) -> Task:
        """Return the task after this settlement is stored.

        Args:
            life: The verbs under the options of the queue.
            now: Current time in seconds.
            uniform: Returns a random number from [0, 1), for the jitter of a retry.
        """
        task = self._held
        if not self.request_token:
            # Created as late as possible: generating a token yields to other threads, and a worker would
            # claim for one free slot while others are about to become free.
            object.__setattr__(self, "request_token", new_token())
        if self.verb is Verb.COMPLETE:
            return life.completed(task, now, self.result, self.request_token, self._result_text)
        if self.verb is Verb.FAIL:
            return life.failed(task, now, self.error, self.request_token, self.traceback)
        if self.verb is Verb.RETRY:
            told = (self.request_token, self.traceback, self.max_attempts)
            return life.retried(task, now, self.error, self.delay_seconds, uniform(), *told)
        return life.released(task, now, self.delay_seconds or 0, self.request_token)


def checked_settlements(settlements: object) -> list[Settlement]:
    """Check that an argument is a list of settlements; return them.

    Raises:
        ValueError: If it is not.
    """
    found: list[Settlement] = []
    for each in settlements if isinstance(settlements, Iterable) else [settlements]:
        if not isinstance(each, Settlement) or each is settlements:
            msg = f"settlements: must be a list of Settlement objects, got {type(each).__name__}"
            raise ValueError(msg)
        found.append(each)
    return found


def rounds(task_ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield the positions of ids in rounds without duplicates; equal ids keep their order."""
    left = list(range(len(task_ids)))
    while left:
        first = {task_ids[place]: place for place in reversed(left)}
        yield sorted(first.values())
        left = [place for place in left if first[task_ids[place]] != place]
