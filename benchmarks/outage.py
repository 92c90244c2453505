"""What is done in time after an outage, by order and load, when clients try again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
from local.demo import recompressed

from benchmarks import figures
from benchmarks.overload import interval
from freshq import Order
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import Clients, Dip, Source, Stress, simulate_stressed, summarize
from freshq.simulate.sweep import Colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PICTURE: Final = Path("docs/outage.png")
SERVERS: Final = 10
LOADS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
DRAWN_LOAD: Final = 0.7
DEADLINE_SECONDS: Final = 5.0
NO_DEADLINE_SECONDS: Final = 1e9
CLIENTS: Final = Clients(DEADLINE_SECONDS, 3)
OUTAGE: Final = Dip(60.0, 30.0)
DURATION_SECONDS: Final = 240.0
# Shares are of the arrivals from half a minute after the outage on.
FROM_SECONDS: Final = OUTAGE.end + 30.0
SEEDS: Final = range(1, 11)
RULES: Final = {
    "FIFO": OverloadRules(NO_DEADLINE_SECONDS, Order.FIFO),
    "FIFO with a deadline": OverloadRules(DEADLINE_SECONDS, Order.FIFO),
    "FIFO with a deadline and the reserve": OverloadRules(
        DEADLINE_SECONDS, Order.FIFO, ReserveRule(quantile=0.9)
    ),
    "LIFO": OverloadRules(NO_DEADLINE_SECONDS),
    "LIFO with a deadline": OverloadRules(DEADLINE_SECONDS),
}
DRAWN: Final = {
    "FIFO": (Colour.CANCELLED, 222.0, 0.14),
    "FIFO with a deadline": (Colour.FAILURE, 150.0, 0.14),
    "FIFO with a deadline and the reserve": (Colour.SHED, 165.0, 0.8),
    "LIFO with a deadline": (Colour.TAKEN, 165.0, 1.1),
}
INK: Final = "#303030"


def goodput(name: str, load: float, seed: int) -> list[float]:
    """Return the goodput of each 10 seconds, as a share of the rate of arrivals."""
    rules, rate = RULES[name], load * SERVERS
    source = Source(rate, DURATION_SECONDS, rules.deadline_seconds, seed=seed)
    done = simulate_stressed(source.load(), rules, SERVERS, Stress(CLIENTS, OUTAGE), seed)
    return [each / rate for each in summarize(done).goodput_by_10_seconds]


def main() -> None:
    """Simulate, and draw the picture."""
    runs = {(name, load): [goodput(name, load, seed) for seed in SEEDS] for name in RULES for load in LOADS}
    first = int(FROM_SECONDS / 10)
    by_load = [
        {"order": name, "load": load, **interval([sum(run[first:]) / len(run[first:]) for run in each])}
        for (name, load), each in runs.items()
    ]
    over_time = [
        {"order": name, "seconds": 10.0 * place + 5.0, "share": round(sum(rates) / len(rates), 4)}
        for name in DRAWN
        for place, rates in enumerate(zip(*runs[name, DRAWN_LOAD], strict=True))
    ]
    figures.write("outage", {"by_load": by_load, "over_time": over_time})
    draw(over_time, PICTURE)


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the goodput over time into a PNG."""
    x = alt.X("seconds:Q", title="seconds", axis=alt.Axis(grid=False), scale=alt.Scale(domain=[0, 240]))
    y = alt.Y(
        "share:Q",
        title="done in time / arrivals",
        axis=alt.Axis(format=".0%", tickCount=5, gridColor="#E4E4E4", domain=False),
        scale=alt.Scale(domain=[0, 1.5], clamp=True),
    )
    outage = alt.Chart(alt.InlineData(values=[{"from": OUTAGE.start, "to": OUTAGE.end}]))
    layers: list[alt.Chart] = [
        outage.mark_rect(color="#EDEDED").encode(x=alt.X("from:Q", title="seconds"), x2="to:Q"),
        alt.Chart(alt.InlineData(values=[{"seconds": 62.0, "share": 1.44, "text": "outage"}]))
        .mark_text(align="left", fontSize=12, color=INK)
        .encode(x=x, y=y, text="text:N"),
    ]
    for name, (colour, at, share) in DRAWN.items():
        own = alt.Chart(alt.InlineData(values=[row for row in rows if row["order"] == name]))
        label = alt.Chart(alt.InlineData(values=[{"seconds": at, "share": share, "text": name}]))
        layers += [
            own.mark_line(strokeWidth=2.4, color=colour.value).encode(x=x, y=y),
            label.mark_text(fontSize=12.5, fontWeight="bold", color=colour.value).encode(
                x=x, y=y, text="text:N"
            ),
        ]
    title = alt.TitleParams(
        "After an outage, when clients try again",
        subtitle=f"Load {DRAWN_LOAD:g} of the capacity; clients wait 5 s and try three more times. "
        "Means of ten seeds.",
        anchor="start", fontSize=18, subtitleFontSize=12.5, offset=10, color=INK,
    )  # fmt: skip
    chart = alt.layer(*layers).properties(width=700, height=240, title=title).configure_view(stroke=None)
    chart.save(str(file), scale_factor=2)
    file.write_bytes(recompressed(file.read_bytes()))


if __name__ == "__main__":
    main()
