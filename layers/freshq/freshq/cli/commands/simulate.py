"""`freshq simulate`: compare policies under a random or recorded load."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import BaseModel, Field, field_validator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.cli.command import AsJson, help_of, is_given, with_flags
from freshq.cli.output import json_text
from freshq.errors import quoted
from freshq.model.storable_options import NONE, QueueRules
from freshq.model.task import MAX_PRIORITY, MAX_SECONDS
from freshq.policy.groups import GroupRule, GroupRules
from freshq.policy.order import Order
from freshq.policy.rules import AUTO, OverloadRules
from freshq.policy.value import LARGEST_VALUE, SMALLEST_VALUE
from freshq.simulate import (
    ArrivalProcess,
    Burst,
    Clients,
    DeadlineDistribution,
    Dip,
    Load,
    Recording,
    ServiceDistribution,
    Slowdown,
    Source,
    Stress,
    load_sweep,
    policies,
    read_recording,
    simulate_load,
    simulate_stressed,
    summarize,
)
from freshq.simulate.advice import Settings
from freshq.simulate.load import LONGEST_DRAW
from freshq.simulate.sweep import check_plot, draw_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.simulate import Cell, Result, Simulation

DEFAULT_DURATION_SECONDS: Final = 1000.0
# The load of the summary of a sweep: a clear but realistic overload.
TELLING_LOAD: Final = 3.0
# Smaller shares would be shown as 0%.
LEAST_SHOWN: Final = 0.005
# Names of recordings.
SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")
# How numbers by name, and by value, are written.
SHARES: Final = "NAME=NUMBER,NAME=NUMBER, each name once"
VALUES: Final = (
    "VALUE=SHARE,VALUE=SHARE@SECONDS, with numbers above 0 and each value once, from "
    f"{SMALLEST_VALUE:g} to {LARGEST_VALUE:g}"
)
# The options of the policy, written as for `freshq configure`.
POLICY: Final = ("order", "reserve", "codel", "backlog", "admission")
# A sweep chooses policies and loads itself.
NOT_WITH_SWEEP: Final = (
    *("rate", "fair", "separator", "max_running", "start_rate", "groups", "priorities", "burst"),
    *("client_timeout", "client_retries", "dip", "slowdown", "deadline"),
    *POLICY,
)
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Plot several policies and the one given at loads from 0.5 to 10, and mark this run: "
        "FILE.png, FILE.svg or FILE.html."
    ),
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Compare several policies at loads from 0.5 to 10.")]


class LoadOptions(BaseModel):
    """The options of the load."""

    arrivals: str = Field(
        "poisson",
        description='poisson, deterministic, or a recording: FILE.jsonl with lines like {"at_seconds": 0.5}, '
        "FILE.jsonl.gz or FILE.parquet.",
    )
    rate: float | None = Field(None, description="Arrivals per second.")
    groups: str | None = Field(
        None,
        description="Arrivals per second by group, such as quiet=1,flood=200, and with @ a weight, such as "
        "acme=10@3,other=5; instead of --rate.",
    )
    priorities: str | None = Field(
        None, description="Shares of the tasks by priority level, such as 0=0.9,9=0.1."
    )
    values: str | None = Field(
        None,
        description="Shares of the tasks by value, and with @ a max age of their own in seconds, at most the "
        "deadline, such as 10=0.2@8,4=0.3@3,1=0.5.",
    )
    deadline: DeadlineDistribution = Field(
        DeadlineDistribution.DET,
        description="Distribution of the max ages; the given ones are its means.",
    )
    burst: str | None = Field(
        None, description="A period of higher load, FACTOR@START+SECONDS, such as 10@300+60."
    )
    duration: float | None = Field(
        None, description="Duration of the arrivals in seconds. By default 1000, or the whole file."
    )
    servers: int = Field(10, description="Number of tasks that can run at a time.")
    service: ServiceDistribution = Field(
        ServiceDistribution.EXP, description="Distribution of service times."
    )
    service_mean: float = Field(1.0, description="Mean service time in seconds.")
    seed: int = Field(1, description="Seed of the random numbers.")
    client_timeout: float | None = Field(
        None, description="Seconds after which a client gives up waiting, whatever the queue does."
    )
    client_retries: int = Field(0, description="How often a client that gave up puts its task again.")
    dip: str | None = Field(
        None, description="A loss of capacity, START+SECONDSxFACTOR; 60+30x0 is an outage of 30 s."
    )
    slowdown: str | None = Field(
        None,
        description="Share by which each other task in work, and each waiting one, slows down service, such "
        "as work=0.02,backlog=0.001.",
    )


class SimulateOptions(LoadOptions):
    """The options of a simulation."""

    deadline_seconds: float | None = Field(
        10.0, description="Age at which a task is stale. By default the recording's, else 10."
    )
    order: Order = Field(Order.LIFO, description="Order within a priority level.")
    reserve: str = Field(AUTO, description=help_of(QueueRules, "reserve"))
    codel: str = Field(NONE, description=help_of(QueueRules, "codel"))
    backlog: str = Field(NONE, description=help_of(QueueRules, "backlog"))
    admission: str = Field(NONE, description=help_of(QueueRules, "admission"))
    fair: bool = Field(
        default=False,
        description="Let the groups share the servers' time, as a queue does; on with weights or limits.",
    )
    separator: str | None = Field(
        None, description="Groups whose names begin alike up to this character share one parent's time."
    )
    max_running: str | None = Field(
        None,
        description="Maximum running tasks by group or parent, such as flood=8,*=2; * is all others.",
    )
    start_rate: str | None = Field(
        None, description="Maximum starts per second by group or parent, such as acme=2; * is all others."
    )

    @field_validator("deadline_seconds", mode="before")
    @classmethod
    def _parse_none(cls, value: object) -> object:
        return None if value == NONE else value

    @property
    def max_age_seconds(self) -> float:
        """The deadline; without one, a time longer than any simulation."""
        return MAX_SECONDS if self.deadline_seconds is None else self.deadline_seconds

    @property
    def is_random(self) -> bool:
        """Whether each task has a random max age of its own."""
        return self.deadline is DeadlineDistribution.EXP

    @property
    def file(self) -> Path | None:
        """The file of arrivals; None if arrivals are random."""
        return None if self.arrivals in set(ArrivalProcess) else Path(self.arrivals)

    def rules(self) -> OverloadRules:
        """Return the policy.

        Raises:
            ValueError: If an option is wrong, or needs another one.
        """
        groups = self.group_rules()
        fair = self.fair or groups != GroupRules()
        if fair and self.groups is None and self.file is None:
            raise ValueError("fair: needs groups")
        policy = {name: getattr(self, name) for name in POLICY} | {"max_age_seconds": self.deadline_seconds}
        rules = Settings.parse("policy", policy).rules(None)
        deadline_seconds = rules.deadline_seconds * (LONGEST_DRAW if self.is_random else 1.0)
        return replace(rules, deadline_seconds=deadline_seconds, fair=fair, groups=groups)

    def group_rules(self) -> GroupRules:
        """Return the weights, the limits and the hierarchy of the groups.

        Raises:
            ValueError: If a number is wrong.
        """
        numbers = {"weight": parse_groups(self.groups)[1]}
        for option, name in (("max_running", "max_running"), ("start_rate", "rate_per_second")):
            numbers[name] = parse_shares(option, getattr(self, option))
        of: dict[str, dict[str, Any]] = {}
        for name, by_group in numbers.items():
            for group, number in by_group.items():
                whole = name == "max_running" and number.is_integer()
                of.setdefault(group, {})[name] = int(number) if whole else number
        try:
            rules = {group: GroupRule(**rule) for group, rule in of.items()}
        except ValueError as error:
            msg = f"groups: {error}"
            raise ValueError(msg) from None
        return GroupRules(rules.pop("*", GroupRule()), rules, self.separator)

    def parsed_burst(self) -> Burst | None:
        """Return the burst, or None."""
        return None if self.burst is None else Burst.parse(self.burst)

    def stress(self) -> Stress:
        """Return what makes the overload worse.

        Raises:
            ValueError: If an option is wrong, or needs another one.
        """
        if self.client_timeout is None and self.client_retries:
            raise ValueError("client_retries: needs client_timeout, after which a client tries again")
        shares = parse_shares("slowdown", self.slowdown)
        if not shares.keys() <= {"work", "backlog"}:
            msg = f"slowdown: must name work or backlog, got {quoted(self.slowdown)}"
            raise ValueError(msg)
        return Stress(
            None if self.client_timeout is None else Clients(self.client_timeout, self.client_retries),
            None if self.dip is None else Dip.parse(self.dip),
            Slowdown(**shares) if shares else None,
        )

    def simulation(self, load: Load, rules: OverloadRules) -> Simulation:
        """Simulate a load under a policy."""
        stress = self.stress()
        if stress == Stress():
            return simulate_load(load, rules, self.servers, self.seed)
        return simulate_stressed(load, rules, self.servers, stress, self.seed)

    def load(self, *, has_deadline: bool = True) -> Load:
        """Return the arrivals, from the file or at random.

        Args:
            has_deadline: Whether the deadline was given; otherwise the largest deadline in the file is used.

        Raises:
            ValueError: If an option is wrong.
        """
        if self.file is not None:
            return self._trace(self.file, has_deadline=has_deadline)
        groups = parse_groups(self.groups)[0]
        if (self.rate is None) == (not groups):
            raise ValueError("rate: give either rate, or groups with a rate each")
        if self.is_random and self.deadline_seconds is None:
            raise ValueError("deadline: exp needs deadline_seconds, which is the mean")
        priorities = parse_shares("priorities", self.priorities)
        values, max_ages_seconds = parse_values(self.values, self.max_age_seconds)
        return Source(
            rate_per_second=sum(groups.values()) if self.rate is None else self.rate,
            duration_seconds=DEFAULT_DURATION_SECONDS if self.duration is None else self.duration,
            deadline_seconds=self.max_age_seconds,
            arrivals=ArrivalProcess(self.arrivals),
            service=self.service,
            service_mean_seconds=self.service_mean,
            burst=self.parsed_burst(),
            groups=groups,
            priorities={parse_level(name): share for name, share in priorities.items()},
            values=values,
            max_ages_seconds=max_ages_seconds,
            deadline=self.deadline,
            seed=self.seed,
        ).load()

    def _trace(self, file: Path, *, has_deadline: bool) -> Load:
        if self.is_random:
            raise ValueError("deadline: cannot be used with a file of arrivals, which has the max ages")
        if self.values is not None:
            raise ValueError("values: cannot be used with a file of arrivals; its tasks have no values")
        for name in ("rate", "groups", "priorities", "burst"):
            if getattr(self, name) is not None:
                msg = f"{name}: cannot be used with a file of arrivals, which contains it"
                raise ValueError(msg)
        if not file.name.endswith(SUFFIXES):
            msg = f"arrivals: must be poisson, deterministic or a file {', '.join(SUFFIXES)}, got "
            raise ValueError(msg + quoted(self.arrivals))
        if not has_deadline:
            self.deadline_seconds = self.recorded.max_age_seconds or self.deadline_seconds
        return self.recorded.trace(
            self.max_age_seconds, self.duration, self.service, self.service_mean, self.seed
        )

    @cached_property
    def recorded(self) -> Recording:
        """The recording in the file of arrivals."""
        return read_recording(Path(self.arrivals))


def _numbers(option: str, form: str, text: str | None, most: int = 1) -> dict[str, list[float]]:
    """Return the numbers by name of a text such as ``NAME=NUMBER,NAME=NUMBER@NUMBER``; none for None.

    Args:
        option: The option, for the error.
        form: What the text must look like, for the error.
        text: The text.
        most: Maximum number of numbers of a name.

    Raises:
        ValueError: If the text has another form, or a number is not above 0.
    """
    found: dict[str, list[float]] = {}
    for part in () if text is None else text.split(","):
        key, _, rest = part.partition("=")
        try:
            numbers = [float(number) for number in rest.split("@")]
        except ValueError:
            numbers = []
        sound = key and key not in found and 0 < len(numbers) <= most
        if not sound or not all(0 < number < inf for number in numbers):
            msg = f"{option}: must look like {form}, got {quoted(text)}"
            raise ValueError(msg)
        found[key] = numbers
    return found


def parse_shares(option: str, text: str | None) -> dict[str, float]:
    """Return the numbers by name of a text such as ``NAME=NUMBER,NAME=NUMBER``; none for None.

    Raises:
        ValueError: If the text has another form; names the option.
    """
    return {name: number for name, (number,) in _numbers(option, SHARES, text).items()}


def parse_groups(text: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates and the weights by group of a text such as ``acme=10@3,other=5``; none for None.

    Raises:
        ValueError: If the text has another form.
    """
    found = _numbers("groups", SHARES, text, most=2)
    rates = {group: rate for group, (rate, *_) in found.items()}
    return rates, {group: weight for group, (_, *weights) in found.items() for weight in weights}


def parse_values(text: str | None, deadline_seconds: float) -> tuple[dict[float, float], dict[float, float]]:
    """Return the shares and the own max ages by value of a text such as ``10=0.2@8,1=0.8``; none for None.

    Raises:
        ValueError: If the text has another form, or a number is wrong.
    """
    shares: dict[float, float] = {}
    ages: dict[float, float] = {}
    for name, (share, *age) in _numbers("values", VALUES, text, most=2).items():
        try:
            value = float(name)
        except ValueError:
            value = 0.0
        if not SMALLEST_VALUE <= value <= LARGEST_VALUE or value in shares:
            msg = f"values: must look like {VALUES}, got {quoted(text)}"
            raise ValueError(msg)
        shares[value] = share
        ages.update((value, seconds) for seconds in age)
    for value, seconds in ages.items():
        if seconds > deadline_seconds:
            msg = f"values: the max age of value {value:g} must be at most deadline_seconds, "
            raise ValueError(msg + f"{deadline_seconds:g} s, got {seconds:g} s")
    return shares, ages


def parse_level(name: str) -> int:
    """Return the priority level that a string names.

    Raises:
        ValueError: If it is not a level.
    """
    if not (name.isdecimal() and int(name) <= MAX_PRIORITY):
        msg = f"priorities: a level must be from 0 to {MAX_PRIORITY}, got {quoted(name)}"
        raise ValueError(msg)
    return int(name)


def sentence_of(result: Result) -> str:
    """Return the fates of the tasks of a simulation, such as `At 3 times the capacity, 33% ...`."""
    if not result.offered:
        return "No task arrived."
    late = _percent(result.served_late / result.offered)
    in_time = _percent(result.served_in_time / (result.offered - result.put_again))
    said = f"At {result.load:.2g} times the capacity, {in_time} of the tasks are done in time and "
    said += f"{_percent(result.shed_ratio)} shed"
    if result.put_again:
        said += f", counting {result.put_again:,} that clients put again"
    if result.served_late:
        said += f"; {late} are done too late, which takes {_percent(result.wasted_ratio)} of the work"
    if result.wait_p50_seconds is not None:
        said += f"; half of those in time wait less than {result.wait_p50_seconds:.2g} s"
    if (value := result.value) is not None:
        said += f". They deliver {_percent(value.of_offered_ratio)} of the value offered, and "
        said += f"{_percent(value.of_possible_ratio)} of the most that can be expected"
    return f"{said}."


def measure_of(cell: Cell) -> float:
    """Return the share of the possible work, or value if tasks have values, that is done in time."""
    return cell.result.goodput_ratio if cell.result.value is None else cell.result.value.of_possible_ratio


def sentence_of_sweep(cells: Sequence[Cell]) -> str:
    """Return the policies that do most and least in time under heavy load."""
    load = min({cell.load for cell in cells}, key=lambda one: abs(one - TELLING_LOAD))
    under = sorted((cell for cell in cells if cell.load == load), key=lambda cell: -measure_of(cell))
    # Values above 1 are noise.
    used = {cell.policy: _percent(min(1.0, measure_of(cell))) for cell in under}
    (_, most), *_, (worst, least) = used.items()
    alike = _all([policy for policy, share in used.items() if share == most])
    if under[0].result.value is not None:
        said = f"At {load:g} times the capacity, the share of the possible value is {most} with {alike}, "
        return f"{said}{least} with {worst}."
    return (
        f"At {load:g} times the capacity, {alike} use {most} of it for tasks done in time, {worst} {least}."
    )


def _percent(share: float) -> str:
    return "less than 1%" if 0 < share < LEAST_SHOWN else f"{share:.0%}"


def _all(names: Sequence[str]) -> str:
    """Return names as a list in a sentence; names that contain a comma are quoted."""
    shown = [f"{name!r}" if "," in name else name for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


@with_flags(
    SimulateOptions,
    {name: "Load" if name in LoadOptions.model_fields else "Policy" for name in SimulateOptions.model_fields},
)
def simulate(
    context: typer.Context, plot: Plot = None, sweep: Sweep = False, as_json: AsJson = False, **given: Any
) -> None:
    """Simulate a queue under load.

    Measures how much is completed in time.
    """
    options = SimulateOptions(**given)
    if plot is not None:
        check_plot(plot)
        if options.values is not None or options.is_random:
            raise ValueError("plot: shows neither values nor random max ages; leave these options out")
    run: Result | None = None
    if sweep:
        _refuse_options_that_sweep_ignores(context, options)
        cells = _sweep(options, {})
        _print_cells(cells, as_json=as_json)
    else:
        load = options.load(has_deadline=is_given(context, "deadline_seconds"))
        rules = options.rules()
        run = summarize(options.simulation(load, rules), options.stress().dip or options.parsed_burst())
        _print_result(run, as_json=as_json)
        cells = [] if plot is None else _sweep(options, {"as given": rules})
    if plot is not None:
        _plot(options, cells, plot, run)


def _refuse_options_that_sweep_ignores(context: typer.Context, options: SimulateOptions) -> None:
    for name in NOT_WITH_SWEEP:
        if is_given(context, name):
            msg = f"sweep: chooses policies and loads itself; leave out --{name.replace('_', '-')}"
            raise ValueError(msg)
    if options.file is not None:
        raise ValueError("sweep: sets the rate itself; arrivals must be poisson or deterministic")


def _sweep(options: SimulateOptions, more: dict[str, OverloadRules]) -> list[Cell]:
    """Return the sweep over the standard policies and any policy of `more` that is not among them."""
    if options.deadline_seconds is None:
        raise ValueError("deadline_seconds: a sweep and a plot need one")
    values, max_ages_seconds = parse_values(options.values, options.max_age_seconds)
    standard = policies(options.deadline_seconds, options.servers, by_value=bool(values))
    own = {name: rules for name, rules in more.items() if rules not in standard.values()}
    return list(
        load_sweep(
            {**standard, **own},
            options.servers,
            arrivals=ArrivalProcess.POISSON if options.file is not None else ArrivalProcess(options.arrivals),
            service=options.service,
            service_mean_seconds=options.service_mean,
            duration_seconds=options.duration,
            values=values,
            max_ages_seconds=max_ages_seconds,
            seed=options.seed,
        )
    )


def _plot(options: SimulateOptions, cells: Sequence[Cell], file: Path, run: Result | None) -> None:
    subtitle = (
        f"{options.servers} servers, service {options.service.value} with a mean of "
        f"{options.service_mean:g} s, deadline {options.max_age_seconds:g} s"
    )
    draw_sweep(cells, options.max_age_seconds, subtitle, file, run)
    typer.echo(f"plotted: {file}", err=True)


def _print_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(asdict(result)))
        return
    typer.echo(sentence_of(result))
    table = Table("measure", "value", box=SIMPLE_HEAD)
    for name, value in _measures(result):
        table.add_row(name, _text(value))
    table.columns[1].justify = "right"
    if table.rows:
        Console().print(table)


def _measures(result: Result) -> Iterator[tuple[str, Any]]:
    """Yield the measures that say something, by name: no zeros, no single level, no lists for programs."""
    for name, value in asdict(result).items():
        if not isinstance(value, dict):
            every = [(name, value)]
        elif name == "by_level" and len(value) == 1:
            every = []
        else:
            every = [(f"{name}: {key}", part) for key, part in value.items()]
        yield from (
            (text.replace("_", " "), part) for text, part in every if part and not isinstance(part, list)
        )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key.replace('_', ' ')} {_text(part)}" for key, part in value.items() if part)
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _print_cells(cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text([asdict(cell) for cell in cells]))
        return
    loads = sorted({cell.load for cell in cells})
    has_values = cells[0].result.value is not None
    title = "share of the possible value" if has_values else "done in time, as a share of capacity"
    table = Table(title=f"{title}, by load", box=SIMPLE_HEAD, padding=0)
    table.add_column("policy", no_wrap=True)
    for load in loads:
        table.add_column(f"{load:g}", justify="right")
    for name in dict.fromkeys(cell.policy for cell in cells):
        table.add_row(name, *(f"{measure_of(cell):.3f}" for cell in cells if cell.policy == name))
    Console().print(table)
    typer.echo(sentence_of_sweep(cells))
