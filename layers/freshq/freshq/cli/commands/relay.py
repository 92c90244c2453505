"""`freshq relay`: forward tasks from an outbox to another queue."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshq.cli.addresses import FORMS, QUEUE_OPTIONS, Address, open_queue, split_options
from freshq.cli.flags import SECONDS_OR_NONE
from freshq.cli.output import counted
from freshq.cli.process import ControlChannel, WorkStatus, end_process, run_until_told
from freshq.feeds.relay import DEFAULT_BATCH, Relay
from freshq.model.storable_options import seconds_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.queue.base import BaseQueue

Source = Annotated[str, typer.Option("--from", help=f"Address of the outbox: {FORMS}.")]
Destination = Annotated[str, typer.Option("--to", help="Address of the destination, in the same form.")]
FromName = Annotated[
    str | None,
    typer.Option(help="Name of the outbox's queue, as ?name= in its address.", show_default="default"),
]
ToName = Annotated[
    str | None,
    typer.Option(help="Name of the destination's queue, as ?name= in its address.", show_default="default"),
]
MaxAgeSeconds = Annotated[
    str | None,
    typer.Option(
        metavar=SECONDS_OR_NONE,
        parser=seconds_or_none,
        help="Max age of the destination in seconds. Use the same value as its workers.",
        show_default="3600",
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=1000, help="Number of tasks per batch.")]
IdleExitSeconds = Annotated[
    float | None, typer.Option(help="End after this time without a task to move. By default, never.")
]


def relay(
    source: Source,
    destination: Destination,
    from_name: FromName = None,
    to_name: ToName = None,
    max_age_seconds: MaxAgeSeconds = None,
    batch: Batch = DEFAULT_BATCH,
    idle_exit_seconds: IdleExitSeconds = None,
) -> None:
    """Forward tasks to another queue.

    Forwards each task at least once; ids are kept, so repeats are ignored. Runs until SIGTERM or Ctrl-C: one
    lets the batch finish, a second ends the command at once. It can be killed at any point, and several can
    run at the same time.
    """
    _check("--from", source, {"name": from_name})
    _check("--to", destination, {"name": to_name, "max_age_seconds": max_age_seconds})
    # By default every waiting task moves, whatever its max age.
    has_own = "max_age_seconds" in Address.parse(source).options
    outlives: dict[str, Any] = {} if has_own else {"max_age_seconds": None, "override": True}
    limits = {} if max_age_seconds is None else {"max_age_seconds": max_age_seconds}
    with (
        closing(_open("--from", source, from_name, **outlives)) as outbox,
        closing(_open("--to", destination, to_name, **limits)) as target,
    ):
        control = ControlChannel()
        control.follow_signals()
        moves = Relay(outbox, target, batch=batch, idle_exit_seconds=idle_exit_seconds)
        ended = run_until_told("freshq-relay", moves.run, control, moves.stop)
        if not ended.done():
            typer.echo("ended at once; tasks that it held are claimable once their leases expire", err=True)
            end_process(WorkStatus.UNFINISHED, control)
        moved = ended.result()
    typer.echo(f"{counted(moved, 'task')} relayed")


def _check(option: str, address: str, given: Mapping[str, object]) -> None:
    """Refuse a wrong address, or options that contradict it, before any queue is opened."""
    with _named(option):
        options, _others = split_options(Address.parse(address).options, QUEUE_OPTIONS)
        for name, value in given.items():
            if value is not None and options.get(name, value) != value:
                msg = f"{name}: the address has {options[name]}, the command line {value}; give one of them"
                raise ValueError(msg)


def _open(
    option: str,
    address: str,
    name: str | None,
    **named: Any,
) -> BaseQueue:
    with _named(option):
        return open_queue(address, name, **named)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Name the option of a wrong address in its error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
