"""A plot of a load sweep: goodput and wait against load, a pair of small charts for each policy."""

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
    "Grey: the other policies. Dashed: the best possible; what chance lifts above it is drawn on it."
)


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
        run: The measures of one simulation, to be marked in every chart; None for no mark.
    """
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

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
        "Done in time, under load", subtitle=[subtitle, *_notes(mark)], anchor="start", fontSize=17
    )
    chart = alt.vconcat(*lines, title=title, spacing=30).configure_view(stroke=None)
    # An HTML page includes its scripts, so that it opens without a network.
    chart.save(str(file), scale_factor=2, inline=file.suffix == ".html")


def _notes(mark: dict[str, Any] | None) -> list[str]:
    """Return what the lines and the star mean."""
    return [NOTE] if mark is None else [NOTE, f"Star: this run, at {mark['load']:.3g} times the capacity."]


def _measures(result: Result, load: float, deadline_seconds: float) -> dict[str, float | None]:
    """Return what is drawn. Goodput beyond what is offered, or can be done, is the chance of the draws."""
    wait_seconds = result.wait_p99_seconds
    wait = None if wait_seconds is None else wait_seconds / deadline_seconds
    return {"goodput": min(result.goodput_ratio, load, 1.0), "wait": wait}


def _pair(
    rows: Sequence[dict[str, Any]], mark: dict[str, Any] | None, policy: str, colour: str, *, is_first: bool
) -> alt.VConcatChart:
    """Return the goodput of a policy above its waits, before those of the others in grey."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    # Hidden labels take their place, so that all charts of a row are at the same height.
    first: dict[str, Any] = {"labelOpacity": float(is_first), "ticks": is_first, "domain": is_first}
    goodput = alt.Y(
        "goodput:Q", title="done in time, of capacity" if is_first else None,
        axis=alt.Axis(format=".0%", tickCount=5, **first), scale=alt.Scale(domain=[0, 1]),
    )  # fmt: skip
    wait = alt.Y(
        "wait:Q", title="p99 wait, of the deadline" if is_first else None,
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
    """Return the line of a policy, and behind it those of the others."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    others = alt.Chart(alt.InlineData(values=[row for row in rows if row["policy"] != policy]))
    own = alt.Chart(alt.InlineData(values=[row for row in rows if row["policy"] == policy]))
    behind = others.mark_line(strokeWidth=1.2, color=OTHERS).encode(detail="policy:N")
    front = own.mark_line(strokeWidth=2.4, color=colour, point=alt.OverlayMarkDef(size=26, color=colour))
    return [chart.encode(x=_load_axis(), y=measure) for chart in (behind, front)]


def _mark(values: dict[str, Any] | None, measure: alt.Y) -> list[alt.Chart]:
    """Return a star for the measures of one simulation; nothing if there are none."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    if values is None:
        return []
    data = alt.InlineData(values=[values])
    point = alt.Chart(data).mark_point(shape=STAR, size=160, filled=True, color="#000000", opacity=1)
    return [point.encode(x=_load_axis(), y=measure)]


def _load_axis() -> alt.X:
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    return alt.X(
        "load:Q",
        title="load, of capacity",
        scale=alt.Scale(type="log", domain=[LOADS[0], LOADS[-1]], clamp=True),
        axis=alt.Axis(values=list(LOAD_TICKS), format="~g", labelFlush=False),
    )


def _ideal() -> list[alt.Chart]:
    """Return a dashed line for the best possible goodput."""
    import altair as alt  # noqa: PLC0415 - an extra, and slow to load

    best = [{"load": load, "best": min(load, 1.0)} for load in sorted({*LOADS, 1.0})]
    line = alt.Chart(alt.InlineData(values=best)).mark_line(strokeDash=[5, 4], color="#404040", strokeWidth=1)
    return [line.encode(x=_load_axis(), y="best:Q")]
