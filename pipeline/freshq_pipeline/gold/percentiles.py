"""Percentiles of the waits of each queue and of all, from how many waits each histogram class has.

Classes of different days add up, so a run needs only those of the days that changed. With the shortest and
the longest wait of each class, percentiles are exact where a class has one or two waits, and otherwise at
most as far off as the class is wide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import floor
from typing import TYPE_CHECKING, Any

from freshq_pipeline.gold.steps import MICROS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class WaitPercentiles:
    """Percentiles of the waits to the first claim, in seconds, with linear interpolation.

    Attributes:
        overall: Of all queues; None for each percentile if nothing was claimed.
        by_queue: Of each queue in which a task was claimed.
    """

    overall: list[float | None]
    by_queue: dict[str | None, list[float | None]]


@dataclass(slots=True)
class _Class:
    """The waits of a histogram class: their number, the shortest and the longest, in microseconds."""

    count: int = 0
    shortest_us: int = 2**62
    longest_us: int = 0

    def add(self, row: Mapping[str, int]) -> None:
        self.count += row["count"]
        self.shortest_us = min(self.shortest_us, row["shortest_us"])
        self.longest_us = max(self.longest_us, row["longest_us"])

    def at(self, rank: int) -> float:
        """Return the wait at a rank in the class, as if waits were spread evenly; the shortest has rank 0."""
        if self.count == 1:
            return self.shortest_us
        return self.shortest_us + (self.longest_us - self.shortest_us) * rank / (self.count - 1)


@dataclass(slots=True)
class _Waits:
    """The waits of one queue, or of all, by class."""

    classes: dict[int, _Class] = field(default_factory=dict)

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return percentiles in seconds; None if there are no waits."""
        ordered = [self.classes[one] for one in sorted(self.classes)]
        ends = list(accumulate(one.count for one in ordered))
        if not ends:
            return [None for _ in shares]
        result: list[float | None] = []
        for place in (share * (ends[-1] - 1) for share in shares):
            low, high = (_at(ordered, ends, min(floor(place) + more, ends[-1] - 1)) for more in (0, 1))
            result.append((low + (high - low) * (place - floor(place))) / MICROS)
        return result


def _at(ordered: list[_Class], ends: list[int], rank: int) -> float:
    """Return the wait at a rank in all classes."""
    place = next(place for place, end in enumerate(ends) if rank < end)
    return ordered[place].at(rank - ends[place] + ordered[place].count)


def wait_percentiles(waits: Iterable[Mapping[str, Any]], shares: Sequence[float]) -> WaitPercentiles:
    """Return percentiles of the waits to the first claim.

    Args:
        waits: Rows with `queue`, `class`, `count`, `shortest_us` and `longest_us`; a class may have several.
        shares: From 0 to 1: 0.5 is the median.
    """
    overall, by_queue = _Waits(), dict[str | None, _Waits]()
    for row in waits:
        for owner in (overall, by_queue.setdefault(row["queue"], _Waits())):
            owner.classes.setdefault(row["class"], _Class()).add(row)
    return WaitPercentiles(
        overall.percentiles(shares), {queue: one.percentiles(shares) for queue, one in by_queue.items()}
    )
