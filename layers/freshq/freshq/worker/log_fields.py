"""What log records say of a task: its id, kind, queue and attempt, and its trace. Never its payload."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.model.telemetry import RunScope

FIELDS: Final = ("task_id", "kind", "queue", "attempt", "trace_id")
# The run that the code in this thread or coroutine belongs to.
RUNNING: Final[ContextVar[RunScope | None]] = ContextVar("freshq_run", default=None)


def log_fields(task: Task, trace_id: str | None = None) -> dict[str, Any]:
    """Return what a log record has of a task, for `extra`.

    Args:
        task: The task.
        trace_id: The trace of its run; None for that of its put.
    """
    values = (task.task_id, task.kind, task.queue, task.attempts, trace_id or task.trace_id)
    return dict(zip(FIELDS, values, strict=True))


class TaskLogFilter(logging.Filter):
    """Gives each log record `task_id`, `kind`, `queue`, `attempt` and `trace_id`.

    Add it to a handler. Records of freshq about a task have these fields already. A record that is made while
    a `Worker` runs a task, by the runner or by what it calls, has those of that task, in threads and in
    coroutines; in every other record they are None. Nothing else of the task is ever in a record.
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; let every record pass."""
        scope = None if hasattr(record, FIELDS[0]) else RUNNING.get()
        fields = dict.fromkeys(FIELDS) if scope is None else log_fields(scope.task, scope.trace_id)
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
