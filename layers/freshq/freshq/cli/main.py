"""The commands."""

from __future__ import annotations

import logging
from importlib.metadata import version

import typer

from freshq.cli.commands import sql
from freshq.cli.commands.attach import attach
from freshq.cli.commands.example.command import example
from freshq.cli.commands.relay import relay
from freshq.cli.commands.simulate.command import simulate
from freshq.cli.commands.table import table_app
from freshq.cli.commands.verbs import register
from freshq.cli.commands.watch.command import watch
from freshq.cli.session import OneLineErrors, print_error, verb
from freshq.cli.shell.command import shell

app = typer.Typer(
    cls=OneLineErrors,
    help="A task queue for work that loses value with age.",
    add_completion=False,
    no_args_is_help=True,
)
register(app)
app.command()(verb(watch))
app.command()(verb(shell))
app.command()(simulate)
app.add_typer(example, name="example")
app.command()(relay)
app.add_typer(sql.app, name="sql")
app.command()(attach)
app.add_typer(table_app, name="table")


class OneLineLog(logging.Handler):
    """Warnings of the library, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message without a stack trace."""
        print_error(record.getMessage())


@app.callback()
def main() -> None:
    """Print the library's warnings as commands print their errors."""
    logger = logging.getLogger("freshq")
    if not any(isinstance(handler, OneLineLog) for handler in logger.handlers):
        logger.addHandler(OneLineLog(logging.WARNING))


@app.command(name="version")
def show_version() -> None:
    """Print the version."""
    typer.echo(version("freshq"))
