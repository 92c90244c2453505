"""The charts of the report, each of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import altair as alt
import pandas as pd

from freshq.cli.dashboard.palette import Colour
from freshq_pipeline.gold.minutes import HISTOGRAM_BASE
from freshq_pipeline.report import axes
from freshq_pipeline.report.words import age_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Drawn: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

# The version that Altair targets, such as "6.1".
VEGA_LITE: Final = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
SHARES: Final = (0.5, 0.9, 0.99)
FATES: Final = {
    "succeeded": Colour.SUCCESS.value,
    "failed": Colour.FAILURE.value,
    "cancelled": Colour.CANCELLED.value,
    "shed": Colour.SHED.value,
}
# From the palette that FATES are from, in an order of their own.
LINES: Final = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
# The longest label of which three are beside each other on a narrow chart.
LONGEST_OF_THREE: Final = 8
MEASURES: Final = {"in_time": "share done in time", "shed": "share shed", "wait": "p99 wait"}


def _chart(rows: pd.DataFrame, description: str) -> alt.Chart:
    shown = rows.assign(at=rows["at"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")) if "at" in rows else rows
    return axes.chart(json_values(shown), description)


def json_values(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON objects, with null instead of NaN."""
    plain = rows.astype(object).where(rows.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _lines(name: str, names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(LINES[: len(names)]))
    return alt.Color(f"{name}:N", scale=scale, title=None)


def fates(minutes: pd.DataFrame, x: alt.X) -> Drawn:
    """Return a chart of the tasks that ended, by fate, and of those that were put."""
    sums = minutes.groupby("at")[[*FATES, "offered"]].sum().reset_index()
    shown = [fate for fate in FATES if sums[fate].any()]
    # A step is drawn up to the next one.
    end = sums.tail(1).assign(at=sums["at"].max() + axes.step_of(sums))
    sums = pd.concat([sums, end], ignore_index=True)
    ended = sums.melt("at", shown, "fate", "tasks")
    colours = alt.Scale(domain=shown, range=[FATES[fate] for fate in shown])
    bars = _chart(ended, "Tasks that ended over time, by fate").mark_area(interpolate="step-after").encode(
        x=x, y=axes.tasks("tasks:Q"), color=alt.Color("fate:N", scale=colours, title=None),
    )  # fmt: skip
    put = _chart(sums, "Tasks that were put").mark_line(
        interpolate="step-after", color="currentColor", strokeWidth=1
    )
    return alt.layer(bars, put.encode(x=x, y="offered:Q"))


def backlog(minutes: pd.DataFrame, x: alt.X, ages_seconds: Sequence[int]) -> Drawn | None:
    """Return a heat map of the backlog by time and age, with classes that start at `ages_seconds`.

    None if no task waited.
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
    cells["until"] = (cells["at"] + axes.step_of(minutes)).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
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
    """Return a chart of wait percentiles, from the sums of the histograms; None if no task was claimed."""
    rows = []
    for at, one in minutes.groupby("at"):
        found = percentiles(one["wait_histogram"].dropna())
        rows += [
            {"at": at, "percentile": f"p{part * 100:g}", "seconds": seconds}
            for part, seconds in found.items()
        ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).astype({"at": "datetime64[ns]"})
    shown: alt.Chart = _chart(frame, "Waits over time").mark_line(point={"size": 12}).encode(
        x=x, y=axes.seconds("seconds:Q", "wait", frame["seconds"]),
        color=_lines("percentile", [f"p{part * 100:g}" for part in SHARES]),
    )  # fmt: skip
    return shown


def percentiles(histograms: Iterable[Sequence[dict[str, int]]]) -> dict[float, float]:
    """Return percentiles in seconds of the sum of several wait histograms."""
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
    """Return a chart of the ages of waiting tasks, and of the greatest age at a claim; None without any."""
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
        x=x, y=axes.seconds("seconds:Q", "age", rows["seconds"]), color=_lines("what", list(names.values())),
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
    """Return a chart for each of `MEASURES`, with a line for each policy, by capacity."""
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
    return [_replayed(rows, measure, title) for measure, title in MEASURES.items()]


def _replayed(rows: pd.DataFrame, measure: str, title: str) -> Drawn:
    if measure == "wait":
        y = axes.seconds("wait:Q", title, rows["wait"].dropna())
    else:
        y = alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    capacities = sorted(rows["capacity"].unique())
    x = alt.X(
        "capacity:Q", title="times the recorded capacity", scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=capacities, format="~g"),
    )  # fmt: skip
    names = list(dict.fromkeys(rows["policy"]))
    colour = _lines("policy", names) if len(names) <= len(LINES) else alt.Color("policy:N", title=None)
    # A chart so narrow is measured before the number of columns is known.
    colour = colour.legend(columns=3 if max(map(len, names)) <= LONGEST_OF_THREE else 1)
    drawn = _chart(rows, f"{title} by capacity, for each policy").mark_line(point=True)
    # Dashes, because policies that do the same lie on each other.
    dash = alt.StrokeDash("policy:N", sort=names, legend=None)
    shown: alt.Chart = drawn.encode(x=x, y=y, color=colour, strokeDash=dash)
    return shown
