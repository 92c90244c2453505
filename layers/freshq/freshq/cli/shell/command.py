"""The command `freshq shell`."""

from __future__ import annotations

import sys

import typer

from freshq.cli.command import QueueContext  # noqa: TC001 - the signature is read at run time
from freshq.cli.shell.shell import Shell
from freshq.errors import needs


def shell(context: QueueContext) -> None:
    """Work on a queue interactively, or run commands from a pipe. Exits with the worst status of them."""
    session = context.session
    running = Shell(session)
    if session.can_ask:
        with needs("cli"):
            from freshq.cli.shell.prompt import Prompt  # noqa: PLC0415 - slow to load, and a pipe needs none

        typer.echo(f"queue {session.queue.name}; help lists the commands, quit leaves")
        running.run_all(Prompt(running))
    elif status := running.run_all(sys.stdin):
        raise typer.Exit(status)
