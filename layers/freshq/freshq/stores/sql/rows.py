"""Convert tasks to rows, and rows to tasks."""

from __future__ import annotations

import json
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from freshq.model.answers import PutOutcome
from freshq.model.fields import FIELDS, NEVER, REMEMBERED_PUTS, FieldType, SetBy
from freshq.model.task import Task, TaskStatus, make_task
from freshq.policy.shedding import ShedReason
from freshq.stores.lines import Stored, line_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.model.fields import StoredField

# A put in a row: a letter and a token of 32 digits. `REMEMBERED_PUTS` of these fit into `TOKEN_BYTES`.
ENTRY_CHARS: Final = 33
LETTERS: Final = {PutOutcome.CREATED: "c", PutOutcome.UPDATED: "u"}
# Kinds of attention that a task needs: see `Schema.tasks`.
DUE: Final = "due"
STALE: Final = "stale"
OVER: Final = "over"
# Columns converted one by one.
CONVERTED: Final = ("status", "shed_reason", "error", "result", "payload")
# Times are in microseconds, progress is in millionths.
SCALED: Final = (FieldType.TIME, FieldType.REAL)


class Columns:
    """Columns of tasks: first columns that hold a field unchanged, then times and fractions.

    Attributes:
        names: Names of the columns, in order.
    """

    def __init__(self, fields: Iterable[StoredField]) -> None:
        simple = [field for field in fields if field.column not in CONVERTED]
        plain = [field for field in simple if field.kind not in SCALED]
        scaled = [field for field in simple if field.kind in SCALED]
        self.names = tuple(field.column for field in (*plain, *scaled))
        self._plain_of = attrgetter(*(field.field for field in plain))
        self._scaled_of = attrgetter(*(field.source for field in scaled))

    def values_of(self, task: Task) -> tuple[Any, ...]:
        """Return the values of a task, in the order of `names`."""
        scaled = [None if number is None else round(number * 1e6) for number in self._scaled_of(task)]
        return (*self._plain_of(task), *scaled)


OF_CHANGE: Final = Columns(field for field in FIELDS if field.set_by is not SetBy.PUT)
OF_TASK: Final = Columns(FIELDS)
# Columns that are never set before the first claim: a COPY of new tasks leaves them out.
SET_LATER: Final = (
    *("lease_token", "lease_until_us", "first_claim_us", "last_claim_us", "attempt_record"),
    "successor_record",
    *("progress_ppm", "progress_step", "dead_us", "shed_reason", "error", "result"),
)
OF_NEW: Final = Columns(field for field in FIELDS if field.column not in SET_LATER)
OF_END: Final = Columns(field for field in FIELDS if field.set_by is SetBy.END)
# Columns that every change of a task recomputes.
STATE_COLUMNS: Final = ("status", "shed_reason", "error", "result", "line", "agenda", "due_us")
VERSION_COLUMNS: Final = (*OF_CHANGE.names, *STATE_COLUMNS)
PUT_COLUMNS: Final = (*OF_TASK.names, *STATE_COLUMNS, "payload", "put_token")
# The columns of a task that was never claimed.
NEW_COLUMNS: Final = (*OF_NEW.names, "status", "line", "agenda", "due_us", "payload", "put_token")
# Columns that the end of a held task changes, in addition to its lease.
END_COLUMNS: Final = (*OF_END.names, "status", "error", "result", "due_us", "agenda")
_PLACES: Final = {field.name: place for place, field in enumerate(fields(Task))}
_STORED: Final = sorted(FIELDS, key=lambda field: _PLACES[field.field])
# Columns of a task that statements select, in the order of the fields of `Task`. The version is not stored.
COLUMNS: Final = tuple(field.column for field in _STORED)
_STATUS, _REASON, _RESULT, _PAYLOAD, _DEADLINE, _VERSION = (
    _PLACES[name] for name in ("status", "shed_reason", "result", "payload", "deadline", "version")
)
_SCALED: Final = [_PLACES[field.field] for field in FIELDS if field.kind in SCALED]
_DECODER: Final = json.JSONDecoder()
OUTCOMES: Final = {letter: outcome for outcome, letter in LETTERS.items()}


def remember(token: str, outcome: PutOutcome, earlier: str = "") -> str:
    """Return the puts that a row remembers, the latest first.

    Args:
        token: Names the put.
        outcome: CREATED or UPDATED.
        earlier: The puts that the row already remembers.
    """
    return (LETTERS[outcome] + token + earlier)[: REMEMBERED_PUTS * ENTRY_CHARS]


def outcome_of(token: str, remembered: str) -> PutOutcome | None:
    """Return the outcome of a put, CREATED or UPDATED; None if the row does not remember the put."""
    for start in range(0, len(remembered), ENTRY_CHARS):
        entry = remembered[start : start + ENTRY_CHARS]
        if entry[1:] == token:
            return OUTCOMES[entry[0]]
    return None


def microseconds(seconds: float) -> int:
    """Return a time in whole microseconds, as the tables store it."""
    return round(seconds * 1e6)


def _state_values(task: Task) -> tuple[Any, ...]:
    """Return the values of `STATE_COLUMNS` of a new version of a task."""
    reason = task.shed_reason
    return (
        task.status.value,
        None if reason is None else reason.value,
        task.error,
        None if task.result is None else task.result_text,
        *_place_values(task),
    )


def _place_values(task: Task) -> tuple[str | None, str, int]:
    """Return the line of a task, and what it needs attention for, and when."""
    line: str | None = None
    agenda, due_at = OVER, float(task.expires)
    if task.status is TaskStatus.PENDING:
        if task.not_before is not None:
            agenda, due_at = DUE, task.not_before
        elif (stale_at := task.stale_at) > task.updated:
            line, agenda, due_at = line_key(task.priority, task.group, task.line_class), STALE, stale_at
    elif task.status is TaskStatus.TAKEN and task.lease_until is not None:
        agenda, due_at = DUE, task.lease_until
    return line, agenda, round(due_at * 1e6)


def new_version(task: Task) -> dict[str, Any]:
    """Return the columns of a new version of a task, without the columns set only by its put."""
    values = (*OF_CHANGE.values_of(task), *_state_values(task))
    return dict(zip(VERSION_COLUMNS, values, strict=True))


def put_values(task: Task) -> tuple[Any, ...]:
    """Return the values of `PUT_COLUMNS` of a new task.

    Raises:
        ValueError: If the id, group or kind has a NUL character, which PostgreSQL cannot store.
    """
    if "\0" in f"{task.task_id}{task.group}{task.kind}":
        names = (("task_id", task.task_id), ("group", task.group), ("kind", task.kind))
        name, text = next((name, text) for name, text in names if "\0" in (text or ""))
        msg = f"{name}: must not contain the character NUL, got {text!r:.60}"
        raise ValueError(msg)
    put_token = LETTERS[PutOutcome.CREATED] + task.request_token
    return (*OF_TASK.values_of(task), *_state_values(task), task.payload_text, put_token)


def new_values(task: Task) -> tuple[Any, ...]:
    """Return the values of `NEW_COLUMNS` of a task that a put has just made."""
    put_token = LETTERS[PutOutcome.CREATED] + task.request_token
    return (
        *OF_NEW.values_of(task),
        task.status.value,
        *_place_values(task),
        task.payload_text,
        put_token,
    )


def row_of(task: Task) -> dict[str, Any]:
    """Return the row of a new task; raise as `put_values` does."""
    return dict(zip(PUT_COLUMNS, put_values(task), strict=True))


def end_values(task: Task) -> tuple[Any, ...]:
    """Return the values of `END_COLUMNS` of a task that has ended."""
    return (
        *OF_END.values_of(task),
        task.status.value,
        task.error,
        None if task.result is None else task.result_text,
        task.expires * 1_000_000,
        OVER,
    )


def stored(row: Sequence[Any]) -> Stored:
    """Return the task of a row of `COLUMNS`."""
    values = [*row[:_VERSION], 0, *row[_VERSION : len(COLUMNS)]]
    problem = None
    payload = values[_PAYLOAD]
    try:
        values[_PAYLOAD] = _DECODER.decode(payload if isinstance(payload, str) else payload.decode())
    except (ValueError, RecursionError):
        values[_PAYLOAD], problem = _decoded(payload)
    for place in _SCALED:
        number = values[place]
        if number is not None:
            values[place] = number / 1e6
    if values[_DEADLINE] >= NEVER:
        values[_DEADLINE] = None
    values[_STATUS] = TaskStatus(values[_STATUS])
    if values[_REASON] is not None:
        values[_REASON] = ShedReason(values[_REASON])
    if values[_RESULT] is not None:
        values[_RESULT] = json.loads(values[_RESULT])
    return Stored(make_task(*values), problem)


def _decoded(payload: str | bytes) -> tuple[Any, str | None]:
    """Return a payload that is not UTF-8, and None; if it cannot be decoded, its text and the problem."""
    try:
        return json.loads(payload), None  # it also knows UTF-16, which a file of SQLite may have
    except (ValueError, RecursionError) as error:
        text = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
        return text, f"the payload cannot be decoded: {error}"


def task_of(row: Sequence[Any]) -> Task:
    """Return the task of a row of `COLUMNS`; a payload that cannot be decoded is the stored text."""
    return stored(row).task
