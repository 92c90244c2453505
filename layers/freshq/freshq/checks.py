"""Checks of single arguments. Each raises a ValueError that names the argument and what is allowed."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from freshq.new_task import MAX_RESULT_AND_PAYLOAD_BYTES, json_text
from freshq.task import MAX_PRIORITY, TaskStatus

if TYPE_CHECKING:
    from typing import Any


def checked_count(name: str, value: int) -> int:
    """Return a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{name}: must be a whole number of 1 or more, got {value!r}"
        raise ValueError(msg)
    return value


def checked_seconds(name: str, value: float, *, above_zero: bool = False) -> float:
    """Return a finite number of seconds, not negative, or greater than 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 0 or (above_zero and value == 0):
        least = "greater than 0" if above_zero else "0 or more"
        msg = f"{name}: must be a number of seconds, {least}, got {value!r}"
        raise ValueError(msg)
    return float(value)


def checked_priority(value: int) -> int:
    """Return a priority level."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        msg = f"priority: must be a whole number from 0 to {MAX_PRIORITY}, got {value!r}"
        raise ValueError(msg)
    return value


def checked_status(value: TaskStatus | str | None) -> TaskStatus | None:
    """Return a state, given as one or by its name; None stands for any."""
    if value is None:
        return None
    try:
        return TaskStatus(value)
    except ValueError:
        msg = f"status: {value!r} is unknown; known are {', '.join(TaskStatus)}"
        raise ValueError(msg) from None


def checked_id(value: str) -> str:
    """Return a task id."""
    if not isinstance(value, str) or not value:
        msg = f"task_id: must be a text that is not empty, got {value!r}"
        raise ValueError(msg)
    return value


def checked_result(result: Any, payload: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a result that fits into one item together with its task's payload."""
    try:
        size_bytes = len(json_text(result).encode()) + len(json_text(payload).encode())
    except ValueError as error:
        msg = f"result: {error}"
        raise ValueError(msg) from error
    if size_bytes > MAX_RESULT_AND_PAYLOAD_BYTES:
        msg = f"result: with the payload {size_bytes} bytes, only {MAX_RESULT_AND_PAYLOAD_BYTES} fit"
        raise ValueError(msg + "; return a reference instead")
    return result
