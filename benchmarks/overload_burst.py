"""A burst, simulated over many seeds: what share of each second's arrivals is done in time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks.overload_setting import BURST_SECONDS, DEADLINE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BURST_STARTS: Final = 60.0
# Every task put in this time after the burst has its deadline before the simulation ends.
FOLLOWED_SECONDS: Final = BURST_STARTS - DEADLINE_SECONDS
SEEDS: Final = range(1, 501)
# Of Student's t distribution, for the middle 95 % of the mean of five hundred.
T_OF_SEEDS: Final = 1.965
# Spans that the page shows: before the burst, in it, and after its end; seconds from its beginning.
SPANS: Final = {
    "before": (-30, 0),
    "in the burst": (0, 20),
    "0 to 5 s after": (20, 25),
    "5 to 10 s after": (25, 30),
    "10 to 20 s after": (30, 40),
    "20 to 40 s after": (40, 60),
}
# Recovered: from then on, each second's share is within this of the share before the burst.
RECOVERED_WITHIN: Final = 0.05
# Arrivals and those done in time, of one seed in some second or span.
Counts = tuple[int, int]


def ratio(counts: Sequence[Counts]) -> dict[str, float]:
    """Return the share done in time of what arrived, and the half width of its 95 % interval over seeds.

    Seeds differ in how much arrives, so the share is the ratio of the sums; its variance is that of the
    residuals of the seeds (the ratio estimator of Cochran, Sampling Techniques, section 6.3).

    Args:
        counts: Of each seed, what arrived and what was done in time.
    """
    seeds, arrived = len(counts), sum(each for each, _done in counts)
    share = sum(done for _arrived, done in counts) / arrived
    squares = sum((done - share * each) ** 2 for each, done in counts)
    half = T_OF_SEEDS * math.sqrt(squares / (seeds * (seeds - 1))) * seeds / arrived
    return {"mean": round(share, 4), "half_width": round(half, 4)}


def seconds_of(by_seed: Sequence[Mapping[int, Counts]]) -> list[dict[str, float]]:
    """Return the share of each second.

    Args:
        by_seed: Of each seed the counts by the second from the beginning of the burst.
    """
    return [
        {"second": second, **ratio([counts.get(second, (0, 0)) for counts in by_seed])}
        for second in sorted(set().union(*by_seed))
    ]


def spans_of(by_seed: Sequence[Mapping[int, Counts]]) -> dict[str, dict[str, float]]:
    """Return the share of each span."""
    return {name: ratio([_sum(counts, *span) for counts in by_seed]) for name, span in SPANS.items()}


def recovery_seconds(seconds: Sequence[Mapping[str, float]], before: float) -> float | None:
    """Return how long after the burst arrivals are done in time as before it; None if they are not.

    Args:
        seconds: The share of each second.
        before: The share before the burst.
    """
    after = [each for each in seconds if each["second"] >= BURST_SECONDS]
    late = [each["second"] for each in after if each["mean"] < before - RECOVERED_WITHIN]
    if not late:
        return 0.0
    recovered = max(late) + 1
    return recovered - BURST_SECONDS if recovered <= after[-1]["second"] else None


def counts_of(created: Sequence[float], in_time: set[int]) -> dict[int, Counts]:
    """Return the counts of one seed by second, from the beginning of the burst.

    The first tasks, which find an empty queue, are left out, and the last, whose deadline is after the end.

    Args:
        created: When each task arrived.
        in_time: Which of them were done in time.
    """
    last = BURST_STARTS + BURST_SECONDS + FOLLOWED_SECONDS
    found: dict[int, Counts] = {}
    for index, moment in enumerate(created):
        if BURST_STARTS / 2 <= moment < last:
            second = int(moment) - round(BURST_STARTS)
            arrived, done = found.get(second, (0, 0))
            found[second] = (arrived + 1, done + (index in in_time))
    return found


def _sum(counts: Mapping[int, Counts], start: int, end: int) -> Counts:
    chosen = [each for second, each in counts.items() if start <= second < end]
    return sum(arrived for arrived, _done in chosen), sum(done for _arrived, done in chosen)


def burst_figures(by_order: Mapping[str, Sequence[Mapping[int, Counts]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of every order: by second, by span, and its recovery.

    Args:
        by_order: Of each order the counts of each seed.
    """
    found: dict[str, list[dict[str, Any]]] = {"by_second_of_burst": [], "after_burst": []}
    for order, by_seed in by_order.items():
        seconds, spans = seconds_of(by_seed), spans_of(by_seed)
        found["by_second_of_burst"] += [{"order": order, **each} for each in seconds]
        recovered = recovery_seconds(seconds, spans["before"]["mean"])
        found["after_burst"].append({"order": order, "recovery_seconds": recovered, "spans": spans})
    return found
