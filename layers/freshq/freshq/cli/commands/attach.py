"""`freshq attach`: adds freshq's indexes to an application's table."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.commands.progress import progress_bars
from freshq.errors import needs
from freshq.model.checks import checked_count
from freshq.policy.order import Order

if TYPE_CHECKING:
    from freshq.stores.dynamodb.tables.attachment import Attachment, AttachPlan


class AttachOrder(StrEnum):
    """Orders of an attached table. In each of them, higher priority levels are served first."""

    FIFO = "fifo"
    LIFO = "lifo"
    PRIORITY = "priority"


Table = Annotated[str, typer.Argument(help="The application's table.")]
Key = Annotated[str, typer.Option(help="Its hash key. A range key is found.")]
OrderOption = Annotated[
    AttachOrder,
    typer.Option("--order", help="Order within a priority level. priority is the same as fifo."),
]
Shards = Annotated[
    int, typer.Option(help="Partitions of the index. Only one partition keeps the order strict.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes and their cost, and stop.")]


def attach(
    table: Table,
    key: Key,
    order: OrderOption = AttachOrder.FIFO,
    shards: Shards = 1,
    dry_run: DryRun = False,
) -> None:
    """Add freshq's indexes to a table in use. Safe to repeat."""
    with needs("aws"):
        from freshq.stores.dynamodb.calls import (  # noqa: PLC0415 - an extra
            check_table_name,
            default_client,
            translated,
        )
        from freshq.stores.dynamodb.table_store import MAX_SHARDS  # noqa: PLC0415 - an extra
        from freshq.stores.dynamodb.tables import attachment as attaching  # noqa: PLC0415 - an extra

    check_table_name(table)
    checked_count("shards", shards, MAX_SHARDS)
    chosen = Order.FIFO if order is AttachOrder.PRIORITY else Order(order.value)
    with translated(table):
        client = default_client()
    attachment = attaching.Attachment(table, attaching.described_key(client, table, key), chosen, shards)
    print_plan(attaching.plan_attachment(client, attachment), attachment)
    if dry_run:
        return
    with progress_bars() as on_status:
        attaching.attach_table(client, attachment, on_status=on_status)
    typer.echo(f'Attached. Queue.dynamodb("{table}", attach=True, key="{key}")')


def print_plan(plan: AttachPlan, attachment: Attachment) -> None:
    """Print what attaching does and costs."""
    typer.echo(f"Table {attachment.table}: about {plan.records:,} records of {plan.record_bytes:,} bytes.")
    typer.echo(f"The id of a record is {attachment.key.form}.")
    for name in plan.present:
        typer.echo(f"  exists: index {name}")
    for name in plan.missing:
        typer.echo(f"  to add: index {name} (sparse)")
    typer.echo(
        f"  to write: the attach record ({attachment.order}, {attachment.shards} shards), 1 write unit"
    )
    if plan.missing:
        typer.echo("Building the indexes costs no writes: they contain no record yet.")
    if plan.provisioned_units is not None:
        read_units, write_units = plan.provisioned_units
        typer.echo(
            f"Each index is provisioned like the table, with {read_units} read and {write_units} write units,"
            " billed by the hour."
        )
    typer.echo(
        f"Put, claim and complete then cost about {plan.life_write_units:g} write units per record, claimed"
        " one at a time. Records that are not queued cost nothing."
    )
