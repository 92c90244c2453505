"""Convert tasks to rows, and rows to tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.model.answers import PutOutcome
from freshq.model.task import Task, TaskStatus
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Sequence

# A row remembers this many puts, each by a letter and a token of 32 digits: they fit `TOKEN_BYTES`.
REMEMBERED: Final = 3
ENTRY_CHARS: Final = 33
LETTERS: Final = {PutOutcome.CREATED: "c", PutOutcome.UPDATED: "u"}
# What a task needs attention for: see `Schema.tasks`.
DUE: Final = "due"
STALE: Final = "stale"
OVER: Final = "over"
# Optional numbers of a task and their columns: times in microseconds, progress in millionths.
PUT_MILLIONTHS: Final = {"put_us": "put_at", "first_due_us": "first_due"}
MILLIONTHS: Final = {
    "not_before_us": "not_before",
    "lease_until_us": "lease_until",
    "first_claim_us": "first_claim_at",
    "last_claim_us": "last_claim_at",
    "dead_us": "dead_at",
    "progress_ppm": "progress_fraction",
}
# Columns of a task that statements select, in this order; the optional numbers are last.
COLUMNS: Final = (
    *("task_id", "queue", "status", "created_us", "updated_us", "deadline_us", "expires", "request_token"),
    *("payload", "priority", "task_group", "attempts", "lease_token", "error", "result", "shed_reason"),
    *("kind", "progress_step", "trace_context"),
    *(*PUT_MILLIONTHS, *MILLIONTHS),
)
FIRST_OPTIONAL: Final = COLUMNS.index(next(iter(PUT_MILLIONTHS)))
# The columns that the end of a held task changes, besides its lease.
END_COLUMNS: Final = (
    *("status", "updated_us", "expires", "request_token", "error", "result", "agenda", "due_us", "dead_us"),
    *("progress_ppm", "progress_step"),
)
# Set by the put; no change touches them.
FIXED_COLUMNS: Final = (
    *("task_id", "queue", "task_group", "payload", "put_token", "put_us", "first_due_us", "kind"),
    "trace_context",
)

OUTCOMES: Final = {letter: outcome for outcome, letter in LETTERS.items()}


def remember(token: str, outcome: PutOutcome, earlier: str = "") -> str:
    """Return the puts that a row remembers, the last one first.

    Args:
        token: Names the put.
        outcome: What it did: CREATED or UPDATED.
        earlier: The puts that the row remembered before.
    """
    return (LETTERS[outcome] + token + earlier)[: REMEMBERED * ENTRY_CHARS]


def outcome_of(token: str, remembered: str) -> PutOutcome | None:
    """Return what a put did to a row, CREATED or UPDATED; None if the row does not remember it."""
    for start in range(0, len(remembered), ENTRY_CHARS):
        entry = remembered[start : start + ENTRY_CHARS]
        if entry[1:] == token:
            return OUTCOMES[entry[0]]
    return None


@dataclass(frozen=True, slots=True)
class Stored:
    """A task as it was read.

    Attributes:
        task: The task. If its payload cannot be decoded, it is the stored text.
        problem: Why the payload cannot be decoded; None if it can.
    """

    task: Task
    problem: str | None


def microseconds(seconds: float) -> int:
    """Return a time in whole microseconds, as the tables store it."""
    return round(seconds * 1e6)


def line_key(priority: int, group: str | None) -> str:
    """Return a line as it is stored: its priority level, one digit, then its group."""
    return f"{priority}{group or ''}"


def parse_line(key: str) -> tuple[int, str | None]:
    """Return the priority level and the group of a stored line."""
    return int(key[0]), key[1:] or None


def _place(task: Task) -> tuple[str | None, str, float]:
    """Return the line of a task, what it needs attention for, and when, in seconds since the epoch."""
    if task.status is TaskStatus.PENDING:
        if task.not_before is not None:
            return None, DUE, task.not_before
        if task.deadline > task.updated:
            return line_key(task.priority, task.group), STALE, task.deadline
    elif task.status is TaskStatus.TAKEN and task.lease_until is not None:
        return None, DUE, task.lease_until
    return None, OVER, task.expires


def new_version(task: Task) -> dict[str, Any]:
    """Return the columns of a new version of a task, without those that only its put sets."""
    reason = task.shed_reason
    line, agenda, due_at = _place(task)
    row = {
        "status": task.status.value,
        "created_us": round(task.created * 1e6),
        "updated_us": round(task.updated * 1e6),
        "deadline_us": round(task.deadline * 1e6),
        "expires": task.expires,
        "request_token": task.request_token,
        "priority": task.priority,
        "attempts": task.attempts,
        "lease_token": task.lease_token,
        "shed_reason": reason and reason.value,
        "line": line,
        "agenda": agenda,
        "due_us": round(due_at * 1e6),
        "progress_step": task.progress_step,
        "error": task.error and task.error.replace("\0", "\ufffd"),
        "result": task.result_text,
    }
    for column, name in MILLIONTHS.items():
        number = getattr(task, name)
        row[column] = None if number is None else round(number * 1e6)
    return row


def row_of(task: Task) -> dict[str, Any]:
    """Return the row of a new task.

    Raises:
        ValueError: If its id, group or kind has a NUL character, which PostgreSQL cannot store.
    """
    if "\0" in f"{task.task_id}{task.group}{task.kind}":
        names = (("task_id", task.task_id), ("group", task.group), ("kind", task.kind))
        name, text = next((name, text) for name, text in names if "\0" in (text or ""))
        msg = f"{name}: must not contain the character NUL, got {text!r:.60}"
        raise ValueError(msg)
    row = new_version(task)
    row["task_id"] = task.task_id
    row["queue"] = task.queue
    row["put_token"] = LETTERS[PutOutcome.CREATED] + task.request_token
    row["task_group"] = task.group
    row["kind"] = task.kind
    row["trace_context"] = task.trace_context
    row["payload"] = task.payload_text
    for column, name in PUT_MILLIONTHS.items():
        number = getattr(task, name)
        row[column] = None if number is None else round(number * 1e6)
    return row


def end(task: Task) -> dict[str, Any]:
    """Return the columns that the end of a task changes."""
    dead_at, fraction = task.dead_at, task.progress_fraction
    return {
        "status": task.status.value,
        "updated_us": round(task.updated * 1e6),
        "expires": task.expires,
        "request_token": task.request_token,
        "error": task.error and task.error.replace("\0", "\ufffd"),
        "result": None if task.result is None else task.result_text,
        "agenda": OVER,
        "due_us": task.expires * 1_000_000,
        "dead_us": None if dead_at is None else round(dead_at * 1e6),
        "progress_ppm": None if fraction is None else round(fraction * 1e6),
        "progress_step": task.progress_step,
    }


def stored(row: Sequence[Any]) -> Stored:
    """Return the task of a row of `COLUMNS`."""
    problem = None
    payload: Any = row[8]
    try:
        payload = json.loads(payload)
    except (ValueError, RecursionError) as error:
        problem = f"the payload cannot be decoded: {error}"
        payload = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
    optional = [None if number is None else number / 1e6 for number in row[FIRST_OPTIONAL : len(COLUMNS)]]
    task = Task(
        task_id=row[0],
        queue=row[1],
        status=TaskStatus(row[2]),
        created=row[3] / 1e6,
        updated=row[4] / 1e6,
        deadline=row[5] / 1e6,
        expires=row[6],
        request_token=row[7],
        payload=payload,
        priority=row[9],
        group=row[10],
        attempts=row[11],
        lease_token=row[12],
        error=row[13],
        result=None if row[14] is None else json.loads(row[14]),
        shed_reason=None if row[15] is None else ShedReason(row[15]),
        kind=row[16],
        progress_step=row[17],
        trace_context=row[18],
        put_at=optional[0],
        first_due=optional[1],
        not_before=optional[2],
        lease_until=optional[3],
        first_claim_at=optional[4],
        last_claim_at=optional[5],
        dead_at=optional[6],
        progress_fraction=optional[7],
    )
    return Stored(task, problem)


def task_of(row: Sequence[Any]) -> Task:
    """Return the task of a row of `COLUMNS`; a payload that cannot be decoded is the stored text."""
    return stored(row).task
