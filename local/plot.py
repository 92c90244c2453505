"""The chart of the demonstration: waits of the successful tasks and the fate of every task, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import altair as alt

from freshq import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from local.facts import Life

# The colours also differ in brightness, so that everyone can distinguish them, also in print.
COLOURS: Final = {
    TaskStatus.SUCCESS: "#1b7837",
    TaskStatus.SHED: "#c8c8c8",
    TaskStatus.FAILURE: "#b2182b",
    TaskStatus.CANCELLED: "#762a83",
    TaskStatus.PENDING: "#f4a582",
    TaskStatus.TAKEN: "#4393c3",
}
LIMIT_COLOUR: Final = "#404040"
WIDTH: Final = 720


def _fates(lives: Sequence[Life], start: float, capacity_per_second: float) -> alt.LayerChart:
    present = [status for status in COLOURS if any(life.fate is status for life in lives)]
    rows: list[dict[str, Any]] = [
        {"put": life.created - start, "fate": life.fate.value, "rank": present.index(life.fate)}
        for life in lives
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "put:Q",
                bin=alt.Bin(step=1),
                title="second in which the task was put",
                axis=alt.Axis(format="d", grid=False),
            ),
            y=alt.Y("count():Q", title="tasks per second"),
            color=alt.Color(
                "fate:N",
                scale=alt.Scale(domain=present, range=[COLOURS[status] for status in present]),
                legend=alt.Legend(title="fate", orient="right"),
            ),
            order=alt.Order("rank:Q"),
        )
    )
    layers: alt.LayerChart = alt.LayerChart(
        layer=[bars, *_limit(capacity_per_second, "can be served")],
        title="What became of the tasks",
        width=WIDTH,
        height=190,
    )
    return layers


def _limit(value: float, text: str) -> list[alt.Chart]:
    """Return a dashed line across a chart, and its label."""
    data = alt.InlineData(values=[{"limit": value, "text": text}])
    line = alt.Chart(data).mark_rule(strokeDash=[6, 4], color=LIMIT_COLOUR).encode(y="limit:Q")
    label = (
        alt.Chart(data)
        .mark_text(align="left", baseline="bottom", dy=-3, x=4, color=LIMIT_COLOUR, fontWeight="bold")
        .encode(y="limit:Q", text="text:N")
    )
    return [line, label]


def _waits(lives: Sequence[Life], start: float, max_age_seconds: float) -> alt.LayerChart:
    rows = [
        {"claimed": life.claims[0].taken - start, "wait": life.wait_seconds}
        for life in lives
        if life.fate is TaskStatus.SUCCESS and life.claims
    ]
    points = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_circle(size=22, opacity=0.6, color=COLOURS[TaskStatus.SUCCESS])
        .encode(
            x=alt.X("claimed:Q", title="second in which the task was claimed", axis=alt.Axis(grid=True)),
            y=alt.Y("wait:Q", title="wait (s)", scale=alt.Scale(domain=[0, max_age_seconds * 1.15])),
        )
    )
    layers: alt.LayerChart = alt.LayerChart(
        layer=[points, *_limit(max_age_seconds, "stale above this line")],
        title="Waits of the tasks that succeeded",
        width=WIDTH,
        height=190,
    )
    return layers


def draw(
    lives: Sequence[Life],
    start: float,
    max_age_seconds: float,
    capacity_per_second: float,
    subtitle: str,
    file: Path,
) -> None:
    """Draw the chart into a file; the suffix chooses the format (png, svg, html).

    Args:
        lives: All tasks.
        start: When the load started, in seconds since the epoch.
        max_age_seconds: Age from which a task was stale.
        capacity_per_second: Tasks per second that the downstream can serve.
        subtitle: One line below the title.
        file: Where to write.
    """
    title = alt.TitleParams(
        "freshq under three times the load it can serve", subtitle=subtitle, anchor="start", fontSize=17
    )
    chart = alt.vconcat(
        _waits(lives, start, max_age_seconds), _fates(lives, start, capacity_per_second), title=title
    )
    chart.configure_view(stroke=None).save(str(file), scale_factor=2)
