"""The command `freshq cron`."""

from __future__ import annotations

from typing import Annotated

import typer

from freshq.cli.command import QueueContext

Source = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULES",
        help="A file such as schedules.toml, or a list of a module, such as app:schedules, in the current "
        "folder.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Fire the ticks that are due, and end.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the next ticks; put nothing.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of ticks that --dry-run shows.")]


def cron(
    context: QueueContext,
    schedules: Source,
    once: Once = False,
    dry_run: DryRun = False,
    limit: Limit = 10,
) -> None:
    """Put a task for each tick of schedules, until SIGTERM or Ctrl-C. Several nodes may run it."""
    from freshq.cli.commands.cron.job import fire_once, run, show_next  # noqa: PLC0415 - help needs none
    from freshq.cli.commands.cron.loading import load_schedules  # noqa: PLC0415 - as above

    if once and dry_run:
        raise ValueError("once, dry_run: give one of them")
    found = load_schedules(schedules)
    if dry_run:
        show_next(context.session, found, limit)
    elif once:
        fire_once(context.session, found)
    else:
        run(context.session, found)
