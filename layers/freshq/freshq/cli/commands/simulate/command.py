"""Simulates a policy under a load, and prints or plots the outcome."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from freshq.cli.command import Command, is_given
from freshq.cli.commands.simulate.options import SimulateOptions
from freshq.cli.commands.simulate.sentences import sentence_of, sentence_of_sweep
from freshq.cli.texts import json_text
from freshq.simulate import ArrivalProcess, load_sweep, plot, policies, simulate_load, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from freshq.policy.rules import OverloadRules
    from freshq.simulate import Cell, Result

# A sweep chooses policies and loads itself.
NOT_WITH_SWEEP: Final = (
    "rate", "order", "reserve", "codel", "codel_interval", "max_backlog", "when_full", "group_share", "fair",
    "door", "groups", "priorities", "burst",
)  # fmt: skip


class SimulateCommand(Command):
    """Runs `simulate` with the options that Typer has parsed."""

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        simulate(ctx, super().invoke(ctx))


def simulate(context: typer.Context, options: SimulateOptions) -> None:
    """Simulate what the options say.

    Raises:
        ValueError: If an option is wrong.
    """
    if options.plot is not None:
        plot.check(options.plot)
    run: Result | None = None
    if options.sweep:
        _refuse_options_that_sweep_ignores(context, options)
        cells = _sweep(options, {})
        _print_cells(cells, as_json=options.as_json)
    else:
        rules = options.rules()
        simulation = simulate_load(options.load(), rules, options.servers, options.seed)
        run = summarize(simulation, options.parsed_burst())
        _print_result(run, as_json=options.as_json)
        cells = [] if options.plot is None else _sweep(options, {"as given": rules})
    if options.plot is not None:
        _plot(options, cells, options.plot, run)


def _refuse_options_that_sweep_ignores(context: typer.Context, options: SimulateOptions) -> None:
    for name in NOT_WITH_SWEEP:
        if is_given(context, name):
            msg = f"sweep: chooses policies and loads itself; leave out --{name.replace('_', '-')}"
            raise ValueError(msg)
    if options.file is not None:
        raise ValueError("sweep: sets the rate itself; arrivals must be poisson or deterministic")


def _sweep(options: SimulateOptions, more: dict[str, OverloadRules]) -> list[Cell]:
    """Return the sweep over the standard policies, and those of `more` that are not among them."""
    standard = policies(options.deadline_seconds, options.servers)
    own = {name: rules for name, rules in more.items() if rules not in standard.values()}
    return list(
        load_sweep(
            {**standard, **own},
            options.servers,
            arrivals=ArrivalProcess.POISSON if options.file is not None else ArrivalProcess(options.arrivals),
            service=options.service,
            service_mean_seconds=options.service_mean,
            duration_seconds=options.duration,
            seed=options.seed,
        )
    )


def _plot(options: SimulateOptions, cells: Sequence[Cell], file: Path, run: Result | None) -> None:
    subtitle = (
        f"{options.servers} servers, service {options.service.value} with a mean of "
        f"{options.service_mean:g} s, deadline {options.deadline_seconds:g} s"
    )
    plot.draw(cells, options.deadline_seconds, subtitle, file, run)
    typer.echo(f"plotted: {file}", err=True)


def _print_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(asdict(result)))
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
    typer.echo(sentence_of(result))


def _text(value: Any) -> str:  # noqa: ANN401 - a field of a result
    if isinstance(value, dict):
        return "\n".join(f"{key.replace('_', ' ')} {_text(part)}" for key, part in value.items())
    if value is None:
        return "-"
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _print_cells(cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text([asdict(cell) for cell in cells]))
        return
    loads = sorted({cell.load for cell in cells})
    table = Table(title="done in time, as a share of capacity, by load", box=SIMPLE_HEAD, padding=0)
    table.add_column("policy", no_wrap=True)
    for load in loads:
        table.add_column(f"{load:g}", justify="right")
    for name in dict.fromkeys(cell.policy for cell in cells):
        table.add_row(name, *(f"{cell.result.goodput_ratio:.3f}" for cell in cells if cell.policy == name))
    Console().print(table)
    typer.echo(sentence_of_sweep(cells))


app = typer.Typer(add_completion=False)
# The callback is `SimulateOptions`, which Typer fills from the command line.
app.command(
    "simulate",
    cls=SimulateCommand,
    help="Simulate a queue under a load, and measure what is completed in time.",
)(SimulateOptions)
