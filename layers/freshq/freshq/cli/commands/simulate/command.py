"""`freshq simulate`: what a policy would do under a load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.model.task import MAX_PRIORITY
from freshq.policy.order import Order
from freshq.policy.pressure import Door
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.shedding import BacklogLimit, WhenFull
from freshq.simulate import (
    Arrivals,
    Burst,
    Load,
    Result,
    Service,
    Source,
    picture,
    policies,
    read_trace,
    run,
    summarize,
    sweep,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.simulate import Cell

BAD_INPUT_STATUS: Final = 2
DEFAULT_DURATION_SECONDS: Final = 1000.0
# A sweep compares policies and loads of its own.
NOT_WITH_SWEEP: Final = (
    "rate", "order", "reserve", "codel", "codel_interval", "max_backlog", "when_full", "group_share", "fair",
    "door", "groups", "priorities", "burst",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, as they were given."""

    arrivals: str
    rate: float | None
    servers: int
    service: Service
    service_mean: float
    deadline_seconds: float
    order: Order
    reserve: str
    codel: float | None
    codel_interval: float | None
    max_backlog: int | None
    when_full: WhenFull
    group_share: float | None
    groups: str | None
    fair: bool
    priorities: str | None
    door: float | None
    burst: str | None
    duration: float | None
    seed: int

    @property
    def file(self) -> Path | None:
        """The file of arrivals, None if they are drawn."""
        return None if self.arrivals in set(Arrivals) else Path(self.arrivals)

    def rules(self) -> OverloadRules:
        """Return the policy."""
        if self.max_backlog is None and self.group_share is not None:
            raise ValueError("group_share: needs max_backlog, of which it is a share")
        if self.codel is None and self.codel_interval is not None:
            raise ValueError("codel_interval: needs codel")
        if self.fair and self.groups is None and self.file is None:
            raise ValueError("fair: needs groups")
        codel, backlog = None, None
        if self.codel is not None:
            codel = CodelRule(self.codel, self.codel_interval or 2 * self.codel)
        if self.max_backlog is not None:
            backlog = BacklogLimit(self.max_backlog, self.when_full, self.group_share)
        return OverloadRules(
            deadline_seconds=self.deadline_seconds,
            order=self.order,
            reserve=ReserveRule.parse(self.reserve),
            codel=codel,
            backlog=backlog,
            fair=self.fair,
            door=None if self.door is None else Door(self.door),
        )

    def parsed_burst(self) -> Burst | None:
        """Return the burst."""
        return None if self.burst is None else Burst.parse(self.burst)

    def load(self) -> Load:
        """Return the tasks, read or drawn."""
        if self.file is not None:
            return self._trace(self.file)
        groups = {} if self.groups is None else shares("groups", self.groups)
        if (self.rate is None) == (not groups):
            raise ValueError("rate: give either rate, or groups with a rate each")
        priorities = {} if self.priorities is None else shares("priorities", self.priorities)
        return Source(
            rate_per_second=sum(groups.values()) if self.rate is None else self.rate,
            duration_seconds=DEFAULT_DURATION_SECONDS if self.duration is None else self.duration,
            deadline_seconds=self.deadline_seconds,
            arrivals=Arrivals(self.arrivals),
            service=self.service,
            service_mean_seconds=self.service_mean,
            burst=self.parsed_burst(),
            groups=groups,
            priorities={level(name): share for name, share in priorities.items()},
            seed=self.seed,
        ).load()

    def _trace(self, file: Path) -> Load:
        for name in ("rate", "groups", "priorities", "burst"):
            if getattr(self, name) is not None:
                msg = f"{name}: the file says when what arrives; leave it out"
                raise ValueError(msg)
        if file.suffix != ".jsonl":
            msg = f"arrivals: must be poisson, deterministic or a file FILE.jsonl, got {self.arrivals!r}"
            raise ValueError(msg)
        return read_trace(
            file, self.deadline_seconds, self.duration, self.service, self.service_mean, self.seed
        )


def shares(name: str, text: str) -> dict[str, float]:
    """Return what is written as ``NAME=NUMBER,NAME=NUMBER``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        key, equals, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not (key and equals and value > 0) or key in found:
            msg = f"{name}: must look like NAME=NUMBER,NAME=NUMBER, each name once, got {text!r}"
            raise ValueError(msg)
        found[key] = value
    return found


def level(name: str) -> int:
    """Return a priority level."""
    if not (name.isdecimal() and int(name) <= MAX_PRIORITY):
        msg = f"priorities: a level must be from 0 to {MAX_PRIORITY}, got {name!r}"
        raise ValueError(msg)
    return int(name)


def simulate(
    context: typer.Context,
    arrivals: Annotated[
        str,
        typer.Option(
            help='poisson, deterministic, or FILE.jsonl with an object such as {"at_seconds": 0.5} a line.'
        ),
    ] = "poisson",
    rate: Annotated[float | None, typer.Option(help="Tasks that arrive a second.")] = None,
    servers: Annotated[int, typer.Option(help="Tasks in work at a time.")] = 10,
    service: Annotated[Service, typer.Option(help="Distribution of the service times.")] = Service.EXP,
    service_mean: Annotated[float, typer.Option(help="Mean service time in seconds.")] = 1.0,
    deadline_seconds: Annotated[float, typer.Option(help="Age at which a task is stale.")] = 10.0,
    order: Annotated[Order, typer.Option(help="Order of service within a priority level.")] = Order.LIFO,
    reserve: Annotated[
        str, typer.Option(help="Time that a task must still have: seconds, or a percentile such as p90.")
    ] = "0",
    codel: Annotated[float | None, typer.Option(help="CoDel's target in seconds; only with fifo.")] = None,
    codel_interval: Annotated[
        float | None, typer.Option(help="CoDel's interval in seconds (default: twice the target).")
    ] = None,
    max_backlog: Annotated[int | None, typer.Option(help="Tasks that may wait.")] = None,
    when_full: Annotated[
        WhenFull, typer.Option(help="Which task gives way when the backlog is full.")
    ] = WhenFull.DROP_OLDEST,
    group_share: Annotated[
        float | None, typer.Option(help="Share of a full backlog above which a group gives way first.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="Tasks a second by group, such as quiet=1,flood=200; instead of --rate."),
    ] = None,
    fair: Annotated[bool, typer.Option("--fair", help="Let the groups take turns.")] = False,
    priorities: Annotated[
        str | None, typer.Option(help="Shares of the tasks by priority level, such as 0=0.9,9=0.1.")
    ] = None,
    door: Annotated[
        float | None, typer.Option(help="Refuse new tasks beyond this multiple of the capacity.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option(help="A time of higher load, FACTOR@START+SECONDS, such as 10@300+60.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds for which tasks arrive (default: 1000, or all of the file).")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw goodput against load for several policies: FILE.png, FILE.svg or FILE.html."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--sweep", help="Compare several policies at loads from 0.5 to 10.")
    ] = False,
) -> None:
    """Simulate a queue under a load, and measure what is done in time."""
    given = Options(
        arrivals, rate, servers, service, service_mean, deadline_seconds, order, reserve, codel,
        codel_interval, max_backlog, when_full, group_share, groups, fair, priorities, door, burst,
        duration, seed,
    )  # fmt: skip
    try:
        if plot is not None:
            picture.check(plot)
        if grid:
            _refuse_beside_sweep(context, given)
            cells = _cells(given, {})
            _show_cells(cells, as_json=as_json)
        else:
            _show(
                summarize(run(given.load(), given.rules(), servers, seed), given.parsed_burst()),
                as_json=as_json,
            )
            cells = [] if plot is None else _cells(given, {"as given": given.rules()})
        if plot is not None:
            _draw(given, cells, plot)
    except ValueError as error:
        typer.echo(f"freshq: {error}", err=True)
        raise typer.Exit(BAD_INPUT_STATUS) from error


def _refuse_beside_sweep(context: typer.Context, given: Options) -> None:
    """Raise ValueError if an option was given that a sweep would not heed."""
    for name in NOT_WITH_SWEEP:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            msg = f"sweep: compares policies and loads of its own; leave out --{name.replace('_', '-')}"
            raise ValueError(msg)
    if given.file is not None:
        raise ValueError("sweep: sets the rate itself; arrivals must be poisson or deterministic")


def _cells(given: Options, more: dict[str, OverloadRules]) -> list[Cell]:
    """Return the sweep over the usual policies and those of `more` that are not among them."""
    usual = policies(given.deadline_seconds, given.servers)
    own = {name: rules for name, rules in more.items() if rules not in usual.values()}
    return list(
        sweep(
            {**usual, **own},
            given.servers,
            arrivals=Arrivals.POISSON if given.file is not None else Arrivals(given.arrivals),
            service=given.service,
            service_mean_seconds=given.service_mean,
            duration_seconds=given.duration,
            seed=given.seed,
        )
    )


def _draw(given: Options, cells: Sequence[Cell], plot: Path) -> None:
    subtitle = (
        f"{given.servers} servers, service {given.service.value} with a mean of {given.service_mean:g} s, "
        f"deadline {given.deadline_seconds:g} s"
    )
    picture.draw(cells, given.deadline_seconds, subtitle, plot)
    typer.echo(f"drawn: {plot}", err=True)


def _show(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    table = Table("measure", "value", title="simulation")
    for name, value in asdict(result).items():
        if isinstance(value, dict):
            for key, part in value.items():
                table.add_row(f"{name.replace('_', ' ')}: {key}", _text(part))
        else:
            table.add_row(name.replace("_", " "), _text(value))
    table.columns[1].justify = "right"
    Console().print(table)


def _text(value: Any) -> str:  # noqa: ANN401 - a field of a result
    if isinstance(value, dict):
        return "\n".join(f"{key.replace('_', ' ')} {_text(part)}" for key, part in value.items())
    if value is None:
        return "-"
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _show_cells(cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(cell) for cell in cells]))
        return
    loads = sorted({cell.load for cell in cells})
    table = Table(title="done in time, as a share of capacity, by load", box=SIMPLE_HEAD, padding=0)
    table.add_column("policy", no_wrap=True)
    for load in loads:
        table.add_column(f"{load:g}", justify="right")
    for name in dict.fromkeys(cell.policy for cell in cells):
        table.add_row(name, *(f"{cell.result.goodput_ratio:.3f}" for cell in cells if cell.policy == name))
    Console().print(table)
