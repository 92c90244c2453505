"""The verbs that only a queue on an attached table has, as commands."""

from __future__ import annotations

from typing import Annotated

import typer

from freshq.cli.session import Session  # noqa: TC001 - the signature is read at run time
from freshq.errors import RefusedError
from freshq.queue.attached import AttachedQueue

RecordId = Annotated[
    str | None,
    typer.Argument(metavar="RECORD_ID", help="The record; in the shell the current one if left out."),
]

Limit = Annotated[int, typer.Option("--limit", "-n", help="How many at the most.")]
LeaseSeconds = Annotated[
    float | None, typer.Option(help="Hold them so long; otherwise as long as the queue says.")
]


def attached(session: Session, command: str) -> AttachedQueue:
    """Return the queue of a command that needs records of an application.

    Raises:
        ValueError: If it is on a table of freshq's own.
    """
    if not isinstance(session.queue, AttachedQueue):
        msg = f"{command}: only on an attached table, whose records were there before (dynamodb://TABLE?key=NAME)"
        raise ValueError(msg)  # noqa: TRY004 - wrong use is a ValueError throughout
    return session.queue


def hold(session: Session, record_id: RecordId = None) -> None:
    """Take a record of an attached table under construction: it cannot be put until it is ready."""
    held = attached(session, "hold").hold(session.task_id(record_id))
    session.output.changed(held, session.queue.now())


def ready(session: Session, record_id: RecordId = None) -> None:
    """Make a record of an attached table ready to be put, be it under construction or done with."""
    record = attached(session, "ready").ready(session.task_id(record_id))
    session.output.changed(record, session.queue.now())


def dlq_claim(
    session: Session,
    limit: Limit = 1,
    lease_seconds: LeaseSeconds = None,
) -> None:
    """Take dead letters of an attached table to look into; status 1 if there is none.

    Then done, fail or release it; a retry, and a lease that runs out, leave it a dead letter.
    """
    claims = attached(session, "dlq claim").claim_dead(limit, lease_seconds)
    session.hold(*claims)
    session.output.claims(claims)
    if not claims:
        msg = f"queue {session.queue.name!r} has no dead letter to claim"
        raise RefusedError(msg)
