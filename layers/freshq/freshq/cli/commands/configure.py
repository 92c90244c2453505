"""`freshq configure`: options that are stored with a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.command import QueueContext
from freshq.cli.configuration import forget_options, storable_names, store_options, stored_options
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.cli.session import Session

OrderOption = Annotated[Order | None, typer.Option("--order", help="Order within a priority level.")]
MaxAge = Annotated[float | None, typer.Option("--max-age-seconds", help="Age at which a task is stale.")]
MaxAttempts = Annotated[
    int | None, typer.Option(help="Attempts after which a task that fails becomes a dead letter.")
]
Lease = Annotated[float | None, typer.Option("--lease-seconds", help="Time until a lease expires.")]
Retention = Annotated[
    float | None, typer.Option("--retention-seconds", help="How long a task that is over can be read.")
]
Reserve = Annotated[
    str | None,
    typer.Option(help="Time that must be left when a task is claimed: seconds, or a percentile as p90."),
]
Shards = Annotated[int | None, typer.Option(help="Partitions of the index, on DynamoDB.")]
Forget = Annotated[bool, typer.Option("--forget", help="Delete what is stored.")]


def configure(
    context: QueueContext,
    order: OrderOption = None,
    max_age_seconds: MaxAge = None,
    max_attempts: MaxAttempts = None,
    lease_seconds: Lease = None,
    retention_seconds: Retention = None,
    reserve: Reserve = None,
    shards: Shards = None,
    forget: Forget = False,
) -> None:
    """Store options with a queue, so that addresses need not repeat them; without any, show them.

    Commands read them when they start, `freshq work` included. An option in an address wins. Applications
    pass their own options.
    """
    session = context.session
    options = {
        "order": None if order is None else order.value,
        "max_age_seconds": max_age_seconds,
        "max_attempts": max_attempts,
        "lease_seconds": lease_seconds,
        "retention_seconds": retention_seconds,
        "reserve": reserve,
        "shards": shards,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if forget and given:
        raise ValueError("forget: give either options to store or --forget")
    if given:
        _check_names(session, given.keys())
        store_options(session.queue, given)
    elif forget:
        forget_options(session.queue)
    stored = stored_options(session.queue)
    shown = {name: str(value) for name, value in stored.items()}
    session.output.answer(stored, shown or f"queue {session.queue.name}: no options are stored")


def _check_names(session: Session, names: Iterable[str]) -> None:
    """Raise ValueError if the queue cannot have one of these options stored."""
    if session.address is None:
        raise ValueError("stack: a stack's queue has the options of its parameters; deploy it with others")
    storable = storable_names(session.address)
    for name in names:
        if name not in storable:
            msg = f"{name}: cannot be stored with this queue; use one of {', '.join(storable)}"
            raise ValueError(msg)
