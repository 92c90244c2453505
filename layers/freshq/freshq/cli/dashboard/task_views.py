"""Tasks as the dashboard shows them: never with a token, and with payload and result only on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.model.task import LIVE, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.model.task import Task

# Errors are written by the application, and may be long.
ERROR_CHARS: Final = 300
OVER: Final = {
    TaskStatus.SUCCESS: "done",
    TaskStatus.FAILURE: "became a dead letter",
    TaskStatus.CANCELLED: "cancelled",
    TaskStatus.SHED: "shed",
}


def lease_row(task: Task, now: float) -> dict[str, Any]:
    """Return a held task as a row: `held_seconds` counts from its claim."""
    return _row(task, now) | {
        "held_seconds": max(0.0, now - (task.last_claim_at or task.updated)),
        "left_seconds": (task.lease_until or now) - now,
        **_progress(task),
    }


def dead_letter_row(task: Task, live_until: float, now: float) -> dict[str, Any]:
    """Return a dead letter as a row; a stale one could not be claimed, so it is not redriven."""
    return _row(task, now) | {
        "error": _short(task.error),
        "since_seconds": max(0.0, now - (task.dead_at or task.updated)),
        "redrivable": live_until > now,
    }


def listed_row(task: Task, now: float) -> dict[str, Any]:
    """Return a task of a list as a row."""
    return _row(task, now) | {"error": _short(task.error)}


def details(task: Task, now: float) -> dict[str, Any]:
    """Return all about a task but its payload and result, and its history as far as the queue keeps it."""
    return _row(task, now) | {
        "delayed": task.delayed,
        "deadline": task.deadline,
        "error": task.error,
        "shed_reason": task.shed_reason,
        "has_result": task.result is not None,
        **_progress(task),
        "history": [{"at": at, "event": event} for at, event in _in_order(_history(task, now))],
    }


def contents(task: Task) -> dict[str, Any]:
    """Return the payload and the result of a task, for someone who asked for them."""
    return {"payload": task.payload, "result": task.result}


def _row(task: Task, now: float) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "status": task.status_at(now).value,
        "group": task.group,
        "kind": task.kind,
        "priority": task.priority,
        "attempts": task.attempts,
        "age_seconds": max(0.0, now - task.created),
    }


def _progress(task: Task) -> dict[str, Any]:
    return {"progress_fraction": task.progress_fraction, "progress_step": task.progress_step}


def _in_order(events: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return events by their time. Those of one millisecond stay as they are: creation times never tie."""
    return sorted(events, key=lambda event: round(event[0], 3))


def _short(error: str | None) -> str | None:
    return error if error is None or len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]}…"


def _history(task: Task, now: float) -> Iterator[tuple[float, str]]:
    """Yield the times that the task carries."""
    status = task.status_at(now)
    moments = [*_past(task)]
    if status in LIVE:
        moments += _ahead(task, status)
    else:
        moments.append(_end(task, status))
    yield from ((at, event) for at, event in moments if at is not None)


def _past(task: Task) -> Iterator[tuple[float | None, str]]:
    yield task.put_at, "put"
    if task.created != task.put_at:
        yield task.created, "joined its line"
    yield task.first_claim_at, "claimed for the first time"
    if task.last_claim_at != task.first_claim_at:
        yield task.last_claim_at, "claimed last"
    if task.status is not TaskStatus.FAILURE:
        yield task.dead_at, "was a dead letter"


def _ahead(task: Task, status: TaskStatus) -> Iterator[tuple[float | None, str]]:
    if status is TaskStatus.TAKEN:
        yield task.lease_until, "end of its lease"
    elif task.attempts:
        yield task.updated, f"returned to its line after {_attempts(task.attempts)}"
    if task.delayed:
        yield task.not_before, "due"
    yield task.deadline, "deadline"


def _end(task: Task, status: TaskStatus) -> tuple[float, str]:
    if status is TaskStatus.SHED and task.shed_reason is None:
        return task.deadline, "shed: its deadline passed"
    reason = f": {task.shed_reason}" if task.shed_reason else ""
    end = OVER.get(status, status.value.lower().replace("_", " "))
    return task.updated, f"{end}{reason}, after {_attempts(task.attempts)}"


def _attempts(number: int) -> str:
    return f"{number} attempt" if number == 1 else f"{number} attempts"
