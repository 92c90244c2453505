"""`minutes`: events in each minute by queue and group, and backlog and tasks in progress at its end.

A task that waits for an hour covers sixty minutes, so an overloaded queue would have dozens of rows per task.
Instead each interval is cut into aligned blocks of 1, 2, 4, ... minutes, at most two of each length. Blocks
are aggregated first and expanded to minutes afterwards.
"""

from __future__ import annotations

import itertools
from functools import reduce
from math import log
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.gold.steps import MICROS, in_hours, until_us
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.days import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column, DataFrame


_OWNER: Final = ("queue", "task_group")
KEY: Final = ("minute", *_OWNER)
# Lower bounds of the age classes of waiting tasks.
AGES_SECONDS: Final[tuple[int, ...]] = (0, 10, 60, 300, 900, 3600, 21_600)
IN_FLIGHT: Final = -1
MINUTE_US: Final = 60_000_000
MINUTES_AN_HOUR: Final = HOUR_US // MINUTE_US
# Ratio of adjacent class bounds in the histograms of waits, for percentiles with an error of 1%. Histograms
# add up exactly, unlike Spark's KLL sketches.
HISTOGRAM_BASE: Final = 1.02
_FLOWS: Final = (
    "offered", "taken", "succeeded", "failed", "cancelled", "shed", "retried", "released", "lease_losses",
    "goodput", "wasted_us",
)  # fmt: skip


def minutes(
    steps: DataFrame, tasks: DataFrame, as_of_us: int, hours: Collection[int] | None = None
) -> DataFrame:
    """Return the table; minutes in which a group has neither events nor waiting tasks have no row.

    Args:
        steps: Steps from `distinct_steps`.
        tasks: The table `tasks`, with at least the tasks that matter in `hours`.
        as_of_us: End of the recording.
        hours: Hours whose minutes to make; None: all.
    """
    waits = tasks.where("first_taken_ms is not null").select(
        _minute(_us("first_taken_ms")), *_OWNER, wait_us().alias("us")
    )
    flows = (_actions(steps), *_offers_and_ends(tasks, as_of_us))
    parts = (*flows, _percentiles(waits), _histogram(waits), _stocks(steps, as_of_us))
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    summed = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*_FLOWS, "backlog", "in_flight")]
    copied = ("percentiles", "wait_histogram", "backlog_by_age", "oldest_us", "newest_us")
    others = [F.any_value(name, F.lit(True)).alias(name) for name in copied]
    rows = rows.where(in_hours(F.col("minute"), hours, MINUTES_AN_HOUR))
    merged = rows.groupBy(*KEY).agg(*summed, F.max("horizon_us").alias("horizon_us"), *others)
    return _shaped(merged, as_of_us)


def _shaped(merged: DataFrame, as_of_us: int) -> DataFrame:
    end_us = F.least((F.col("minute") + 1) * MINUTE_US, F.lit(as_of_us))
    shares = {f"wait_p{share}_seconds": F.get("percentiles", at) for at, share in enumerate((50, 90, 99))}
    seconds = shares | {
        "oldest_pending_seconds": end_us - F.col("oldest_us"),
        "newest_pending_seconds": end_us - F.col("newest_us"),
        "service_horizon_seconds": F.col("horizon_us"),
        "wasted_seconds": F.col("wasted_us"),
    }
    values = {name: us / MICROS for name, us in seconds.items()}
    values["minute_ms"] = F.col("minute") * (MINUTE_US // 1000)
    return merged.select(
        *(values.get(name, F.col(name)).cast(kind).alias(name) for name, kind in TABLES["minutes"].items())
    )


def _us(milliseconds: str) -> Column:
    return F.floor(F.col(milliseconds) * 1000 + 0.5).cast("bigint")


def _minute(moment_us: Column) -> Column:
    return F.floor(moment_us / MINUTE_US).alias("minute")


def _one(condition: Column) -> Column:
    return condition.cast("bigint")


def _actions(steps: DataFrame) -> DataFrame:
    """Return the counts in `_FLOWS` of each minute of the steps, and the greatest age at a claim."""
    left = F.col("left") & ~F.col("removed")
    buried = F.expr("not removed and status = 'FAILURE' and coalesce(previous_status = 'PENDING', false)")
    done = left & (F.col("status") == "SUCCESS")
    timely = done & F.coalesce(F.col("changed_us") <= F.col("deadline_us"), F.lit(True))
    amounts = {
        "taken": _one(F.col("claimed")),
        "succeeded": _one(done),
        "failed": _one(buried | (left & (F.col("status") == "FAILURE"))),
        "retried": _one(F.col("retried")),
        "released": _one(F.col("released")),
        "lease_losses": _one(F.col("lease_lost")),
        "goodput": _one(timely),
        "wasted_us": F.when(F.col("left") & ~timely, F.col("held_us")),
    }
    horizon = F.max(F.when(F.col("claimed"), F.col("changed_us") - F.col("created_us")))
    acted = F.col("claimed") | F.col("left") | buried
    by_minute = steps.where(acted).groupBy(_minute(F.col("changed_us")), *_OWNER)
    return by_minute.agg(*_sums(amounts), horizon.alias("horizon_us"))


def _sums(amounts: dict[str, Column]) -> list[Column]:
    return [F.sum(amount).alias(name) for name, amount in amounts.items()]


def _offers_and_ends(tasks: DataFrame, as_of_us: int) -> tuple[DataFrame, DataFrame]:
    """Return the numbers of tasks that entered their line in each minute, and that were cancelled or shed."""
    # A delayed put is offered when it is due. Since clocks differ, other puts may seem to follow the end.
    not_due = (F.col("created_ms") > F.col("put_ms")) & (_us("created_ms") > as_of_us)
    put = tasks.where(~not_due).groupBy(_minute(_us("created_ms")), *_OWNER)
    gone = tasks.where("outcome in ('cancelled', 'shed')").groupBy(_minute(_us("finished_ms")), *_OWNER)
    ends = {name: _one(F.col("outcome") == name) for name in ("cancelled", "shed")}
    return put.agg(F.count(F.lit(1)).alias("offered")), gone.agg(*_sums(ends))


def _percentiles(waits: DataFrame) -> DataFrame:
    exact = F.percentile("us", F.array(*(F.lit(share) for share in (0.5, 0.9, 0.99))))
    return waits.groupBy(*KEY).agg(exact.alias("percentiles"))


def wait_us() -> Column:
    """Return the wait of a row of `tasks` in whole microseconds."""
    return F.round(F.col("wait_seconds") * MICROS).cast("bigint")


def histogram_class(us: Column) -> Column:
    """Return the histogram class of a wait; longer waits have higher classes."""
    return F.ceil(F.log(F.greatest(us, F.lit(1)).cast("double")) / log(HISTOGRAM_BASE)).cast("int")


def _histogram(waits: DataFrame) -> DataFrame:
    counted = waits.groupBy(*KEY, histogram_class(F.col("us")).alias("bucket")).agg(
        F.count(F.lit(1)).alias("count")
    )
    classes = F.array_sort(F.collect_list(F.struct("bucket", "count")))
    return counted.groupBy(*KEY).agg(classes.alias("wait_histogram"))


def _stocks(steps: DataFrame, as_of_us: int) -> DataFrame:
    """Return the backlog and the tasks in progress at the end of each minute."""
    covered = blocks(_intervals(steps, as_of_us), (*_OWNER, "age", "created_us"))
    created = F.col("created_us")
    counted = covered.groupBy(*_OWNER, "age", "level", "block").agg(
        F.count(F.lit(1)).alias("count"), F.min(created).alias("oldest_us"), F.max(created).alias("newest_us")
    )
    by_age = spread(counted).groupBy(*KEY, "age").agg(
        F.sum("count").alias("count"), F.min("oldest_us").alias("oldest_us"),
        F.max("newest_us").alias("newest_us"),
    )  # fmt: skip
    waits = F.col("age") != IN_FLIGHT
    classes = F.struct(F.col("age").alias("from_seconds"), "count")
    return by_age.groupBy(*KEY).agg(
        F.sum(F.when(waits, F.col("count"))).alias("backlog"),
        F.sum(F.when(~waits, F.col("count"))).alias("in_flight"),
        F.min(F.when(waits, F.col("oldest_us"))).alias("oldest_us"),
        F.max(F.when(waits, F.col("newest_us"))).alias("newest_us"),
        F.array_sort(F.collect_list(F.when(waits, classes))).alias("backlog_by_age"),
    )


def _intervals(steps: DataFrame, as_of_us: int) -> DataFrame:
    """Return the intervals in which tasks were in progress, or waited in one age class."""
    live = steps.where("not removed and status in ('PENDING', 'TAKEN')")
    waits = F.col("status") == "PENDING"
    until = until_us()
    # A task that waits for its next attempt is not claimable before `not_before_us`.
    since = F.when(waits, F.greatest("changed_us", "not_before_us")).otherwise(F.col("changed_us"))
    spans = live.select(
        *_OWNER,
        "created_us",
        waits.alias("waits"),
        since.alias("since_us"),
        F.when(until <= as_of_us, until).alias("until_us"),
    )
    whole = minutes_covered(F.col("since_us"), F.col("until_us"), as_of_us)
    spans = spans.where(whole[0] <= whole[1])
    ages = F.array(*(F.lit(age) for age in AGES_SECONDS))
    cut = spans.withColumn(
        "age", F.explode(F.when(F.col("waits"), ages).otherwise(F.array(F.lit(IN_FLIGHT))))
    )
    edges = dict(itertools.pairwise(AGES_SECONDS))
    upper = F.create_map(*(F.lit(edge) for pair in edges.items() for edge in pair))
    since = F.greatest("since_us", F.when(F.col("waits"), F.col("created_us") + _in_us(F.col("age"))))
    until = F.least("until_us", F.when(F.col("waits"), F.col("created_us") + _in_us(upper[F.col("age")])))
    within = cut.withColumns({"since_us": since, "until_us": F.when(until <= as_of_us, until)})
    first, last = minutes_covered(F.col("since_us"), F.col("until_us"), as_of_us)
    # Drop age classes that the task reached only after the interval or the recording.
    reached = (F.col("since_us") <= as_of_us) & F.coalesce(F.col("since_us") < F.col("until_us"), F.lit(True))
    return within.where(reached).select(
        *_OWNER, "age", "created_us", first.alias("first"), last.alias("last")
    )


def _in_us(seconds: Column) -> Column:
    return seconds.cast("bigint") * MICROS


def minutes_covered(since_us: Column, until_us: Column, as_of_us: int) -> tuple[Column, Column]:
    """Return the first and the last minute whose end lies in an interval; first > last if there is none.

    An interval that starts at the end of a minute belongs to the next minute. The last minute ends at
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
        intervals: Intervals from `first` to `last`, both inclusive.
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
    """Return a row for each minute of each block, with `minute` instead of `level` and `block`."""
    kept = [name for name in blocks.columns if name not in ("level", "block")]
    start = F.expr("block * shiftleft(bigint(1), level)")
    end = F.expr("(block + 1) * shiftleft(bigint(1), level) - 1")
    return blocks.select(*kept, F.explode(F.sequence(start, end)).alias("minute"))
