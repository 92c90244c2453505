"""The charts of the report, one part per queue."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import altair as alt
import pandas as pd

from freshq_pipeline.tables.minutes import HISTOGRAM_BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Drawn: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart

# The version that Altair targets, such as "6.1".
VEGA_LITE: Final = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
WIDTH: Final = 780
HEIGHT: Final = 200
# Most time steps in a chart; more would be indistinguishable.
MAX_STEPS: Final = 240
MINUTE_MS: Final = 60_000
SHARES: Final = (0.5, 0.9, 0.99)
MAX_GROUPS: Final = 20
# Shown for tasks without a group, and for events without a queue.
NO_NAME: Final = "(none)"
# From the colour-blind safe palette of Okabe and Ito.
FATES: Final = {"succeeded": "#009E73", "failed": "#D55E00", "cancelled": "#999999", "shed": "#E69F00"}


def binned(minutes: pd.DataFrame) -> pd.DataFrame:
    """Return the minutes with `at`, the start of the time step that shows them."""
    first, last = minutes["minute_ms"].min(), minutes["minute_ms"].max()
    width_ms = max(1, math.ceil((last - first + MINUTE_MS) / MINUTE_MS / MAX_STEPS)) * MINUTE_MS
    at = (minutes["minute_ms"] - first) // width_ms * width_ms + first
    return minutes.assign(at=pd.to_datetime(at, unit="ms"))


def _chart(rows: pd.DataFrame) -> alt.Chart:
    # The data is part of the page: there is no server to load it from.
    shown = rows.assign(at=rows["at"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")) if "at" in rows else rows
    values = json_values(shown)
    return alt.Chart(alt.InlineData(values=values), width=WIDTH, height=HEIGHT)


def json_values(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON objects, with null instead of NaN."""
    plain = rows.astype(object).where(rows.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _time(minutes: pd.DataFrame) -> alt.X:
    """Return the time axis, the same for every chart."""
    ends = [f"{end:%Y-%m-%dT%H:%M:%SZ}" for end in (minutes["at"].min(), minutes["at"].max())]
    return alt.X("at:T", title=None, scale=alt.Scale(type="utc", domain=ends))


def _of_each_queue(rows: pd.DataFrame, draw: Callable[[pd.DataFrame], Drawn]) -> alt.TopLevelMixin:
    """Return the charts of all queues below each other, each with the name of its queue."""
    parts = [draw(one).properties(title=f"queue {queue}") for queue, one in rows.groupby("queue")]
    return alt.vconcat(*parts)


def fates(minutes: pd.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of the tasks that ended, by fate, and of those that were put."""
    return _of_each_queue(minutes, partial(_fates, x=_time(minutes)))


def _fates(minutes: pd.DataFrame, x: alt.X) -> alt.LayerChart | alt.FacetChart:
    sums = minutes.groupby("at")[[*FATES, "offered"]].sum().reset_index()
    ended = sums.melt("at", list(FATES), "fate", "tasks")
    colours = alt.Scale(domain=list(FATES), range=list(FATES.values()))
    bars = _chart(ended).mark_area(interpolate="step-after").encode(
        x=x, y=alt.Y("tasks:Q", title="tasks"),
        color=alt.Color("fate:N", scale=colours, title="fate"),
    )  # fmt: skip
    put = _chart(sums).mark_line(interpolate="step-after", color="#000000", strokeWidth=1).encode(
        x=x, y="offered:Q"
    )  # fmt: skip
    return alt.layer(bars, put)


def age_labels(ages_seconds: Sequence[int]) -> list[str]:
    """Return the labels of age classes, given their lower bounds, of which the first is 0."""
    begins = [_in_words(seconds) for seconds in ages_seconds]
    return [f"under {begins[1]}", *begins[1:-1], f"{begins[-1]} and more"]


def _in_words(seconds: int) -> str:
    if seconds < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"  # noqa: PLR2004 - seconds of an hour


def backlog(minutes: pd.DataFrame, ages_seconds: Sequence[int]) -> alt.TopLevelMixin:
    """Return a heat map of the backlog by time and age, with classes that start at `ages_seconds`."""
    draw = partial(_backlog, x=_time(minutes), ages_seconds=ages_seconds)
    return _of_each_queue(minutes, draw)


def _backlog(minutes: pd.DataFrame, x: alt.X, ages_seconds: Sequence[int]) -> alt.Chart:
    labels = age_labels(ages_seconds)
    rows = minutes[["at", "minute_ms", "backlog_by_age"]].explode("backlog_by_age").dropna()
    rows["from"] = [one["from_seconds"] for one in rows["backlog_by_age"]]
    rows["count"] = [one["count"] for one in rows["backlog_by_age"]]
    in_minute = rows.groupby(["at", "minute_ms", "from"])["count"].sum().reset_index()
    cells = in_minute.groupby(["at", "from"])["count"].max().reset_index()
    cells["age"] = cells["from"].map(dict(zip(ages_seconds, labels, strict=True)))
    times = sorted(minutes["at"].unique())
    step = times[1] - times[0] if len(times) > 1 else pd.Timedelta(milliseconds=MINUTE_MS)
    cells["until"] = (cells["at"] + step).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    shown: alt.Chart = _chart(cells).mark_rect().encode(
        x=x, x2="until:T",
        y=alt.Y("age:N", sort=list(reversed(labels)), title="age"),
        color=alt.Color("count:Q", title="tasks", scale=alt.Scale(scheme="viridis", type="symlog")),
    )  # fmt: skip
    return shown


def waits(minutes: pd.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of wait percentiles, from the sums of the histograms of the minutes."""
    return _of_each_queue(minutes, partial(_waits, x=_time(minutes)))


def _waits(minutes: pd.DataFrame, x: alt.X) -> alt.Chart:
    rows = []
    for at, one in minutes.groupby("at"):
        waits = percentiles(one["wait_histogram"].dropna())
        rows += [
            {"at": at, "percentile": f"p{share * 100:g}", "seconds": seconds}
            for share, seconds in waits.items()
        ]
    frame = pd.DataFrame(rows, columns=["at", "percentile", "seconds"]).astype({"at": "datetime64[ns]"})
    scale = alt.Scale(type="symlog", constant=0.01)
    shown: alt.Chart = _chart(frame).mark_line(point={"size": 12}).encode(
        x=x, y=alt.Y("seconds:Q", title="wait, seconds", scale=scale),
        color=alt.Color("percentile:N"),
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
        for share in SHARES:
            if share not in found and seen >= share * total:
                found[share] = HISTOGRAM_BASE**bucket / 1e6
    return found


def freshness(minutes: pd.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of the ages of waiting tasks, and of the greatest age at a claim."""
    return _of_each_queue(minutes, partial(_freshness, x=_time(minutes)))


def _freshness(minutes: pd.DataFrame, x: alt.X) -> alt.Chart:
    worst = minutes.groupby("at").agg(
        oldest=("oldest_pending_seconds", "max"),
        newest=("newest_pending_seconds", "min"),
        served=("service_horizon_seconds", "max"),
    )
    names = {"oldest": "oldest waiting", "newest": "newest waiting", "served": "oldest claimed"}
    rows = worst.rename(columns=names).reset_index().melt("at", list(names.values()), "what", "seconds")
    scale = alt.Scale(type="symlog", constant=1)
    shown: alt.Chart = _chart(rows.dropna()).mark_line(point={"size": 12}).encode(
        x=x, y=alt.Y("seconds:Q", title="age, seconds", scale=scale),
        color=alt.Color("what:N", title=None),
    )  # fmt: skip
    return shown


def shed(tasks: pd.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of shed tasks by group and reason, for the groups with the most."""
    rows = tasks[tasks["outcome"] == "shed"].fillna({"task_group": NO_NAME, "shed_reason": "unknown"})
    return _of_each_queue(rows, _shed) if len(rows) else _shed(rows)


def _shed(rows: pd.DataFrame) -> alt.Chart:
    counts = rows.groupby(["task_group", "shed_reason"]).size().rename("tasks").reset_index()
    most = counts.groupby("task_group")["tasks"].sum().nlargest(MAX_GROUPS).index
    chart = _chart(counts[counts["task_group"].isin(most)]).mark_bar()
    shown: alt.Chart = chart.encode(
        x="tasks:Q",
        y=alt.Y("task_group:N", sort="-x", title="group"),
        color=alt.Color("shed_reason:N", title="reason"),
    ).properties(height=alt.Step(18))
    return shown


def replayed(scenarios: list[dict[str, Any]]) -> alt.TopLevelMixin:
    """Return a chart of each policy's results by capacity."""
    return _of_each_queue(pd.DataFrame(scenarios).fillna({"queue": NO_NAME}), _replayed)


def _replayed(scenarios: pd.DataFrame) -> alt.HConcatChart:
    rows = scenarios.copy()
    rows["in_time_ratio"] = rows["served_in_time"] / rows["offered"]
    stale = rows["deadline_seconds"].map(
        lambda seconds: "" if pd.isna(seconds) else f", stale at {seconds:g} s"
    )
    rows["policy"] = rows["policy"] + stale
    measures = {
        "in_time_ratio": "share done in time",
        "shed_ratio": "share shed",
        "wait_p99_seconds": "p99 wait, s",
    }
    shown = rows[["policy", "capacity", *measures]]
    panels = [
        _chart(shown).mark_line(point=True).encode(
            x=alt.X("capacity:Q", title="capacity, times the recorded", scale=alt.Scale(type="log", base=2)),
            y=alt.Y(f"{name}:Q", title=title),
            color="policy:N",
        ).properties(width=210)
        for name, title in measures.items()
    ]  # fmt: skip
    panel: alt.HConcatChart = alt.hconcat(*panels)
    return panel
