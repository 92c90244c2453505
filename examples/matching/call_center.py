"""A call center on a matching queue: callers wait for agents who speak their language.

    python examples/matching/call_center.py --agents 50 --callers 200

The time is virtual, so a shift of hours takes seconds. Needs the extra `cli`.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshq import MatchQueue, Order
from freshq.cli.people import (
    LANGUAGES,
    LEASE_SECONDS,
    MEAN_WRAP_UP_SECONDS,
    Agent,
    MadeUpCaller,
    made_up_agents,
    made_up_callers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq.matching import Match

FRAMES_PER_SECOND: Final = 10
# Bar width of the live table, in characters.
BAR_CHARS: Final = 24
Agents = Annotated[int, typer.Option("--agents", min=1, max=10_000, help="Number of agents.")]
Callers = Annotated[int, typer.Option("--callers", min=1, max=100_000, help="Number of callers.")]
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
app = typer.Typer(add_completion=False)


@dataclass
class Floor:
    """The call center, event by event. The queue must use its virtual `clock`.

    Attributes:
        callers: All callers.
        waiting: Callers in the queue's line, by id.
        calls: Number of calls by agent, finished and running.
        talking: Number of running calls.
        lost: Number of connections that broke.
        recovered: Number of agents recovered after a connection broke.
        longest_idle_seconds: Longest time that an agent waited for a call.
    """

    queue: MatchQueue
    staff: list[Agent]
    callers: list[MadeUpCaller]
    clock: Clock
    rng: random.Random
    waiting: dict[str, MadeUpCaller] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    talking: int = 0
    lost: int = 0
    recovered: int = 0
    longest_idle_seconds: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def run(self) -> Iterator[float]:
        """Serve every caller, and yield the time in seconds since the start after each event."""
        for agent in self.staff:
            self.queue.register(agent.agent_id, attributes=agent.attributes)
            self.queue.offer(agent.agent_id)
        for caller in self.callers:
            self._at(caller.called, lambda caller=caller: self._arrive(caller))  # type: ignore[misc]
        while self._events:
            at, _, happen = heapq.heappop(self._events)
            self.clock.now_seconds = at
            happen()
            yield at

    def close(self) -> None:
        """Unregister the agents, and send away the callers."""
        for caller_id in self.waiting:
            self.queue.abandon(caller_id)
        self.clock.now_seconds += LEASE_SECONDS
        for agent in self.staff:
            if self.queue.get(agent.agent_id) is not None:
                self.queue.withdraw(agent.agent_id)
                self.queue.unregister(agent.agent_id)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen))

    def _arrive(self, caller: MadeUpCaller) -> None:
        match = self.queue.request(caller.criteria, caller_id=caller.name)
        if match is None:
            self.waiting[caller.name] = caller
        else:
            self._begin(caller, match)

    def _begin(self, caller: MadeUpCaller, match: Match) -> None:
        now = self.clock.now_seconds
        caller.waited_seconds = now - caller.called
        asked = match.criteria.get("language")
        spoken = match.attributes["language"]
        caller.served_in = "preferred" if caller.language in spoken else "any" if asked is None else "other"
        self.calls[match.resource_id] += 1
        self.longest_idle_seconds = max(self.longest_idle_seconds, self.clock() - match.since)
        if caller.lost and match.lease_until is not None:
            self.lost += 1
            self._at(match.lease_until - self.clock.start, lambda: self._recover(match))
        else:
            self.talking += 1
            self._at(now + caller.call_seconds, lambda: self._hang_up(match))

    def _hang_up(self, match: Match) -> None:
        self.talking -= 1
        self.queue.complete(match)
        pause_seconds = self.rng.expovariate(1 / MEAN_WRAP_UP_SECONDS)
        self._at(self.clock.now_seconds + pause_seconds, lambda: self._return(match))

    def _return(self, match: Match) -> None:
        self.queue.offer(match.resource_id)
        self._answer(match.resource_id)

    def _recover(self, match: Match) -> None:
        # A caller who came at the same time may have recovered this agent already.
        self.queue.admin.recover()
        agent = self.queue.get(match.resource_id)
        self.recovered += agent is not None and agent.token != match.token
        self._answer(match.resource_id)

    def _answer(self, agent_id: str) -> None:
        """Begin the call of the waiting caller that the queue has matched with an agent, if there is one."""
        agent = self.queue.get(agent_id)
        caller = None if agent is None else self.waiting.pop(agent.caller_id or "", None)
        if (
            caller is not None
            and (match := self.queue.request(caller.criteria, caller_id=caller.name)) is not None
        ):
            self._begin(caller, match)

    def languages_free(self) -> Counter[str]:
        """Return the number of waiting agents by language, as the queue counts them."""
        free: Counter[str] = Counter()
        for name, depth in self.queue.depths().items():
            free[name.rpartition("language=")[2]] += depth
        return free


@dataclass
class Clock:
    """The virtual clock of the call center.

    Attributes:
        start: Time of the start, in seconds since the epoch.
        now_seconds: Seconds since the start.
    """

    start: float
    now_seconds: float = 0.0

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.start + self.now_seconds


def report(floor: Floor, order: str) -> dict[str, Any]:
    """Return waits, languages of the calls, and the spread of calls over agents."""
    served = [caller for caller in floor.callers if caller.waited_seconds is not None]
    calls = [floor.calls[agent.agent_id] for agent in floor.staff]
    return {
        "order": order,
        "agents": len(floor.staff),
        "callers": len(floor.callers),
        "served": len(served),
        "never_served": len(floor.waiting),
        "open_seconds": round(floor.clock.now_seconds, 1),
        "waits_by_language": {
            language: _waits([caller for caller in served if caller.language == language])
            for language in LANGUAGES
        },
        "longest_wait_seconds": _waits(served)["longest_seconds"],
        "share_by_language_served_in": _shares(served),
        "calls_by_agent": {"least": min(calls), "mean": sum(calls) / len(calls), "most": max(calls)},
        "fairness_among_agents": round(jain_index(calls), 3),
        "longest_idle_seconds": round(floor.longest_idle_seconds, 1),
        "connections_lost": floor.lost,
        "agents_recovered": floor.recovered,
    }


def _shares(served: list[MadeUpCaller]) -> dict[str, float]:
    shares = Counter(caller.served_in for caller in served)
    return {name: round(shares[name] / max(len(served), 1), 3) for name in ("preferred", "other", "any")}


def _waits(served: list[MadeUpCaller]) -> dict[str, Any]:
    waits = sorted(caller.waited_seconds or 0.0 for caller in served)
    if not waits:
        return {"callers": 0, "at_once": 0, "mean_seconds": 0.0, "p95_seconds": 0.0, "longest_seconds": 0.0}
    return {
        "callers": len(waits),
        "at_once": sum(wait == 0 for wait in waits),
        "mean_seconds": round(sum(waits) / len(waits), 1),
        "p95_seconds": round(waits[min(int(0.95 * len(waits)), len(waits) - 1)], 1),
        "longest_seconds": round(waits[-1], 1),
    }


def jain_index(shares: list[int]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return 1.0 if squares == 0 else sum(shares) ** 2 / (len(shares) * squares)


def _speaks(agent: Agent, language: str) -> bool:
    """Return whether an agent speaks a language."""
    return language in agent.attributes["language"]


class AgentOrder(StrEnum):
    """Orders in which waiting agents can be matched."""

    FIFO = Order.FIFO.value
    LIFO = Order.LIFO.value


OrderOption = Annotated[
    AgentOrder,
    typer.Option("--order", help="Next agent: the longest (fifo) or shortest (lifo) waiting."),
]


@app.command()
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
        typer.echo(json.dumps(found))
    else:
        _show(found, console)


def _opened(agent_count: int, caller_count: int, order: AgentOrder, seed: int, table: str | None) -> Floor:
    """Return the call center before the first call."""
    rng = random.Random(seed)  # noqa: S311 - made-up people
    clock = Clock(start=time.time())
    options: dict[str, Any] = {"order": order.value, "lease_seconds": LEASE_SECONDS, "clock": clock}
    try:
        queue = MatchQueue.memory(**options) if table is None else MatchQueue.dynamodb(table, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    queue.create_table()
    if waiting := queue.waiting():
        msg = f"{table!r} is in use ({waiting} resources waiting); name a table for the example only"
        raise typer.BadParameter(msg)
    staff = made_up_agents(agent_count, rng)
    return Floor(queue, staff, made_up_callers(caller_count, agent_count, rng), clock, rng)


def _work(floor: Floor) -> None:
    for _ in floor.run():
        pass


def _watch(floor: Floor, console: Console, show_seconds: float) -> None:
    """Run the call center at the speed that makes it last about `show_seconds`."""
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
        title=f"call center, {minutes:02}:{seconds:02}",
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
        able = sum(_speaks(agent, language) for agent in floor.staff)
        table.add_row(
            language, str(able), str(free[language]), f"{bar} {len(waits)}", f"{max(waits, default=0):.0f} s"
        )
    return table


def _show(found: dict[str, Any], console: Console) -> None:
    waits = Table("language", "callers", "no wait", "mean wait", "p95", "longest", title="waits by language")
    for column in waits.columns[1:]:
        column.justify = "right"
    for language, wait in found["waits_by_language"].items():
        times = (f"{wait[name]:.1f} s" for name in ("mean_seconds", "p95_seconds", "longest_seconds"))
        waits.add_row(language, str(wait["callers"]), str(wait["at_once"]), *times)
    console.print(waits)
    shares, calls = found["share_by_language_served_in"], found["calls_by_agent"]
    facts = Table("fairness", "value", title=f"{found['served']} of {found['callers']} callers served")
    facts.add_row("longest wait of a caller", f"{found['longest_wait_seconds']:.1f} s")
    facts.add_row("served in the preferred language", f"{shares['preferred']:.1%}")
    facts.add_row("served in another acceptable language", f"{shares['other']:.1%}")
    facts.add_row("served without a language preference", f"{shares['any']:.1%}")
    facts.add_row("order of agents", found["order"])
    facts.add_row("calls per agent", f"{calls['least']} to {calls['most']}, mean {calls['mean']:.1f}")
    facts.add_row("Jain's fairness index of calls by agent", f"{found['fairness_among_agents']:.3f}")
    facts.add_row("longest idle time of an agent", f"{found['longest_idle_seconds']:.1f} s")
    facts.add_row(
        "agents recovered after lost connections",
        f"{found['agents_recovered']} of {found['connections_lost']}",
    )
    console.print(facts)


if __name__ == "__main__":
    app()
