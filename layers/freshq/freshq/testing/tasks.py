"""Tasks as a runner gets them, and assertions on what was put."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.json_values import json_copy, json_text
from freshq.model.progress import RunHandle
from freshq.model.task import Task, TaskStatus, give_handle
from freshq.testing.clock import DEFAULT_START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.progress import Progress
    from freshq.queue.base import BaseQueue

MAX_AGE_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 30.0
# In the message of a failed assertion.
MAX_TASKS_SHOWN: Final = 10
PAGE: Final = 100
_FIELDS: Final = frozenset(field.name for field in fields(Task))
_JSON_FIELDS: Final = frozenset({"payload", "result"})


def make_task(payload: Any = None, **values: Any) -> Task:  # noqa: ANN401 - a payload is any JSON value
    """Return a task as a runner gets it: claimed a moment ago, at its first attempt.

    `task.progress(...)` checks its arguments, and the task has them as `progress_fraction` and
    `progress_step`.

    Args:
        payload: Its work, as `put` takes it; the task has it as a store returns it.
        **values: Other attributes of `Task`, such as `task_id`, `group` or `attempts`; `cancelled=True` for
            a run that should stop.

    Raises:
        ValueError: If `Task` has no such attribute, or `put` would not take the payload.
    """
    why_cancelled = "the test says so" if values.pop("cancelled", False) else None
    _checked(values)
    now = values.get("created", DEFAULT_START)
    defaults: dict[str, Any] = {
        "task_id": "task",
        "queue": "default",
        "status": TaskStatus.TAKEN,
        "created": now,
        "updated": now,
        "deadline": now + MAX_AGE_SECONDS,
        "expires": int(now + 2 * MAX_AGE_SECONDS),
        "request_token": uuid.uuid4().hex,
        "attempts": 1,
        "lease_token": uuid.uuid4().hex,
        "lease_until": now + LEASE_SECONDS,
        "put_at": now,
    }
    task = Task(**{**defaults, **values, "payload": _stored("payload", payload)})
    give_handle(task, _ShownAtOnce(task, why_cancelled))
    return task


class _ShownAtOnce(RunHandle):
    """Shows a report in the task itself, as no store keeps it."""

    __slots__ = ("_task",)

    def __init__(self, task: Task, why_cancelled: str | None) -> None:
        super().__init__()
        self._task, self.why_cancelled = task, why_cancelled

    @override
    def report(self, progress: Progress) -> None:
        for name, value in (("fraction", progress.fraction), ("step", progress.step)):
            object.__setattr__(self._task, f"progress_{name}", value)


def assert_put(queue: BaseQueue, **expected: Any) -> Task:  # noqa: ANN401 - attributes of any type
    """Check that a task with these attributes is in the queue, in any status, and return it.

    Args:
        queue: The queue.
        **expected: Attributes of `Task`, such as `group`, `priority` or `task_id`; `payload` and `result`
            as they were given, such as a dataclass.

    Returns:
        The first task that matches.

    Raises:
        ValueError: If `Task` has no such attribute.
        AssertionError: If there is none; the message has the attributes of those that there are.
    """
    _checked(expected)
    for name in _JSON_FIELDS & expected.keys():
        with suppress(ValueError):  # a matcher, such as mock.ANY
            expected[name] = _stored(name, expected[name])
    seen = []
    for task in _tasks(queue):
        found = {name: getattr(task, name) for name in expected}
        if found == expected:
            return task
        seen.append(found)
    msg = f"no task with {expected} was put; {_shown(seen)}"
    raise AssertionError(msg)


def assert_nothing_put(queue: BaseQueue) -> None:
    """Check that the queue has no task.

    Raises:
        AssertionError: If it has one.
    """
    seen = [{"task_id": task.task_id, "payload": task.payload} for task in _tasks(queue)]
    if seen:
        raise AssertionError(_shown(seen))


def _checked(values: dict[str, Any]) -> None:
    unknown = sorted(values.keys() - _FIELDS)
    if unknown:
        msg = f"{unknown[0]}: a task has no such attribute; it has {', '.join(sorted(_FIELDS))}"
        raise ValueError(msg)


def _stored(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a payload or a result as a store gives it back."""
    try:
        return json_copy(json_text(value), value)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from None


def _tasks(queue: BaseQueue) -> Iterator[Task]:
    cursor: str | None = None
    while True:
        page = queue.list(limit=PAGE, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


def _shown(seen: list[dict[str, Any]]) -> str:
    if not seen:
        return "the queue has no task"
    more = f" and {len(seen) - MAX_TASKS_SHOWN} more" if len(seen) > MAX_TASKS_SHOWN else ""
    return f"the queue has {', '.join(map(str, seen[:MAX_TASKS_SHOWN]))}{more}"
