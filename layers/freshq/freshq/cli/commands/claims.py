"""Commands that claim and settle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.command import LeaseSeconds, Limit, QueueContext, Reason, TaskId, Token, parsed
from freshq.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.cli.session import Session
    from freshq.model.task import Task

Result = Annotated[str | None, typer.Option(metavar="JSON", help="The result, stored with the task.")]
DelaySeconds = Annotated[
    float | None,
    typer.Option(help="Seconds until the task can be claimed. By default, exponential backoff with jitter."),
]
Progress = Annotated[
    float | None,
    typer.Option(metavar="0..1", help="Fraction of the work that is done, stored with the task."),
]
Step = Annotated[str | None, typer.Option(help="With --progress: the current step.")]


def claim(context: QueueContext, limit: Limit = 1, lease_seconds: LeaseSeconds = None) -> None:
    """Claim tasks in the queue's order. Exits with status 1 if there is nothing to claim."""
    session = context.session
    claims = session.queue.claim(limit, lease_seconds)
    session.remember_claims(*claims)
    session.output.claims(claims)
    _refuse_nothing(session, claims)


def dequeue(context: QueueContext, limit: Limit = 1) -> None:
    """Claim tasks and settle them as SUCCESS in one step: at most once. Exits with 1 if there are none."""
    session = context.session
    tasks = session.queue.dequeue(limit)
    session.see(*(task.task_id for task in tasks))
    if tasks:
        session.current = tasks[-1].task_id
    session.output.dequeued(tasks, session.queue.admin.now())
    _refuse_nothing(session, tasks)


def _refuse_nothing(session: Session, found: Sequence[object]) -> None:
    """Raise an error with the reason if nothing was found."""
    if not found:
        why = "is paused" if session.queue.paused else "has nothing to claim"
        msg = f"queue {session.queue.name!r} {why}"
        raise RefusedError(msg)


def done(context: QueueContext, task_id: TaskId = None, token: Token = None, result: Result = None) -> None:
    """Settle a claim as SUCCESS."""
    session = context.session
    value = None if result is None else parsed("result", result)
    _settled(session, session.queue.complete(session.claim(task_id, token), value))


def fail(context: QueueContext, task_id: TaskId = None, token: Token = None, error: Reason = None) -> None:
    """Settle a claim as FAILURE: the task becomes a dead letter, even if attempts remain."""
    session = context.session
    _settled(session, session.queue.fail(session.claim(task_id, token), error))


def retry(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    error: Reason = None,
    delay_seconds: DelaySeconds = None,
) -> None:
    """Return a task for a later attempt. After its last attempt it becomes a dead letter."""
    session = context.session
    _settled(session, session.queue.retry(session.claim(task_id, token), error, delay_seconds))


def release(context: QueueContext, task_id: TaskId = None, token: Token = None) -> None:
    """Return a task, claimable at once. The attempt does not count."""
    session = context.session
    _settled(session, session.queue.release(session.claim(task_id, token)))


def _settled(session: Session, task: Task) -> None:
    session.claims.pop(task.task_id, None)
    session.output.changed(task, session.queue.admin.now())


def extend(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    lease_seconds: LeaseSeconds = None,
    progress: Progress = None,
    step: Step = None,
) -> None:
    """Extend the lease of a task, counted from now."""
    session = context.session
    seconds = session.queue.admin.config.lease_seconds if lease_seconds is None else lease_seconds
    claim = session.claim(task_id, token)
    held = session.queue.extend(claim, seconds, progress=progress, step=step)
    session.remember_claims(held)
    session.output.claims([held])
