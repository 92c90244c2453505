"""Commands that only work on an attached table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.command import QueueContext
from freshq.queue.attached import AttachedQueue

if TYPE_CHECKING:
    from freshq.cli.session import Session

RecordId = Annotated[
    str | None,
    typer.Argument(metavar="RECORD_ID", help="The record; in the shell, the current one by default."),
]


def attached(session: Session, command: str) -> AttachedQueue:
    """Return the session's queue if it is on an attached table.

    Raises:
        ValueError: If it is not; names the command.
    """
    if not isinstance(session.queue, AttachedQueue):
        msg = f"{command}: only on an attached table; use the address dynamodb://TABLE?key=NAME"
        raise ValueError(msg)  # noqa: TRY004 - wrong use is a ValueError throughout
    return session.queue


def hold(context: QueueContext, record_id: RecordId = None) -> None:
    """Put a record of an attached table under construction. It cannot be queued until it is ready."""
    session = context.session
    held = attached(session, "hold").hold(session.task_id(record_id))
    session.output.changed(held, session.queue.now())


def ready(context: QueueContext, record_id: RecordId = None) -> None:
    """Make a record of an attached table READY, from under construction or from a final status."""
    session = context.session
    record = attached(session, "ready").ready(session.task_id(record_id))
    session.output.changed(record, session.queue.now())
