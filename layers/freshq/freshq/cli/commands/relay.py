"""`freshq relay`: moves tasks from an outbox to another queue."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.addresses import FORMS, Address, open_queue
from freshq.cli.process.ending import ControlChannel, WorkStatus, end_process, run_until_told
from freshq.cli.texts import counted
from freshq.feeds.relay import DEFAULT_BATCH, Relay
from freshq.model.task import MAX_SECONDS

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue

Source = Annotated[str, typer.Option("--from", help=f"Address of the outbox: {FORMS}.")]
Destination = Annotated[str, typer.Option("--to", help="Address of the destination, in the same form.")]
FromName = Annotated[str, typer.Option(help="Name of the outbox's queue.")]
ToName = Annotated[str, typer.Option(help="Name of the destination's queue.")]
MaxAgeSeconds = Annotated[
    float, typer.Option(help="Max age of the destination in seconds, the same as its workers use.")
]
Batch = Annotated[int, typer.Option(min=1, max=1000, help="Tasks moved at a time.")]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="Stop when the outbox is empty.")]


def relay(
    source: Source,
    destination: Destination,
    from_name: FromName = "default",
    to_name: ToName = "default",
    max_age_seconds: MaxAgeSeconds = 3600.0,
    batch: Batch = DEFAULT_BATCH,
    until_empty: UntilEmpty = False,
) -> None:
    """Move tasks to another queue under the same ids, at least once: a repeated put is a duplicate.

    Runs until SIGTERM or Ctrl-C, which let the batch end; a second one ends it at once. It can be killed at
    any point, and several can run at once.
    """
    _check("--from", source)
    _check("--to", destination)
    # The outbox moves every waiting task, whatever max age its producers gave it.
    with (
        closing(_open("--from", source, from_name, MAX_SECONDS)) as outbox,
        closing(_open("--to", destination, to_name, max_age_seconds)) as target,
    ):
        control = ControlChannel()
        control.follow_signals()
        work = partial(Relay(outbox, target, batch=batch).run, until_empty=until_empty)
        ended = run_until_told("freshq-relay", work, control, lambda: None)
        if not ended.done():
            typer.echo("ended at once; tasks that it held are free once their leases expire", err=True)
            end_process(WorkStatus.UNFINISHED, control)
        moved = ended.result()
    typer.echo(f"{counted(moved, 'task')} relayed")


def _check(option: str, address: str) -> None:
    """Refuse a wrong address of either queue before the other one is opened."""
    try:
        Address.parse(address)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _open(option: str, address: str, name: str, max_age_seconds: float) -> BaseQueue:
    try:
        return open_queue(address, name=name, max_age_seconds=max_age_seconds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
