"""Which minutes an interval covers, without a row for each of them.

A task that waits for an hour waits at the end of sixty minutes. Written down minute by minute, an
overloaded queue would have dozens of rows a task. Instead an interval is cut into blocks of 1, 2, 4, ...
minutes, each beginning at a multiple of its length: never more than two of a length. Blocks are
aggregated, and only then spread over their minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

MINUTE_US: Final = 60_000_000


def minutes_covered(since_us: Column, until_us: Column, as_of_us: int) -> tuple[Column, Column]:
    """Return the first and the last minute at whose end an interval lasts; none if the first is later.

    What begins at the end of a minute belongs to the next. The last minute of all is not over: its end
    is `as_of_us`, and what is open then lasts.

    Args:
        since_us: When the interval begins.
        until_us: When it ends; null while it lasts.
        as_of_us: The end of the record.
    """
    latest = as_of_us // MINUTE_US
    first = F.floor(since_us / MINUTE_US)
    last = F.floor(until_us / MINUTE_US) - 1
    return first, F.when(until_us.isNull(), F.lit(latest)).otherwise(last)


def blocks(intervals: DataFrame, kept: Sequence[str]) -> DataFrame:
    """Return the blocks (`level`, `block`) of intervals of minutes.

    Args:
        intervals: With `first` and `last`, both included.
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
    both = F.array_compact(F.array(left, right))
    return rows.select(*kept, "level", F.explode(both).alias("block"))


def spread(blocks: DataFrame) -> DataFrame:
    """Return a row for each minute of each block, with `minute` instead of `level` and `block`."""
    kept = [name for name in blocks.columns if name not in ("level", "block")]
    start = F.expr("block * shiftleft(bigint(1), level)")
    end = F.expr("(block + 1) * shiftleft(bigint(1), level) - 1")
    return blocks.select(*kept, F.explode(F.sequence(start, end)).alias("minute"))
