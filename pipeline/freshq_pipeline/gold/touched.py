"""Finds the days that new events change: through minutes, claims, and other events of their tasks.

Only these days are computed again: if one were missing here, increments would differ from a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.gold.task_key import TASK
from freshq_pipeline.storage.days import DAY_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PENDING = ("PENDING",)
_LIVE = ("PENDING", "TAKEN")


def day_of(moment_us: Column) -> Column:
    """Return the number of the UTC day of a time."""
    return F.floor(moment_us / DAY_US).cast("int")


def date_of(moment_us: Column) -> Column:
    """Return the UTC day of a time as a date, which takes much less time to make than its text."""
    return F.date_from_unix_date(day_of(moment_us))


def until_us() -> Column:
    """Return until when the task waits or is in progress after a step, null if that is open."""
    return F.least("next_us", F.when(F.col("status") == "PENDING", F.col("deadline_us")))


def shed_us() -> Column:
    """Return when a task that waits after a step is shed without an event, null if it is not."""
    return F.when(F.col("is_last") & ~F.col("removed") & _waits("status"), F.col("deadline_us"))


def is_open() -> Column:
    """Return whether a step is the last of a task that waits without a deadline, or is in progress."""
    return F.col("is_last") & ~F.col("removed") & F.col("status").isin(*_LIVE) & until_us().isNull()


def touched_days(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `day` in which fresh events change minutes, or which claims were inverted.

    Args:
        steps: From `distinct_steps` of events with `fresh`; all events of each task.
        known_us: End of the recording as of the run before.
        as_of_us: End of the recording.
    """
    low, high = _range_of_task(as_of_us)
    fresh_low, fresh_high = _range_of_fresh(known_us, as_of_us)
    fresh = F.col("fresh")
    by_task = steps.groupBy(*TASK).agg(
        F.max("unsettled").alias("unsettled"),
        F.min(low).alias("low"),
        F.max(F.greatest(high, F.when(fresh, fresh_high))).alias("high"),
        F.min(F.when(fresh, fresh_low)).alias("fresh_low"),
        F.max(F.when(fresh, fresh_high)).alias("fresh_high"),
    )
    since = F.when(F.col("unsettled"), F.col("low")).otherwise(F.col("fresh_low"))
    until = F.when(F.col("unsettled"), F.col("high")).otherwise(F.col("fresh_high"))
    spans = by_task.where("fresh_low is not null").select(
        day_of(since).alias("first"), day_of(F.greatest(since, until)).alias("last")
    )
    return spans.distinct().select(F.explode(F.sequence("first", "last")).alias("day")).distinct()


def _waits(status: str) -> Column:
    return F.coalesce(F.col(status).isin(*_PENDING), F.lit(False))


def _range_of_task(as_of_us: int) -> tuple[Column, Column]:
    """Return the earliest and the latest time at which a step matters."""
    low = F.least("changed_us", "created_us", "deadline_us", "before_changed_us")
    open_until = F.least(F.coalesce(until_us(), F.lit(as_of_us)), F.lit(as_of_us))
    live = ~F.col("removed") & F.col("status").isin(*_LIVE)
    return low, F.greatest("changed_us", "created_us", F.when(live, open_until))


def _range_of_fresh(known_us: int, as_of_us: int) -> tuple[Column, Column]:
    """Return the earliest and the latest time that a fresh step changes, if it only continues a task."""
    continues = ~F.col("begins")
    shed_before = _waits("before_status") & (
        F.col("before_deadline_us") <= F.least(F.lit(known_us), F.col("changed_us"))
    )
    # TTL deletes what was shed at its deadline: that changes no minute.
    swept = F.col("removed") & F.col("ttl_removal") & shed_before & ~F.col("before_fresh")
    matters = ~F.coalesce(swept, F.lit(False))
    ended_before = F.col("before_status").isin("SHED") | (F.col("before_change") == "REMOVE")
    waited_before = continues & matters & _waits("before_status")
    low = F.least(
        "changed_us",
        F.when(F.col("begins"), F.col("created_us")),
        F.when(matters & _waits("status"), F.col("deadline_us")),
        F.when(waited_before, F.col("before_deadline_us")),
        F.when(continues & ended_before & ~F.col("removed"), F.col("before_changed_us")),
    )
    # What was known before may have seemed to wait, or to be in progress, until the end of the recording.
    seemed = F.least(F.lit(known_us), F.when(_waits("before_status"), F.col("before_deadline_us")))
    was_open = continues & F.col("before_status").isin(*_LIVE) & ~F.col("before_fresh")
    high = F.greatest(
        _range_of_task(as_of_us)[1], F.when(F.coalesce(was_open & matters, F.lit(False)), seemed)
    )
    return low, high


def days_of_changed_tasks(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `day` of the events of the lives that fresh events change, or that were shed since.

    Args:
        steps: From `distinct_steps` of events with `fresh`; all events of each task.
        known_us: End of the recording as of the run before.
        as_of_us: End of the recording.
    """
    shed_since = F.coalesce((shed_us() > known_us) & (shed_us() <= as_of_us), F.lit(False))
    step = F.struct("life", day_of(F.col("created_us")).alias("day"))
    by_task = steps.groupBy(*TASK).agg(
        F.max("unsettled").alias("unsettled"),
        F.collect_set(step).alias("steps"),
        F.collect_set(F.when(F.col("fresh") | shed_since, F.col("life"))).alias("changed_lives"),
    )
    changed = F.expr(
        "transform(filter(steps, s -> unsettled or array_contains(changed_lives, s.life)), s -> s.day)"
    )
    return by_task.where("size(changed_lives) > 0").select(F.explode(changed).alias("day")).distinct()


def day_figures(steps: DataFrame, as_of_us: int) -> DataFrame:
    """Return for each day of creation the number of `events`, and what `Day` keeps of their times."""
    live = ~F.col("removed") & F.col("status").isin(*_LIVE)
    # The time of a removal matters only where it is the end of a wait without a deadline.
    at = F.when(~F.col("removed") | F.col("deadline_us").isNull(), F.col("changed_us"))
    shed = F.when(_waits("status") & F.col("is_last"), F.col("deadline_us"))
    low = F.least("created_us", at, shed)
    high = F.greatest("created_us", at, shed, F.when(live, until_us()))
    recorded = F.col("change").isin("INSERT", "SNAPSHOT")
    ahead = F.when(shed_us() > as_of_us, shed_us())
    return steps.groupBy(day_of(F.col("created_us")).alias("day")).agg(
        F.count(F.lit(1)).alias("events"),
        F.min(low).alias("first_us"),
        F.max(high).alias("last_us"),
        F.max(is_open()).alias("has_open"),
        F.min(ahead).alias("next_deadline_us"),
        F.max(F.col("begins") & ~recorded).alias("unbegun"),
    )
