"""Draw docs/overload.png, outage.png and overload_peers.png from the results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
from local.demo import recompressed

from benchmarks.overload_setting import BURST_FACTOR, BURST_SECONDS
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Rows = Sequence[Mapping[str, Any]]

DOCS: Final = Path("docs")
INK: Final = "#303030"
SHADE: Final = "#F0F0F0"
WIDTH: Final = 700
SMALL_WIDTH: Final = 305
# Seconds before and after the start of the burst.
SHOWN: Final = (-20, 50)
# An order that mostly coincides with LIFO: its line and its points must show behind LIFO's.
WIDE: Final = "adaptive"
POINT, WIDE_POINT = 80, 230
# Label and colour of each line; later lines are drawn above earlier ones.
ORDERS: Final = {
    "adaptive": ("freshq, adaptive", Colour.SUCCESS.value),
    "LIFO": ("freshq, newest first", Colour.TAKEN.value),
    "FIFO": ("FIFO", Colour.FAILURE.value),
    "JavaScript prototype": ("JavaScript prototype", Colour.CANCELLED.value),
}
TENANTS: Final = {
    "newest first, groups in turn": ("freshq, groups in turn", Colour.TAKEN.value),
    "newest first, one line": ("newest first, one line", Colour.PENDING.value),
    "first in, first out": ("FIFO", Colour.FAILURE.value),
}
AFTER_OUTAGE: Final = {
    name: (name, colour.value)
    for name, colour in {
        "FIFO": Colour.CANCELLED,
        "FIFO with a deadline": Colour.FAILURE,
        "FIFO with a deadline and the reserve": Colour.SHED,
        "LIFO with a deadline": Colour.TAKEN,
    }.items()
}
# Where the label of each line starts.
Places = dict[str, tuple[float, float]]
LOAD_PLACES: Final[Places] = {
    "LIFO": (4.7, 1.05),
    "adaptive": (2.1, 1.05),
    "FIFO": (1.38, 0.3),
    "JavaScript prototype": (4.7, 0.86),
}
BURST_PLACES: Final[Places] = {"FIFO": (25.5, 0.42)}
TENANT_PLACES: Final[Places] = {
    "newest first, groups in turn": (1.2, 1.055),
    "newest first, one line": (2.0, 0.56),
    "first in, first out": (1.35, 0.09),
}
OUTAGE_PLACES: Final[Places] = {
    "FIFO": (222.0, 0.14),
    "FIFO with a deadline": (150.0, 0.14),
    "FIFO with a deadline and the reserve": (165.0, 0.8),
    "LIFO with a deadline": (165.0, 1.1),
}
LOAD_TICKS: Final = (0.5, 1, 2, 3, 5, 10)
LOAD_SHOWN: Final = (0.46, 10.6)


def draw_overload(report: Mapping[str, Any]) -> None:
    """Draw goodput under load, a burst, and a quiet tenant beside a flood."""
    small = alt.hconcat(_burst(report["by_second_of_burst"]), _flood(report["by_flood"]), spacing=28)
    _save(
        alt.vconcat(_loads(report), small, spacing=22),
        "overload",
        "Work done in time under overload",
        "Lines: simulated, means of ten seeds (the burst: 500) with 95% intervals. "
        "Points: the deployed application on an emulator.",
    )


def draw_outage(rows: Rows, load: float, outage: tuple[float, float]) -> None:
    """Draw the goodput over time around an outage between two times in seconds."""
    x = alt.X("seconds:Q", title="seconds", axis=alt.Axis(grid=False), scale=alt.Scale(domain=[0, 240]))
    y = _share("done in time / arrivals", most=1.5)
    layers = [
        _shaded(*outage),
        *_lines(rows, "order", AFTER_OUTAGE, x, y),
        *_labels(OUTAGE_PLACES, AFTER_OUTAGE, x, y, "seconds"),
        *_labels({"outage": (outage[0] + 2, 1.44)}, {"outage": ("outage", INK)}, x, y, "seconds"),
    ]
    _save(
        alt.layer(*layers).properties(width=WIDTH, height=240),
        "outage",
        "After an outage, when clients try again",
        f"Load {load:g} of the capacity; clients wait 5 s and try three more times. Means of ten seeds.",
    )


def draw_peers(by_load: Rows, by_second: Rows, colours: Mapping[str, str], retrying: str) -> None:
    """Draw the shares done in time of several queues by load, and by second with clients that try again.

    Args:
        by_load: Queue, load and share.
        by_second: Queue, second and share.
        colours: Colour of each queue.
        retrying: Title of the part by second.
    """
    colour = alt.Color(
        "queue:N",
        scale=alt.Scale(domain=[*colours], range=[*colours.values()]),
        legend=alt.Legend(title=None, orient="bottom", columns=4, labelFontSize=12.5, symbolStrokeWidth=3),
    )
    load = alt.X("load:O", title="load / capacity", axis=alt.Axis(labelAngle=0, grid=False), sort=None)
    second = alt.X("second:Q", title="seconds", axis=alt.Axis(grid=False))
    parts = [
        _chart(rows)
        .mark_line(strokeWidth=2.4, opacity=0.9)
        .encode(x=x, y=_share(share), color=colour)
        .properties(width=330, height=240, title=title)
        for rows, x, title, share in (
            (by_load, load, "Done in time, by load", "done in time / possible"),
            (by_second, second, retrying, "done in time, by second of put"),
        )
    ]
    _save(alt.hconcat(*parts, spacing=30), "overload_peers")


def _save(chart: Any, name: str, title: str = "", subtitle: str = "") -> None:
    if title:
        chart = chart.properties(
            title=alt.TitleParams(
                title, subtitle=subtitle, anchor="start", fontSize=18, subtitleFontSize=12.5, offset=10
            )
        )
    chart = (
        chart.configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=12.5, labelColor=INK, titleColor=INK, titleFontWeight="normal"
        )
        .configure_title(fontSize=14, anchor="start", color=INK, subtitleColor=INK)
    )
    file = DOCS / f"{name}.png"
    chart.save(str(file), scale_factor=2)
    file.write_bytes(recompressed(file.read_bytes()))


def _loads(report: Mapping[str, Any]) -> Any:
    x, y = _load_axis("load / capacity"), _share("done in time / possible")
    best = [{"load": load, "share": min(load, 1.0)} for load in (0.5, 1.0, 10.0)]
    return alt.layer(
        _chart(best).mark_line(strokeDash=[5, 4], color=INK, strokeWidth=1).encode(x=x, y=y),
        *_lines(report["by_load"], "order", ORDERS, x, y),
        _points(report["application"], x, y),
        *_labels(LOAD_PLACES, ORDERS, x, y),
    ).properties(width=WIDTH, height=250)


def _burst(rows: Rows) -> Any:
    scale = alt.Scale(domain=list(SHOWN), nice=False, clamp=True)
    axis = alt.Axis(values=list(range(-20, 51, 10)), format="d", grid=False)
    x = alt.X("second:Q", title="seconds since the start of the burst", scale=scale, axis=axis)
    y = _share("done in time, by second of put")
    shown = [row for row in rows if SHOWN[0] <= row["second"] <= SHOWN[1]]
    lines = [*_lines(shown, "order", ORDERS, x, y), *_labels(BURST_PLACES, ORDERS, x, y, "second")]
    title = f"A burst of {BURST_FACTOR:g} times the load, {BURST_SECONDS:g} s long"
    return alt.layer(_shaded(0, BURST_SECONDS), *lines).properties(width=SMALL_WIDTH, height=165, title=title)


def _flood(rows: Rows) -> Any:
    x, y = _load_axis("load of the flood"), _share("done in time")
    lines = [*_lines(rows, "tenants", TENANTS, x, y), *_labels(TENANT_PLACES, TENANTS, x, y)]
    title = "A quiet tenant beside a flood"
    return alt.layer(*lines).properties(width=SMALL_WIDTH, height=165, title=title)


def _chart(rows: Iterable[Mapping[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=[*rows]))


def _shaded(start: float, end: float) -> alt.Chart:
    span: alt.Chart = (
        _chart([{"from": start, "to": end}]).mark_rect(color=SHADE).encode(x="from:Q", x2="to:Q")
    )
    return span


def _lines(
    rows: Rows, kind: str, kinds: Mapping[str, tuple[str, str]], x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """Return the line of each kind, shaded by its interval if it has one."""
    layers = []
    for name, (_label, colour) in kinds.items():
        chart = _chart(_bounded(row) for row in rows if row[kind] == name)
        width = 5.0 if name == WIDE else 2.2
        layers += [
            chart.mark_area(color=colour, opacity=0.25).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            chart.mark_line(strokeWidth=width, strokeJoin="round", color=colour).encode(x=x, y=y),
        ]
    return layers


def _bounded(row: Mapping[str, Any]) -> dict[str, Any]:
    share, half = row.get("mean", row.get("share")), row.get("half_width", 0.0)
    return {**row, "share": share, "low": max(0.0, share - half), "high": min(max(1.0, share), share + half)}


def _points(points: Rows, x: alt.X, y: alt.Y) -> alt.Chart:
    rows = [
        {
            "load": point["load"],
            "share": point["goodput"],
            "colour": colour,
            "area": WIDE_POINT if name == WIDE else POINT,
        }
        for name, (_label, colour) in ORDERS.items()
        for point in points
        if point["order"] == name
    ]
    marks = _chart(rows).mark_point(filled=True, opacity=1, stroke="white", strokeWidth=1.2)
    colours, areas = alt.Color("colour:N", scale=None), alt.Size("area:Q", scale=None)
    shown: alt.Chart = marks.encode(x=x, y=y, color=colours, size=areas)
    return shown


def _labels(
    places: Places, kinds: Mapping[str, tuple[str, str]], x: alt.X, y: alt.Y, axis: str = "load"
) -> list[alt.Chart]:
    return [
        _chart([{axis: at, "share": share, "text": kinds[name][0]}])
        .mark_text(align="left", fontSize=13, fontWeight="bold", color=kinds[name][1])
        .encode(x=x, y=y, text="text:N")
        for name, (at, share) in places.items()
    ]


def _load_axis(title: str) -> alt.X:
    return alt.X(
        "load:Q",
        title=title,
        scale=alt.Scale(type="log", domain=list(LOAD_SHOWN), clamp=True),
        axis=alt.Axis(values=list(LOAD_TICKS), format="~g", labelFlush=False, grid=False),
    )


def _share(title: str, most: float = 1.1) -> alt.Y:
    return alt.Y(
        "share:Q",
        title=title,
        axis=alt.Axis(format=".0%", tickCount=5, gridColor="#E4E4E4", domain=False),
        scale=alt.Scale(domain=[0, most], clamp=True),
    )
