"""Draw docs/overload.png: goodput under load, a burst, and a quiet tenant alongside a flood."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
from local.demo import recompressed

from benchmarks.overload_setting import BURST_FACTOR, BURST_SECONDS
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PICTURE: Final = Path("docs/overload.png")
INK: Final = "#303030"
WIDTH: Final = 700
HEIGHT: Final = 250
SMALL_WIDTH: Final = 305
SMALL_HEIGHT: Final = 165
SUBTITLE: Final = (
    "Lines: simulated, means of ten seeds (the burst: 500) with 95% intervals. "
    "Points: the deployed application on an emulator."
)
# Seconds before and after the start of the burst.
SHOWN: Final = (-20, 50)
SHADE: Final = "#F0F0F0"
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
LOAD_TICKS: Final = (0.5, 1, 2, 3, 5, 10)
LOAD_SHOWN: Final = (0.46, 10.6)


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Draw the results of `benchmarks.overload` into a PNG."""
    title = alt.TitleParams(
        "Work done in time under overload",
        subtitle=SUBTITLE,
        anchor="start",
        fontSize=18,
        subtitleFontSize=12.5,
        offset=10,
        color=INK,
    )
    small = alt.hconcat(_burst(report["by_second_of_burst"]), _flood(report["by_flood"]), spacing=28)
    chart = (
        alt.vconcat(_loads(report), small, title=title, spacing=22)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=12.5, labelColor=INK, titleColor=INK, titleFontWeight="normal"
        )
        .configure_title(fontSize=14, anchor="start", color=INK, subtitleColor=INK)
    )
    chart.save(str(file), scale_factor=2)
    file.write_bytes(recompressed(file.read_bytes()))


def _loads(report: Mapping[str, Any]) -> Any:
    x, y = _load_axis("load / capacity"), _share("done in time / possible")
    best = [{"load": load, "mean": min(load, 1.0)} for load in (0.5, 1.0, 10.0)]
    return alt.layer(
        _chart(best).mark_line(strokeDash=[5, 4], color=INK, strokeWidth=1).encode(x=x, y=y),
        *_lines(report["by_load"], "order", ORDERS, x, y),
        _points(report["application"], x, y),
        *_labels(LOAD_PLACES, ORDERS, x, y),
    ).properties(width=WIDTH, height=HEIGHT)


def _burst(rows: Sequence[Mapping[str, Any]]) -> Any:
    scale = alt.Scale(domain=list(SHOWN), nice=False, clamp=True)
    axis = alt.Axis(values=list(range(-20, 51, 10)), format="d", grid=False)
    x = alt.X("second:Q", title="seconds since the start of the burst", scale=scale, axis=axis)
    y = _share("done in time, by second of put")
    shown = [row for row in rows if SHOWN[0] <= row["second"] <= SHOWN[1]]
    shade = (
        _chart([{"from": 0, "to": BURST_SECONDS}])
        .mark_rect(color=SHADE)
        .encode(x=alt.X("from:Q", scale=scale), x2="to:Q")
    )
    return alt.layer(
        shade, *_lines(shown, "order", ORDERS, x, y), *_labels(BURST_PLACES, ORDERS, x, y, "second")
    ).properties(
        width=SMALL_WIDTH,
        height=SMALL_HEIGHT,
        title=f"A burst of {BURST_FACTOR:g} times the load, {BURST_SECONDS:g} s long",
    )


def _flood(rows: Sequence[Mapping[str, Any]]) -> Any:
    x, y = _load_axis("load of the flood"), _share("done in time")
    return alt.layer(
        *_lines(rows, "tenants", TENANTS, x, y), *_labels(TENANT_PLACES, TENANTS, x, y)
    ).properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title="A quiet tenant beside a flood")


def _chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=[*rows]))


def _lines(
    rows: Sequence[Mapping[str, Any]], kind: str, kinds: Mapping[str, tuple[str, str]], x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """Return the line of each kind, shaded by its interval."""
    layers = []
    for name, (_label, colour) in kinds.items():
        chart = _chart(
            [
                {
                    **row,
                    "low": max(0.0, row["mean"] - row["half_width"]),
                    "high": min(1.0, row["mean"] + row["half_width"]),
                }
                for row in rows
                if row[kind] == name
            ]
        )
        width = 5.0 if name == WIDE else 2.2
        layers += [
            chart.mark_area(color=colour, opacity=0.25).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            chart.mark_line(strokeWidth=width, strokeJoin="round", color=colour).encode(x=x, y=y),
        ]
    return layers


def _points(points: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y) -> alt.Chart:
    rows = [
        {
            "load": point["load"],
            "mean": point["goodput"],
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
        _chart([{axis: at, "mean": share, "text": kinds[name][0]}])
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


def _share(title: str) -> alt.Y:
    return alt.Y(
        "mean:Q",
        title=title,
        axis=alt.Axis(format=".0%", tickCount=5, gridColor="#E4E4E4", domain=False),
        scale=alt.Scale(domain=[0, 1.1]),
    )
