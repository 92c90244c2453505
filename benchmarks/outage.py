"""Tasks done in time after an outage, by order and load, when clients try again."""

from __future__ import annotations

from typing import Final

from benchmarks import figures
from benchmarks.overload import interval
from benchmarks.pictures import AFTER_OUTAGE, draw_outage
from freshq import Order
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import Clients, Dip, Source, Stress, simulate_stressed, summarize

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
        for name in AFTER_OUTAGE
        for place, rates in enumerate(zip(*runs[name, DRAWN_LOAD], strict=True))
    ]
    figures.write("outage", {"by_load": by_load, "over_time": over_time})
    draw_outage(over_time, DRAWN_LOAD, (OUTAGE.start, OUTAGE.end))
