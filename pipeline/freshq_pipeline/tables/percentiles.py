"""Exact percentiles of the waits of each queue and of all, without collecting the waits in one place.

Spark's `percentile` sends every distinct value to one task. Here the waits are first counted by histogram
class, and then only the classes that contain the wanted ranks are examined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import floor
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.tables.minutes import histogram_class, wait_us
from freshq_pipeline.tables.steps import MICROS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


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
class _Waits:
    """The waits of one queue, or of all: how many in each class, and the examined ones."""

    classes: Counter[int] = field(default_factory=Counter)
    examined: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def wanted(self, shares: Sequence[float]) -> set[int]:
        """Return the classes that contain the ranks of percentiles."""
        ends = self._ends()
        return {next(one for one, end in ends.items() if rank < end) for rank in self._ranks(shares)}

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return percentiles in seconds; None if there are no waits."""
        total = self.classes.total()
        if not total:
            return [None for _ in shares]
        found = self._at_ranks(self._ranks(shares))
        result: list[float | None] = []
        for place in (share * (total - 1) for share in shares):
            low, high = (found[min(floor(place) + more, total - 1)] for more in (0, 1))
            result.append((low + (high - low) * (place - floor(place))) / MICROS)
        return result

    def _ranks(self, shares: Sequence[float]) -> set[int]:
        total = self.classes.total()
        places = [share * (total - 1) for share in shares] if total else []
        return {min(floor(place) + more, total - 1) for place in places for more in (0, 1)}

    def _ends(self) -> dict[int, int]:
        """Return for each class the number of waits in it and in all lower ones."""
        ordered = sorted(self.classes)
        return dict(zip(ordered, accumulate(self.classes[one] for one in ordered), strict=True))

    def _at_ranks(self, ranks: set[int]) -> dict[int, int]:
        """Return the wait at each rank, in microseconds; the shortest wait has rank 0."""
        found: dict[int, int] = {}
        # Other classes lie between the examined ones, so ranks are counted from the start of each class.
        for one, end in self._ends().items():
            seen = end - self.classes[one]
            for us, count in sorted(self.examined[one].items()):
                found |= {rank: us for rank in ranks if seen <= rank < seen + count}
                seen += count
        return found


def wait_percentiles(tasks: DataFrame, shares: Sequence[float]) -> WaitPercentiles:
    """Return percentiles of the waits to the first claim.

    Args:
        tasks: The table `tasks`.
        shares: From 0 to 1: 0.5 is the median.
    """
    waits = tasks.where("wait_seconds is not null").select(
        "queue", wait_us().alias("us"), histogram_class(wait_us()).alias("class")
    )
    overall, by_queue = _Waits(), defaultdict[str | None, _Waits](_Waits)
    for row in waits.groupBy("queue", "class").count().collect():
        for owner in (overall, by_queue[row["queue"]]):
            owner.classes[row["class"]] += row["count"]
    if overall.classes:
        inside = waits.where(_examined(overall, by_queue, shares)).groupBy("queue", "class", "us").count()
        for row in inside.collect():
            for owner in (overall, by_queue[row["queue"]]):
                owner.examined[row["class"]][row["us"]] += row["count"]
    return WaitPercentiles(
        overall.percentiles(shares), {queue: one.percentiles(shares) for queue, one in by_queue.items()}
    )


def _examined(overall: _Waits, by_queue: dict[str | None, _Waits], shares: Sequence[float]) -> Column:
    """Return whether a wait is in a class that is needed, for its queue or for all."""
    keys = [_key(one, queue) for queue, waits in by_queue.items() for one in waits.wanted(shares)]
    # Null queues have no separator: `concat_ws` leaves nulls out.
    key = F.concat_ws("|", F.col("class"), F.col("queue"))
    return F.col("class").isin(*overall.wanted(shares)) | key.isin(*keys)


def _key(one: int, queue: str | None) -> str:
    return str(one) if queue is None else f"{one}|{queue}"
