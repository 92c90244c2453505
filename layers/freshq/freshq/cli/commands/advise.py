"""`freshq advise` and `freshq replay`: settings for a recorded load."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.cli.command import is_given
from freshq.cli.errors import ExitStatus
from freshq.cli.output import json_text
from freshq.simulate.advice import ENOUGH, Objective, Settings, Threshold, read_settings
from freshq.simulate.advice import advise as advice_on
from freshq.simulate.advice import outages as outages_of
from freshq.simulate.advice import replay as replayed
from freshq.simulate.recording import read_recording
from freshq.simulate.stress import Clients
from freshq.simulate.sweep import check_plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.simulate.advice import Advice, Compared, Interval, Outage

Load = Annotated[
    Path, typer.Argument(metavar="RECORDING", help="The recorded load, as `freshq recording` saves it.")
]
Servers = Annotated[int, typer.Option(help="Number of tasks that can run at a time.")]
ObjectiveText = Annotated[
    str,
    typer.Option(
        "--objective",
        help="in-time: the share of tasks done by their deadline; value: a task loses worth evenly until "
        "then; or a share and a time, such as '0.99@2s for level 9'.",
    ),
]
Today = Annotated[
    Path | None,
    typer.Option("--settings", help="The settings of today, FILE.toml. By default those of a new queue."),
]
WithOutage = Annotated[
    bool, typer.Option("--outage", help="Also say which outage tips each order over, if clients try again.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--client-timeout", help="Seconds after which a client tries again; by default the deadline."
    ),
]
Retries = Annotated[int, typer.Option("--client-retries", help="How often a client tries again.")]
Plot = Annotated[Path | None, typer.Option(help="Draw all settings: FILE.png, FILE.svg or FILE.html.")]
WithTable = Annotated[bool, typer.Option("--table", help="Also print a table of all settings.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Now = Annotated[Path, typer.Option("--settings", help="The present settings, FILE.toml.")]
New = Annotated[Path, typer.Option("--against", help="The new settings, FILE.toml.")]
FailIf = Annotated[str, typer.Option(help="Fail if the change is below this: in_time<-1% or value<-0.5%.")]
TODAY: Final = "today's settings"


def advise(
    context: typer.Context,
    load: Load,
    servers: Servers = 10,
    objective: ObjectiveText = "in-time",
    settings: Today = None,
    outage: WithOutage = False,
    client_timeout: Timeout = None,
    client_retries: Retries = 3,
    plot: Plot = None,
    table: WithTable = False,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Say which settings serve a recorded load best.

    Simulates orders, reserves, bounds, the door and max ages on the recording and on resamples of it, and
    recommends only what is better than today's settings beyond doubt.
    """
    if plot is not None:
        check_plot(plot)
    goal = Objective.parse(objective)
    today = Settings() if settings is None else read_settings(settings)
    if settings is None or is_given(context, "servers"):
        today = today.changed(servers=servers)
    recording = read_recording(load)
    found = advice_on(recording, today, goal, seed)
    tipped: list[Outage] = []
    if outage:
        timeout = client_timeout or today.age_seconds(recording.max_age_seconds)
        if timeout is None:
            raise ValueError("client_timeout: give one, because no task of the recording has a deadline")
        tipped = outages_of(recording, today, Clients(timeout, client_retries), seed)
    if plot is not None:
        _draw(found, plot)
    _answer(found, goal, tipped, table=table, as_json=as_json)


def _answer(found: Advice, goal: Objective, tipped: Sequence[Outage], *, table: bool, as_json: bool) -> None:
    lines = [_what(found, goal), _how_sure(found), _servers(found, goal)]
    if as_json:
        answer = asdict(found) | {
            "settings": found.best.change,
            "no_difference": not found.best.change,
            "objective": goal.text,
            "servers": found.settings.servers,
            "answer": lines,
            "command": command_of(found.best.change),
            "stack_command": command_of(found.best.change, "--stack NAME"),
            "outages": [asdict(each) for each in tipped],
        }
        typer.echo(json_text(answer))
        return
    for line in [*lines, *map(_outage_line, tipped)]:
        typer.echo(line)
    if table:
        _print_table(found.compared)


def command_of(change: Mapping[str, str], where: str = "") -> str | None:
    """Return the command that stores changed settings; None if nothing changes."""
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    return " ".join(filter(None, ("freshq configure", where, flags))) if change else None


def _named(change: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in change.items()) or TODAY


def _points(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:+.2f} points (95% interval {low:+.2f} to {high:+.2f})"


def _what(found: Advice, goal: Objective) -> str:
    kinds = {"in-time": "of the tasks are done in time", "value": "of the tasks' worth is kept"}
    what = kinds.get(goal.text, f"count as done within {goal.seconds:g} s" if goal.seconds else "")
    if goal.share is not None:
        what = f"of {'the' if goal.level is None else f'the level {goal.level}'} tasks {what}"
    if not found.best.change:
        return f"No difference: keep today's settings, with which {found.today_share:.1%} {what}."
    return (
        f"Set {_named(found.best.change)}: {found.best.share:.1%} {what}, instead of {found.today_share:.1%}."
    )


def _how_sure(found: Advice) -> str:
    alike = "; ".join(map(_named, found.alike))
    same = f"No difference to {alike}." if alike else "All other settings are worse."
    if found.best.change:
        return f"That is {_points(found.best.gain)}. {same}"
    next_best = next((each for each in found.compared if each.change), None)
    gain = (
        ""
        if next_best is None
        else f"The next best, {_named(next_best.change)}, brings {_points(next_best.gain)}. "
    )
    return gain + same


def _servers(found: Advice, goal: Objective) -> str:
    servers = found.settings.servers
    said = f"{servers + 1} servers instead of {servers} bring {_points(found.next_server)}; "
    share = ENOUGH if goal.share is None else goal.share
    said += "no number up to 16 times as many" if found.enough_servers is None else f"{found.enough_servers}"
    said += f" reach{'es' if found.enough_servers in {1, None} else ''} {share:.0%}."
    if found.drawn:
        said += f" Service times of {found.drawn:,} of {found.tasks:,} tasks, which never ran, were drawn."
    command = command_of(found.best.change)
    return said if command is None else f"{said} {command}"


def _outage_line(outage: Outage) -> str:
    if outage.longest_seconds is None or outage.recovery_seconds is None:
        back = "it comes back after none that was tried"
    else:
        back = f"after {outage.longest_seconds:.3g} s it takes {outage.recovery_seconds:.3g} s to come back"
    if outage.tips_over_seconds is None:
        return f"{outage.order}: no outage that was tried tips it over; {back}."
    return f"{outage.order}: an outage of {outage.tips_over_seconds:.3g} s tips it over; {back}."


def _print_table(compared: Sequence[Compared]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=0)
    for name in ("settings", "share", "change", "95% interval"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    for each in compared:
        low, high = 100 * each.gain.low, 100 * each.gain.high
        cells = (f"{each.share:.2%}", f"{100 * each.gain.estimate:+.2f}", f"{low:+.2f} to {high:+.2f}")
        table.add_row(_named(each.change), *cells)
    Console().print(table)


def _draw(found: Advice, file: Path) -> None:
    """Draw the change that each setting brings, with its interval."""
    import altair as alt

    rows = [
        {"settings": _named(each.change), **{name: 100 * value for name, value in asdict(each.gain).items()}}
        for each in found.compared
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y(
            "settings:N", sort=[row["settings"] for row in rows], title=None, axis=alt.Axis(labelLimit=400)
        )
    )
    title = "change of the share, in percentage points"
    chart = alt.layer(
        base.mark_rule(strokeWidth=2, color="#0072B2").encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_point(filled=True, size=60, color="#0072B2", opacity=1).encode(
            x=alt.X("estimate:Q", title=title)
        ),
    ).properties(title=f"Beside today's settings: {found.today_share:.1%}", width=420)
    chart.save(str(file), scale_factor=2, inline=file.suffix == ".html")
    typer.echo(f"plotted: {file}", err=True)


def replay(
    load: Load,
    settings: Now,
    against: New,
    fail_if: FailIf = "in_time<-1%",
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Fail if new settings serve a recorded load worse.

    Simulates both settings on the recording and on resamples of it. Exits with 1 if the change in percentage
    points is below the threshold, and either below zero beyond doubt or twice as large.
    """
    threshold = Threshold.parse(fail_if)
    now, new = read_settings(settings), read_settings(against)
    found = replayed(read_recording(load), now, new, threshold, seed)
    answer: dict[str, Any] = asdict(found)
    typer.echo(json_text(answer) if as_json else f"{'worse' if found.fails else 'no worse'}: {found}")
    if found.fails:
        raise typer.Exit(ExitStatus.REFUSED)
