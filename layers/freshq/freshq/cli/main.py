"""All commands of `freshq`."""

from __future__ import annotations

import logging
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer

from freshq.cli.command import OneLineErrors
from freshq.cli.errors import OneLineLog
from freshq.cli.listing import COMMANDS, lazy_commands


class Freshq(OneLineErrors):
    """The group of all commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the group that Typer describes, with the commands added."""
        super().__init__(*args, **kwargs)
        self.commands = lazy_commands(COMMANDS)


app = typer.Typer(
    cls=Freshq,
    help="A queue for work that loses value.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if requested."""
    if wanted:
        typer.echo(installed("freshq"))
        raise typer.Exit


@app.callback()
def main(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Print the library's warnings like the errors of commands."""
    logger = logging.getLogger("freshq")
    if not any(isinstance(handler, OneLineLog) for handler in logger.handlers):
        logger.addHandler(OneLineLog(logging.WARNING))
