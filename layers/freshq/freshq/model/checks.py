"""Checks of single arguments. Each raises a ValueError that names the argument and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from freshq.errors import quoted
from freshq.model.fields import DEFAULT_NAME, MAX_ID_BYTES
from freshq.model.task import MAX_PRIORITY, MAX_SECONDS, TaskStatus, storable_text

# More overflows the integers of databases and of Python's own iterators.
MAX_COUNT: Final = 2**31 - 1


def checked_count(name: str, value: int, at_most: int = MAX_COUNT) -> int:
    """Return a whole number from 1 to `at_most`."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or not 1 <= value <= at_most:
        msg = f"{name}: must be a whole number from 1 to {at_most}, got {quoted(value)}"
        raise ValueError(msg)
    return value


def checked_seconds(name: str, value: float, *, above_zero: bool = False) -> float:
    """Return a number of seconds from 0 to a century, without 0 if `above_zero`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_SECONDS or (above_zero and value == 0):
        least = "greater than 0" if above_zero else "0 or more"
        msg = (
            f"{name}: must be a number of seconds, {least} and at most {MAX_SECONDS:.0f}, got {quoted(value)}"
        )
        raise ValueError(msg)
    return float(value)


def checked_priority(value: int) -> int:
    """Return a priority level."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        msg = f"priority: must be a whole number from 0 to {MAX_PRIORITY}, got {quoted(value)}"
        raise ValueError(msg)
    return int(value)  # stores name lines by it, and the text of a member of an Enum is its name


def checked_status(value: TaskStatus | str | None) -> TaskStatus | None:
    """Return a status given as a `TaskStatus` or by name; None for any."""
    if value is None:
        return None
    try:
        return TaskStatus(value)
    except ValueError:
        msg = f"status: unknown value {quoted(value)}; use one of {', '.join(TaskStatus)}"
        raise ValueError(msg) from None


def plain_text(value: str) -> str:
    """Return a string without its subclass: in an f-string, a member of an Enum would become its name."""
    return value if type(value) is str else str.__str__(value)


def queue_name(options: Mapping[str, Any]) -> Any:
    """Return the name among the options of a queue, which are not checked yet."""
    name = options.get("name", DEFAULT_NAME)
    return plain_text(name) if isinstance(name, str) else name


def checked_id(value: str, name: str = "task_id") -> str:
    """Return a task id, given as the argument `name`."""
    try:
        usable = isinstance(value, str) and 0 < len(value.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        msg = f"{name}: has bytes that are not UTF-8, which no id can have: {value!r:.60}"
        raise ValueError(msg) from None
    if not usable:
        given = repr(value)
        msg = f"{name}: must be a non-empty string of at most {MAX_ID_BYTES} bytes, got {given:.60}"
        raise ValueError(msg)
    return plain_text(value)


def checked_ids(values: Iterable[str]) -> list[str]:
    """Return distinct task ids, in order, given as the argument `task_ids`."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        msg = f"task_ids: must be a list of ids, got {quoted(values)}; write task_ids=[task_id] for one"
        raise ValueError(msg)
    ids = [checked_id(value, f"task_ids[{index}]") for index, value in enumerate(values)]
    return [*dict.fromkeys(ids)]


def checked_error(value: object) -> str | None:
    """Return the text of an error as every store keeps it: without lone surrogates and NUL characters."""
    if value is None:
        return None
    if not isinstance(value, str):
        msg = f"error: must be a string or None, got {type(value).__name__}; pass str(error)"
        raise ValueError(msg)
    return storable_text(value)
