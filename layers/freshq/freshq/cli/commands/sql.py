"""`freshq sql`: care of the tables in a SQL database."""

from __future__ import annotations

from typing import Annotated

import typer

from freshq.cli.addresses import split_table
from freshq.errors import StoreError

app = typer.Typer(help="Tables in a SQL database.", no_args_is_help=True)

UNREACHABLE_STATUS = 3


@app.callback()
def main() -> None:
    """Keep `freshq sql` a group of commands."""


@app.command()
def migrate(
    url: Annotated[
        str, typer.Argument(help="Where the database is, e.g. sqlite:///tasks.db; #TABLE names a table.")
    ],
) -> None:
    """Make the tables, or bring them to the newest version; safe to run at any time."""
    from freshq.stores.sql import SqlStore  # noqa: PLC0415 - only the store in use is loaded

    database, table = split_table(url)
    try:
        store = SqlStore(database, table)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from error
    try:
        applied = store.migrate()
    except StoreError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(UNREACHABLE_STATUS) from error
    finally:
        store.close()
    for name in applied:
        typer.echo(f"{table}: {name}")
    if not applied:
        typer.echo(f"{table}: nothing to do")
