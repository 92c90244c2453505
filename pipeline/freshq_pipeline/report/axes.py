"""The axes of the charts, and their look: in the page's own colours, as wide as the page."""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import pandas as pd

HEIGHT: Final = 200
# Pixels that the label of a tick takes.
TICK_PIXELS: Final = 75
# Pixels that an entry of a legend takes.
LEGEND_PIXELS: Final = 130
TICKS_SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800),
    *(3600, 7200, 18_000, 36_000, 86_400, 172_800, 604_800),
)
# The shortest time that an axis shows; shorter ones are drawn there.
SHORTEST_SECONDS: Final = TICKS_SECONDS[0]
MAX_TICKS: Final = 9
_IN_WORDS: Final = (
    "datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms'"
    " : datum.value < 60 ? format(datum.value, '~r') + ' s'"
    " : datum.value < 3600 ? format(datum.value / 60, '~r') + ' min'"
    " : format(datum.value / 3600, '~r') + ' h'"
)
_INK: Final = "currentColor"
# The colour of text and lines is the page's, which is light or dark.
CONFIG: Final[dict[str, Any]] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK, "titleColor": _INK, "domainColor": _INK, "tickColor": _INK, "gridColor": _INK,
        "gridOpacity": 0.13, "domainOpacity": 0.4, "tickOpacity": 0.4, "labelFontSize": 11.5,
        "titleFontSize": 11.5, "titleFontWeight": "normal", "labelOverlap": "greedy",
    },
    "legend": {
        "labelColor": _INK, "titleColor": _INK, "orient": "top", "labelFontSize": 11.5, "titleFontSize": 11.5,
        "titleFontWeight": "normal", "labelLimit": 260, "gradientLength": 120,
        "columns": {"expr": f"max(1, floor(width / {LEGEND_PIXELS}))"},
    },
}  # fmt: skip


def chart(values: list[dict[str, Any]], description: str) -> alt.Chart:
    """Return an empty chart of rows, as wide as its place on the page.

    Args:
        values: The rows; they become part of the page, as there is no server to load them from.
        description: What the chart shows, for screen readers.
    """
    return alt.Chart(alt.InlineData(values=values), width="container", height=HEIGHT, description=description)


def dressed(drawn: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    """Return a chart as Vega-Lite, in the page's look and within the width of its place."""
    shown: dict[str, Any] = drawn.to_dict()
    return shown | {"config": CONFIG, "autosize": {"type": "fit-x", "contains": "padding"}}


def time(minutes: pd.DataFrame) -> alt.X:
    """Return the time axis, the same for every chart of a recording."""
    first, last = minutes["at"].min(), minutes["at"].max() + step_of(minutes)
    ends = [f"{end:%Y-%m-%dT%H:%M:%SZ}" for end in (first, last)]
    seconds = (last - first).total_seconds()
    formats = ((600, "%H:%M:%S"), (86_400, "%H:%M"), (604_800, "%d %b %H:%M"))
    shown = next((text for below, text in formats if seconds < below), "%d %b")
    axis = alt.Axis(
        format=shown, tickCount=alt.ExprRef(f"max(2, floor(width / {TICK_PIXELS}))"), labelFlush=True
    )
    return alt.X("at:T", title=None, axis=axis, scale=alt.Scale(type="utc", domain=ends))


def step_of(rows: pd.DataFrame) -> pd.Timedelta:
    """Return the length of a time step."""
    times = sorted(rows["at"].unique())
    return pd.Timedelta(times[1] - times[0]) if len(times) > 1 else pd.Timedelta(minutes=1)


def tasks(field: str, title: str = "tasks") -> alt.Y:
    """Return an axis of whole numbers."""
    return alt.Y(field, title=title, axis=alt.Axis(format=",d", tickMinStep=1, tickCount=5))


def seconds(field: str, title: str, values: pd.Series[float]) -> alt.Y:
    """Return a logarithmic axis of times in words, from milliseconds to days.

    Args:
        field: Name of the field.
        title: Title of the axis.
        values: What is drawn, in seconds.
    """
    shown = values.clip(lower=SHORTEST_SECONDS)
    least, most = (shown.min(), shown.max()) if len(shown) else (SHORTEST_SECONDS, 1.0)
    begin = max((tick for tick in TICKS_SECONDS if tick <= least), default=SHORTEST_SECONDS)
    end = min((tick for tick in TICKS_SECONDS if tick >= most and tick > begin), default=max(most, 2 * begin))
    ticks = [tick for tick in TICKS_SECONDS if begin <= tick <= end]
    scale = alt.Scale(type="log", domain=[begin, end], clamp=True, nice=False)
    axis = alt.Axis(values=_fewer(ticks), labelExpr=_IN_WORDS)
    return alt.Y(field, title=title, scale=scale, axis=axis)


def _fewer(ticks: list[float]) -> list[float]:
    """Leave out ticks evenly until there are at most `MAX_TICKS`."""
    step = -(-len(ticks) // MAX_TICKS)
    return ticks[::step]
