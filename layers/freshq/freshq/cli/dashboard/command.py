"""The command `freshq dashboard`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

import typer

from freshq.cli.command import QueueContext
from freshq.errors import needs

DEFAULT_PORT: Final = 8710
MAX_INTERVAL_SECONDS: Final = 3600.0
MAX_PORT: Final = 65_535

Port = Annotated[int, typer.Option(min=0, max=MAX_PORT, help="Port to serve on; 0 for a free one.")]
Host = Annotated[str, typer.Option(help="Address to serve on; others than this machine's need --allow-host.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A further host name by which browsers call the dashboard."),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show the queue, but allow no changes.")]
EverySeconds = Annotated[float, typer.Option(help="Time between two snapshots of the queue.")]
Schedules = Annotated[
    str | None,
    typer.Option(metavar="SCHEDULES", help="Show these schedules, named as for freshq cron."),
]


def dashboard(
    context: QueueContext,
    port: Port = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    read_only: ReadOnly = False,
    every_seconds: EverySeconds = 1.0,
    schedules: Schedules = None,
) -> None:
    """Serve a page that shows the queue live, to this machine only, until Ctrl-C."""
    with needs("dashboard"):
        from freshq.cli.dashboard.app import Shown
        from freshq.cli.dashboard.server import Address, Dashboard
    if not 0 < every_seconds <= MAX_INTERVAL_SECONDS:
        msg = f"every_seconds: must be above 0 and at most {MAX_INTERVAL_SECONDS:.0f}, got {every_seconds}"
        raise ValueError(msg)
    found = []
    if schedules is not None:
        from freshq.cli.commands.cron import load_schedules

        found = load_schedules(schedules)
    session = context.session
    if session.address is not None and session.address.startswith("memory:"):
        raise ValueError("queue: memory:// is in one process, so there is nothing to see; use sqlite:///FILE")
    # Report an unreachable queue here, not on an empty page.
    session.queue.stats(approximate=True)
    shown = Shown(session.queue, found, every_seconds, changes=not read_only)
    server = Dashboard(shown, Address(host, port, allow_host or ()))
    session.output.answer(
        {"url": server.url}, f"queue {session.queue.name}: open {server.url}", "Ctrl-C ends it."
    )
    with suppress(KeyboardInterrupt):
        server.serve_here()
