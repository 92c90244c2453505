"""Simulate policies at many loads, and plot the results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.simulate.engine import simulate_load
from freshq.simulate.load import ArrivalProcess, ServiceDistribution, Source
from freshq.simulate.results import Result, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import altair as alt

LOADS: Final = (0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
# Length of a simulation, in mean service times: goodput is accurate to about 0.007 at ten servers.
SERVICES: Final = 2000
SUFFIXES: Final = (".png", ".svg", ".html")
WIDTH: Final = 190
HEIGHT: Final = 130
COLUMNS: Final = 4
# From the palette of Okabe and Ito: oldest first is warm, newest first is cool.
COLOURS: Final = ("#D55E00", "#E69F00", "#CC79A7", "#000000", "#0072B2", "#56B4E9", "#009E73", "#F0E442")
OTHERS: Final = "#D0D0D0"
STAR: Final = (
    "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z"
)
LOAD_TICKS: Final = (0.5, 1, 2, 5, 10)
NOTE: Final = (
    "Grey: the other policies. Dashed: theoretical maximum. Values above it are noise, clipped to the line."
)


class Colour(StrEnum):
    """Colours of the fates of tasks, which colour-blind readers can tell apart (Okabe and Ito, 2008)."""

    SUCCESS = "#009E73"
    LATE = "#CC79A7"
    SHED = "#E69F00"
    FAILURE = "#D55E00"
    CANCELLED = "#999999"
    PENDING = "#56B4E9"
    TAKEN = "#0072B2"


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy under one load.

    Attributes:
        policy: Name of the policy.
        load: Service time offered per second of a server.
        result: The measures.
    """

    policy: str
    load: float
    result: Result


def policies(deadline_seconds: float, servers: int, *, by_value: bool = False) -> dict[str, OverloadRules]:
    """Return the policies that a load sweep compares, by name.

    CoDel's target is a twentieth of the deadline, its interval a tenth. The bounded backlog holds one
    task per server.

    Args:
        deadline_seconds: Age at which a task is stale.
        servers: Number of servers.
        by_value: Whether to compare the orders by value and by deadline with them.
    """
    percentile = ReserveRule(quantile=0.9)
    codel = CodelRule(deadline_seconds / 20, deadline_seconds / 10)
    planned = {
        "value": OverloadRules(deadline_seconds, Order.VALUE),
        "deadline, reserve p90": OverloadRules(deadline_seconds, Order.DEADLINE, percentile),
    }
    return (planned if by_value else {}) | {
        "FIFO": OverloadRules(deadline_seconds, Order.FIFO),
        "FIFO, reserve p90": OverloadRules(deadline_seconds, Order.FIFO, percentile),
        "FIFO, CoDel": OverloadRules(deadline_seconds, Order.FIFO, codel=codel),
        "FIFO, bounded": OverloadRules(deadline_seconds, Order.FIFO, backlog=BacklogLimit(servers)),
        "LIFO": OverloadRules(deadline_seconds),
        "LIFO, reserve p90": OverloadRules(deadline_seconds, reserve=percentile),
        "adaptive, reserve p90": OverloadRules(deadline_seconds, Order.ADAPTIVE, percentile),
    }


def load_sweep(
    compared: Mapping[str, OverloadRules],
    servers: int,
    *,
    arrivals: ArrivalProcess = ArrivalProcess.POISSON,
    service: ServiceDistribution = ServiceDistribution.EXP,
    service_mean_seconds: float = 1.0,
    duration_seconds: float | None = None,
    values: Mapping[float, float] | None = None,
    max_ages_seconds: Mapping[float, float] | None = None,
    seed: int = 1,
) -> Iterator[Cell]:
    """Yield the measures of every policy under every load. All policies get the same arrivals.

    Args:
        compared: The policies by name; they must have the same deadline.
        servers: Number of servers.
        arrivals: How arrivals are spread.
        service: Distribution of the service times.
        service_mean_seconds: Mean service time.
        duration_seconds: How long tasks arrive under each load; None: `SERVICES` mean service times.
        values: Share of the tasks by value.
        max_ages_seconds: Age at which tasks of a value are stale, where it is below the deadline.
        seed: Seed of the draws.
    """
    (deadline_seconds,) = {rules.deadline_seconds for rules in compared.values()}
    for load in LOADS:
        tasks = Source(
            rate_per_second=load * servers / service_mean_seconds,
            duration_seconds=duration_seconds or SERVICES * service_mean_seconds,
            deadline_seconds=deadline_seconds,
            arrivals=arrivals,
            service=service,
            service_mean_seconds=service_mean_seconds,
            values=values or {},
            max_ages_seconds=max_ages_seconds or {},
            seed=seed,
        ).load()
        results = (summarize(simulate_load(tasks, rules, servers, seed)) for rules in compared.values())
        yield from (Cell(name, load, result) for name, result in zip(compared, results, strict=True))


def check_plot(file: Path) -> None:
    """Check that a plot can be drawn into a file, before the simulations run.

    Raises:
        ValueError: If its suffix is unknown, its folder is missing, or the `plot` extra is not installed.
    """
    if file.suffix not in SUFFIXES:
        msg = f"plot: must end in {', '.join(SUFFIXES)}, got {file.name!r}"
        raise ValueError(msg)
    if not file.parent.is_dir():
        msg = f"plot: there is no folder {str(file.parent)!r}"
        raise ValueError(msg)
    try:
        for module in ("altair", "vl_convert"):  # vl_convert draws PNG and SVG
            import_module(module)
    except ImportError as error:
        msg = f"plot: {error.name} is not installed; try: pip install 'freshq[plot]'"
        raise ValueError(msg) from error


def draw_sweep(
    cells: Sequence[Cell], deadline_seconds: float, subtitle: str, file: Path, run: Result | None = None
) -> None:
    """Draw a load sweep, in the format of the file's suffix.

    Args:
        cells: The measures.
        deadline_seconds: Age at which a task was stale.
        subtitle: One line below the title.
        file: Where to write the plot.
        run: The measures of one simulation, to be marked in every chart; None for no mark.
    """
    import altair as alt

    rows = [
        {"policy": cell.policy, "load": cell.load, **_measures(cell.result, cell.load, deadline_seconds)}
        for cell in cells
    ]
    mark = None if run is None else {"load": run.load, **_measures(run, run.load, deadline_seconds)}
    names = list(dict.fromkeys(cell.policy for cell in cells))
    pairs = [
        _pair(rows, mark, name, colour, is_first=not place % COLUMNS)
        for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False))
    ]
    lines = [
        alt.hconcat(*pairs[begin : begin + COLUMNS], spacing=4) for begin in range(0, len(pairs), COLUMNS)
    ]
    title = alt.TitleParams(
        "Goodput and wait under load", subtitle=[subtitle, *_notes(mark)], anchor="start", fontSize=17
    )
    chart = alt.vconcat(*lines, title=title, spacing=30).configure_view(stroke=None)
    # An HTML page includes its scripts, so that it opens without a network.
    chart.save(str(file), scale_factor=2, inline=file.suffix == ".html")


def _notes(mark: dict[str, Any] | None) -> list[str]:
    """Return the legend of the lines and the star."""
    return [NOTE] if mark is None else [NOTE, f"Star: this run, at {mark['load']:.3g} times the capacity."]


def _measures(result: Result, load: float, deadline_seconds: float) -> dict[str, float | None]:
    """Return the points of the plot. Goodput above the offered load or the capacity is noise."""
    wait_seconds = result.wait_p99_seconds
    wait = None if wait_seconds is None else wait_seconds / deadline_seconds
    return {"goodput": min(result.goodput_ratio, load, 1.0), "wait": wait}


def _pair(
    rows: Sequence[dict[str, Any]], mark: dict[str, Any] | None, policy: str, colour: str, *, is_first: bool
) -> alt.VConcatChart:
    """Return the goodput of a policy above its waits, in front of the other policies in grey."""
    import altair as alt

    # Hidden labels take their place, so that all charts of a row are at the same height.
    first: dict[str, Any] = {"labelOpacity": float(is_first), "ticks": is_first, "domain": is_first}
    goodput = alt.Y(
        "goodput:Q", title="goodput / capacity" if is_first else None,
        axis=alt.Axis(format=".0%", tickCount=5, **first), scale=alt.Scale(domain=[0, 1]),
    )  # fmt: skip
    wait = alt.Y(
        "wait:Q", title="p99 wait / deadline" if is_first else None,
        axis=alt.Axis(format="~%", values=[0.001, 0.01, 0.1, 1], **first),
        scale=alt.Scale(type="log", domain=[0.001, 1], clamp=True),
    )  # fmt: skip
    upper = alt.layer(*_ideal(), *_lines(rows, goodput, policy, colour), *_mark(mark, goodput))
    lower = alt.layer(*_lines(rows, wait, policy, colour), *_mark(mark, wait))
    name = alt.TitleParams(policy, color=colour, anchor="start", fontSize=13)
    return alt.vconcat(
        upper.properties(width=WIDTH, height=HEIGHT, title=name),
        lower.properties(width=WIDTH, height=HEIGHT),
        spacing=8,
    )


def _lines(rows: Sequence[dict[str, Any]], measure: alt.Y, policy: str, colour: str) -> list[alt.Chart]:
    """Return the line of a policy in front of the lines of other policies."""
    import altair as alt

    others = alt.Chart(alt.InlineData(values=[row for row in rows if row["policy"] != policy]))
    own = alt.Chart(alt.InlineData(values=[row for row in rows if row["policy"] == policy]))
    behind = others.mark_line(strokeWidth=1.2, color=OTHERS).encode(detail="policy:N")
    front = own.mark_line(strokeWidth=2.4, color=colour, point=alt.OverlayMarkDef(size=26, color=colour))
    return [chart.encode(x=_load_axis(), y=measure) for chart in (behind, front)]


def _mark(values: dict[str, Any] | None, measure: alt.Y) -> list[alt.Chart]:
    """Return a star for the measures of one simulation; nothing if there are none."""
    import altair as alt

    if values is None:
        return []
    data = alt.InlineData(values=[values])
    point = alt.Chart(data).mark_point(shape=STAR, size=160, filled=True, color="#000000", opacity=1)
    return [point.encode(x=_load_axis(), y=measure)]


def _load_axis() -> alt.X:
    import altair as alt

    return alt.X(
        "load:Q",
        title="load / capacity",
        scale=alt.Scale(type="log", domain=[LOADS[0], LOADS[-1]], clamp=True),
        axis=alt.Axis(values=list(LOAD_TICKS), format="~g", labelFlush=False),
    )


def _ideal() -> list[alt.Chart]:
    """Return a dashed line for the best possible goodput."""
    import altair as alt

    best = [{"load": load, "best": min(load, 1.0)} for load in sorted({*LOADS, 1.0})]
    line = alt.Chart(alt.InlineData(values=best)).mark_line(strokeDash=[5, 4], color="#404040", strokeWidth=1)
    return [line.encode(x=_load_axis(), y="best:Q")]
