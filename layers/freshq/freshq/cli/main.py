"""The commands."""

from __future__ import annotations

import logging
from importlib.metadata import version

import typer

from freshq.cli import sql
from freshq.cli.attach import attach
from freshq.cli.example import example
from freshq.cli.relay import relay
from freshq.cli.session import OneLineErrors, complain, verb
from freshq.cli.shell import shell
from freshq.cli.simulate import simulate
from freshq.cli.table import table_app
from freshq.cli.verbs import register
from freshq.cli.watch import watch

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
app.command()(attach)
app.add_typer(table_app, name="table")
app.add_typer(example, name="example")
app.command()(relay)
app.add_typer(sql.app, name="sql")


class OneLineLog(logging.Handler):
    """Warnings of the library, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message without a stack trace."""
        complain(record.getMessage())


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
