"""The picture docs/overload.png: goodput under load, a burst, and a quiet tenant beside a flood."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
from local.demo import recompressed

from benchmarks.overload_setting import BURST_FACTOR, BURST_SECONDS
from freshq.cli.dashboard.palette import Colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PICTURE: Final = Path("docs/overload.png")
INK: Final = "#303030"
WIDTH: Final = 700
HEIGHT: Final = 250
SMALL_WIDTH: Final = 305
SMALL_HEIGHT: Final = 165
SUBTITLE: Final = (
    "Lines: simulated, means of ten seeds (the burst: of 500), shaded by their 95 % intervals. "
    "Points: the deployed application, on an emulator."
)
# Seconds before and after the beginning of the burst.
SHOWN: Final = (-20, 50)
SHADE: Final = "#F0F0F0"
# Of an order that does mostly what LIFO does: its line and its points show behind LIFO's.
WIDE: Final = "adaptive"
POINT, WIDE_POINT = 80, 230
# What each line is called beside it, and its colour; the later ones are drawn above the others.
ORDERS: Final = {
    "adaptive": ("freshq, adaptive", Colour.SUCCESS.value),
    "LIFO": ("freshq, newest first", Colour.TAKEN.value),
    "FIFO": ("first in, first out", Colour.FAILURE.value),
    "JavaScript prototype": ("JavaScript prototype", Colour.CANCELLED.value),
}
TENANTS: Final = {
    "newest first, groups in turn": ("freshq, groups in turn", Colour.TAKEN.value),
    "newest first, one line": ("newest first, one line", Colour.PENDING.value),
    "first in, first out": ("first in, first out", Colour.FAILURE.value),
}
LOAD_TICKS: Final = (0.5, 1, 2, 3, 5, 10)
LOAD_SHOWN: Final = (0.46, 10.6)


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Draw the results of `benchmarks.overload` into a PNG."""
    title = alt.TitleParams(
        "Work that is done in time, when more arrives than can be done",
        subtitle=SUBTITLE,
        anchor="start",
        fontSize=18,
        subtitleFontSize=12.5,
        offset=10,
        color=INK,
    )
    small = alt.hconcat(_burst(report["by_second_of_burst"]), _flood(report["by_flood"]), spacing=28)
    chart = alt.vconcat(_loads(report), small, title=title, spacing=22)
    chart = (
        chart.configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=12.5, labelColor=INK, titleColor=INK, titleFontWeight="normal"
        )
        .configure_title(fontSize=14, anchor="start", color=INK, subtitleColor=INK)
    )
    chart.save(str(file), scale_factor=2)
    file.write_bytes(recompressed(file.read_bytes()))


def _loads(report: Mapping[str, Any]) -> Any:
    rows = [{**row, **_band(row)} for row in report["by_load"]]
    x, y = _load_axis("load, as a multiple of what can be done"), _share("done in time, of what can be done")
    return alt.layer(
        _ideal(x),
        *_lines(rows, "order", ORDERS, x, y),
        _points(report["application"], x, y),
        *_names(
            [
                _name("LIFO", 4.7, 1.05),
                _name("adaptive", 2.1, 1.05),
                _name("FIFO", 1.38, 0.3),
                _name("JavaScript prototype", 4.7, 0.86),
            ],
            ORDERS,
            x,
            y,
        ),
    ).properties(width=WIDTH, height=HEIGHT)


def _burst(rows: Sequence[Mapping[str, Any]]) -> Any:
    scale = alt.Scale(domain=list(SHOWN), nice=False, clamp=True)
    x = alt.X(
        "second:Q",
        title="seconds from the beginning of the burst",
        scale=scale,
        axis=alt.Axis(values=list(range(-20, 51, 10)), format="d", grid=False),
    )
    y = _share("of those put then, in time")
    shown = [{**row, **_band(row)} for row in rows if SHOWN[0] <= row["second"] <= SHOWN[1]]
    shade = (
        alt.Chart(alt.InlineData(values=[{"from": 0, "to": BURST_SECONDS}]))
        .mark_rect(color=SHADE)
        .encode(x=alt.X("from:Q", scale=scale), x2="to:Q")
    )
    return alt.layer(
        shade,
        *_lines(shown, "order", ORDERS, x, y),
        *_names([_name("FIFO", 25.5, 0.42, "second")], ORDERS, x, y),
    ).properties(
        width=SMALL_WIDTH,
        height=SMALL_HEIGHT,
        title=f"A burst of {BURST_FACTOR:g} times the load, {BURST_SECONDS:g} s long",
    )


def _flood(figures: Sequence[Mapping[str, Any]]) -> Any:
    rows = [{**row, **_band(row)} for row in figures]
    x, y = _load_axis("load of the flood"), _share("its tasks done in time")
    return alt.layer(
        *_lines(rows, "tenants", TENANTS, x, y),
        *_names(
            [
                _name("newest first, groups in turn", 1.2, 1.055),
                _name("newest first, one line", 2.0, 0.56),
                _name("first in, first out", 1.35, 0.09),
            ],
            TENANTS,
            x,
            y,
        ),
    ).properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title="A quiet tenant beside a flood")


def _width(name: str) -> float:
    """Return the width of a line."""
    return 5.0 if name == WIDE else 2.2


def _band(row: Mapping[str, Any]) -> dict[str, float]:
    low, high = row["mean"] - row["half_width"], row["mean"] + row["half_width"]
    return {"low": max(0.0, low), "high": min(1.0, high)}


def _lines(
    rows: Sequence[Mapping[str, Any]], kind: str, kinds: Mapping[str, tuple[str, str]], x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    layers = []
    for name, (_text, colour) in kinds.items():
        chart = alt.Chart(alt.InlineData(values=[row for row in rows if row[kind] == name]))
        layers += [
            chart.mark_area(color=colour, opacity=0.25).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            chart.mark_line(strokeWidth=_width(name), strokeJoin="round", color=colour).encode(x=x, y=y),
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
        for name, (_text, colour) in ORDERS.items()
        for point in points
        if point["order"] == name
    ]
    marks: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=True, opacity=1, stroke="white", strokeWidth=1.2)
        .encode(x=x, y=y, color=alt.Color("colour:N", scale=None), size=alt.Size("area:Q", scale=None))
    )
    return marks


def _name(name: str, at: float, share: float, axis: str = "load") -> dict[str, Any]:
    """Return where the name of a line begins."""
    return {"name": name, axis: at, "mean": share}


def _names(
    labels: Sequence[Mapping[str, Any]], kinds: Mapping[str, tuple[str, str]], x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    return [
        alt.Chart(alt.InlineData(values=[{**label, "text": kinds[label["name"]][0]}]))
        .mark_text(align="left", fontSize=13, fontWeight="bold", color=kinds[label["name"]][1])
        .encode(x=x, y=y, text="text:N")
        for label in labels
    ]


def _ideal(x: alt.X) -> alt.Chart:
    best = [{"load": load, "best": min(load, 1.0)} for load in (0.5, 1.0, 10.0)]
    line: alt.Chart = (
        alt.Chart(alt.InlineData(values=best))
        .mark_line(strokeDash=[5, 4], color=INK, strokeWidth=1)
        .encode(x=x, y="best:Q")
    )
    return line


def _load_axis(title: str) -> alt.X:
    return alt.X(
        "load:Q",
        title=title,
        scale=alt.Scale(type="log", domain=list(LOAD_SHOWN), clamp=True),
        axis=alt.Axis(values=list(LOAD_TICKS), format="~g", labelFlush=False, grid=False),
    )


def _share(title: str, field: str = "mean") -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        title=title,
        axis=alt.Axis(format=".0%", tickCount=5, gridColor="#E4E4E4", domain=False),
        scale=alt.Scale(domain=[0, 1.1]),
    )
