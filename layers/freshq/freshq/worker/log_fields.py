"""The fields of a task in log records: its id, kind, queue, attempt and trace. Never its payload."""

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


# The fields have this one name until the record is made: `logging` refuses names that a record has already,
# and the application's record factory may have given it any.
KEY: Final = "_freshq_task"


def log_fields(task: Task) -> dict[str, Any]:
    """Return what a log record has of a task, for `extra` of a `task_logger`.

    Args:
        task: The task.
    """
    return {KEY: _fields(task, task.trace_id)}


def _fields(task: Task, trace_id: str | None) -> dict[str, Any]:
    values = (task.task_id, task.kind, task.queue, task.attempts, trace_id or task.trace_id)
    return dict(zip(FIELDS, values, strict=True))


def _add(record: logging.LogRecord, fields: dict[str, Any]) -> None:
    """Give a record the fields that it does not have."""
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)


class _Unpacking(logging.Filter):
    """Gives a record the fields of `log_fields`; what the application's record factory set stays."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        _add(record, record.__dict__.pop(KEY, {}))
        return True


_UNPACKING: Final = _Unpacking()


def task_logger(name: str) -> logging.Logger:
    """Return a logger whose records may have `log_fields`."""
    logger = logging.getLogger(name)
    logger.addFilter(_UNPACKING)
    return logger


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
        _add(record, dict.fromkeys(FIELDS) if scope is None else _fields(scope.task, scope.trace_id))
        return True
