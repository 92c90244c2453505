"""A task as it is printed: names and values for people, fields for programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.errors import printable
from freshq.cli.texts import compact_json, span
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.model.task import Task

# Not printed: the store's bookkeeping, and the token, which only its holder may know.
INTERNAL: Final = ("expires", "request_token", "lease_token")


def fields(task: Task, now: float) -> dict[str, Any]:
    """Return a task as JSON has it.

    Args:
        task: The task.
        now: Current time in seconds since the epoch, which decides whether the task is SHED.
    """
    known = {key: value for key, value in asdict(task).items() if key not in INTERNAL}
    return known | {"status": task.status_at(now).value}


def claim_fields(claim: Claim) -> dict[str, Any]:
    """Return a claim as JSON has it: the task, and the token to settle it with."""
    return {
        **fields(claim.task, claim.task.updated),
        "token": claim.token,
        "lease_until": claim.lease_until,
    }


def times(task: Task, now: float) -> dict[str, str | None]:
    """Return when a task entered each state, as ISO 8601 strings; None for a state that it never entered."""
    moments = {
        "put": task.put_at,
        "due": task.first_due,
        "first_claim": task.first_claim_at,
        "last_claim": task.last_claim_at,
        "end": task.ended_at(now),
        "dead": task.dead_at,
    }
    return {name: None if moment is None else instant(moment) for name, moment in moments.items()}


def instant(moment: float) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    at = datetime.fromtimestamp(round(moment, 3), UTC)
    text = at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
    return text.replace("+00:00", "Z")


def claim_facts(claim: Claim) -> dict[str, str]:
    """Return a claim for people, its token in full."""
    return {
        "task": printable(claim.task.task_id),
        "token": claim.token,
        "held for": span(claim.lease_until - claim.task.updated),
        "attempt": str(claim.task.attempts),
        **_unusual(claim.task),
        "payload": compact_json(claim.task.payload),
    }


def _unusual(task: Task) -> dict[str, str]:
    """Return the facts that only some tasks have."""
    facts = {}
    if task.priority:
        facts["priority"] = str(task.priority)
    if task.group is not None:
        facts["group"] = printable(task.group)
    if task.kind is not None:
        facts["kind"] = printable(task.kind)
    if task.error is not None:
        facts["last error"] = printable(task.error)
    if task.trace_id is not None:
        facts["trace"] = task.trace_id
    return facts


def state(task: Task, now: float) -> dict[str, str]:
    """Return the state of a task for people.

    Args:
        task: The task.
        now: Current time in seconds since the epoch.
    """
    if task.status is TaskStatus.READY:
        return {"status": "READY, in no queue"}  # without times or attempts
    facts = {
        "status": task.status_at(now).value,
        **_beginnings(task, now),
        **_changes(task, now),
        "attempts": str(task.attempts),
        **_unusual(task),
    }
    if task.status is TaskStatus.PENDING:
        facts["stale"] = _when(task.deadline, now)
    if task.not_before is not None:
        facts["claimable"] = _when(task.not_before, now)
    if task.lease_until is not None:
        facts["lease ends"] = _when(task.lease_until, now)
    if task.progress_fraction is not None:
        facts["progress"] = progress(task)
    if task.shed_reason is not None:
        facts["shed for"] = task.shed_reason.value
    return facts


def progress(task: Task) -> str:
    """Return how far the last run of a task was, such as ``40 %, loading``."""
    done = percent(task)
    return done if task.progress_step is None else f"{done}, {printable(task.progress_step)}"


def percent(task: Task) -> str:
    """Return how much of its work the last run of a task had done, such as ``40 %``; empty if not known."""
    if task.progress_fraction is None:
        return ""
    # Millionths are exact: 0.29 is 29 %, not 28.999. Rounded down: only what is done is 100 %.
    return f"{round(task.progress_fraction * 1_000_000) // 10_000} %"


def _beginnings(task: Task, now: float) -> dict[str, str]:
    """Return when a task was put, was due first and was created; what follows from the others is left out."""
    facts = {}
    if task.put_at is not None and task.created - task.put_at >= 1:  # delayed, or touched
        facts["put"] = _at(task.put_at, now)
    if task.first_due is not None:
        facts["due"] = _at(task.first_due, now)
    if task.first_due is None or task.created - task.first_due >= 1:
        facts["created"] = _at(task.created, now)
    return facts


def _changes(task: Task, now: float) -> dict[str, str]:
    """Return when a task was claimed, died, ended or else changed last."""
    facts = {}
    if task.first_claim_at is not None and task.last_claim_at is not None:
        once = task.first_claim_at == task.last_claim_at
        facts["claimed" if once else "first claim"] = _at(task.first_claim_at, now)
        if not once:
            facts["last claim"] = _at(task.last_claim_at, now)
    if task.dead_at is not None and task.status is not TaskStatus.FAILURE:
        facts["was dead"] = _at(task.dead_at, now)
    ended = task.ended_at(now)
    name = "changed" if ended is None else "dead" if task.status is TaskStatus.FAILURE else "ended"
    facts[name] = _at(task.updated if ended is None else ended, now)
    return facts


def _at(moment: float, now: float) -> str:
    """Return a time, and how far it is."""
    return f"{instant(moment)}, {_when(moment, now)}"


def _when(moment: float, now: float) -> str:
    return f"in {span(moment - now)}" if moment >= now else f"{span(now - moment)} ago"


def task_facts(task: Task, now: float) -> dict[str, str]:
    """Return everything about a task for people."""
    facts = {"task": printable(task.task_id), **state(task, now), "payload": compact_json(task.payload)}
    if task.result is not None:
        facts["result"] = compact_json(task.result)
    return facts
