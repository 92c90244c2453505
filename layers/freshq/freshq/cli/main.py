"""The commands."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from freshq.cli.attach import attach
from freshq.cli.simulate import simulate
from freshq.cli.table import table_app
from freshq.errors import StoreError
from freshq.queue import Queue

app = typer.Typer(
    help="A task queue for work that loses value with age.", no_args_is_help=True, add_completion=False
)

app.command()(simulate)
app.command()(attach)
app.add_typer(table_app, name="table")

UNREACHABLE_STATUS = 3
SCHEME = "dynamodb://"


@app.callback()
def main() -> None:
    """Keep `freshq` a group of commands, however few there are."""


@app.command(name="version")
def show_version() -> None:
    """Print the version."""
    typer.echo(version("freshq"))


@app.command()
def stats(
    queue: Annotated[
        str, typer.Option(envvar="FRESHQ_QUEUE", help="The queue's table, as dynamodb://TABLE.")
    ],
    name: Annotated[str, typer.Option(help="Name of the queue in the table.")] = "default",
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Read a page per shard instead of every task.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the tasks by state, and tell how old the waiting ones are."""
    if not queue.startswith(SCHEME) or not queue.removeprefix(SCHEME):
        problem = f"must look like dynamodb://TABLE, got {queue!r}"
        raise typer.BadParameter(problem, param_hint="--queue")
    try:
        counts = Queue.dynamodb(queue.removeprefix(SCHEME), name=name).stats(approximate=approximate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except StoreError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(UNREACHABLE_STATUS) from error
    if as_json:
        typer.echo(json.dumps(asdict(counts)))
        return
    table = Table("state", "tasks", "", title=f"queue {name}")
    reasons = {f"shed: {reason}": number for reason, number in counts.shed_by_reason.items()}
    fields = {name: value for name, value in asdict(counts).items() if not isinstance(value, dict)}
    for field, value in (fields | reasons).items():
        shown = "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
        table.add_row(field.replace("_", " "), shown, counts.bounded.get(field, ""))
    table.columns[1].justify = "right"
    Console().print(table)
