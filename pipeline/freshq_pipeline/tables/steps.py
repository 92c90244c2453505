"""Events in the order in which each task saw them: what every table is computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec

MICROS: Final = 1_000_000
# Streams write whole seconds, rounded down.
STREAM_RESOLUTION_US: Final = MICROS

# Records of Streams are numbered; those of Kinesis and of exports have only their time.
_ORDER: Final = ("sequence", "changed_us", "attempts", "rank", "event_id")

# What the tables need of a step; every further column would be kept in memory in vain.
STEP: Final = (
    "task_id", "life", "change", "status", "queue", "task_group", "priority", "attempts", "created_us",
    "deadline_us", "changed_us", "next_us", "not_before_us", "shed_reason", "ttl_removal", "worker",
    "previous_status", "previous_worker", "is_last", "removed", "claimed", "left", "held_us", "lease_lost",
    "released", "retried", "illegal",
)  # fmt: skip

_LEGAL: Final = {
    "PENDING": ("PENDING", "TAKEN", "CANCELLED", "SHED"),
    "TAKEN": ("TAKEN", "SUCCESS", "FAILURE", "PENDING", "SHED"),
    "FAILURE": ("FAILURE", "PENDING"),
    "SUCCESS": ("SUCCESS",),
    "CANCELLED": ("CANCELLED",),
    "SHED": ("SHED",),
}
_OVER: Final = ("SUCCESS", "FAILURE", "CANCELLED", "SHED")
_PREVIOUS: Final = ("status", "lease", "lease_until_us", "attempts", "worker")
_BEFORE: Final = (*_PREVIOUS, "event_id", "created_us", "deadline_us")


def distinct_steps(events: DataFrame, partitions: int) -> DataFrame:
    """Return each event once, beside the one before and after it in its task's life.

    One shuffle by task, and one sort: a duplicate is then next to its original, and everything that
    follows keeps both.

    Args:
        events: Canonical events, in any order, some of them several times.
        partitions: Over how many the tasks are spread.
    """
    by_task = Window.partitionBy("task_id").orderBy(*_ORDER)
    placed = events.withColumn("rank", _rank()).repartition(partitions, "task_id")
    # Between the first copy of an event and the one before it nothing can stand: looking back before the
    # copies are dropped finds the same as afterwards, and saves a pass over all rows.
    looked_back = placed.withColumns({f"before_{name}": F.lag(name).over(by_task) for name in _BEFORE})
    copy_of = F.col("before_event_id")
    once = looked_back.where(copy_of.isNull() | (copy_of != F.col("event_id")))
    return _with_verbs(_with_following(_with_claims(_within_lives(once)), by_task)).select(*STEP)


def _within_lives(events: DataFrame) -> DataFrame:
    """Return events with what the task was before, nothing if the event begins a life."""
    change = F.when(_put_over(), "INSERT").otherwise(F.col("change"))
    previous = {f"previous_{name}": F.when(change != "INSERT", F.col(f"before_{name}")) for name in _PREVIOUS}
    # The first that is known of a task is in its first life, even if the record begins later than the task.
    begins = (change == "INSERT") | F.col("before_event_id").isNull()
    return events.withColumns(previous | {"change": change, "begins": begins})


def _put_over() -> Column:
    """Return whether a change puts a new task over one that was over, which its later creation tells."""
    before = F.col("before_status")
    stale = (before == "PENDING") & (F.col("before_deadline_us") <= F.col("changed_us"))
    waits = (F.col("change") == "MODIFY") & (F.col("status") == "PENDING")
    return waits & (before.isin(*_OVER) | stale) & (F.col("created_us") > F.col("before_created_us"))


def _rank() -> Column:
    """Return what comes before what within the same attempt and microsecond."""
    return (
        F.when(F.col("change") == "INSERT", 0)
        .when(F.col("change") == "REMOVE", 4)
        .when(F.col("status") == "TAKEN", 1)
        .when(F.col("status") == "PENDING", 2)
        .otherwise(3)
    )


def _with_claims(events: DataFrame) -> DataFrame:
    """Return events with what they took, gave back or deleted."""
    removed = F.col("change") == "REMOVE"
    taken = ~removed & (F.col("status") == "TAKEN")
    was_taken = F.coalesce(F.col("previous_status") == "TAKEN", F.lit(False))  # noqa: FBT003 - lit
    other_lease = F.coalesce(F.col("lease") != F.col("previous_lease"), F.lit(False))  # noqa: FBT003 - lit
    claimed = taken & (~was_taken | other_lease)
    left = was_taken & (~taken | claimed)
    return events.select("*", removed.alias("removed"), claimed.alias("claimed"), left.alias("left"))


def _with_following(events: DataFrame, by_task: WindowSpec) -> DataFrame:
    """Return events with their life, when the task changed next, and since when it was held."""
    ends = F.lead("begins").over(by_task)
    claim_us = F.when(F.col("claimed"), F.col("changed_us"))
    earlier = by_task.rowsBetween(Window.unboundedPreceding, -1)
    until_now = by_task.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return events.select(
        "*",
        F.sum(F.col("begins").cast("int")).over(until_now).cast("int").alias("life"),
        F.when(~ends, F.lead("changed_us").over(by_task)).alias("next_us"),
        (ends.isNull() | ends).alias("is_last"),
        F.when(F.col("left"), F.last(claim_us, ignorenulls=True).over(earlier)).alias("held_since_us"),
    )


def _with_verbs(rows: DataFrame) -> DataFrame:
    """Return steps with what was done: which verb left the task as it is."""
    back = F.col("left") & ~F.col("removed") & (F.col("status") == "PENDING")
    lapsed = F.coalesce(F.col("changed_us") >= F.col("previous_lease_until_us"), F.lit(False))  # noqa: FBT003 - lit
    # A worker that gives a task up for a while says until when; the sweep does not.
    dead = F.col("left") & ~F.col("removed") & (F.col("status") == "FAILURE")
    lost = lapsed & ((back & F.col("not_before_us").isNull()) | dead)
    released = back & ~lost & (F.col("attempts") < F.col("previous_attempts"))
    held_us = F.greatest(F.col("changed_us") - F.col("held_since_us"), F.lit(0))
    return rows.select(
        "*",
        lost.alias("lease_lost"),
        released.alias("released"),
        (back & ~lost & ~released).alias("retried"),
        F.when(F.col("left"), held_us).alias("held_us"),
        illegal_step().alias("illegal"),
    )


def illegal_step() -> Column:
    """Return what is wrong with a step between two states, null if nothing is."""
    legal = F.lit(False)  # noqa: FBT003 - lit
    for before, after in _LEGAL.items():
        legal |= (F.col("previous_status") == before) & F.col("status").isin(*after)
    followed = (F.col("change") == "MODIFY") & F.col("previous_status").isNotNull()
    return F.when(followed & ~legal, F.concat_ws(" -> ", "previous_status", "status"))
