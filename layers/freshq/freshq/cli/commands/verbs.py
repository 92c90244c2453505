"""The verbs of a queue, which the command line and the shell have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.cli.command import QueueCommand
from freshq.cli.commands import dlq
from freshq.cli.commands.attached_verbs import hold, ready
from freshq.cli.commands.claims import claim, done, extend, fail, release, retry
from freshq.cli.commands.put import put
from freshq.cli.commands.tasks import (
    cancel,
    get,
    ls,
    pause,
    purge,
    reprioritize,
    resume,
    stats,
    touch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

# By the heading that help lists them under.
VERBS: Final[dict[str, tuple[Callable[..., None], ...]]] = {
    "Work": (put, claim, done, fail, retry, release, extend),
    "Tasks": (get, ls, stats, touch, reprioritize, cancel),
    "Queue": (pause, resume, purge),
    "Attached tables": (hold, ready),
}


def add_verbs(app: typer.Typer) -> None:
    """Add the verbs to a group of commands."""
    for panel, verbs in VERBS.items():
        for verb in verbs:
            app.command(cls=QueueCommand, rich_help_panel=panel)(verb)
    app.add_typer(dlq.app, name="dlq", rich_help_panel="Queue")
