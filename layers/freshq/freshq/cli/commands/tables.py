"""`freshq table` and `freshq record`: create, update and attach tables; the records of an attached table."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from freshq.addresses import open_queue
from freshq.cli.command import (
    QUEUE_VARIABLES,
    Group,
    PlainCommand,
    QueueCommand,
    QueueContext,
    Yes,
    help_of,
    parsed,
)
from freshq.cli.output import compact_json
from freshq.cli.process import progress_bars
from freshq.cli.session import confirm, refuse_memory
from freshq.errors import NotFound, needs, printable, quoted, without_secrets
from freshq.model.checks import checked_count
from freshq.model.storable_options import MAX_SHARDS, DynamoDBOptions
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.stores.dynamodb.attached.attach import Attachment, AttachPlan
    from freshq.stores.dynamodb.key import KeyPart
    from freshq.stores.dynamodb.table import TablePlan

app = typer.Typer(cls=Group, help="Tables: create, update, attach.", no_args_is_help=True)
Source = Annotated[
    str,
    typer.Argument(
        envvar=list(QUEUE_VARIABLES),
        metavar="URL|FILE",
        help="Address of the queue: dynamodb://TABLE, sqlite:///FILE, postgresql://USER@HOST/DATABASE. "
        "Or a file that describes tables of DynamoDB, as JSON.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Of a file: print the plan, change nothing.")]
CloudFormation = Annotated[
    bool,
    typer.Option("--cloudformation", help="Of a file: print a CloudFormation template, change nothing."),
]
Table = Annotated[str, typer.Argument(help="The application's table.")]
Key = Annotated[str, typer.Option(help="Its hash key. freshq finds the range key itself.")]
OrderBy = Annotated[
    str | None,
    typer.Option(metavar="ATTRIBUTE", help="Order by this attribute of the records instead of time."),
]
Shards = Annotated[int, typer.Option(help=help_of(DynamoDBOptions, "shards"))]
Stream = Annotated[
    bool, typer.Option("--stream", help="Also enable the change stream, which the Lambda functions need.")
]
OldQueue = Annotated[
    str | None,
    typer.Option(
        "--old-queue",
        metavar="NAMES",
        help="Attributes, with commas between them, by which records say that they are in another queue: "
        "attaching is refused while one is 1. By default queued and DLQ, if an index has them; empty: none.",
    ),
]
AttachDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes and their cost, and change nothing.")
]
RecordId = Annotated[
    str | None,
    typer.Argument(metavar="RECORD_ID", help="The record. In the shell, the current record by default."),
]
Record = Annotated[
    str, typer.Argument(metavar="JSON", help="Its attributes, including the key; - reads standard input.")
]
Force = Annotated[bool, typer.Option("--force", help="Also delete a record that is in a queue.")]
Merge = Annotated[
    bool, typer.Option("--merge", help="Write only these attributes, and keep the record's others.")
]
records = typer.Typer(
    cls=Group,
    help="Records of an attached table.\n\nTwo more, hold and ready, say whether a record may be put.",
    no_args_is_help=True,
)


class AttachOrder(StrEnum):
    """Orders of an attached table. In each of them, higher priority levels are served first."""

    FIFO = "fifo"
    LIFO = "lifo"
    ASCENDING = "ascending"
    DESCENDING = "descending"


class OrderType(StrEnum):
    """Types of an attribute that orders a table."""

    NUMBER = "number"
    TEXT = "text"


# Orders by time, and by an attribute.
BY_TIME: Final = {
    AttachOrder.FIFO: Order.FIFO,
    AttachOrder.LIFO: Order.LIFO,
}
BY_ATTRIBUTE: Final = {AttachOrder.ASCENDING: Order.FIFO, AttachOrder.DESCENDING: Order.LIFO}
OrderOption = Annotated[
    AttachOrder | None,
    typer.Option(
        "--order",
        help="Order within a priority level: fifo by default. With --order-by, ascending by default, or "
        "descending.",
    ),
]
OrderTypeOption = Annotated[
    OrderType | None,
    typer.Option("--order-type", help="Its type: number by default. Text is compared by its UTF-8 bytes."),
]


@app.command(cls=PlainCommand)
def create(source: Source, dry_run: DryRun = False, cloudformation: CloudFormation = False) -> None:
    """Create or update the tables of a queue or a file.

    Safe to repeat: what exists and is up to date stays. The options after ? in an address are stored with the
    queue; see freshq configure.
    """
    if source.endswith(".json") or Path(source).exists():
        apply(Path(source), dry_run=dry_run, cloudformation=cloudformation)
        return
    if dry_run or cloudformation:
        raise ValueError("dry_run, cloudformation: only with a file")
    refuse_memory(source)
    with closing(open_queue(source)) as queue:
        queue.create_table()
    typer.echo(f"The table is ready: {without_secrets(source)}")


def apply(file: Path, *, dry_run: bool, cloudformation: bool) -> None:
    """Create or update the tables of a file. Other tables and indexes are kept."""
    with needs("aws"):
        from freshq.stores.dynamodb import table as tables
        from freshq.stores.dynamodb.calls import default_client, translated

    description = tables.read_description(file)
    if cloudformation:
        typer.echo(json.dumps(tables.cloudformation_template(description), indent=2))
        return
    with translated(str(file)):
        client = default_client()
    plans = tables.plan_tables(client, description)
    print_plans(plans)
    if description.lambdas:
        typer.echo(f"not created by this command: {len(description.lambdas)} lambdas")
    if dry_run or not any(plan.steps for plan in plans):
        return
    with progress_bars() as on_status:
        tables.apply_plans(client, plans, on_status=on_status)
    typer.echo("Done.")


def print_plans(plans: Sequence[TablePlan]) -> None:
    """Print the steps for each table."""
    for plan in plans:
        for step in plan.steps or [f"table {plan.table.table_name} is as described"]:
            typer.echo(step)
        for name in plan.kept:
            typer.echo(f"  kept, not described: index {name}")


@app.command(cls=PlainCommand)
def attach(
    table: Table,
    key: Key,
    order: OrderOption = None,
    order_by: OrderBy = None,
    order_type: OrderTypeOption = None,
    shards: Shards = 1,
    stream: Stream = False,
    old_queue: OldQueue = None,
    dry_run: AttachDryRun = False,
) -> None:
    """Add freshq's indexes to a table in use."""
    with needs("aws"):
        from freshq.stores.dynamodb.attached import attach as attaching
        from freshq.stores.dynamodb.calls import check_table_name, default_client, translated
        from freshq.stores.dynamodb.table import enable_stream, stream_arn
    check_table_name(table)
    checked_count("shards", shards, MAX_SHARDS)
    chosen, by = _order(order, order_by), _order_by(order_by, order_type)
    with translated(table):
        client = default_client()
    attachment = attaching.Attachment(
        table, attaching.described_key(client, table, key), chosen, shards, order_by=by
    )
    present = stream_arn(client, table) if stream else None
    old = None if old_queue is None else list(filter(None, old_queue.split(",")))
    print_attach_plan(attaching.plan_attachment(client, attachment, old), attachment)
    if stream:
        _print_stream_plan(attachment, present)
    if dry_run:
        return
    with progress_bars() as on_status:
        attaching.attach_table(client, attachment, old_queue=old, on_status=on_status)
        arn = enable_stream(client, table, on_status=on_status) if stream else None
    typer.echo(f'Attached. Queue.dynamodb("{table}", attach=True, key="{key}")')
    if arn is not None:
        typer.echo(f"Stream: {arn}")


def _print_stream_plan(attachment: Attachment, present: str | None) -> None:
    """Print whether the stream will be enabled, and whether the Lambda functions can use it."""
    typer.echo(f"  exists: the stream {present}" if present else "  to enable: the change stream")
    key = attachment.key.hash
    if key.attribute_type != "S":
        typer.echo(
            f"  note: the hash key {key.name!r} is of type {key.attribute_type}; the functions of the "
            "stack take only type S, so work this table with freshq work"
        )


def _order(order: AttachOrder | None, order_by: str | None) -> Order:
    """Return the end of each line that is served first.

    Raises:
        ValueError: If the order does not fit the attribute or time that orders the lines.
    """
    allowed = BY_TIME if order_by is None else BY_ATTRIBUTE
    if order is None:
        return Order.FIFO
    if order not in allowed:
        what = "without --order-by" if order_by is None else "with --order-by"
        msg = f"order: {what} it must be one of {', '.join(allowed)}, got {order.value}"
        raise ValueError(msg)
    return allowed[order]


def _order_by(name: str | None, order_type: OrderType | None) -> KeyPart | None:
    """Return the attribute that orders the table, and its type; None if time does.

    Raises:
        ValueError: If it cannot be an attribute of the records, or only the type is given.
    """
    from freshq.stores.dynamodb.key import NUMBER, TEXT, KeyPart
    from freshq.stores.dynamodb.schema import ATTACHED_PREFIX

    if name is None:
        if order_type is not None:
            raise ValueError("order_type: only with --order-by, whose attribute has this type")
        return None
    if not name or name.startswith(ATTACHED_PREFIX):
        msg = f"order_by: must be the name of an attribute of the records, got {quoted(name)}"
        raise ValueError(msg)
    return KeyPart(name, TEXT if order_type is OrderType.TEXT else NUMBER)


def print_attach_plan(plan: AttachPlan, attachment: Attachment) -> None:
    """Print the changes of attaching and their cost."""
    typer.echo(f"Table {attachment.table}: about {plan.records:,} records of {plan.record_bytes:,} bytes.")
    typer.echo(f"The id of a record is {attachment.key.form}.")
    for name in plan.present:
        typer.echo(f"  exists: index {name}")
    for name in plan.missing:
        typer.echo(f"  to add: index {name} (sparse)")
    order: str = attachment.order
    if attachment.order_by is not None:
        direction = "ascending" if attachment.order is Order.FIFO else "descending"
        order = f"by {attachment.order_by.name}, {direction}"
    typer.echo(f"  to write: the attach record ({order}, {attachment.shards} shards), 1 write unit")
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


@records.command("put", cls=QueueCommand)
def record_put(context: QueueContext, record: Record, merge: Merge = False) -> None:
    """Write a record, or replace the record with its key.

    Its state in the queue stays.
    """
    session = context.session
    queue = session.attached("record put")
    written = parsed("record", sys.stdin.read() if record == "-" else record)
    if not isinstance(written, dict):
        msg = f"record: must be a JSON object, got {type(written).__name__}"
        raise ValueError(msg)
    record_id = queue.records.upsert(written) if merge else queue.records.put(written)
    session.see(record_id)
    session.output.answer({"record_id": record_id}, f"record {printable(record_id)}: written")


@records.command("get", cls=QueueCommand)
def record_get(context: QueueContext, record_id: RecordId = None) -> None:
    """Print the attributes of a record as JSON."""
    session = context.session
    wanted = session.task_id(record_id)
    record = session.attached("record get").records.get(wanted)
    if record is None:
        raise NotFound.of_record(wanted)
    session.see(wanted)
    session.output.answer(record, compact_json(record))


@records.command("delete", cls=QueueCommand)
def record_delete(
    context: QueueContext, record_id: RecordId = None, force: Force = False, yes: Yes = False
) -> None:
    """Delete a record from the table.

    Asks for confirmation.
    """
    session = context.session
    queue, wanted = session.attached("record delete"), session.task_id(record_id)
    confirm(f"Delete record {printable(wanted)} from the table?", yes=yes)
    queue.records.delete(wanted, force=force)
    session.claims.pop(wanted, None)
    session.output.answer({"deleted": 1}, f"record {printable(wanted)}: deleted")


@records.command("hold", cls=QueueCommand, hidden=True)
def hold(context: QueueContext, record_id: RecordId = None) -> None:
    """Put a record under construction: it cannot be queued."""
    session = context.session
    session.print_changed(session.attached("hold").records.hold(session.task_id(record_id)))


@records.command("ready", cls=QueueCommand, hidden=True)
def ready(context: QueueContext, record_id: RecordId = None) -> None:
    """Make a record READY to be put.

    It was under construction, or has ended.
    """
    session = context.session
    session.print_changed(session.attached("ready").records.ready(session.task_id(record_id)))
