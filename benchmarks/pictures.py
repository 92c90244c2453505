"""Draw docs/overload.png, outage.png and overload_peers.png from the results.

The templates are charts of Vega-Lite (https://vega.github.io/vega-lite/docs).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
from local.demo import recompressed

from benchmarks.overload_setting import BURST_FACTOR, BURST_SECONDS
from benchmarks.render import rendered
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Mapping[str, Any]]

DOCS: Final = Path("docs")
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
# Area of a point; larger for an order that mostly coincides with LIFO, to show behind LIFO's points.
POINT, WIDE_POINT = 80, 230


def draw_overload(report: Mapping[str, Any]) -> None:
    """Draw goodput under load, a burst, and a quiet tenant beside a flood."""
    points = [
        {
            "load": point["load"],
            "share": point["goodput"],
            "colour": colour,
            "area": WIDE_POINT if name == "adaptive" else POINT,
        }
        for name, (_label, colour) in ORDERS.items()
        for point in report["application"]
        if point["order"] == name
    ]
    burst = {"BURST_FACTOR": BURST_FACTOR, "BURST_SECONDS": BURST_SECONDS}
    _draw("overload", report=report, points=points, ORDERS=ORDERS, TENANTS=TENANTS, **burst)


def draw_outage(rows: Rows, load: float, outage: tuple[float, float]) -> None:
    """Draw the goodput over time around an outage between two times in seconds."""
    _draw("outage", rows=rows, load=load, start=outage[0], end=outage[1], AFTER_OUTAGE=AFTER_OUTAGE)


def draw_peers(by_load: Rows, by_second: Rows, colours: Mapping[str, str], retrying: str) -> None:
    """Draw the shares done in time of several queues by load, and by second with clients that try again.

    Args:
        by_load: Queue, load and share.
        by_second: Queue, second and share.
        colours: Colour of each queue.
        retrying: Title of the part by second.
    """
    _draw("overload_peers", by_load=by_load, by_second=by_second, colours=colours, retrying=retrying)


def _draw(name: str, **figures: Any) -> None:
    chart: Any = alt.Chart.from_dict(json.loads(rendered(f"{name}.json", **figures)))
    file = DOCS / f"{name}.png"
    chart.save(str(file), scale_factor=2)
    file.write_bytes(recompressed(file.read_bytes()))
