"""The backend of Django's tasks: `"BACKEND": "freshq.contrib.django.tasks.FreshqBackend"` in `TASKS`.

Each of its `QUEUES` is a queue in the tables of the setting `FRESHQ`, and `OPTIONS` are options of these
queues. `manage.py freshq_work` runs the tasks. Before Django 6, the package django-tasks has the framework.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast

from django.apps import apps as registry
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string
from typing_extensions import override

from freshq.contrib.django import Project, queue
from freshq.errors import quoted
from freshq.feeds.schedules import DEFAULT_CATCH_UP, Schedule
from freshq.model.answers import (
    Busy,
    Reject,
    Retry,
    UnknownKind,
    busy_of,
    ends_chain,
    error_text,
    traceback_text,
)
from freshq.model.checks import checked_count
from freshq.model.codec import WORKER_SEPARATOR
from freshq.model.new_task import parse_new_task
from freshq.model.options import QueueConfig, checked_options, parse_options
from freshq.model.task import TaskStatus, handle_of
from freshq.model.validation import result_and_text
from freshq.policy.retry import QUEUES, AttemptLimit, is_last_attempt
from freshq.worker.settle import noted_failure

try:
    from django.tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ModuleNotFoundError:  # before Django 6
    from django_tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq.feeds.schedules import Cron, Every
    from freshq.model.task import Task as StoredTask

# The level of priority 0. Positive priorities share the five levels above it, negative ones the four below.
LEVEL_OF_ZERO: Final = 4
PRIORITIES_ABOVE: Final = 20
PRIORITIES_BELOW: Final = 25
# The options of an entry of TASKS, and the parts of the payload of a Django task.
ENTRY: Final = frozenset({"BACKEND", "QUEUES", "OPTIONS"})
PARTS: Final = frozenset({"args", "kwargs", "enqueued_at", "using"})
# Options that are stored with a task. The others come from its definition in the code.
USING: Final = (
    *("priority", "backend", "run_after", "max_attempts"),
    *("max_age_seconds", "group", "value", "decay", "cost"),
)
# Those that `put` takes under the same name.
PUT: Final = ("max_age_seconds", "group", "value", "decay", "cost")
STATUSES: Final = {
    TaskStatus.PENDING: TaskResultStatus.READY,
    TaskStatus.TAKEN: TaskResultStatus.RUNNING,
    TaskStatus.SUCCESS: TaskResultStatus.SUCCESSFUL,
}
# An error that begins with the path of its class; and the paths for failures without an exception.
WITH_PATH: Final = re.compile(r"([^\s:]+\.[^\s:]+)(?:: |$)")
PATHS: Final[Mapping[str, str]] = {
    "lease_lost": "freshq.errors.LeaseLost",
    TaskStatus.SHED: "freshq.errors.Overloaded",
    TaskStatus.CANCELLED: "concurrent.futures.CancelledError",
}
OTHER_PATH: Final = "freshq.errors.FreshqError"


def level_of(priority: int) -> int:
    """Return the level, 0 to 9, of one of Django's priorities, -100 to 100."""
    if priority > 0:
        return LEVEL_OF_ZERO - (-priority // PRIORITIES_ABOVE)
    return LEVEL_OF_ZERO + priority // PRIORITIES_BELOW


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshqTask(Task):
    """A task of Django, with options that `using` takes besides Django's, and from Django 6.1 on `@task`.

    Attributes:
        max_attempts: Attempts after which it has failed; "queue" for the queue's, None for no limit.
        max_age_seconds: Age at which it is stale and no longer run; None for the queue's.
        group: Tenant or key, for fairness and limits.
        value: Its value if it is done in time, for queues with the order "value".
        decay: How the value falls until the deadline: "step" or "linear".
        cost: The units that its run is expected to take of limits in units; None counts as 1.
    """

    max_attempts: AttemptLimit = QUEUES
    max_age_seconds: float | None = None
    group: str | None = None
    value: float | None = None
    decay: str | None = None
    cost: float | None = None

    @override
    def using(self, **changes: Any) -> Self:
        """Return the task with other options; None leaves an option unchanged."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


class FreshqBackend(BaseTaskBackend):
    """Puts Django's tasks into queues of freshq, in the database of the project."""

    task_class = FreshqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    is_of_freshq = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Read an entry of `TASKS`."""
        super().__init__(alias, params)
        self._entry = params

    @override
    def validate_task(self, task: Any) -> None:
        """Refuse a task whose options are wrong, as `InvalidTask`."""
        super().validate_task(task)
        try:
            if not self.queues:
                checked_options({"name": task.queue_name})
            attempts: Any = getattr(task, "max_attempts", QUEUES)
            if attempts not in (None, QUEUES):
                checked_count("max_attempts", attempts)
            parse_new_task({"payload": None, **_put_arguments(task)})
        except ValueError as error:
            raise InvalidTask(str(error)) from None

    @override
    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put a task; in `transaction.atomic()` of the queue's database, as a part of that transaction.

        Raises:
            InvalidTask: If the task does not fit the backend, or a worker could not import it.
            TypeError: If an argument is no JSON value.
            ValueError: If an argument or an option is wrong.
            Overloaded: If the queue refused the task; nothing was written.
        """
        self.validate_task(task)
        _task_at(task.module_path)
        own = queue.named(task.queue_name)
        with own.in_transaction():
            now = own.admin.now()
        payload = {"args": _as_json(args), "kwargs": _as_json(kwargs), "enqueued_at": now}
        due = task.run_after
        if due is not None:
            due = (due if timezone.is_aware(due) else timezone.make_aware(due)).timestamp()
        receipt = own.put(
            payload | {"using": _using(task)},
            task_id=uuid.uuid4().hex,
            at=due if due is not None and due > now else None,
            **_put_arguments(task),
        )
        result = _result(task, receipt.task_id, payload)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    @override
    def get_result(self, result_id: str) -> Any:
        """Return the result of a task; in `transaction.atomic()`, as that transaction sees it.

        Raises:
            TaskResultDoesNotExist: If no queue of this backend has it.
        """
        task_id = str(result_id)
        for name in self._queues_of(task_id):
            own = queue.named(name)
            with own.in_transaction():
                found = own.get(task_id)
            if found is not None and is_of_django(found):
                return _stored_result(_task_of(found), found)
        raise TaskResultDoesNotExist(result_id)

    def _queues_of(self, task_id: str) -> list[str]:
        """Return the queues of this backend that have a task."""
        from freshq.contrib.django.models import Task as Row  # noqa: PLC0415 - the applications are loaded now

        if "\0" in task_id:  # PostgreSQL has no NUL
            return []
        rows = Row.objects.using(Project.of_settings().database).filter(task_id=task_id)
        return [
            name for name in rows.values_list("queue", flat=True) if not self.queues or name in self.queues
        ]

    @override
    def check(self, **_: Any) -> Iterator[Any]:
        """Yield an error or a warning for each wrong setting."""
        if not registry.is_installed("freshq.contrib.django"):
            text = f"TASKS[{self.alias!r}] needs freshq's tables"
            advice = "Add 'freshq.contrib.django' to INSTALLED_APPS, and run `manage.py migrate`."
            yield checks.Error(text, advice, id="freshq.E001")
        for key in sorted(self._entry.keys() - ENTRY):
            text = f"TASKS[{self.alias!r}]: {key} has no effect"
            advice = f"Leave it out; use {', '.join(sorted(ENTRY))}. An enqueue commits with its transaction."
            yield checks.Warning(text, advice, id="freshq.W001")
        try:
            self._check_queues()
        except (ImproperlyConfigured, ValueError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="freshq.E002")

    def _check_queues(self) -> None:
        """Raise an error if the settings of a queue are wrong."""
        names = self._entry.get("QUEUES", [])
        if isinstance(names, str):
            raise ValueError("QUEUES: must be a list of names, got a string")
        if "name" in self.options:
            raise ValueError("OPTIONS: name: the names of the queues stand in QUEUES")
        project = Project.of_settings()
        known = {*QueueConfig.model_fields, *self.options}  # `Queue.sql` takes the other options
        for name in names or [DEFAULT_TASK_QUEUE_NAME]:
            options = project.options_of(name)
            parse_options(cast("Any", {key: value for key, value in options.items() if key in known}))


@dataclass(frozen=True)
class TaskSchedule(Schedule):
    """A schedule that enqueues a task of Django; `of_task` makes one.

    Attributes:
        queue_name: The queue of the task.
    """

    queue_name: str = DEFAULT_TASK_QUEUE_NAME

    @classmethod
    def of_task(
        cls,
        name: str,
        when: Cron | Every,
        task: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        catch_up: int = DEFAULT_CATCH_UP,
    ) -> Self:
        """Return a schedule for the list that the setting `SCHEDULES` names.

        Args:
            name: Unique in the project, and never reused: it is part of the ids of results.
            when: When it fires.
            task: The task of Django, perhaps with options set by `using`. It must not have a `run_after`.
            args: Its arguments.
            kwargs: Its arguments by name.
            catch_up: Number of missed ticks that fire late.

        Raises:
            TypeError: If an argument is no JSON value.
            ValueError: If an argument is wrong.
        """
        if not getattr(task.get_backend(), "is_of_freshq", False):
            msg = f"schedule {quoted(name)}: backend {quoted(task.backend)} of its task is no FreshqBackend"
            raise ValueError(msg)
        if task.run_after is not None:
            msg = f"schedule {quoted(name)}: leave out run_after, as each tick says when the task runs"
            raise ValueError(msg)
        given = {"args": _as_json(args), "kwargs": _as_json(kwargs or {}), "using": _using(task)}

        def payload(instant: datetime) -> dict[str, Any]:
            return given | {"enqueued_at": instant.timestamp()}

        made = cast("Self", cls.of(name, when, payload, catch_up=catch_up, **_put_arguments(task)))
        return replace(made, queue_name=task.queue_name)


def _as_json(value: Any) -> Any:
    """Return a value as JSON keeps it, as Django's JSONField does: numbers that are keys become text.

    Raises:
        TypeError: If it is no JSON value.
        ValueError: If JSON cannot express it, such as bytes that are not UTF-8.
    """
    return json.loads(json.dumps(normalize_json(value)))


def _put_arguments(task: Any) -> dict[str, Any]:
    """Return arguments of `put` for a task of Django."""
    given = {name: getattr(task, name, None) for name in PUT}
    own = {name: value for name, value in given.items() if value is not None}
    return {"kind": task.module_path, "priority": level_of(task.priority), **own}


def _using(task: Any) -> dict[str, Any]:
    """Return the options that travel with a task, as JSON."""
    values = {name: getattr(task, name) for name in USING if hasattr(task, name)}
    values["run_after"] = task.run_after and task.run_after.isoformat()
    return {name: value for name, value in values.items() if value is not None or name == "max_attempts"}


def _time(seconds: float | None) -> datetime | None:
    """Return a time of freshq as Django's settings want it."""
    if seconds is None:
        return None
    time = datetime.fromtimestamp(seconds, UTC)
    return time if settings.USE_TZ else timezone.make_naive(time)


def is_of_django(stored: StoredTask) -> bool:
    """Return whether a `FreshqBackend` put a task."""
    return isinstance(stored.payload, dict) and stored.payload.keys() == PARTS


def _task_at(path: str) -> Any:
    """Return the task of Django at a path.

    Raises:
        ImportError: If the module or the name does not exist here.
        InvalidTask: If the name is no task.
    """
    task = import_string(path)
    if not isinstance(task, Task):
        msg = f"{quoted(path)} is not a task; decorate the function with @task, and enqueue the result"
        raise InvalidTask(msg)
    return task


def _task_of(stored: StoredTask) -> Any:
    """Return the task of Django that was put; raise what `_task_at` raises."""
    task = _task_at(stored.kind or "")
    known = {each.name for each in fields(task)}
    using = {name: value for name, value in stored.payload["using"].items() if name in known}
    if "run_after" in using:
        using["run_after"] = datetime.fromisoformat(using["run_after"])
    return replace(task, **using, queue_name=stored.queue)


def _result(task: Any, task_id: str, payload: Mapping[str, Any], **known: Any) -> Any:
    """Return the result of a task; without more that is known, it is ready for its first attempt."""
    values: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        **dict.fromkeys(("started_at", "finished_at", "last_attempted_at")),
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(
        task=task,
        id=task_id,
        enqueued_at=_time(payload["enqueued_at"]),
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=task.backend,
        **values | known,
    )


def _stored_result(task: Any, stored: StoredTask) -> Any:
    """Return the result of a stored task, given its task of Django."""
    known = {
        "status": STATUSES.get(stored.status, TaskResultStatus.FAILED),
        "started_at": _time(stored.first_claim_at),
        "finished_at": _time(stored.ended_at(0.0)),
        "last_attempted_at": _time(stored.last_claim_at),
        "errors": _errors(stored),
        "worker_ids": _worker_ids(stored),
    }
    result = _result(task, stored.task_id, stored.payload, **known)
    if stored.status is TaskStatus.SUCCESS:
        object.__setattr__(result, "_return_value", stored.result["return_value"])
    return result


def _errors(stored: StoredTask) -> list[Any]:
    """Return the errors of the attempts, and the reason if the task ended without an attempt."""
    failed = [each for each in stored.attempt_log if each.outcome != "succeeded"]
    found = [_error(each.error, each.traceback, each.outcome) for each in failed]
    if stored.status in PATHS or (stored.status is TaskStatus.FAILURE and not found):
        found.append(_error(stored.shed_reason or stored.error or stored.status, None, stored.status))
    return found


def _error(error: str | None, traceback: str | None, outcome: str) -> Any:
    with_path = WITH_PATH.match(error or "")
    path = with_path[1] if with_path else PATHS.get(outcome, OTHER_PATH)
    return TaskError(exception_class_path=path, traceback=traceback or error or outcome)


def _worker_ids(stored: StoredTask) -> list[str]:
    """Return the worker of each attempt; "" where it is no longer known."""
    workers = {each.number: each.worker or "" for each in stored.attempt_log}
    if stored.lease_token is not None:
        workers[stored.attempts] = _worker_id(stored)
    if stored.status is TaskStatus.SUCCESS:
        workers[stored.attempts] = stored.result["worker_id"]
    return [workers.get(number, "") for number in range(1, stored.attempts + 1)]


def _worker_id(stored: StoredTask) -> str:
    return (stored.lease_token or "").rpartition(WORKER_SEPARATOR)[0]


def run(stored: StoredTask) -> dict[str, Any]:
    """Run a task of Django, as a worker calls its runner.

    Raises:
        UnknownKind: If its function does not exist here.
        Retry: If it failed.
        Reject: If it can never succeed.
    """
    try:
        task = _task_of(stored)
    except ImportError as error:
        msg = f"kind: {quoted(stored.kind)} cannot be imported here ({error_text(error)})"
        raise UnknownKind(msg, stored) from error
    if (handle := handle_of(stored)) is not None:
        handle.max_attempts = getattr(task, "max_attempts", QUEUES)
    result = _stored_result(task, stored)
    # A receiver that fails is logged: it neither fails nor repeats the work.
    signals.task_started.send_robust(type(task.get_backend()), task_result=result)
    try:
        context = [TaskContext(task_result=result)] if task.takes_context else []
        value = task.call(*context, *result.args, **result.kwargs)
    except BaseException as error:  # noqa: BLE001 - any exception ends only the attempt, as in Django
        _fail(stored, result, error)
    try:
        answer = {"return_value": _as_json(value), "worker_id": _worker_id(stored)}
        result_and_text(answer, stored.payload)
    except (TypeError, ValueError, RecursionError) as error:  # another attempt would return the same
        _fail(stored, result, error, is_last=True)
    object.__setattr__(result, "_return_value", answer["return_value"])
    _finish(result, TaskResultStatus.SUCCESSFUL)
    return answer


def _fail(stored: StoredTask, result: Any, error: BaseException, *, is_last: bool = False) -> NoReturn:
    """End an attempt by an exception of the task, and keep the path of its class."""
    is_busy = isinstance(error, Busy) or busy_of(error, time.time()) is not None
    if is_busy or ends_chain(error, stored):
        raise error
    limit: Any = getattr(result.task, "max_attempts", QUEUES)
    if limit == QUEUES:
        limit = queue.named(stored.queue).admin.config.max_attempts
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    text = f"{path}: {error_text(error)}"
    if not isinstance(error, Reject | Retry):
        noted_failure(stored, error)
    is_over = is_last or isinstance(error, Reject)
    if is_over or is_last_attempt(stored.attempts, limit):
        result.errors.append(_error(text, traceback_text(error), "failed"))
        _finish(result, TaskResultStatus.FAILED)
    if is_over:
        raise Reject(text) from error
    raise Retry(text, delay_seconds=getattr(error, "delay_seconds", None)) from error


def _finish(result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    signals.task_finished.send_robust(type(result.task.get_backend()), task_result=result)
