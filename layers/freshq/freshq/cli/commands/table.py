"""`freshq table`: tables from a file that describes them."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - Typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.commands.attach import reported, shown_progress
from freshq.stores.dynamodb import tables
from freshq.stores.dynamodb.calls import default_client, translated
from freshq.stores.dynamodb.description import read_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.stores.dynamodb.tables import TablePlan

table_app = typer.Typer(help="Tables from a file that describes them.", no_args_is_help=True)


@table_app.callback()
def table() -> None:
    """Tables from a file that describes them."""


@table_app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="The description, as JSON.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")] = False,
    cloudformation: Annotated[
        bool, typer.Option("--cloudformation", help="Print a CloudFormation template and change nothing.")
    ] = False,
) -> None:
    """Create or update the tables; what the file does not have stays."""
    with reported():
        description = read_description(file)
        if cloudformation:
            typer.echo(json.dumps(tables.cloudformation(description), indent=2))
            return
        with translated(str(file)):
            client = default_client()
        plans = tables.plan(client, description)
        show(plans)
        if description.lambdas:
            typer.echo(f"not made here: {len(description.lambdas)} lambdas")
        if dry_run or not any(planned.steps for planned in plans):
            return
        with shown_progress() as on_status:
            tables.apply(client, plans, on_status=on_status)
    typer.echo("Done.")


def show(plans: Sequence[TablePlan]) -> None:
    """Print what is to be done."""
    for planned in plans:
        for step in planned.steps or [f"table {planned.table.table_name} is as described"]:
            typer.echo(step)
        for name in planned.kept:
            typer.echo(f"  kept, not described: index {name}")
