"""The command `freshq shell`."""

from __future__ import annotations

import sys

import typer

from freshq.cli.session import Session  # noqa: TC001 - the signature is read at run time
from freshq.cli.shell.shell import Shell


def shell(session: Session) -> None:
    """Work on a queue interactively, or run commands from a pipe; the status is that of the worst."""
    running = Shell(session)
    if session.can_ask:
        from freshq.cli.shell.prompt import Prompt  # noqa: PLC0415 - a pipe needs none of it, and it loads slowly

        session.output.console.print(f"queue {session.queue.name}; help lists the commands, quit leaves")
        running.run_all(Prompt(running))
    elif status := running.run_all(sys.stdin):
        raise typer.Exit(status)
