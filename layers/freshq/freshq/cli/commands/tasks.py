"""Commands that show, change and cancel tasks, and that control the queue as a whole."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.command import Cursor, Limit, QueueContext, Reason, TaskId, Yes
from freshq.cli.commands.attach import attached
from freshq.cli.errors import printable, raise_last
from freshq.cli.output import counted, fields
from freshq.errors import RefusedError
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.cli.session import Session
    from freshq.model.task import Task

Status = Annotated[
    str | None,
    typer.Option(
        help=f"Only tasks with this status: {', '.join(TaskStatus)}. "
        "The last two are states of records of an attached table."
    ),
]
Next = Annotated[
    bool,
    typer.Option(
        "--next", help="List waiting tasks in the order of the next claims, with the reason of a wait."
    ),
]
Approximate = Annotated[
    bool, typer.Option("--approximate", help="Read one page per shard instead of every task.")
]
Ids = Annotated[int | None, typer.Option(metavar="N", help="Also show the first N ids of each state.")]
IdAndPriority = Annotated[
    list[str], typer.Argument(metavar="TASK_ID PRIORITY", help="The task and its new priority, 0 to 9.")
]
SomeTasks = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TASK_ID]...", help="The tasks. Several tasks need confirmation."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Also change a task that a worker holds. The worker loses its lease.")
]


def get(context: QueueContext, task_id: TaskId = None) -> None:
    """Show everything about a task."""
    session = context.session
    wanted = session.task_id(task_id)
    task = session.queue.find(wanted)
    session.see(wanted)
    session.output.task(task, session.queue.admin.now())


def ls(
    context: QueueContext,
    status: Status = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    coming: Next = False,
) -> None:
    """List tasks."""
    session = context.session
    if coming:
        if status is not None or cursor is not None:
            raise ValueError("next: goes with --limit only; leave out --status and --cursor")
        waiting = session.queue.peek(limit)
        session.see(*(each.task.task_id for each in waiting))
        session.output.waiting(waiting, session.queue.admin.now())
        return
    if status is not None and status.upper() == TaskStatus.READY:
        attached(session, "ls --status READY")
    page = session.queue.list(None if status is None else status.upper(), limit, cursor)
    session.see(*(task.task_id for task in page))
    session.output.tasks(page.tasks, page.cursor, session.queue.admin.now())


def stats(context: QueueContext, approximate: Approximate = False, ids: Ids = None) -> None:
    """Count tasks by state, and show the ages of pending tasks."""
    session, queue = context.session, context.session.queue
    counted = queue.stats(approximate=approximate, ids=ids)
    session.see(*chain.from_iterable(counted.ids.values()))
    session.output.stats(counted, queue.name, paused=queue.paused)


def touch(context: QueueContext, task_id: TaskId = None) -> None:
    """Set the creation time of a pending task to now."""
    session = context.session
    session.output.changed(session.queue.touch(session.task_id(task_id)), session.queue.admin.now())


def reprioritize(context: QueueContext, which: IdAndPriority) -> None:
    """Move a pending task to another priority level. Its creation time stays."""
    *task_ids, priority = which
    if len(task_ids) > 1 or not priority.isdecimal():
        msg = f"priority: must look like TASK_ID PRIORITY, the priority from 0 to 9, got {' '.join(which)}"
        raise ValueError(msg)
    session = context.session
    task_id = session.task_id(task_ids[0] if task_ids else None)
    session.output.changed(session.queue.reprioritize(task_id, int(priority)), session.queue.admin.now())


def cancel(context: QueueContext, task_ids: SomeTasks = None, force: Force = False, yes: Yes = False) -> None:
    """Cancel pending tasks; with --force, also claimed ones."""
    session = context.session
    _change_each(session, "Cancel", task_ids, yes, partial(session.queue.cancel, force=force))


def bury(
    context: QueueContext,
    task_ids: SomeTasks = None,
    error: Reason = None,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Turn pending tasks into dead letters; with --force, also claimed ones."""
    session = context.session
    _change_each(session, "Bury", task_ids, yes, partial(session.queue.bury, error=error, force=force))


def restore(
    context: QueueContext, task_ids: SomeTasks = None, force: Force = False, yes: Yes = False
) -> None:
    """Return dead letters and pending tasks to their lines as if they were put now."""
    session = context.session
    _change_each(session, "Restore", task_ids, yes, partial(session.queue.restore, force=force))


def _change_each(
    session: Session,
    name: str,
    task_ids: list[str] | None,
    yes: bool,
    verb: Callable[[str], Task],
) -> None:
    """Change tasks, by default the current task; print their new states and the refusals."""
    wanted = task_ids or [session.task_id(None)]
    if len(wanted) > 1:
        session.confirm(f"{name} {len(wanted)} tasks?", yes=yes)
    refused: list[RefusedError] = []
    changed = []
    for task_id in wanted:
        try:
            changed.append(verb(task_id))
        except RefusedError as error:
            refused.append(error)
        else:
            session.claims.pop(task_id, None)
    now = session.queue.admin.now()
    answer = [fields(task, now) for task in changed]
    lines = (f"task {printable(task.task_id)}: {task.status}" for task in changed)
    session.output.answer(answer if len(wanted) > 1 else next(iter(answer), None), *lines)
    raise_last(refused)


def pause(context: QueueContext) -> None:
    """Suspend claims on every worker within seconds. Tasks can still be put and settled."""
    session = context.session
    session.queue.pause()
    session.output.answer({"paused": True}, f"queue {session.queue.name}: paused")


def resume(context: QueueContext) -> None:
    """Allow claims again."""
    session = context.session
    session.queue.resume()
    session.output.answer({"paused": False}, f"queue {session.queue.name}: resumed")


def purge(context: QueueContext, yes: Yes = False) -> None:
    """Delete every task of the queue, including claimed ones."""
    session = context.session
    name = session.queue.name
    session.confirm(f"Delete every task of queue {name!r}, including claimed ones?", yes=yes)
    deleted = session.queue.purge(confirm=name)
    session.claims.clear()
    session.output.answer({"deleted": deleted}, f"queue {name}: {counted(deleted, 'task')} deleted")
