"""The tasks in Django's admin: list, redrive, cancel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.db import transaction
from django.utils.html import format_html
from typing_extensions import override

from freshq.contrib.django import Project, queue
from freshq.contrib.django.models import Task
from freshq.errors import RefusedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.queue.queue import Queue

# A page with more would hide the figures at its end.
MAX_ERRORS = 10


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


@admin.register(Task)
class TaskAdmin(admin.ModelAdmin):
    """Lists the tasks of the project's queue. Users who may change tasks may redrive and cancel them."""

    # The error comes early: on a page 1,200 pixels wide, the last columns are out of sight.
    list_display = ("task_id", "status", "why", "kind", "task_group", "priority", "attempts", "put", "stale")
    list_filter = ("status",)
    search_fields = ("=task_id", "=kind", "=task_group", "error")
    search_help_text = "An id, a kind or a group, or a part of an error"
    ordering = ("-created_us",)
    show_full_result_count = False
    actions = ("redrive", "redrive_as_new", "cancel")
    fields: ClassVar = [
        *("task_id", "queue", "status", "shed_reason", "kind", "task_group", "priority", "attempts"),
        *("put", "stale", "error", "payload", "result", "failed_attempts"),
    ]
    readonly_fields = tuple(fields)

    def get_queryset(self, request: Any) -> Any:
        """Return the tasks of the queue."""
        del request
        project = Project.of_settings()
        return Task.objects.using(project.database).filter(queue__in=project.queue_names())

    # In a transaction of the request, SQLite refuses to log an action that another connection has written.
    @transaction.non_atomic_requests(using=Project.of_settings().database)
    @override
    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, extra_context)

    def has_add_permission(self, _request: Any) -> bool:
        """Tasks are put by programs."""
        return False

    def has_change_permission(self, _request: Any, _task: Task | None = None) -> bool:
        """No field can be edited."""
        return False

    def has_delete_permission(self, _request: Any, _task: Task | None = None) -> bool:
        """A cancelled task is kept until its retention ends."""
        return False

    def has_act_permission(self, request: Any) -> bool:
        """Return whether a user may redrive and cancel."""
        return bool(request.user.has_perm("freshq.change_task"))

    @admin.display(description="put", ordering="created_us")
    def put(self, task: Task) -> datetime:
        """Return when the task entered its line."""
        return _time(task.created_us)

    @admin.display(description="stale", ordering="deadline_us")
    def stale(self, task: Task) -> datetime:
        """Return the deadline."""
        return _time(task.deadline_us)

    @admin.display(description="error")
    def why(self, task: Task) -> str:
        """Return the beginning of the error, or why the task was shed."""
        return (task.error or task.shed_reason or "")[:80]

    @admin.display(description="failed attempts")
    def failed_attempts(self, task: Task) -> str:
        """Return the last attempts with their tracebacks."""
        own = queue.named(task.queue)
        with own.in_transaction():
            found = own.get(task.task_id)
        attempts = () if found is None else found.attempt_log
        lines = (
            f"{each.number}. {each.outcome} {each.error or ''}\n{each.traceback or ''}" for each in attempts
        )
        return str(format_html("<pre>{}</pre>", "\n".join(lines)))

    @admin.action(description="Redrive: return dead letters to their lines", permissions=["act"])
    def redrive(self, request: Any, tasks: Any) -> None:
        """Return dead letters to their lines."""
        self._each(request, tasks, "Redriven", lambda own, task_id: own.redrive([task_id]))

    @admin.action(description="Redrive as new: with a new deadline", permissions=["act"])
    def redrive_as_new(self, request: Any, tasks: Any) -> None:
        """Return dead letters to their lines, as if they were put now."""
        self._each(
            request, tasks, "Redriven as new", lambda own, task_id: own.redrive([task_id], as_new=True)
        )

    @admin.action(description="Cancel waiting tasks", permissions=["act"])
    def cancel(self, request: Any, tasks: Any) -> None:
        """Cancel waiting tasks."""
        self._each(request, tasks, "Cancelled", lambda own, task_id: own.cancel(task_id))

    def _each(self, request: Any, tasks: Any, done: str, act: Callable[[Queue, str], object]) -> None:
        """Act on each task, log that for the admin's history, and say how many could not be changed."""
        changed, refused = 0, []
        for task in tasks:
            try:
                act(queue.named(task.queue), task.task_id)
            except RefusedError as error:
                refused.append(str(error))
            except StoreError as error:
                refused.append(str(error))
                break
            else:
                changed += 1
                self.log_change(request, task, done)
        self.message_user(request, f"{done}: {changed}", messages.SUCCESS if changed else messages.WARNING)
        for problem in refused[:MAX_ERRORS]:
            self.message_user(request, problem, messages.ERROR)
        if len(refused) > MAX_ERRORS:
            self.message_user(request, f"and {len(refused) - MAX_ERRORS} more", messages.ERROR)
