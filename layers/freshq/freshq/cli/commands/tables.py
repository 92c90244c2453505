"""Commands for tables."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.addresses import open_queue
from freshq.cli.command import QUEUE_VARIABLES, Group, PlainCommand
from freshq.cli.commands.attach import attach
from freshq.cli.process import progress_bars
from freshq.cli.session import refuse_memory
from freshq.errors import needs
from freshq.model.checks import without_password

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    typer.echo(f"The table is ready: {without_password(source)}")


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


app.command(cls=PlainCommand)(attach)
