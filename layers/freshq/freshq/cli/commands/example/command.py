"""`freshq example`: what freshq can do, shown with made-up people."""

from __future__ import annotations

import json
import random
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshq.cli.commands.example.call_center import (
    LANGUAGES,
    LEASE_SECONDS,
    Clock,
    Floor,
    agents,
    callers,
    report,
    speaks,
)
from freshq.errors import RefusedError, StoreError
from freshq.matching.queue import MatchQueue
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

example = typer.Typer(help="Examples that run by themselves.", no_args_is_help=True)

REFUSED_STATUS: Final = 1
BAD_INPUT_STATUS: Final = 2
UNREACHABLE_STATUS: Final = 3
FRAMES_PER_SECOND: Final = 10
# Bar width of the live table, in characters.
BAR_CHARS: Final = 24


class LineOrder(StrEnum):
    """The orders that a line of agents can have."""

    FIFO = Order.FIFO.value
    LIFO = Order.LIFO.value


@example.callback()
def main() -> None:
    """Keep `example` a group of commands, however few there are."""


@example.command("call-center")
def call_center(
    agent_count: Annotated[int, typer.Option("--agents", min=1, max=10_000, help="Who takes calls.")] = 50,
    caller_count: Annotated[int, typer.Option("--callers", min=1, max=100_000, help="Who calls.")] = 200,
    order: Annotated[
        LineOrder, typer.Option(help="fifo: the agent who waited longest is next; lifo: who waited least.")
    ] = LineOrder.FIFO,
    seed: Annotated[int, typer.Option(help="The same seed gives the same people and calls.")] = 1,
    table: Annotated[
        str | None,
        typer.Option(
            help="Run on this DynamoDB table, made if need be, instead of in memory. Which DynamoDB: as "
            "AWS_ENDPOINT_URL and the other usual settings say."
        ),
    ] = None,
    show_seconds: Annotated[
        float, typer.Option(min=0, help="How long the live table takes on a terminal; 0: no live table.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Match callers to agents by language and gender, and report how fair it was."""
    console = Console()
    live = console.is_terminal and not as_json and show_seconds > 0
    try:
        floor = _opened(agent_count, caller_count, order, seed, table)
        try:
            _watch(floor, console, show_seconds) if live else _work(floor)
            found = report(floor, order.value)
        finally:
            floor.close()
    except ValueError as error:
        _exit(error, BAD_INPUT_STATUS)
    except RefusedError as error:
        _exit(error, REFUSED_STATUS)
    except StoreError as error:
        _exit(error, UNREACHABLE_STATUS)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found, console)


def _exit(error: Exception, status: int) -> None:
    typer.echo(f"freshq: {error}", err=True)
    raise typer.Exit(status) from error


def _opened(agent_count: int, caller_count: int, order: LineOrder, seed: int, table: str | None) -> Floor:
    """Return the call centre with its people, before anyone calls."""
    rng = random.Random(seed)  # noqa: S311 - made-up people
    clock = Clock(start=time.time())
    queue = MatchQueue.memory(order=order, lease_seconds=LEASE_SECONDS, clock=clock)
    if table is not None:
        queue = MatchQueue.dynamodb(table, order=order, lease_seconds=LEASE_SECONDS, clock=clock)
    queue.create_table()
    if waiting := queue.waiting():
        msg = f"table: {waiting} resources wait in {table!r} already; name a table of the example's own"
        raise ValueError(msg)
    staff = agents(agent_count, rng)
    return Floor(queue, staff, callers(caller_count, agent_count, rng), clock, rng)


def _work(floor: Floor) -> None:
    for _ in floor.run():
        pass


def _watch(floor: Floor, console: Console, show_seconds: float) -> None:
    """Let the call centre work, as many times faster than life as it takes to end in time."""
    expected_seconds = floor.callers[-1].called + 2 * LEASE_SECONDS / 3
    with Live(_picture(floor), console=console, auto_refresh=False, transient=True) as live:
        for _ in _frames(floor.run(), expected_seconds / show_seconds):
            live.update(_picture(floor), refresh=True)


def _frames(run: Iterator[float], speed: float) -> Iterator[float]:
    """Yield a few times a second, no sooner than life at this speed would have it."""
    started = shown = time.monotonic()
    for now_seconds in run:
        time.sleep(max(0.0, started + now_seconds / speed - time.monotonic()))
        if time.monotonic() - shown >= 1 / FRAMES_PER_SECOND:
            shown = time.monotonic()
            yield now_seconds


def _picture(floor: Floor) -> Table:
    """Return the live table."""
    minutes, seconds = divmod(int(floor.clock.now_seconds), 60)
    served = sum(caller.waited_seconds is not None for caller in floor.callers)
    table = Table(
        title=f"call centre, {minutes:02}:{seconds:02}",
        caption=f"{served} of {len(floor.callers)} callers served, {floor.talking} talking, "
        f"{len(floor.waiting)} waiting",
    )
    table.add_column("language")
    for name in ("agents", "free"):
        table.add_column(name, justify="right")
    table.add_column("callers waiting", width=BAR_CHARS + 5)
    table.add_column("longest", justify="right")
    free = floor.languages_free()
    for language in LANGUAGES:
        waits = [
            floor.clock.now_seconds - caller.called for caller in floor.waiting if caller.language == language
        ]
        bar = "█" * min(len(waits), BAR_CHARS)
        able = sum(speaks(agent, language) for agent in floor.staff)
        table.add_row(
            language, str(able), str(free[language]), f"{bar} {len(waits)}", f"{max(waits, default=0):.0f} s"
        )
    return table


def _show(found: dict[str, Any], console: Console) -> None:
    waits = Table("language", "callers", "at once", "mean wait", "p95", "longest", title="waits by language")
    for column in waits.columns[1:]:
        column.justify = "right"
    for language, wait in found["waits_by_language"].items():
        times = (f"{wait[name]:.1f} s" for name in ("mean_seconds", "p95_seconds", "longest_seconds"))
        waits.add_row(language, str(wait["callers"]), str(wait["at_once"]), *times)
    console.print(waits)
    shares, calls = found["share_by_language_served_in"], found["calls_by_agent"]
    facts = Table("fairness", "", title=f"{found['served']} of {found['callers']} callers served")
    facts.add_row("longest wait of a caller", f"{found['longest_wait_seconds']:.1f} s")
    facts.add_row("served in the preferred language", f"{shares['preferred']:.1%}")
    facts.add_row("served in another that they named", f"{shares['other']:.1%}")
    facts.add_row("served in any, as they did not mind", f"{shares['any']:.1%}")
    facts.add_row("order of agents", found["order"])
    facts.add_row(
        "calls by agent", f"{calls['least']} to {calls['most']}, {calls['mean']:.1f} on the average"
    )
    facts.add_row("evenness of calls (Jain's index, 1 is even)", f"{found['fairness_among_agents']:.3f}")
    facts.add_row("longest idle of an agent", f"{found['longest_idle_seconds']:.1f} s")
    facts.add_row(
        "agents back after a lost connection", f"{found['agents_recovered']} of {found['connections_lost']}"
    )
    console.print(facts)
