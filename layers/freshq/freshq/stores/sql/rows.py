"""Convert tasks to rows, and rows to tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.model.answers import PutOutcome
from freshq.model.task import Task, TaskStatus
from freshq.model.validation import json_text
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
# Columns of a task that statements select, in this order.
COLUMNS: Final = (
    *("task_id", "queue", "status", "created_us", "updated_us", "deadline_us", "expires", "request_token"),
    *("priority", "task_group", "attempts", "not_before_us", "lease_token", "lease_until_us", "error"),
    *("result", "shed_reason", "payload", "put_us", "first_due_us", "kind"),
    *("first_claim_us", "last_claim_us", "dead_us", "progress_ppm", "progress_step", "trace_context"),
)
# The columns that the end of a held task changes, besides its lease.
END_COLUMNS: Final = (
    *("status", "updated_us", "expires", "request_token", "error", "result", "agenda", "due_us", "dead_us"),
    *("progress_ppm", "progress_step"),
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


def _optional_millionths(number: float | None) -> int | None:
    """Return a time in microseconds, or progress in millionths; None if there is none."""
    return None if number is None else microseconds(number)


def _optional_number(millionths: int | None) -> float | None:
    return None if millionths is None else millionths / 1e6


def line_key(priority: int, group: str | None) -> str:
    """Return a line as it is stored: its priority level, one digit, then its group."""
    return f"{priority}{group or ''}"


def parse_line(key: str) -> tuple[int, str | None]:
    """Return the priority level and the group of a stored line."""
    return int(key[0]), key[1:] or None


def columns_of(task: Task) -> dict[str, Any]:
    """Return the columns of a new version of a task, all but its key, payload and group."""
    claimable = task.status is TaskStatus.PENDING and not task.delayed and task.deadline > task.updated
    agenda, due_us = _attention(task)
    return {
        "status": task.status.value,
        "created_us": microseconds(task.created),
        "updated_us": microseconds(task.updated),
        "deadline_us": microseconds(task.deadline),
        "expires": task.expires,
        "request_token": task.request_token,
        "priority": task.priority,
        "attempts": task.attempts,
        "not_before_us": _optional_millionths(task.not_before),
        "lease_token": task.lease_token,
        "lease_until_us": _optional_millionths(task.lease_until),
        "error": None if task.error is None else task.error.replace("\0", "\ufffd"),
        "result": None if task.result is None else json_text(task.result),
        "shed_reason": None if task.shed_reason is None else task.shed_reason.value,
        "first_claim_us": _optional_millionths(task.first_claim_at),
        "last_claim_us": _optional_millionths(task.last_claim_at),
        "dead_us": _optional_millionths(task.dead_at),
        "progress_ppm": _optional_millionths(task.progress_fraction),
        "progress_step": task.progress_step,
        "line": line_key(task.priority, task.group) if claimable else None,
        "agenda": agenda,
        "due_us": due_us,
    }


def end(task: Task) -> dict[str, Any]:
    """Return the columns that the end of a task changes."""
    return {
        "status": task.status.value,
        "updated_us": microseconds(task.updated),
        "expires": task.expires,
        "request_token": task.request_token,
        "error": None if task.error is None else task.error.replace("\0", "\ufffd"),
        "result": None if task.result is None else json_text(task.result),
        "agenda": OVER,
        "due_us": task.expires * 1_000_000,
        "dead_us": _optional_millionths(task.dead_at),
        "progress_ppm": _optional_millionths(task.progress_fraction),
        "progress_step": task.progress_step,
    }


def _attention(task: Task) -> tuple[str, int]:
    """Return what a task needs attention for, and when."""
    if task.status is TaskStatus.TAKEN and task.lease_until is not None:
        return DUE, microseconds(task.lease_until)
    if task.status is TaskStatus.PENDING and task.not_before is not None:
        return DUE, microseconds(task.not_before)
    if task.status is TaskStatus.PENDING and task.deadline > task.updated:
        return STALE, microseconds(task.deadline)
    return OVER, task.expires * 1_000_000


def row_of(task: Task) -> dict[str, Any]:
    """Return the row of a new task.

    Raises:
        ValueError: If its id, group or kind has a NUL character, which PostgreSQL cannot store.
    """
    for name, text in (("task_id", task.task_id), ("group", task.group or ""), ("kind", task.kind or "")):
        if "\0" in text:
            msg = f"{name}: must not contain the character NUL, got {text!r:.60}"
            raise ValueError(msg)
    return columns_of(task) | {
        "task_id": task.task_id,
        "queue": task.queue,
        "task_group": task.group,
        "put_token": remember(task.request_token, PutOutcome.CREATED),
        "payload": json_text(task.payload),
        "put_us": _optional_millionths(task.put_at),
        "first_due_us": _optional_millionths(task.first_due),
        "kind": task.kind,
        "trace_context": task.trace_context,
    }


def stored(row: Sequence[Any]) -> Stored:
    """Return the task of a row of `COLUMNS`."""
    problem = None
    payload: Any = row[17]
    try:
        payload = json.loads(payload)
    except (ValueError, RecursionError) as error:
        problem = f"the payload cannot be decoded: {error}"
        payload = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
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
        priority=row[8],
        group=row[9],
        attempts=row[10],
        not_before=_optional_number(row[11]),
        lease_token=row[12],
        lease_until=_optional_number(row[13]),
        error=row[14],
        result=None if row[15] is None else json.loads(row[15]),
        shed_reason=None if row[16] is None else ShedReason(row[16]),
        put_at=_optional_number(row[18]),
        first_due=_optional_number(row[19]),
        kind=row[20],
        first_claim_at=_optional_number(row[21]),
        last_claim_at=_optional_number(row[22]),
        dead_at=_optional_number(row[23]),
        progress_fraction=_optional_number(row[24]),
        progress_step=row[25],
        trace_context=row[26],
    )
    return Stored(task, problem)


def task_of(row: Sequence[Any]) -> Task:
    """Return the task of a row of `COLUMNS`; a payload that cannot be decoded is the stored text."""
    return stored(row).task
