"""`freshq attach`: a queue on a table that an application has."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from freshq.errors import StoreError
from freshq.policy.order import Order
from freshq.stores.dynamodb.attachment import Attachment, AttachPlan, attach_table, plan_attachment
from freshq.stores.dynamodb.calls import check_table_name, default_client, translated
from freshq.stores.dynamodb.table_store import MAX_SHARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNREACHABLE_STATUS = 3


class AttachOrder(StrEnum):
    """The orders by name; priority levels come first in each of them."""

    FIFO = "fifo"
    LIFO = "lifo"
    PRIORITY = "priority"


def attach(
    table: Annotated[str, typer.Argument(help="The application's table.")],
    key: Annotated[str, typer.Option(help="Its hash key, of type S; it may have no range key.")],
    order: Annotated[
        AttachOrder,
        typer.Option(help="Within a priority level. priority: highest first, then oldest first, as fifo."),
    ] = AttachOrder.FIFO,
    shards: Annotated[
        int, typer.Option(min=1, max=MAX_SHARDS, help="Partitions of the index; one keeps strict order.")
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the change and its cost.")] = False,
) -> None:
    """Add the indexes of a queue to a table that is in use; safe to repeat."""
    with reported():
        check_table_name(table)
        chosen = Order.FIFO if order is AttachOrder.PRIORITY else Order(order.value)
        attachment = Attachment(table, key, chosen, shards)
        with translated(table):
            client = default_client()
        show(plan_attachment(client, attachment), attachment)
        if dry_run:
            return
        with shown_progress() as on_status:
            attach_table(client, attachment, on_status=on_status)
    typer.echo(f'Attached. Queue.dynamodb("{table}", attach=True, key="{key}")')


def show(plan: AttachPlan, attachment: Attachment) -> None:
    """Print what attaching does, and what that costs."""
    typer.echo(f"Table {attachment.table}: about {plan.records:,} records of {plan.record_bytes:,} bytes.")
    for name in plan.present:
        typer.echo(f"  there already: index {name}")
    for name in plan.missing:
        typer.echo(f"  to add: index {name} (sparse, keys only)")
    typer.echo(
        f"  to write: how it is attached ({attachment.order}, {attachment.shards} shards), 1 write unit"
    )
    if plan.missing:
        typer.echo("Filling an index writes nothing, as no record is in it yet.")
    if plan.provisioned_units is not None:
        read_units, write_units = plan.provisioned_units
        typer.echo(
            f"Each index is provisioned as the table, with {read_units} read and {write_units} write units,"
            " paid by the hour."
        )
    typer.echo(
        f"A record's life in the queue then costs about {plan.life_write_units:g} write units, claimed one"
        " at a time: put, claim, complete. Records that are not queued cost nothing."
    )


@contextmanager
def reported() -> Iterator[None]:
    """Print an error as one line: 2 for wrong use, 3 where the store did not carry out a call."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(2) from error
    except StoreError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(UNREACHABLE_STATUS) from error


@contextmanager
def shown_progress() -> Iterator[Callable[[str, str], None]]:
    """Show a bar for each thing that is waited for."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bars = {}

        def on_status(what: str, status: str) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=None, status=status)
            done = status == "ACTIVE"
            progress.update(bars[what], status=status, total=1 if done else None, completed=int(done))

        yield on_status
