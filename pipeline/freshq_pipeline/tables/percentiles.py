"""Exact percentiles of all waits, without collecting them in one place.

Spark's `percentile` sends every distinct value to one task. Here the waits are first counted by histogram
class, and then only the classes that contain the wanted ranks are examined.
"""

from __future__ import annotations

from itertools import accumulate
from math import floor
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.tables.minutes import histogram_class, wait_us
from freshq_pipeline.tables.steps import MICROS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def wait_percentiles_seconds(tasks: DataFrame, shares: Sequence[float]) -> list[float | None]:
    """Return percentiles of the waits to the first claim, with linear interpolation.

    Args:
        tasks: The table `tasks`.
        shares: From 0 to 1: 0.5 is the median.
    """
    waits = tasks.where("wait_seconds is not null").select(wait_us().alias("us"))
    by_class = waits.groupBy(histogram_class(F.col("us")).alias("class")).count()
    counts = dict(sorted((row["class"], row["count"]) for row in by_class.collect()))
    total = sum(counts.values())
    if not total:
        return [None for _ in shares]
    places = [share * (total - 1) for share in shares]
    ranks = {min(floor(place) + more, total - 1) for place in places for more in (0, 1)}
    found = _at_ranks(waits, counts, ranks)
    result: list[float | None] = []
    for place in places:
        low, high = (found[min(floor(place) + more, total - 1)] for more in (0, 1))
        result.append((low + (high - low) * (place - floor(place))) / MICROS)
    return result


def _at_ranks(waits: DataFrame, counts: dict[int, int], ranks: set[int]) -> dict[int, int]:
    """Return the wait at each rank, in microseconds; the shortest wait has rank 0."""
    ends = dict(zip(counts, accumulate(counts.values()), strict=True))
    wanted = {next(one for one, end in ends.items() if rank < end) for rank in ranks}
    inside = waits.where(histogram_class(F.col("us")).isin(*wanted)).groupBy("us").count()
    values = sorted((row["us"], row["count"]) for row in inside.collect())
    found: dict[int, int] = {}
    # Other classes lie between the examined ones, so ranks are counted from the start of each class.
    starts = {one: ends[one] - counts[one] for one in sorted(wanted)}
    reached = iter(values)
    for one, start in starts.items():
        seen = start
        while seen < ends[one]:
            us, count = next(reached)
            found |= {rank: us for rank in ranks if seen <= rank < seen + count}
            seen += count
    return found
