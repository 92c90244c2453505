"""`freshq sql`: the tables of a SQL database."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from freshq.cli.addresses import database_of
from freshq.cli.command import Command, Group
from freshq.errors import needs

app = typer.Typer(cls=Group, help="Tables in a SQL database.", no_args_is_help=True)

Url = Annotated[
    str, typer.Argument(help="The database, such as sqlite:///tasks.db; #TABLE at the end names a table.")
]


@app.callback()
def main() -> None:
    """Make `sql` a group of commands, although it has only one."""


@app.command(cls=Command)
def migrate(url: Url) -> None:
    """Create the tables, or update them to the newest version. Safe to repeat."""
    with needs("sql"):
        from freshq.stores.sql import SqlStore

    database, table = database_of(url)
    with closing(SqlStore(database, table)) as store:
        applied = store.migrate()
    for name in applied:
        typer.echo(f"{table}: {name}")
    if not applied:
        typer.echo(f"{table}: nothing to do")
