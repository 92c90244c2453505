"""All commands of `freshq`."""

from __future__ import annotations

import logging
from importlib.metadata import version

import typer
from typing_extensions import override

from freshq.cli.command import OneLineErrors, QueueCommand
from freshq.cli.commands import sql, table
from freshq.cli.commands.attach import attach
from freshq.cli.commands.example.command import app as example
from freshq.cli.commands.relay import relay
from freshq.cli.commands.simulate.command import add_simulate
from freshq.cli.commands.verbs import add_verbs
from freshq.cli.commands.watch.command import watch
from freshq.cli.errors import print_error
from freshq.cli.shell.command import shell

app = typer.Typer(
    cls=OneLineErrors,
    help="A task queue for work that loses value with age.",
    add_completion=False,
    no_args_is_help=True,
)
add_verbs(app)
app.command(cls=QueueCommand, rich_help_panel="Queue")(watch)
app.command(cls=QueueCommand, rich_help_panel="Queue")(shell)
app.command(rich_help_panel="Queue")(relay)
app.command(rich_help_panel="Attached tables")(attach)
app.add_typer(sql.app, name="sql", rich_help_panel="Tables")
app.add_typer(table.app, name="table", rich_help_panel="Tables")
add_simulate(app)
app.add_typer(example, name="example", rich_help_panel="Other")


class OneLineLog(logging.Handler):
    """Prints the library's warnings, one line each."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Print the message without a stack trace."""
        print_error(record.getMessage())


@app.callback()
def main() -> None:
    """Print the library's warnings like the errors of commands."""
    logger = logging.getLogger("freshq")
    if not any(isinstance(handler, OneLineLog) for handler in logger.handlers):
        logger.addHandler(OneLineLog(logging.WARNING))


@app.command(name="version", rich_help_panel="Other")
def show_version() -> None:
    """Print the version."""
    typer.echo(version("freshq"))
