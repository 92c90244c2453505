"""Commands that claim and settle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.command import Error, LeaseSeconds, Limit, QueueContext, TaskId, Token, parsed
from freshq.cli.errors import print_error
from freshq.errors import LeaseLost, RefusedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.cli.session import Session
    from freshq.model.answers import Claim
    from freshq.model.task import Task

Dead = Annotated[
    bool, typer.Option("--dead", help="Claim dead letters instead, for inspection. On attached tables only.")
]
Complete = Annotated[bool, typer.Option("--complete", hidden=True)]
Result = Annotated[str | None, typer.Option(metavar="JSON", help="The result, stored with the task.")]
DelaySeconds = Annotated[
    float | None,
    typer.Option(help="Seconds until the task can be claimed. By default, exponential backoff with jitter."),
]
ReleaseDelaySeconds = Annotated[
    float, typer.Option("--delay-seconds", help="Seconds until the task can be claimed.")
]
Progress = Annotated[
    float | None,
    typer.Option(metavar="0..1", help="Fraction of the work that is done, stored with the task."),
]
WaitSeconds = Annotated[
    float, typer.Option(min=0, help="How long to wait for the first task while there is none.")
]
Step = Annotated[str | None, typer.Option(help="With --progress: the current step.")]


def claim(
    context: QueueContext,
    limit: Limit = 1,
    lease_seconds: LeaseSeconds = None,
    wait_seconds: WaitSeconds = 0,
    dead: Dead = False,
    complete: Complete = False,
) -> None:
    """Take the next tasks, each under a lease.

    Prints a token for each task, which settles it. Exits with status 1 if there is nothing to claim.
    """
    session = context.session
    if dead:
        if wait_seconds:
            raise ValueError("wait_seconds: not with dead: dead letters are there, or not")
        claims = session.attached("claim --dead").records.claim_dead(limit, lease_seconds=lease_seconds)
    else:
        claims = session.queue.claim(limit, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
    if complete:
        _print_completed(session, claims)
    else:
        session.remember_claims(*claims)
        session.output.claims(claims)
    if not claims:
        why = "has no dead letter" if dead else "is paused" if session.queue.paused() else "has nothing"
        msg = f"queue {session.queue.name!r} {why}" + ("" if why == "is paused" else " to claim")
        raise RefusedError(msg)


def _print_completed(session: Session, claims: Sequence[Claim]) -> None:
    """Complete claims before the work, and print what was completed: each is delivered at most once."""
    tasks: list[Task] = []
    for claim in claims:
        try:
            tasks.append(session.queue.complete(claim))
        except LeaseLost:
            continue  # another caller has it
        except StoreError as error:
            if not tasks:
                raise
            # What was completed must be printed: nobody gets it again.
            print_error(f"only {len(tasks)} of {len(claims)} tasks: {error}")
            break
    session.see(*(task.task_id for task in tasks))
    if tasks:
        session.current = tasks[-1].task_id
    session.output.dequeued(tasks, session.queue.admin.now())


def complete(
    context: QueueContext, task_id: TaskId = None, token: Token = None, result: Result = None
) -> None:
    """Settle a claimed task as SUCCESS."""
    session = context.session
    value = None if result is None else parsed("result", result)
    _settled(session, session.queue.complete(session.claim(task_id, token), result=value))


def fail(context: QueueContext, task_id: TaskId = None, token: Token = None, error: Error = None) -> None:
    """Settle a claimed task as FAILURE, a dead letter.

    Attempts that remain are not used; `freshq redrive` brings the task back.
    """
    session = context.session
    _settled(session, session.queue.fail(session.claim(task_id, token), error=error))


def retry(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    error: Error = None,
    delay_seconds: DelaySeconds = None,
) -> None:
    """Return a claimed task for a later attempt.

    After its last attempt it becomes a dead letter.
    """
    session = context.session
    _settled(
        session, session.queue.retry(session.claim(task_id, token), error=error, delay_seconds=delay_seconds)
    )


def release(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    delay_seconds: ReleaseDelaySeconds = 0,
) -> None:
    """Return a claimed task without counting the attempt."""
    session = context.session
    _settled(session, session.queue.release(session.claim(task_id, token), delay_seconds=delay_seconds))


def _settled(session: Session, task: Task) -> None:
    session.claims.pop(task.task_id, None)
    session.print_changed(task)


def extend(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    lease_seconds: LeaseSeconds = None,
    progress: Progress = None,
    step: Step = None,
) -> None:
    """Extend the lease of a claimed task.

    The new lease counts from now.
    """
    session = context.session
    claim = session.claim(task_id, token)
    held = session.queue.extend(claim, lease_seconds=lease_seconds, progress=progress, step=step)
    session.remember_claims(held)
    session.output.claims([held])
