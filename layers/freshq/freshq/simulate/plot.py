"""A plot of a load sweep: goodput and wait against load, one line per policy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from freshq.simulate.load_sweep import LOADS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import altair as alt

    from freshq.simulate.load_sweep import Cell
    from freshq.simulate.results import Result

SUFFIXES: Final = (".png", ".svg", ".html")
WIDTH: Final = 640
HEIGHT: Final = 250
# Okabe and Ito's colours, distinct to colour-blind readers; oldest first is warm, newest first is cool.
COLOURS: Final = ("#D55E00", "#E69F00", "#CC79A7", "#999999", "#0072B2", "#56B4E9", "#009E73", "#000000")
STAR: Final = (
    "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z"
)
SHAPES: Final = ("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "circle", "square")


def check(file: Path) -> None:
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
        for module in ("altair", "vl_convert"):  # the second is what draws PNG and SVG
            import_module(module)
    except ImportError as error:
        msg = f"plot: {error.name} is not installed; try: pip install 'freshq[plot]'"
        raise ValueError(msg) from error


def draw(
    cells: Sequence[Cell], deadline_seconds: float, subtitle: str, file: Path, run: Result | None = None
) -> None:
    """Draw a load sweep, in the format of the file's suffix.

    Args:
        cells: The measures.
        deadline_seconds: Age at which a task was stale.
        subtitle: One line below the title.
        file: Where to write the plot.
        run: The measures of one simulation, to be marked in the plot; None for no mark.
    """
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    rows = [
        {"policy": cell.policy, "load": cell.load, **_measures(cell.result, deadline_seconds)}
        for cell in cells
    ]
    mark = None if run is None else {"load": run.load, **_measures(run, deadline_seconds)}
    goodput = alt.Y("goodput:Q", title="done in time, share of capacity", scale=alt.Scale(domain=[0, 1.05]))
    wait_axis = alt.Axis(values=[0.001, 0.01, 0.1, 1])
    wait_scale = alt.Scale(type="log", domain=[0.001, 1], clamp=True)
    p99 = alt.Y("wait:Q", title="p99 wait of these, share of the deadline", scale=wait_scale, axis=wait_axis)
    panels = (
        alt.LayerChart(
            layer=[_panel(rows, goodput), *_ideal(), *_mark(mark, goodput)], width=WIDTH, height=HEIGHT
        ),
        alt.LayerChart(layer=[_panel(rows, p99), *_mark(mark, p99)], width=WIDTH, height=HEIGHT),
    )
    title = alt.TitleParams("Done in time, under load", subtitle=subtitle, anchor="start", fontSize=17)
    chart = alt.vconcat(*panels, title=title).configure_view(stroke=None)
    # An HTML page includes its scripts, so that it opens without a network.
    chart.save(str(file), scale_factor=2, inline=file.suffix == ".html")


def _measures(result: Result, deadline_seconds: float) -> dict[str, float | None]:
    wait_seconds = result.wait_p99_seconds
    wait = None if wait_seconds is None else wait_seconds / deadline_seconds
    return {"goodput": result.goodput_ratio, "wait": wait}


def _mark(values: dict[str, Any] | None, measure: alt.Y) -> list[alt.Chart]:
    """Return a star for the measures of one simulation, and its label; nothing if there are none."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    if values is None:
        return []
    data = alt.InlineData(values=[values | {"text": f"this run, load {values['load']:.3g}"}])
    point = alt.Chart(data).mark_point(shape=STAR, size=220, filled=True, color="#000000")
    label = alt.Chart(data).mark_text(align="left", dx=10, dy=12, color="#000000").encode(text="text:N")
    return [chart.encode(x=_load_axis(), y=measure) for chart in (point, label)]


def _load_axis() -> alt.X:
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    return alt.X(
        "load:Q",
        title="load, as a multiple of capacity",
        scale=alt.Scale(type="log", domain=[LOADS[0], LOADS[-1]], clamp=True),
        axis=alt.Axis(values=list(LOADS), format="~g"),
    )


def _panel(rows: Sequence[dict[str, Any]], measure: alt.Y) -> alt.Chart:
    """Return one line per policy."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    names = list(dict.fromkeys(row["policy"] for row in rows))
    legend = alt.Legend(title="policy", orient="right", labelLimit=240)
    colours = alt.Scale(domain=names, range=COLOURS[: len(names)])
    shapes = alt.Scale(domain=names, range=SHAPES[: len(names)])
    chart = alt.Chart(alt.InlineData(values=list(rows)))
    lines: alt.Chart = chart.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=55, filled=True)).encode(
        x=_load_axis(),
        y=measure,
        color=alt.Color("policy:N", scale=colours, legend=legend),
        shape=alt.Shape("policy:N", scale=shapes, legend=legend),
    )
    return lines


def _ideal() -> list[alt.Chart]:
    """Return a dashed line for the best possible goodput, and its label."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    best = [{"load": load, "best": min(load, 1.0)} for load in sorted({*LOADS, 1.0})]
    line = (
        alt.Chart(alt.InlineData(values=best))
        .mark_line(strokeDash=[5, 4], color="#404040", strokeWidth=1)
        .encode(x=_load_axis(), y="best:Q")
    )
    label = (
        alt.Chart(alt.InlineData(values=[{"load": 0.6, "best": 0.68, "text": "at best"}]))
        .mark_text(align="right", color="#404040")
        .encode(x=_load_axis(), y="best:Q", text="text:N")
    )
    return [line, label]
