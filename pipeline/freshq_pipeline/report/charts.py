"""The charts of the report, each for one queue, in the page's colours and width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import altair as alt
import pandas as pd

from freshq.simulate.sweep import Colour
from freshq_pipeline.gold.minutes import HISTOGRAM_BASE
from freshq_pipeline.report.words import age_labels
from freshq_pipeline.schemas import WAIT_PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Drawn: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
# The Vega-Lite version that Altair targets, such as "6.1".
VEGA_LITE: Final = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
SHARES: Final = tuple(WAIT_PERCENTILES.values())
# Dashes of their lines, and areas of their points: later ones are drawn above earlier ones.
DASHES: Final = ([1, 0], [1, 0], [4, 4])
POINTS: Final = (60, 36, 12)
FATES: Final = {
    "succeeded": Colour.SUCCESS.value,
    "failed": Colour.FAILURE.value,
    "cancelled": Colour.CANCELLED.value,
    "shed": Colour.SHED.value,
}
# Colours of the same palette, in another order.
LINES: Final = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
# The longest label that still lets three columns of a legend fit a narrow chart.
LONGEST_OF_THREE: Final = 8
MEASURES: Final = {"in_time": "share done in time", "shed": "share shed", "wait": "p99 wait"}
HEIGHT: Final = 200
# Width of a tick's label.
TICK_PIXELS: Final = 75
# Width of a legend's entry.
LEGEND_PIXELS: Final = 130
TICKS_SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800),
    *(3600, 7200, 18_000, 36_000, 86_400, 172_800, 604_800),
)
# The shortest time on an axis; shorter times are drawn there.
SHORTEST_SECONDS: Final = TICKS_SECONDS[0]
MAX_TICKS: Final = 9
_IN_WORDS: Final = (
    "datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms'"
    " : datum.value < 60 ? format(datum.value, '~r') + ' s'"
    " : datum.value < 3600 ? format(datum.value / 60, '~r') + ' min'"
    " : format(datum.value / 3600, '~r') + ' h'"
)
_INK: Final = "currentColor"
# Text and lines have the colour of the page, which is light or dark.
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


def _chart(rows: pd.DataFrame, description: str) -> alt.Chart:
    """Return an empty chart of rows, as wide as its place on the page.

    The rows become part of the page, because there is no server to load them from.

    Args:
        rows: The rows.
        description: Description for screen readers.
    """
    shown = rows.assign(at=rows["at"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")) if "at" in rows else rows
    data = alt.InlineData(values=_json_values(shown))
    return alt.Chart(data, width="container", height=HEIGHT, description=description)


def _json_values(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON objects, with null instead of NaN."""
    plain = rows.astype(object).where(rows.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def dressed(drawn: Drawn) -> dict[str, Any]:
    """Return a chart as Vega-Lite, in the style of the page and within its width."""
    shown: dict[str, Any] = drawn.to_dict()
    return shown | {"config": CONFIG, "autosize": {"type": "fit-x", "contains": "padding"}}


def time_axis(minutes: pd.DataFrame) -> alt.X:
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


def count_axis(field: str, title: str = "tasks") -> alt.Y:
    """Return an axis of whole numbers."""
    return alt.Y(field, title=title, axis=alt.Axis(format=",d", tickMinStep=1, tickCount=5))


def seconds_axis(field: str, title: str, values: pd.Series[float]) -> alt.Y:
    """Return a logarithmic axis of times in words, from milliseconds to days.

    Args:
        field: Name of the field.
        title: Title of the axis.
        values: Values of the field, in seconds.
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
    """Drop ticks evenly until at most `MAX_TICKS` are left."""
    step = -(-len(ticks) // MAX_TICKS)
    return ticks[::step]


def _lines(name: str, names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(LINES[: len(names)]))
    return alt.Color(f"{name}:N", scale=scale, title=None)


def fates(minutes: pd.DataFrame, x: alt.X) -> Drawn:
    """Return a chart of finished tasks by fate, and of puts."""
    sums = minutes.groupby("at")[[*FATES, "offered"]].sum().reset_index()
    shown = [fate for fate in FATES if sums[fate].any()]
    # A step extends to the next one.
    end = sums.tail(1).assign(at=sums["at"].max() + step_of(sums))
    sums = pd.concat([sums, end], ignore_index=True)
    ended = sums.melt("at", shown, "fate", "tasks")
    colours = alt.Scale(domain=shown, range=[FATES[fate] for fate in shown])
    bars = _chart(ended, "Tasks that ended over time, by fate").mark_area(interpolate="step-after").encode(
        x=x, y=count_axis("tasks:Q"), color=alt.Color("fate:N", scale=colours, title=None),
    )  # fmt: skip
    put = _chart(sums, "Puts").mark_line(interpolate="step-after", color="currentColor", strokeWidth=1)
    return alt.layer(bars, put.encode(x=x, y="offered:Q"))


def backlog(minutes: pd.DataFrame, x: alt.X, ages_seconds: Sequence[int]) -> Drawn | None:
    """Return a heat map of the backlog by time and age; None if no task waited.

    Args:
        minutes: The time steps.
        x: The time axis.
        ages_seconds: Lower bounds of the age classes.
    """
    labels = age_labels(ages_seconds)
    rows = minutes[["at", "minute_ms", "backlog_by_age"]].explode("backlog_by_age").dropna()
    if not len(rows):
        return None
    rows["from"] = [one["from_seconds"] for one in rows["backlog_by_age"]]
    rows["count"] = [one["count"] for one in rows["backlog_by_age"]]
    in_minute = rows.groupby(["at", "minute_ms", "from"])["count"].sum().reset_index()
    cells = in_minute.groupby(["at", "from"])["count"].max().reset_index()
    cells["age"] = cells["from"].map(dict(zip(ages_seconds, labels, strict=True)))
    cells["until"] = (cells["at"] + step_of(minutes)).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    oldest = labels.index(cells["age"].iloc[cells["from"].argmax()])
    most = int(cells["count"].max())
    scale = alt.Scale(scheme="viridis", type="symlog", domain=[0, most])
    legend = alt.Legend(format=",d", values=[0, most])
    shown: alt.Chart = _chart(cells, "Waiting tasks over time, by age").mark_rect().encode(
        x=x, x2="until:T",
        y=alt.Y("age:N", sort=list(reversed(labels)), title=None, scale=alt.Scale(domain=labels[oldest::-1])),
        color=alt.Color("count:Q", title="tasks", scale=scale, legend=legend),
    )  # fmt: skip
    return shown.properties(height=alt.Step(24))


def waits(minutes: pd.DataFrame, x: alt.X) -> Drawn | None:
    """Return a chart of wait percentiles; None if no task was claimed."""
    rows = [
        {"at": at, "percentile": f"p{part * 100:g}", "seconds": seconds}
        for at, one in minutes.groupby("at")
        for part, seconds in percentiles(one["wait_histogram"].dropna()).items()
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).astype({"at": "datetime64[ns]"})
    names = [f"p{part * 100:g}" for part in SHARES]
    base = _chart(frame, "Waits over time").encode(
        x=x, y=seconds_axis("seconds:Q", "wait", frame["seconds"]), color=_lines("percentile", names),
    )  # fmt: skip
    # Percentiles of few claims are equal: dashes, and smaller points above larger ones, keep each visible.
    dash = alt.StrokeDash("percentile:N", scale=alt.Scale(domain=names, range=DASHES), title=None)
    size = alt.Size("percentile:N", scale=alt.Scale(domain=names, range=POINTS), title=None)
    return alt.layer(base.mark_line().encode(strokeDash=dash), base.mark_circle(opacity=1).encode(size=size))


def percentiles(histograms: Iterable[Sequence[dict[str, int]]]) -> dict[float, float]:
    """Return percentiles, in seconds, of the sum of several wait histograms."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for one in histogram:
            counts[one["bucket"]] = counts.get(one["bucket"], 0) + one["count"]
    total, seen, found = sum(counts.values()), 0, {}
    for bucket in sorted(counts):
        seen += counts[bucket]
        for part in SHARES:
            if part not in found and seen >= part * total:
                found[part] = HISTOGRAM_BASE**bucket / 1e6
    return found


def freshness(minutes: pd.DataFrame, x: alt.X) -> Drawn | None:
    """Return a chart of the ages of waiting and claimed tasks; None if there are none."""
    worst = minutes.groupby("at").agg(
        oldest=("oldest_pending_seconds", "max"),
        newest=("newest_pending_seconds", "min"),
        served=("service_horizon_seconds", "max"),
    )
    names = {"newest": "newest waiting", "oldest": "oldest waiting", "served": "oldest claimed"}
    rows = worst.rename(columns=names).reset_index().melt("at", list(names.values()), "what", "seconds")
    rows = rows.dropna()
    if not len(rows):
        return None
    shown: alt.Chart = _chart(rows, "Ages over time").mark_line(point={"size": 12}).encode(
        x=x, y=seconds_axis("seconds:Q", "age", rows["seconds"]), color=_lines("what", list(names.values())),
    )  # fmt: skip
    return shown


def shed(counts: pd.DataFrame) -> Drawn:
    """Return a chart of shed tasks by group and reason."""
    shown: alt.Chart = _chart(counts, "Shed tasks by group and reason").mark_bar().encode(
        x=alt.X("tasks:Q", axis=alt.Axis(format=",d", tickMinStep=1, tickCount=5)),
        y=alt.Y("task_group:N", sort="-x", title=None, axis=alt.Axis(labelLimit=150)),
        color=_lines("shed_reason", sorted(counts["shed_reason"].unique())),
    )  # fmt: skip
    return shown.properties(height=alt.Step(20))


def replayed(scenarios: pd.DataFrame) -> list[Drawn]:
    """Return a chart for each of `MEASURES`, and of values if there are any, by policy and capacity."""
    stale = scenarios["deadline_seconds"].map(
        lambda seconds: "" if pd.isna(seconds) else f", stale at {seconds:g} s"
    )
    rows = pd.DataFrame(
        {
            "policy": scenarios["policy"] + stale,
            "capacity": scenarios["capacity"],
            "in_time": scenarios["served_in_time"] / scenarios["offered"],
            "shed": scenarios["shed_ratio"],
            "wait": scenarios["wait_p99_seconds"],
        }
    )
    measures = MEASURES
    if "value_offered" in scenarios and scenarios["value_offered"].any():
        rows["value"] = scenarios["value_delivered"] / scenarios["value_offered"]
        measures = {"value": "share of the value"} | MEASURES
    return [_replayed(rows, measure, title) for measure, title in measures.items()]


def _replayed(rows: pd.DataFrame, measure: str, title: str) -> Drawn:
    if measure == "wait":
        y = seconds_axis("wait:Q", title, rows["wait"].dropna())
    else:
        y = alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    capacities = sorted(rows["capacity"].unique())
    x = alt.X(
        "capacity:Q", title="times the recorded capacity", scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=capacities, format="~g"),
    )  # fmt: skip
    names = list(dict.fromkeys(rows["policy"]))
    colour = _lines("policy", names) if len(names) <= len(LINES) else alt.Color("policy:N", title=None)
    # The width of such a narrow chart is measured before the number of columns is known.
    colour = colour.legend(columns=3 if max(map(len, names)) <= LONGEST_OF_THREE else 1)
    drawn = _chart(rows, f"{title} by capacity, for each policy").mark_line(point=True)
    # Dashes keep overlapping lines of equal policies apart.
    dash = alt.StrokeDash("policy:N", sort=names, legend=None)
    shown: alt.Chart = drawn.encode(x=x, y=y, color=colour, strokeDash=dash)
    return shown
