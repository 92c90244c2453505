"""`freshq table`: creates what a queue needs, and tables from a description file."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.addresses import open_queue
from freshq.cli.command import Command, Group
from freshq.cli.commands.progress import progress_bars
from freshq.cli.configuration import check_options, storable_options, store_first_options
from freshq.errors import needs
from freshq.model.checks import without_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.stores.dynamodb.tables.plan import TablePlan

app = typer.Typer(cls=Group, help="Tables of a new queue, or from a description file.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Argument(
        envvar="FRESHQ_QUEUE",
        metavar="URL",
        help="Address of the queue: dynamodb://TABLE, sqlite:///FILE, postgresql://USER@HOST/DATABASE.",
    ),
]
File = Annotated[Path, typer.Argument(help="The description, as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
CloudFormation = Annotated[
    bool, typer.Option("--cloudformation", help="Print a CloudFormation template and change nothing.")
]


@app.command(cls=Command)
def create(url: Url) -> None:
    """Create what a new queue needs, in any store. Safe to repeat: what exists stays.

    The options after ? are stored with the queue, see freshq configure.
    """
    if url.startswith("memory:"):
        raise ValueError("queue: memory:// is in one process, and needs no table; use sqlite:///FILE")
    options = storable_options(url)
    check_options(options)
    with closing(open_queue(url)) as queue:
        queue.create_table()
        store_first_options(queue, options)
    typer.echo(f"The table is ready: {without_password(url)}")


@app.command(cls=Command)
def apply(file: File, dry_run: DryRun = False, cloudformation: CloudFormation = False) -> None:
    """Create or update the tables of a file. Other tables and indexes are kept."""
    with needs("aws"):
        from freshq.stores.dynamodb.calls import default_client, translated  # noqa: PLC0415 - an extra
        from freshq.stores.dynamodb.tables import plan as tables  # noqa: PLC0415 - an extra
        from freshq.stores.dynamodb.tables.description import read_description  # noqa: PLC0415 - an extra

    description = read_description(file)
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
