"""The chart of the demonstration: waits and fates, as they were and first in, first out."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import altair as alt

from freshq import TaskStatus
from freshq.cli.dashboard.palette import Colour

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from local.facts import Life
    from local.forecast import Service

IN_TIME: Final = "done in time"
LATE: Final = "done too late"
COLOURS: Final = {
    IN_TIME: Colour.SUCCESS.value,
    LATE: Colour.LATE.value,
    "shed": Colour.SHED.value,
    "failed": Colour.FAILURE.value,
    "cancelled": Colour.CANCELLED.value,
    "pending": Colour.PENDING.value,
    "taken": Colour.TAKEN.value,
}
NAMES: Final = {TaskStatus.FAILURE: "failed"}
LINE_COLOUR: Final = "#404040"
WIDTH: Final = 720
WAITS_HEIGHT: Final = 230
FATES_HEIGHT: Final = 130
TICK_SECONDS: Final = 5
PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the chart shows.

    Attributes:
        lives: All tasks, in order of their puts.
        fifo: What a queue that is first in, first out, with no deadlines, would have done with them.
        load_seconds: How long tasks were put.
        max_age_seconds: Age from which a task was stale.
        capacity_per_second: Tasks per second that the downstream can serve.
    """

    lives: Sequence[Life]
    fifo: Sequence[Service]
    load_seconds: float
    max_age_seconds: float
    capacity_per_second: float

    @property
    def start(self) -> float:
        """The first put, in seconds since the epoch."""
        return self.lives[0].created

    @property
    def end_seconds(self) -> float:
        """The end of the time axis: every task is served or stale."""
        ends = [life.ended - self.start for life in self.lives if life.ended is not None]
        return max([self.load_seconds + self.max_age_seconds, *ends])


def fate_of(life: Life) -> str:
    """Return the name of a task's fate, as the chart has it."""
    if life.fate is not TaskStatus.SUCCESS:
        return NAMES.get(life.fate, life.fate.value.lower())
    return IN_TIME if life.ended is not None and life.ended <= life.deadline else LATE


def draw(shown: Demonstration, subtitle: str, file: Path) -> None:
    """Draw the chart into a file; the suffix chooses the format (png, svg, html).

    Args:
        shown: What to draw.
        subtitle: One line below the title.
        file: Where to write.
    """
    title = alt.TitleParams(
        "Three times the load that can be served", subtitle=subtitle, anchor="start", fontSize=17, offset=12
    )
    freshq = [(life.created - shown.start, fate_of(life)) for life in shown.lives]
    fifo = [(service.put, IN_TIME if service.in_time else LATE) for service in shown.fifo]
    present = [fate for fate in COLOURS if any(fate == found for _put, found in (*freshq, *fifo))]
    chart = alt.vconcat(
        _waits(shown, present),
        _fates(shown, freshq, present, "freshq, newest first: what became of the tasks"),
        _fates(shown, fifo, present, "First in, first out: what would have become of them (simulated)"),
        title=title,
    )
    chart.configure_view(stroke=None).configure_title(anchor="start").save(str(file), scale_factor=2)
    if file.suffix == ".png":
        file.write_bytes(recompressed(file.read_bytes()))


def recompressed(picture: bytes) -> bytes:
    """Return a PNG with the same pixels, a third as large: the renderer compresses for speed.

    Its chunks each have a length, a kind, their data, and a checksum of kind and data (PNG specification,
    section 5.3). All of IDAT are one stream of zlib.
    """
    chunks: list[tuple[bytes, bytes]] = []
    at = len(PNG_SIGNATURE)
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        chunks.append((picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]))
        at += length + 12
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    header, end = ([chunk for chunk in chunks if chunk[0] == kind] for kind in (b"IHDR", b"IEND"))
    rest = [chunk for chunk in chunks if chunk[0] not in (b"IHDR", b"IDAT", b"IEND")]
    parts = [*header, *rest, (b"IDAT", zlib.compress(pixels, level=9)), *end]
    return PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _seconds(shown: Demonstration, field: str, title: str) -> alt.X:
    """Return the time axis, the same for all panels."""
    ticks = list(range(0, int(shown.end_seconds) + 1, TICK_SECONDS))
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(domain=[0, shown.end_seconds], nice=False, padding=0),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )


def _waits(shown: Demonstration, present: list[str]) -> alt.LayerChart:
    freshq = [
        {"started": life.claims[0].taken - shown.start, "wait": life.wait_seconds, "fate": fate_of(life)}
        for life in shown.lives
        if life.fate is TaskStatus.SUCCESS
    ]
    fifo = [
        {
            "started": service.started,
            "wait": service.started - service.put,
            "fate": IN_TIME if service.in_time else LATE,
        }
        for service in shown.fifo
        if service.started <= shown.end_seconds
    ]
    points = [
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(size=26, opacity=0.75, filled=filled, strokeWidth=1.2)
        .encode(
            x=_seconds(shown, "started", "second in which the task was started"),
            y=alt.Y("wait:Q", title="wait (s)"),
            color=_colour(present),
        )
        for rows, filled in ((fifo, False), (freshq, True))
    ]
    names = [_label(rows, text) for rows, text in ((fifo, "first in, first out"), (freshq, "freshq"))]
    layers: alt.LayerChart = alt.LayerChart(
        layer=[
            *points,
            *names,
            *_limit(shown.max_age_seconds, "of no use above this line"),
            *_load_ends(shown, text="load ends"),
        ],
        title="How long a task had waited when it was started",
        width=WIDTH,
        height=WAITS_HEIGHT,
    )
    return layers


def _fates(
    shown: Demonstration, puts: Iterable[tuple[float, str]], present: list[str], title: str
) -> alt.LayerChart:
    rows: list[dict[str, Any]] = [
        {"put": int(put), "next": int(put) + 1, "fate": fate, "rank": present.index(fate)}
        for put, fate in puts
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=_seconds(shown, "put", "second in which the task was put"),
            x2="next:Q",
            y=alt.Y("count():Q", title="tasks per second"),
            color=_colour(present),
            order=alt.Order("rank:Q"),
        )
    )
    layers: alt.LayerChart = alt.LayerChart(
        layer=[bars, *_limit(shown.capacity_per_second, "can be served"), *_load_ends(shown)],
        title=title,
        width=WIDTH,
        height=FATES_HEIGHT,
    )
    return layers


def _colour(fates: list[str]) -> alt.Color:
    """Return the colours of fates; the panels share the legend."""
    scale = alt.Scale(domain=fates, range=[COLOURS[fate] for fate in fates])
    return alt.Color(
        "fate:N", scale=scale, legend=alt.Legend(title=None, orient="bottom", symbolType="square")
    )


def _label(rows: list[dict[str, Any]], text: str) -> alt.Chart:
    """Return a name beside the middle of some points."""
    middle = [{**rows[len(rows) // 2], "text": text}] if rows else []
    label: alt.Chart = (
        alt.Chart(alt.InlineData(values=middle))
        .mark_text(align="right", dx=-10, dy=-10, fontSize=12, fontWeight="bold", color=LINE_COLOUR)
        .encode(x="started:Q", y="wait:Q", text="text:N")
    )
    return label


def _limit(value: float, text: str) -> list[alt.Chart]:
    """Return a dashed line across a panel, and its label at the right end, where the panels are empty."""
    data = alt.InlineData(values=[{"limit": value, "text": text}])
    line = alt.Chart(data).mark_rule(strokeDash=[6, 4], color=LINE_COLOUR).encode(y="limit:Q")
    label = (
        alt.Chart(data)
        .mark_text(align="right", baseline="bottom", dy=-3, color=LINE_COLOUR, fontWeight="bold")
        .encode(x=alt.value(WIDTH - 4), y="limit:Q", text="text:N")
    )
    return [line, label]


def _load_ends(shown: Demonstration, text: str | None = None) -> list[alt.Chart]:
    """Return a line at the end of the load, with its label if the panel has one."""
    data = alt.InlineData(values=[{"at": shown.load_seconds, "text": text}])
    line = alt.Chart(data).mark_rule(color=LINE_COLOUR).encode(x="at:Q")
    if text is None:
        return [line]
    label = (
        alt.Chart(data)
        .mark_text(align="left", baseline="top", dx=4, color=LINE_COLOUR, fontWeight="bold")
        .encode(x="at:Q", y=alt.value(0), text="text:N")
    )
    return [line, label]
