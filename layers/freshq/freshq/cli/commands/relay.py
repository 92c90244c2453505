"""`freshq relay`: move an outbox to another queue."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.addresses import FORMS, open_queue
from freshq.errors import StoreError
from freshq.feeds.relay import DEFAULT_BATCH, Relay
from freshq.model.task import MAX_SECONDS

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue

UNREACHABLE_STATUS = 3


def _open(option: str, address: str, name: str, max_age_seconds: float) -> BaseQueue:
    try:
        return open_queue(address, name=name, max_age_seconds=max_age_seconds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    except StoreError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(UNREACHABLE_STATUS) from error


def relay(
    source: Annotated[str, typer.Option("--from", help=f"The outbox: {FORMS}.")],
    destination: Annotated[str, typer.Option("--to", help="Where its tasks go, in the same form.")],
    from_name: Annotated[str, typer.Option(help="Name of the outbox's queue.")] = "default",
    to_name: Annotated[str, typer.Option(help="Name of the destination's queue.")] = "default",
    max_age_seconds: Annotated[
        float, typer.Option(help="The destination's max age, as its workers have it.")
    ] = 3600.0,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Tasks moved at a time.")] = DEFAULT_BATCH,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when nothing is left.")] = False,
) -> None:
    """Move tasks from one queue to another: none is lost, and each arrives once.

    Runs until it is interrupted. It may be killed at any point, and run several times at once.
    """
    # Whatever waits in the outbox is moved, however long its producers let it live.
    outbox = _open("--from", source, from_name, MAX_SECONDS)
    target = _open("--to", destination, to_name, max_age_seconds)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        moved = Relay(outbox, target, batch=batch).run(stop, until_empty=until_empty)
    except StoreError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(UNREACHABLE_STATUS) from error
    finally:
        outbox.close()
        target.close()
    typer.echo(f"{moved} tasks relayed")
