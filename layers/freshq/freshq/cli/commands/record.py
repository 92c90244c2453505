"""`freshq record`: the records of an attached table themselves."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from freshq.cli.command import Group, QueueCommand, QueueContext
from freshq.cli.commands.arguments import Yes, parsed
from freshq.cli.commands.attached_verbs import RecordId, attached
from freshq.cli.errors import printable
from freshq.cli.texts import compact_json
from freshq.errors import TaskNotFound

Record = Annotated[
    str, typer.Argument(metavar="JSON", help="Its attributes, the key among them; - reads standard input.")
]
Force = Annotated[bool, typer.Option("--force", help="Even if it is in a queue.")]


def record_put(context: QueueContext, record: Record) -> None:
    """Write a record, over the one with its key if there is one. Its state in the queue stays."""
    _write(context, record, "put")


def record_upsert(context: QueueContext, record: Record) -> None:
    """Write some attributes of a record, or a new record, and remove none."""
    _write(context, record, "upsert")


def _write(context: QueueContext, text: str, verb: str) -> None:
    session = context.session
    queue = attached(session, f"record {verb}")
    record = parsed("record", sys.stdin.read() if text == "-" else text)
    if not isinstance(record, dict):
        msg = f"record: must be a JSON object, got {type(record).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - wrong use is a ValueError throughout
    record_id = queue.put_record(record) if verb == "put" else queue.upsert_record(record)
    session.see(record_id)
    session.output.answer({"record_id": record_id}, f"record {printable(record_id)}: written")


def record_get(context: QueueContext, record_id: RecordId = None) -> None:
    """Print the application's attributes of a record as JSON."""
    session = context.session
    wanted = session.task_id(record_id)
    record = attached(session, "record get").get_record(wanted)
    if record is None:
        raise TaskNotFound(wanted, session.queue.name, is_record=True)
    session.see(wanted)
    session.output.answer(record, compact_json(record))


def record_delete(
    context: QueueContext, record_id: RecordId = None, force: Force = False, yes: Yes = False
) -> None:
    """Delete a record from the table. Asks."""
    session = context.session
    queue, wanted = attached(session, "record delete"), session.task_id(record_id)
    session.confirm(f"Delete record {printable(wanted)} from the table?", yes=yes)
    queue.delete_record(wanted, force=force)
    session.claims.pop(wanted, None)
    session.output.answer({"deleted": 1}, f"record {printable(wanted)}: deleted")


app = typer.Typer(cls=Group, help="Records of an attached table: write, read, delete.", no_args_is_help=True)
app.command("put", cls=QueueCommand)(record_put)
app.command("upsert", cls=QueueCommand)(record_upsert)
app.command("get", cls=QueueCommand)(record_get)
app.command("delete", cls=QueueCommand)(record_delete)
