"""Checks of single arguments. Each raises a ValueError that names the argument and what is allowed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from freshq.model.new_task import MAX_ID_BYTES, MAX_RESULT_AND_PAYLOAD_BYTES, json_text
from freshq.model.task import MAX_PRIORITY, MAX_SECONDS, TaskStatus

if TYPE_CHECKING:
    from typing import Any


def checked_count(name: str, value: int, at_most: int | None = None) -> int:
    """Return a whole number of 1 or more, and no more than `at_most`."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or value < 1 or (at_most is not None and value > at_most):
        allowed = "of 1 or more" if at_most is None else f"from 1 to {at_most}"
        msg = f"{name}: must be a whole number {allowed}, got {value!r}"
        raise ValueError(msg)
    return value


def checked_seconds(name: str, value: float, *, above_zero: bool = False) -> float:
    """Return a number of seconds, not negative or greater than 0, and no more than a century."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_SECONDS or (above_zero and value == 0):
        least = "greater than 0" if above_zero else "0 or more"
        msg = f"{name}: must be a number of seconds, {least} and at most {MAX_SECONDS:.0f}, got {value!r}"
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


def checked_id(value: str, name: str = "task_id") -> str:
    """Return the id that a task may have, given as the argument `name`."""
    usable = isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= MAX_ID_BYTES
    if not usable:
        given = repr(value)
        msg = f"{name}: must be a text that is not empty, of at most {MAX_ID_BYTES} bytes, got {given:.60}"
        raise ValueError(msg)
    return value


def checked_error(value: object) -> str | None:
    """Return the text of an error, with what cannot be stored replaced."""
    if value is None:
        return None
    if not isinstance(value, str):
        msg = f"error: must be a text or None, got {type(value).__name__}; pass str(error)"
        raise ValueError(msg)  # noqa: TRY004 - a wrong argument is a ValueError throughout
    return value.encode(errors="replace").decode()


def checked_result(result: Any, payload: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a copy of a result that fits into one item together with its task's payload."""
    if result is None:
        return None
    try:
        text = json_text(result)
        size_bytes = len(text.encode()) + len(json_text(payload).encode())
    except ValueError as error:
        msg = f"result: {error}"
        raise ValueError(msg) from error
    if size_bytes > MAX_RESULT_AND_PAYLOAD_BYTES:
        msg = f"result: with the payload {size_bytes} bytes, only {MAX_RESULT_AND_PAYLOAD_BYTES} fit"
        raise ValueError(msg + "; return a reference instead")
    return json.loads(text)
