"""All commands of `freshq`."""

from __future__ import annotations

import logging
from importlib.metadata import version as installed
from typing import Annotated, Any, Final

import typer

from freshq.cli.command import OneLineErrors
from freshq.cli.errors import OneLineLog
from freshq.cli.listing import VERBS, Listed, lazy_commands

COMMANDS: Final[tuple[Listed, ...]] = (
    *VERBS,
    Listed(
        "work",
        "Work",
        "commands.work:work",
        "Work the queue until SIGTERM or Ctrl-C: one lets running tasks finish, a second gives them back.",
        on_queue=True,
    ),
    Listed(
        "cron",
        "Work",
        "commands.cron:cron",
        "Put a task for each tick of schedules, until SIGTERM or Ctrl-C. Several nodes may run it.",
        on_queue=True,
    ),
    Listed(
        "watch",
        "Queue",
        "commands.watch:watch",
        "Watch a queue: rates, backlog by age, claimed tasks, latest dead letters. Ctrl-C ends it.",
        on_queue=True,
    ),
    Listed(
        "dashboard",
        "Queue",
        "dashboard.command:dashboard",
        "Serve a page that shows the queue live, to this machine only, until Ctrl-C.",
        on_queue=True,
    ),
    Listed(
        "metrics",
        "Queue",
        "commands.metrics:metrics",
        "Serve the gauges of the queue for Prometheus, until SIGTERM or Ctrl-C.",
        on_queue=True,
    ),
    Listed(
        "shell",
        "Queue",
        "shell:shell",
        "Work on a queue interactively, or run commands from a pipe. Exits with the worst status of them.",
        on_queue=True,
    ),
    Listed(
        "configure",
        "Queue",
        "commands.table:configure",
        "Store options with a queue, so that addresses need not repeat them; without any, show them.",
        on_queue=True,
    ),
    Listed(
        "relay",
        "Queue",
        "commands.relay:relay",
        "Move tasks to another queue under the same ids, at least once: a repeated put is a duplicate.",
    ),
    Listed(
        "attach",
        "Attached tables",
        "commands.attach:attach",
        "Add freshq's indexes to a table in use. Safe to repeat.",
    ),
    Listed(
        "match",
        "Matching",
        "commands.match:app",
        "Match callers to resources, such as the agents of a call center.",
    ),
    Listed("sql", "Tables", "commands.sql:app", "Tables in a SQL database."),
    Listed("table", "Tables", "commands.table:app", "Tables of a new queue, or from a description file."),
    Listed(
        "simulate",
        "Other",
        "commands.simulate:app",
        "Simulate a queue under a load, and measure what is completed in time.",
    ),
    Listed(
        "demo",
        "Other",
        "commands.demo:demo",
        "Overload two queues in memory alike: newest first beside first in, first out. Needs nothing else.",
    ),
    Listed("version", "Other", "main:version", "Print the version."),
)


def version() -> None:
    """Print the version."""
    typer.echo(installed("freshq"))


class Freshq(OneLineErrors):
    """The group of all commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the group that Typer describes, with the commands added."""
        super().__init__(*args, **kwargs)
        self.commands = lazy_commands(COMMANDS)


app = typer.Typer(
    cls=Freshq,
    help="A task queue for work that loses value with age.",
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if it is wanted."""
    if wanted:
        version()
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
