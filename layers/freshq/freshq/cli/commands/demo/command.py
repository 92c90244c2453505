"""The command `freshq demo`."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from freshq.cli.commands.demo.contest import Contestant, Plan, contestants, offer
from freshq.cli.commands.demo.frame import frame, offered_text, verdict
from freshq.cli.texts import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.cli.commands.demo.contest import Standing

FRAMES_PER_SECOND: Final = 5

Seconds = Annotated[float, typer.Option(min=3, max=600, help="Duration.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def demo(seconds: Seconds = 20.0, as_json: AsJson = False) -> None:
    """Overload two queues in memory alike: newest first beside first in, first out. Needs nothing else."""
    plan = Plan(seconds)
    console = Console(quiet=as_json, highlight=False)
    console.print(offered_text(plan), soft_wrap=True)
    with ExitStack() as running:
        both = _started(plan, running)
        with Live(console=console, auto_refresh=False) as live:
            for elapsed in _frames(plan.total_seconds):
                if console.is_terminal:
                    live.update(frame(plan, elapsed, _standings(both), console.width), refresh=True)
            standings = _standings(both)
            live.update(frame(plan, plan.total_seconds, standings, console.width), refresh=True)
    fresh, fifo = standings.values()
    if as_json:
        typer.echo(json_text({"tasks": plan.tasks, "lifo": asdict(fresh), "fifo": asdict(fifo)}, indent=2))
        return
    console.print()
    console.print(verdict(plan, fresh, fifo), soft_wrap=True)


def _started(plan: Plan, running: ExitStack) -> tuple[Contestant, ...]:
    """Start the workers and the load; the end of `running` stops both."""
    both = contestants(plan)
    for contestant in both:
        contestant.start()
        running.callback(contestant.stop)
    stopped = threading.Event()
    queues = [contestant.queue for contestant in both]
    load = threading.Thread(target=offer, args=(plan, queues, stopped), name="load", daemon=True)
    load.start()
    running.callback(load.join)
    running.callback(stopped.set)
    return both


def _frames(total_seconds: float) -> Iterator[float]:
    """Yield the elapsed seconds, several times a second, until the end."""
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < total_seconds:
        yield elapsed
        time.sleep(1 / FRAMES_PER_SECOND)


def _standings(both: tuple[Contestant, ...]) -> dict[str, Standing]:
    return {contestant.name: contestant.standing() for contestant in both}
