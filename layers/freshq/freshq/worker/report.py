"""Report of a worker, and the fields of its log lines."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from typing_extensions import override

from freshq.model.task import handle_of
from freshq.model.telemetry import TelemetryFailures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.model.telemetry import RunScope
    from freshq.policy.order import OrderSwitch

FIELDS: Final = ("task_id", "kind", "queue", "attempt", "trace_id")
# The run that executes in this thread or coroutine.
RUNNING: Final[ContextVar[RunScope | None]] = ContextVar("freshq_run", default=None)
# `logging` refuses extra fields that a record already has, and the application's record factory may have set
# any, so the fields travel under this one name until the record is made.
KEY: Final = "_freshq_task"


def log_fields(task: Task) -> dict[str, Any]:
    """Return the fields of a task for `extra` of a `task_logger`.

    Args:
        task: The task.
    """
    return {KEY: _fields(task, task.trace_id)}


def _fields(task: Task, trace_id: str | None) -> dict[str, Any]:
    values = (task.task_id, task.kind, task.queue, task.attempts, trace_id or task.trace_id)
    return dict(zip(FIELDS, values, strict=True))


def _add(record: logging.LogRecord, fields: dict[str, Any]) -> None:
    """Give a record the fields that it lacks."""
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)


class _TaskFields(logging.Filter):
    """Gives a record the fields of `log_fields`; fields set by the application's record factory are kept."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        _add(record, record.__dict__.pop(KEY, {}))
        return True


_TASK_FIELDS: Final = _TaskFields()


def task_logger(name: str) -> logging.Logger:
    """Return a logger whose records may have `log_fields`."""
    logger = logging.getLogger(name)
    logger.addFilter(_TASK_FIELDS)
    return logger


class TaskLogFilter(logging.Filter):
    """Gives each log record `task_id`, `kind`, `queue`, `attempt` and `trace_id`.

    Add it to a handler. freshq's own records about a task already have these fields. Records made by the
    runner, or by code that it calls, get the fields of the running task, in threads and in coroutines; in all
    other records they are None. Records never contain anything else about a task.
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; pass every record."""
        scope = None if hasattr(record, FIELDS[0]) else RUNNING.get()
        _add(record, dict.fromkeys(FIELDS) if scope is None else _fields(scope.task, scope.trace_id))
        return True


logger = task_logger(__name__)


class Outcome(StrEnum):
    """How one claim of a task ended.

    RELEASED: the runner was busy. UNKNOWN_KIND: no handler has the task's kind; it was put back. GIVEN_BACK:
    the worker returned the task to its line unchanged, because it was prefetched and got no slot, or because
    it still ran when the worker was stopped immediately.
    SHED: the deadline passed before the run could start, or a child that the run put was refused for lack of
    time; the task returned to its line unchanged and counts as shed by its deadline. LEASE_LOST: the lease
    expired before the run started or ended. CANCELLED: the task was cancelled while it ran. UNSETTLED: the
    run ended, but the store did not answer; the task returns when its lease expires.

    With `at_most_once`, FAILED is a run that failed after its task was completed.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    RELEASED = "released"
    UNKNOWN_KIND = "unknown_kind"
    GIVEN_BACK = "given_back"
    SHED = "shed"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    UNSETTLED = "unsettled"


@dataclass
class RunReport:
    """The work of a single `run` of a worker.

    Attributes:
        claimed: Number of claimed tasks.
        outcomes: Number of runs by outcome.
        overran: Ids of the tasks that ran longer than `max_run_seconds`.
        unfinished: Ids of the tasks that were still running when the worker stopped waiting, including those
            that overran. They stay TAKEN until their leases expire.
        given_back: Ids of the tasks that still ran at `Worker.stop_at_once`, and count as GIVEN_BACK.
        idle: Whether it stopped because there was nothing left to claim.
        unknown_kinds: Number of runs with the outcome UNKNOWN_KIND by kind; "" for tasks without a kind.

    Examples:
        >>> receipt = queue.put("work")
        >>> report = Worker(queue, lambda task: 42, idle_exit_seconds=0.1).run()
        >>> {outcome.value: number for outcome, number in report.outcomes.items() if number}
        {'succeeded': 1}
    """

    claimed: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    overran: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    idle: bool = False
    unknown_kinds: dict[str, int] = field(default_factory=dict)

    @property
    def progress(self) -> int:
        """Number of runs that succeeded, failed or were retried."""
        ended = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)
        return sum(self.outcomes[outcome] for outcome in ended)


class WorkerState(StrEnum):
    """The state of a worker. DRAINING: it waits for its running tasks and claims no more."""

    STARTING = "starting"
    WORKING = "working"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment.

    Attributes:
        state: Its state.
        running: Number of occupied slots; the tasks of a batch share one.
        claimed: Number of tasks claimed so far.
        outcomes: Number of runs by outcome so far.
        overran: Number of runs that exceeded `max_run_seconds` so far.
        turned_seconds: Time since its loop last went round.
        slowed: Whether it runs one task at a time, because the last runs have all failed.
        store_answers: Whether the store answered its last calls.
    """

    state: WorkerState = WorkerState.STARTING
    running: int = 0
    claimed: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    overran: int = 0
    turned_seconds: float = 0.0
    store_answers: bool = False
    slowed: bool = False


def merged(reports: Sequence[RunReport]) -> RunReport:
    """Return the reports of several workers as one; it was idle if all workers were."""
    whole = RunReport(idle=all(report.idle for report in reports))
    for report in reports:
        whole.claimed += report.claimed
        whole.overran += report.overran
        whole.unfinished += report.unfinished
        whole.given_back += report.given_back
        whole.outcomes = {outcome: whole.outcomes[outcome] + report.outcomes[outcome] for outcome in Outcome}
        whole.unknown_kinds = dict(Counter(whole.unknown_kinds) + Counter(report.unknown_kinds))
    return whole


def together(statuses: Sequence[WorkerStatus]) -> WorkerStatus:
    """Return the status of several workers as one: the first state, and the worst of the rest."""
    return WorkerStatus(
        min((status.state for status in statuses), key=[*WorkerState].index),
        running=sum(status.running for status in statuses),
        claimed=sum(status.claimed for status in statuses),
        outcomes={outcome: sum(status.outcomes[outcome] for status in statuses) for outcome in Outcome},
        overran=sum(status.overran for status in statuses),
        turned_seconds=max(status.turned_seconds for status in statuses),
        store_answers=all(status.store_answers for status in statuses),
        slowed=any(status.slowed for status in statuses),
    )


# The metric that counts the runs of each outcome; docs/operations.md lists them.
METRIC_OF_OUTCOME: Final = {
    Outcome.SUCCEEDED: "TasksSucceeded",
    Outcome.FAILED: "TasksFailed",
    Outcome.RETRIED: "TasksRetried",
    Outcome.RELEASED: "TasksReleased",
    Outcome.UNKNOWN_KIND: "TasksOfUnknownKind",
    Outcome.GIVEN_BACK: "TasksGivenBack",
    Outcome.SHED: "TasksShedBeforeRun",
    Outcome.LEASE_LOST: "LeasesLost",
    Outcome.CANCELLED: "TasksCancelled",
    Outcome.UNSETTLED: "TasksUnsettled",
}


@runtime_checkable
class Observer(Protocol):
    """Receives the events of a worker: derive a class, override the methods you need, and pass an instance.

    Several threads call it, and the worker waits for it: return quickly. If it raises, the worker finishes
    its running tasks and exits with that error. It replaces the default observer, which writes to the log.
    Each method does nothing by default.
    """

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        """Receive a claim, with the age of the task."""
        del claim, age_seconds

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        """Receive the end of a run.

        Args:
            claim: The claim, without the changes of its settlement.
            outcome: How it ended.
            run_seconds: How long the run took; about 0 if it never started.
            error: Why it did not succeed; None if it did.
        """
        del claim, outcome, run_seconds, error

    def overran(self, claim: Claim, run_seconds: float) -> None:
        """Receive a run that exceeded `max_run_seconds`. It may still settle, unless it was killed."""
        del claim, run_seconds

    def switched(self, switch: OrderSwitch) -> None:
        """Receive an order switch."""
        del switch


class ObserverBesideTelemetry(Observer):
    """Calls an observer, then telemetry that is also an observer; exceptions of telemetry are only logged."""

    def __init__(self, observer: Observer, telemetry: Observer) -> None:
        self._observer = observer
        self._telemetry = telemetry
        self._failures = TelemetryFailures()

    @override
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        self._observer.claimed(claim, age_seconds)
        with self._failures.caught("claimed"):
            self._telemetry.claimed(claim, age_seconds)

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        self._observer.settled(claim, outcome, run_seconds, error)
        with self._failures.caught("settled"):
            self._telemetry.settled(claim, outcome, run_seconds, error)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        self._observer.overran(claim, run_seconds)
        with self._failures.caught("overran"):
            self._telemetry.overran(claim, run_seconds)

    def slowed(self, queue: str, *, opened: bool) -> None:
        """Pass on that the worker slowed down, or tried in vain."""
        for observer in (self._observer, self._telemetry):
            tell = getattr(observer, "slowed", None)
            if tell is not None:
                with self._failures.caught("slowed"):
                    tell(queue, opened=opened)

    @override
    def switched(self, switch: OrderSwitch) -> None:
        self._observer.switched(switch)
        with self._failures.caught("switched"):
            self._telemetry.switched(switch)


# Log level of the end of a run, if the end was intended, or is a warning or an error elsewhere.
LEVELS: Final = {
    Outcome.SUCCEEDED: logging.INFO,
    Outcome.UNKNOWN_KIND: logging.DEBUG,  # `UnknownKinds` warns
    Outcome.GIVEN_BACK: logging.DEBUG,
    Outcome.CANCELLED: logging.INFO,
    Outcome.UNSETTLED: logging.DEBUG,  # an error says why
}
# Time between two warnings about a kind without a handler.
WARNING_SECONDS: Final = 60.0


class UnknownKinds:
    """Counts the tasks whose kind has no handler, and warns about each kind once a minute. Thread-safe."""

    def __init__(self, counts: dict[str, int]) -> None:
        """Count into a dictionary, by kind."""
        self._counts = counts
        self._warned_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, task: Task, error: str | None) -> None:
        """Count a task that was put back, and warn unless that was done within the last minute."""
        kind, now = task.kind or "", time.monotonic()
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if now - self._warned_at.get(kind, -inf) < WARNING_SECONDS:
                return
            self._warned_at[kind] = now
        message = "task %s put back for a worker that knows its kind; %s"
        logger.warning(message, task.task_id, error, extra=log_fields(task))


def raised_by(task: Task) -> BaseException | None:
    """Return the unexpected exception that ended the run of a task; None if there is none."""
    handle = handle_of(task)
    return None if handle is None else handle.raised


def log_end(task: Task, outcome: Outcome, run_seconds: float, error: str | None) -> None:
    """Log how a run ended, with the traceback of an exception that no runner should raise."""
    raised = raised_by(task)
    level = LEVELS.get(outcome, logging.WARNING) if raised is None else logging.ERROR
    if logger.isEnabledFor(level):
        message = "task %s %s after %.3f s" + (": %s" if error else "")
        told = (task.task_id, outcome, run_seconds, *([error] if error else []))
        logger.log(level, message, *told, exc_info=raised, extra=log_fields(task))


class LoggingObserver(Observer):
    """Writes the events of a worker to the log."""

    logs_failures: ClassVar[bool] = True

    @override
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        if logger.isEnabledFor(logging.DEBUG):  # avoids building the fields when DEBUG is off
            task = claim.task
            logger.debug("task %s claimed at age %.3f s", task.task_id, age_seconds, extra=log_fields(task))

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        log_end(claim.task, outcome, run_seconds, error)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        logger.error(
            "task %s ran longer than max_run_seconds, %.3f s so far; its lease is no longer extended",
            claim.task.task_id,
            run_seconds,
            extra=log_fields(claim.task),
        )

    @override
    def switched(self, switch: OrderSwitch) -> None:
        end = "newest" if switch.newest_first else "oldest"
        logger.info("order switched to %s first; oldest task %.3f s old", end, switch.oldest_age_seconds)
