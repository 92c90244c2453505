"""`freshq watch`: a queue, looked at again and again."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Final

import typer
from rich.live import Live

from freshq.cli.commands.watch.frame import frame
from freshq.cli.commands.watch.snapshots import Snapshot, Watcher
from freshq.cli.session import Session  # noqa: TC001 - the signature is read at run time
from freshq.errors import StoreError

LONGEST_PAUSE_SECONDS: Final = 3600.0
# A picture that stays may scroll: it need not fit into a small terminal.
ONCE_ROWS: Final = 24


def watch(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    every_seconds: Annotated[float, typer.Option(help="Time between two looks.")] = 1.0,
) -> None:
    """Watch a queue: rates, backlog by age, what is in work, the last dead letters. Ctrl-C ends it."""
    if not 0 < every_seconds <= LONGEST_PAUSE_SECONDS:
        msg = f"every_seconds: must be above 0 and at most {LONGEST_PAUSE_SECONDS:.0f}, got {every_seconds}"
        raise ValueError(msg)
    watcher = Watcher(session.queue)
    console = session.output.console
    if once:
        snapshot = watcher.look()
        picture = frame(snapshot, console.width, max(console.height, ONCE_ROWS))
        session.output.answer(snapshot.as_json(), picture)
        return
    with suppress(KeyboardInterrupt):
        if session.output.as_json:
            _print_lines(watcher, every_seconds)
        elif console.is_terminal:
            _draw(session, watcher, every_seconds)
        else:
            raise ValueError("once: the output is no terminal; add --once or --json")


def _print_lines(watcher: Watcher, every_seconds: float) -> None:
    while True:
        typer.echo(json.dumps(watcher.look().as_json()))
        time.sleep(every_seconds)


def _draw(session: Session, watcher: Watcher, every_seconds: float) -> None:
    """Draw frame after frame; when there is no news, say so over the last one."""
    console = session.output.console
    snapshot: Snapshot = watcher.look()
    problem: str | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(snapshot, console.width, console.height, problem), refresh=True)
            time.sleep(every_seconds)
            try:
                snapshot, problem = watcher.look(), None
            except StoreError as error:
                problem = str(error)
