"""The command `freshq watch`."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.live import Live

from freshq.cli.command import QueueContext
from freshq.cli.commands.watch.frame import frame
from freshq.cli.commands.watch.snapshots import Snapshot, Watcher
from freshq.cli.texts import json_text
from freshq.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Console

MAX_INTERVAL_SECONDS: Final = 3600.0
# Minimum height of a printed frame: unlike a live one, it may scroll.
ONCE_ROWS: Final = 24

Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
EverySeconds = Annotated[float, typer.Option(help="Time between two frames.")]


def watch(context: QueueContext, once: Once = False, every_seconds: EverySeconds = 1.0) -> None:
    """Watch a queue: rates, backlog by age, claimed tasks, latest dead letters. Ctrl-C ends it."""
    if not 0 < every_seconds <= MAX_INTERVAL_SECONDS:
        msg = f"every_seconds: must be above 0 and at most {MAX_INTERVAL_SECONDS:.0f}, got {every_seconds}"
        raise ValueError(msg)
    session = context.session
    watcher = Watcher(session.queue)
    console = session.output.console
    if once:
        snapshot = watcher.snapshot()
        columns = min(console.width, shutil.get_terminal_size().columns)
        picture = partial(frame, snapshot, columns, max(console.height, ONCE_ROWS))
        session.output.answer(snapshot.as_json(), picture)
        return
    with suppress(KeyboardInterrupt):
        if session.output.as_json:
            _print_lines(watcher, every_seconds)
        elif console.is_interactive:
            draw(console, watcher, every_seconds)
        else:
            raise ValueError("once: the output is not a terminal that can be redrawn; add --once or --json")


def _print_lines(watcher: Watcher, every_seconds: float) -> None:
    while True:
        typer.echo(json_text(watcher.snapshot().as_json()))
        time.sleep(every_seconds)


def draw(console: Console, watcher: Watcher, every_seconds: float) -> None:
    """Draw frames until interrupted. If the store does not answer, keep the last frame and say so in it."""
    snapshot: Snapshot = watcher.snapshot()
    problem: str | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(snapshot, console.width, console.height, problem), refresh=True)
            time.sleep(every_seconds)
            try:
                snapshot, problem = watcher.snapshot(), None
            except StoreError as error:
                problem = str(error)
