"""`freshq example call-center`: callers matched with agents."""

from __future__ import annotations

import random
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshq.cli.command import Command, Group
from freshq.cli.commands.example.call_center import Clock, Floor, report, speaks
from freshq.cli.commands.example.people import LANGUAGES, LEASE_SECONDS, agents, callers
from freshq.cli.texts import json_text
from freshq.matching.queue import MatchQueue
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES_PER_SECOND: Final = 10
# Bar width of the live table, in characters.
BAR_CHARS: Final = 24


class AgentOrder(StrEnum):
    """Orders in which waiting agents can be matched."""

    FIFO = Order.FIFO.value
    LIFO = Order.LIFO.value


Agents = Annotated[int, typer.Option("--agents", min=1, max=10_000, help="Number of agents.")]
Callers = Annotated[int, typer.Option("--callers", min=1, max=100_000, help="Number of callers.")]
OrderOption = Annotated[
    AgentOrder,
    typer.Option("--order", help="Which agent is next: the one who waited longest (fifo) or least (lifo)."),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same people and calls.")]
TableName = Annotated[
    str | None,
    typer.Option(
        help="Run on this DynamoDB table, created if missing, instead of in memory. AWS_ENDPOINT_URL and "
        "the other AWS settings apply."
    ),
]
ShowSeconds = Annotated[
    float, typer.Option(min=0, help="Duration of the live table on a terminal; 0 for no live table.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

app = typer.Typer(cls=Group, help="Example programs with made-up data.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Make `example` a group of commands, although it has only one."""


@app.command("call-center", cls=Command)
def call_center(
    agent_count: Agents = 50,
    caller_count: Callers = 200,
    order: OrderOption = AgentOrder.FIFO,
    seed: Seed = 1,
    table: TableName = None,
    show_seconds: ShowSeconds = 10.0,
    as_json: AsJson = False,
) -> None:
    """Match callers to agents by language and gender, and report how fair it was."""
    console = Console()
    live = console.is_interactive and not as_json and show_seconds > 0
    floor = _opened(agent_count, caller_count, order, seed, table)
    try:
        _watch(floor, console, show_seconds) if live else _work(floor)
        found = report(floor, order.value)
    finally:
        floor.close()
    if as_json:
        typer.echo(json_text(found))
    else:
        _show(found, console)


def _opened(agent_count: int, caller_count: int, order: AgentOrder, seed: int, table: str | None) -> Floor:
    """Return the call centre before the first call."""
    rng = random.Random(seed)  # noqa: S311 - made-up people
    clock = Clock(start=time.time())
    queue = MatchQueue.memory(order=order, lease_seconds=LEASE_SECONDS, clock=clock)
    if table is not None:
        queue = MatchQueue.dynamodb(table, order=order, lease_seconds=LEASE_SECONDS, clock=clock)
    queue.create_table()
    if waiting := queue.waiting():
        msg = f"table: {table!r} is in use ({waiting} resources waiting); name a table for the example only"
        raise ValueError(msg)
    staff = agents(agent_count, rng)
    return Floor(queue, staff, callers(caller_count, agent_count, rng), clock, rng)


def _work(floor: Floor) -> None:
    for _ in floor.run():
        pass


def _watch(floor: Floor, console: Console, show_seconds: float) -> None:
    """Run the call centre at the speed that makes it last about `show_seconds`."""
    expected_seconds = floor.callers[-1].called + 2 * LEASE_SECONDS / 3
    with Live(_picture(floor), console=console, auto_refresh=False, transient=True) as live:
        for _ in _frames(floor.run(), expected_seconds / show_seconds):
            live.update(_picture(floor), refresh=True)


def _frames(run: Iterator[float], speed: float) -> Iterator[float]:
    """Yield a few times a second, slowed down so that time passes at `speed` times real time."""
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
            floor.clock.now_seconds - caller.called
            for caller in floor.waiting.values()
            if caller.language == language
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
    facts.add_row("served in another language they named", f"{shares['other']:.1%}")
    facts.add_row("served in any language, as they had no preference", f"{shares['any']:.1%}")
    facts.add_row("order of agents", found["order"])
    facts.add_row("calls by agent", f"{calls['least']} to {calls['most']}, mean {calls['mean']:.1f}")
    facts.add_row("evenness of calls (Jain's index; 1 is even)", f"{found['fairness_among_agents']:.3f}")
    facts.add_row("longest idle of an agent", f"{found['longest_idle_seconds']:.1f} s")
    facts.add_row(
        "agents recovered after lost connections",
        f"{found['agents_recovered']} of {found['connections_lost']}",
    )
    console.print(facts)
