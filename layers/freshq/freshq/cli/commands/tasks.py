"""Commands that show, change and cancel tasks, and that control the queue as a whole."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final

import typer

from freshq.cli.command import Cursor, Error, Limit, QueueContext, TaskId, Yes, complete_task_id
from freshq.cli.errors import printable, raise_last
from freshq.cli.output import counted, fields, span
from freshq.errors import RefusedError, StoreError
from freshq.model.checks import checked_count
from freshq.model.task import TaskStatus
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue

# Dead letters that are read at a time.
PAGE_TASKS: Final = 100
STALE_HINT: Final = "; expired dead letters stay: freshq redrive --all --as-new returns them as new"
StatusName = Annotated[
    str | None,
    typer.Option(
        "--status",
        help=f"Only tasks with this status: {', '.join(TaskStatus)}. "
        "The last two are states of records of an attached table.",
    ),
]
Approximate = Annotated[
    bool, typer.Option("--approximate", help="Read one page per shard; DynamoDB's default.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Count every task. On DynamoDB it says first how much that reads.")
]
Ids = Annotated[int | None, typer.Option(metavar="N", help="Also show the first N ids of each state.")]
Priority = Annotated[int, typer.Option(help="The new priority: 0 to 9, higher first.")]
SomeTasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK_ID",
        help="The tasks. In the shell, the current task by default.",
        autocompletion=complete_task_id,
    ),
]
OnlyTasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK_ID", help="Only these tasks. By default, all.", autocompletion=complete_task_id
    ),
]
TheseTasks = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK_ID", help="The tasks.", autocompletion=complete_task_id),
]
AllDead = Annotated[bool, typer.Option("--all", help="Instead of ids: all dead letters.")]
MaxTasks = Annotated[int | None, typer.Option("--limit", "-n", help="Maximum number of tasks.")]
TimeoutSeconds = Annotated[float | None, typer.Option(help="Stop waiting after this time.")]
PollSeconds = Annotated[float, typer.Option(help="Longest time between two looks at a task.")]
Dead = Annotated[bool, typer.Option("--dead", help="Make the tasks dead letters, with status FAILURE.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also change a task that a worker holds. The worker loses its lease.")
]
AsNew = Annotated[
    bool,
    typer.Option(
        "--as-new",
        help="Return the tasks as if they were put now, even expired ones. With ids, waiting tasks too.",
    ),
]
Current = Annotated[bool, typer.Option("--current", hidden=True)]
IndexDead = Annotated[
    bool,
    typer.Option(
        "--index-dead",
        help="Instead, index dead letters of an earlier version, once, on DynamoDB. Reads the whole table, "
        "at one read unit per 4 KB. Safe to repeat.",
    ),
]


def get(context: QueueContext, task_id: TaskId = None) -> None:
    """Show everything about a task."""
    session = context.session
    wanted = session.task_id(task_id)
    task = core_of(session.queue).found(wanted)
    session.see(wanted)
    session.output.task(task, session.queue.admin.now())


def list_(context: QueueContext, status: StatusName = None, limit: Limit = 20, cursor: Cursor = None) -> None:
    """List tasks, all or by status.

    Dead letters (FAILURE) are listed with their errors, the latest first.
    """
    session = context.session
    wanted = None if status is None else status.upper()
    if wanted == TaskStatus.READY:
        session.attached("list --status READY")
    page = session.queue.list(wanted, limit=limit, cursor=cursor)
    session.see(*(task.task_id for task in page))
    errors = wanted == TaskStatus.FAILURE
    session.output.tasks(page.tasks, page.cursor, session.queue.admin.now(), errors=errors)


def peek(context: QueueContext, limit: Limit = 10) -> None:
    """Show the next tasks without claiming them.

    They come in the order of claims, with the reason why a task has to wait.
    """
    session = context.session
    waiting = session.queue.peek(limit)
    session.see(*(each.task.task_id for each in waiting))
    session.output.waiting(waiting, session.queue.admin.now())


def wait(
    context: QueueContext,
    task_ids: SomeTasks = None,
    timeout_seconds: TimeoutSeconds = None,
    poll_seconds: PollSeconds = 1.0,
) -> None:
    """Wait until tasks have ended, and print each.

    Exits with status 0 if all ended as SUCCESS, 1 if a task ended otherwise or does not exist, and 4 if the
    time is up. With --json, prints a line for each task.
    """
    session = context.session
    wanted = task_ids or [session.task_id(None)]
    failed = 0
    ended = session.queue.wait_many(wanted, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds)
    for task in ended:
        session.print_changed(task)
        failed += task.status is not TaskStatus.SUCCESS
    if failed:
        msg = f"{failed} of {counted(len(wanted), 'task')} did not end as SUCCESS"
        raise RefusedError(msg)


def stats(
    context: QueueContext, exact: Exact = False, approximate: Approximate = False, ids: Ids = None
) -> None:
    """Count tasks by state, and show their ages."""
    session, queue = context.session, context.session.queue
    if exact and approximate:
        raise ValueError("--exact: not with --approximate")
    if ids is not None:
        checked_count("ids", ids)
    if core_of(queue).store.bills_reads and not approximate:
        approximate = not exact and ids is None
        if not approximate:
            print(_price(queue), file=sys.stderr, flush=True)
    counts = queue.stats(approximate=approximate, ids=ids)
    session.see(*chain.from_iterable(counts.ids.values()))
    session.output.stats(counts, queue.name, paused=queue.paused())


def _price(queue: BaseQueue) -> str:
    """Return what an exact count reads."""
    try:
        units = queue.admin.exact_count_units()
    except StoreError as error:  # DescribeTable may be forbidden
        return f"freshq: counting reads the whole table, whose size is not known: {error}"
    return f"freshq: counting reads the whole table, about {units:,} read units"


def pressure(context: QueueContext) -> None:
    """Show the load, and a new task's chance to be in time."""
    found = context.session.queue.pressure()
    facts = {
        "offered": f"{found.offered_per_second:,.2f}/s",
        "served": f"{found.served_per_second:,.2f}/s",
        "in time": f"{found.probability_in_time:.0%}",
        "overloaded": "yes" if found.overloaded else "no",
        "retry after": span(found.retry_after_seconds),
    }
    context.session.output.answer(asdict(found), facts)


def reprioritize(context: QueueContext, priority: Priority, task_id: TaskId = None) -> None:
    """Move a waiting task to another priority level.

    Its creation time stays.
    """
    session = context.session
    session.print_changed(session.queue.reprioritize(session.task_id(task_id), priority=priority))


def cancel(
    context: QueueContext,
    task_ids: SomeTasks = None,
    dead: Dead = False,
    error: Error = None,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Cancel tasks, or make them dead letters.

    Several tasks need confirmation.
    """
    session = context.session
    verb = partial(session.queue.cancel, force=force, dead=dead, error=error)
    wanted = task_ids or [session.task_id(None)]
    if len(wanted) > 1:
        question = f"Make {len(wanted)} tasks dead letters?" if dead else f"Cancel {len(wanted)} tasks?"
        session.confirm(question, yes=yes)
    changed: list[Task] = []
    refused: list[RefusedError] = []
    for task_id in wanted:
        try:
            changed.append(verb(task_id))
        except RefusedError as refusal:
            refused.append(refusal)
        else:
            session.claims.pop(task_id, None)
    now = session.queue.admin.now()
    answer = [fields(task, now) for task in changed]
    lines = (f"task {printable(task.task_id)}: {task.status}" for task in changed)
    session.output.answer(answer if len(wanted) > 1 else next(iter(answer), None), *lines)
    raise_last(refused)


def redrive(
    context: QueueContext,
    task_ids: TheseTasks = None,
    all_dead: AllDead = False,
    limit: MaxTasks = None,
    as_new: AsNew = False,
    force: Force = False,
    yes: Yes = False,
    current: Current = False,
) -> None:
    """Return dead letters to their lines.

    Name the tasks, or pass --all or --limit. More than one task needs confirmation. Attempts start again,
    and dead letters keep their places unless they return as new. With --all, expired ones stay unless they
    return as new. Of several ids all return, or none.
    """
    session, queue = context.session, context.session.queue
    task_ids = task_ids or ([session.task_id(None)] if current else [])
    several = _several(task_ids, limit, all_dead=all_dead)
    if several is not None:
        session.confirm(f"Return {several} of queue {queue.name!r} to their lines?", yes=yes)
    redriven = queue.redrive(task_ids or None, limit=limit, as_new=as_new, force=force)
    if task_ids:
        for task_id in task_ids:
            session.claims.pop(task_id, None)
        lines = [f"task {printable(task_id)}: {TaskStatus.PENDING}" for task_id in task_ids]
    else:
        has_stale = limit is None and not as_new and _has_stale(queue)
        lines = [f"{redriven:,} redriven{STALE_HINT * has_stale}"]
    session.output.answer({"redriven": redriven}, *lines)


def _several(task_ids: list[str], limit: int | None, *, all_dead: bool) -> str | None:
    """Return which tasks the arguments select; None if it is a single id.

    Raises:
        ValueError: If they select none, or contradict each other.
    """
    if task_ids:
        if all_dead:
            raise ValueError("--all: not with task_ids")
        return f"{len(task_ids)} tasks" if len(task_ids) > 1 else None
    if limit is not None:
        return f"up to {counted(checked_count('limit', limit), 'dead letter')}"
    if all_dead:
        return "all dead letters"
    raise ValueError("task_ids: name the tasks, or pass --all for all dead letters. Nothing was done")


def _has_stale(queue: BaseQueue) -> bool:
    """Return whether any of the latest dead letters is stale, and so was not redriven."""
    now, live_until = queue.admin.now(), core_of(queue).lifecycle.live_until
    return any(live_until(task) <= now for task in queue.list(TaskStatus.FAILURE, limit=PAGE_TASKS))


def pause(context: QueueContext) -> None:
    """Suspend claims on every worker.

    It takes a few seconds. Tasks can still be put and settled.
    """
    session = context.session
    session.queue.pause()
    session.output.answer({"paused": True}, f"queue {session.queue.name}: paused")


def resume(context: QueueContext) -> None:
    """Allow claims again."""
    session = context.session
    session.queue.resume()
    session.output.answer({"paused": False}, f"queue {session.queue.name}: resumed")


def purge(
    context: QueueContext,
    task_ids: OnlyTasks = None,
    status: StatusName = None,
    limit: MaxTasks = None,
    yes: Yes = False,
) -> None:
    """Delete tasks of the queue.

    Asks for confirmation. By default, every task is deleted, including claimed ones.
    """
    session, queue = context.session, context.session.queue
    which = f"{len(task_ids)} tasks" if task_ids else "every task" if limit is None else f"{limit} tasks"
    which += ", including claimed ones," if status is None else f" with status {status.upper()}"
    session.confirm(f"Delete {which} of queue {queue.name!r}?", yes=yes)
    deleted = queue.purge(
        status=status and status.upper(), task_ids=task_ids or None, limit=limit, confirm=queue.name
    )
    session.output.answer({"deleted": deleted}, f"queue {queue.name}: {counted(deleted, 'task')} deleted")


def recover(context: QueueContext, index_dead: IndexDead = False) -> None:
    """Return tasks with expired leases to their lines.

    Delayed tasks that are due join their lines, and tasks past their retention are deleted. Workers do
    all of this too.
    """
    session = context.session
    if index_dead:
        indexed = session.queue.admin.index_dead()
        session.output.answer({"indexed": indexed}, f"{counted(indexed, 'dead letter')} indexed")
        return
    recovered = session.queue.admin.recover()
    session.output.answer({"recovered": recovered}, f"{recovered:,} recovered")
