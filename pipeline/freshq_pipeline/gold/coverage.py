"""The minutes that intervals cover, without a row per minute and task.

A task that waits for an hour covers sixty minutes, so an overloaded queue would have dozens of rows per task.
Instead an interval is cut into aligned blocks of 1, 2, 4, ... minutes, at most two of each length. Blocks are
aggregated first and expanded to minutes afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

MINUTE_US: Final = 60_000_000


def minutes_covered(since_us: Column, until_us: Column, as_of_us: int) -> tuple[Column, Column]:
    """Return the first and the last minute whose end lies in an interval; first > last if there is none.

    An interval that begins at the end of a minute belongs to the next minute. The last minute ends at
    `as_of_us`, and open intervals include its end.

    Args:
        since_us: Start of the interval.
        until_us: End of the interval; null if it is open.
        as_of_us: End of the recording.
    """
    latest = as_of_us // MINUTE_US
    first = F.floor(since_us / MINUTE_US)
    last = F.floor(until_us / MINUTE_US) - 1
    return first, F.when(until_us.isNull(), F.lit(latest)).otherwise(last)


def blocks(intervals: DataFrame, kept: Sequence[str]) -> DataFrame:
    """Return the blocks (`level`, `block`) of intervals of minutes.

    Args:
        intervals: Has `first` and `last`, both inclusive.
        kept: Other columns to keep.
    """
    span = F.col("last") - F.col("first") + 1
    levels = F.sequence(F.lit(0), F.floor(F.log2(span.cast("double"))).cast("int"))
    rows = intervals.where(span > 0).select(*kept, "first", "last", F.explode(levels).alias("level"))
    size = F.expr("shiftleft(bigint(1), level)")
    low = F.expr("(first + size - 1) div size")
    high = F.expr("(last + 1) div size")
    rows = rows.withColumn("size", size).select(*kept, "level", low.alias("low"), high.alias("high"))
    fits = F.col("low") < F.col("high")
    left = F.when(fits & (F.col("low") % 2 == 1), F.col("low"))
    right = F.when(fits & (F.col("high") % 2 == 1), F.col("high") - 1)
    both = F.explode(F.array(left, right)).alias("block")
    return rows.select(*kept, "level", both).where("block is not null")


def spread(blocks: DataFrame) -> DataFrame:
    """Return one row per minute of each block, with `minute` instead of `level` and `block`."""
    kept = [name for name in blocks.columns if name not in ("level", "block")]
    start = F.expr("block * shiftleft(bigint(1), level)")
    end = F.expr("(block + 1) * shiftleft(bigint(1), level) - 1")
    return blocks.select(*kept, F.explode(F.sequence(start, end)).alias("minute"))
