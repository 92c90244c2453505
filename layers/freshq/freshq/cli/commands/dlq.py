"""`freshq dlq`: dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from freshq.cli.command import Cursor, Group, LeaseSeconds, Limit, QueueCommand, QueueContext, TaskIds, Yes
from freshq.cli.commands.attach import attached
from freshq.cli.errors import raise_last
from freshq.cli.output import counted
from freshq.errors import RefusedError
from freshq.model.checks import checked_count
from freshq.model.task import TaskStatus
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue

PAGE_TASKS: Final = 100
STALE_HINT: Final = "; expired dead letters stay: freshq dlq restore returns them as new"
MaxReturned = Annotated[int | None, typer.Option("--limit", "-n", help="Maximum number of tasks.")]


def dlq_ls(context: QueueContext, limit: Limit = 20, cursor: Cursor = None) -> None:
    """List dead letters and why they failed."""
    session = context.session
    page = session.queue.list(TaskStatus.FAILURE, limit, cursor)
    session.see(*(task.task_id for task in page))
    session.output.tasks(page.tasks, page.cursor, session.queue.admin.now(), errors=True)


def dlq_claim(context: QueueContext, limit: Limit = 1, lease_seconds: LeaseSeconds = None) -> None:
    """Claim dead letters of an attached table for inspection. Exits with status 1 if there are none.

    Settle them with done, fail or release. With retry, or when the lease expires, they stay dead letters.
    """
    session = context.session
    claims = attached(session, "dlq claim").records.claim_dead(limit, lease_seconds=lease_seconds)
    session.remember_claims(*claims)
    session.output.claims(claims)
    if not claims:
        msg = f"queue {session.queue.name!r} has no dead letter to claim"
        raise RefusedError(msg)


def dlq_redrive(context: QueueContext, task_ids: TaskIds = None, limit: MaxReturned = None) -> None:
    """Return dead letters to their lines, with attempts reset and creation times kept."""
    if task_ids and limit is not None:
        raise ValueError("limit: give either tasks or --limit")
    session = context.session
    each = [(None, task_id) for task_id in task_ids] if task_ids else [(limit, None)]
    redriven = sum(session.queue.redrive(most, task_id) for most, task_id in each)
    hint = STALE_HINT if limit is None and not task_ids and _has_stale(session.queue) else ""
    session.output.answer({"redriven": redriven}, f"{redriven:,} redriven{hint}")


def dlq_restore(context: QueueContext, task_ids: TaskIds = None, limit: MaxReturned = None) -> None:
    """Return dead letters to their lines as if they were put now, including stale ones."""
    if task_ids and limit is not None:
        raise ValueError("limit: give either tasks or --limit")
    if limit is not None:
        checked_count("limit", limit)
    session = context.session
    restored, refused = 0, []
    for task_id in task_ids or _dead_ids(session.queue, limit):
        try:
            session.queue.restore(task_id)
            restored += 1
        except RefusedError as error:
            refused.append(error)
    session.output.answer({"restored": restored}, f"{restored:,} restored")
    raise_last(refused)


def _dead_ids(queue: BaseQueue, limit: int | None) -> list[str]:
    """Return the ids of dead letters, the latest first."""
    ids: list[str] = []
    cursor = None
    while limit is None or len(ids) < limit:
        page = queue.list(TaskStatus.FAILURE, PAGE_TASKS, cursor)
        ids += (task.task_id for task in page)
        cursor = page.cursor
        if cursor is None:
            break
    return ids[:limit]


def _has_stale(queue: BaseQueue) -> bool:
    """Return whether any of the latest dead letters is stale, and so was not redriven."""
    now, live_until = queue.admin.now(), core_of(queue).lifecycle.live_until
    return any(live_until(task) <= now for task in queue.list(TaskStatus.FAILURE, PAGE_TASKS))


def dlq_purge(context: QueueContext, task_ids: TaskIds = None, yes: Yes = False) -> None:
    """Delete dead letters, and nothing else."""
    session = context.session
    queue = session.queue
    which = f"{len(task_ids)} dead letters" if task_ids else f"every dead letter of {queue.name!r}"
    session.confirm(f"Delete {which}?", yes=yes)
    deleted = sum(queue.discard(task_id=task_id) for task_id in task_ids) if task_ids else queue.discard()
    session.output.answer({"deleted": deleted}, f"{counted(deleted, 'dead letter')} deleted")


def dlq_index(context: QueueContext) -> None:
    """Index dead letters of an earlier version of freshq, so that listings find them. Once, on DynamoDB.

    Reads the whole table (one read unit per 4 KB). Safe to repeat.
    """
    session = context.session
    indexed = session.queue.admin.index_dead()
    session.output.answer({"indexed": indexed}, f"{counted(indexed, 'dead letter')} indexed")


app = typer.Typer(
    cls=Group, help="Dead letters: list, claim, redrive, restore, delete, index.", no_args_is_help=True
)
app.command("ls", cls=QueueCommand)(dlq_ls)
app.command("claim", cls=QueueCommand)(dlq_claim)
app.command("redrive", cls=QueueCommand)(dlq_redrive)
app.command("restore", cls=QueueCommand)(dlq_restore)
app.command("purge", cls=QueueCommand)(dlq_purge)
app.command("index", cls=QueueCommand)(dlq_index)
