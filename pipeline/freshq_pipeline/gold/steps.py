"""Distinct events in the order of each task's life. All tables are computed from them."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from freshq_pipeline.storage.days import DAY_US, HOUR_US, spans

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import WindowSpec


LIVE: Final = ("PENDING", "TAKEN")
# Ids are unique within a queue only. The more varied column comes first, because sorting compares it first.
TASK: Final = ("task_id", "queue")


def same_task(one: DataFrame, other: DataFrame, *more: str) -> Column:
    """Return the join condition that rows belong to the same task; null counts as a queue.

    Args:
        one: Rows with the columns of `TASK`.
        other: Rows with the columns of `TASK`.
        more: Further columns that must be equal.
    """
    return reduce(Column.__and__, (one[name].eqNullSafe(other[name]) for name in (*TASK, *more)))


def gathered(rows: DataFrame) -> DataFrame:
    """Return rows in one partition if Spark shuffles into one partition: then nothing has to be shuffled.

    Args:
        rows: Rows in any number of partitions.
    """
    one = rows.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1"
    return rows.coalesce(1) if one else rows


def by_queue_name(values: Mapping[str, int], otherwise: int) -> Column:
    """Return the value for the row's queue.

    Args:
        values: Values by queue.
        otherwise: Value for other queues, and for no queue.
    """
    if not values:
        return F.lit(otherwise)
    # The optimizer turns the text into a map once; one expression per queue would be slow for many queues.
    known = F.from_json(F.lit(json.dumps(values)), "map<string,bigint>")
    return F.coalesce(known[F.col("queue")], F.lit(otherwise))


MICROS: Final = 1_000_000
# Stream times are whole seconds, rounded down.
STREAM_RESOLUTION_US: Final = MICROS

# Records of DynamoDB Streams have sequence numbers; records of Kinesis and exports have only times.
_ORDER: Final = ("sequence", "changed_us", "attempts", "rank", "event_id")

# Columns that the tables need. Steps are cached with these columns only.
STEP: Final = (
    "task_id", "life", "change", "status", "queue", "task_group", "kind", "parent_id", "root_id",
    "value_millionths", "decay", "priority", "attempts",
    "created_us", "put_us", "deadline_us", "changed_us", "next_us", "not_before_us", "shed_reason",
    "ttl_removal", "worker",
    "previous_status", "previous_worker", "is_last", "removed", "claimed", "left", "held_us", "lease_lost",
    "released", "retried", "illegal", "begins",
)  # fmt: skip
# With `fresh`, which marks the events of this run, also columns that show which times these events change.
FRESH_STEP: Final = (
    *STEP, "fresh", "unsettled", "before_fresh", "before_change", "before_status", "before_changed_us",
    "before_deadline_us",
)  # fmt: skip

_LEGAL: Final = {
    "PENDING": ("PENDING", "TAKEN", "FAILURE", "CANCELLED", "SHED"),
    "TAKEN": ("TAKEN", "SUCCESS", "FAILURE", "PENDING", "CANCELLED", "SHED"),
    "FAILURE": ("FAILURE", "PENDING", "TAKEN"),
    "SUCCESS": ("SUCCESS",),
    "CANCELLED": ("CANCELLED",),
    "SHED": ("SHED",),
}
# Follows "illegal step" in the problem of a task.
OTHER_VALUE: Final = "to another value"
OVER: Final = ("SUCCESS", "FAILURE", "CANCELLED", "SHED")
_PREVIOUS: Final = ("status", "lease", "lease_until_us", "attempts", "worker", "value_millionths", "decay")
_BEFORE: Final = (*_PREVIOUS, "event_id", "put_us", "deadline_us")
_FRESH_BEFORE: Final = ("change", "changed_us", "created_us", "task_group")


def distinct_steps(events: DataFrame, partitions: int) -> DataFrame:
    """Return each event once, with data of the previous and the next event of the same task.

    This takes one shuffle by task and one sort, which later operations preserve. Sorting puts duplicates next
    to each other.

    Args:
        events: Canonical events in any order, including duplicates. If they have `fresh`, whether this run
            read them, the result has the columns `FRESH_STEP`, otherwise `STEP`. A copy of an earlier event
            is not fresh.
        partitions: Number of partitions.
    """
    partly = "fresh" in events.columns
    by_task = Window.partitionBy(*TASK).orderBy(*_ORDER, *(("fresh",) if partly else ()))
    looked_at = (*_BEFORE, *_FRESH_BEFORE) if partly else _BEFORE
    put = F.coalesce("put_us", "created_us")
    # Partitioned by id only, so that no shuffle is needed where Spark groups by queue and id.
    ranked = events.withColumns({"rank": _rank(), "put_us": put})
    placed = gathered(ranked) if partitions == 1 else ranked.repartition(partitions, "task_id")
    # The first copy of an event directly follows the previous event, so looking back gives the same result
    # before and after dropping copies. Looking back first saves a pass over all rows.
    with_previous = placed.withColumns({f"before_{name}": F.lag(name).over(by_task) for name in looked_at})
    copy_of = F.col("before_event_id")
    once = with_previous.where(copy_of.isNull() | (copy_of != F.col("event_id")))
    within = _within_lives(once)
    if partly:
        within = _with_unsettled(within, by_task)
    steps = _with_verbs(_with_following(_with_claims(within), by_task))
    return steps.select(*(FRESH_STEP if partly else STEP))


def _with_unsettled(events: DataFrame, by_task: WindowSpec) -> DataFrame:
    """Add whether events may change the meaning of earlier steps of the task.

    Other events change only the time after them. A fresh event may change more if a known event follows it,
    if it changes the group or creation time of the whole life, or if clocks differ.
    """
    other = (
        (F.col("created_us") != F.col("before_created_us"))
        | (F.col("changed_us") < F.col("before_changed_us"))
        | ~F.col("task_group").eqNullSafe(F.col("before_task_group"))
    )
    followed = F.coalesce(~F.lead("fresh").over(by_task), F.lit(False))
    unsettled = F.col("fresh") & (followed | (~F.col("begins") & other))
    # Looked up after copies are dropped: the previous event may have had a fresh copy.
    before = F.coalesce(F.lag("fresh").over(by_task), F.lit(False))
    return events.withColumns({"unsettled": F.coalesce(unsettled, F.lit(False)), "before_fresh": before})


def _within_lives(events: DataFrame) -> DataFrame:
    """Add the previous state of the task, null if the event begins a life."""
    change = F.when(_put_over(), "INSERT").otherwise(F.col("change"))
    previous = {f"previous_{name}": F.when(change != "INSERT", F.col(f"before_{name}")) for name in _PREVIOUS}
    # The first known event begins the first life of a task, even if the task is older than the recording.
    begins = (change == "INSERT") | F.col("before_event_id").isNull()
    return events.withColumns(previous | {"change": change, "begins": begins})


def _put_over() -> Column:
    """Return whether a change replaces a finished task by a later put of the same id.

    Creation times are no guide: a delayed put that was cancelled may have a later one.
    """
    before = F.col("before_status")
    stale = (before == "PENDING") & (F.col("before_deadline_us") <= F.col("changed_us"))
    waits = (F.col("change") == "MODIFY") & (F.col("status") == "PENDING")
    return waits & (before.isin(*OVER) | stale) & (F.col("put_us") > F.col("before_put_us"))


def _rank() -> Column:
    """Return the order of events in the same attempt and microsecond."""
    return (
        F.when(F.col("change") == "INSERT", 0)
        .when(F.col("change") == "REMOVE", 4)
        .when(F.col("status") == "TAKEN", 1)
        .when(F.col("status") == "PENDING", 2)
        .otherwise(3)
    )


def _with_claims(events: DataFrame) -> DataFrame:
    """Add whether events claimed a task, ended a claim or removed the task."""
    removed = F.col("change") == "REMOVE"
    taken = ~removed & (F.col("status") == "TAKEN")
    was_taken = F.coalesce(F.col("previous_status") == "TAKEN", F.lit(False))
    other_lease = F.coalesce(F.col("lease") != F.col("previous_lease"), F.lit(False))
    claimed = taken & (~was_taken | other_lease)
    left = was_taken & (~taken | claimed)
    return events.select("*", removed.alias("removed"), claimed.alias("claimed"), left.alias("left"))


def _with_following(events: DataFrame, by_task: WindowSpec) -> DataFrame:
    """Add the life, the time of the next change, and the start of the claim that the event ends."""
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
    """Add the verb that caused the step."""
    back = F.col("left") & ~F.col("removed") & (F.col("status") == "PENDING")
    expired = F.coalesce(F.col("changed_us") >= F.col("previous_lease_until_us"), F.lit(False))
    # A worker's retry sets notBefore; the sweep of expired leases does not.
    failed = F.col("left") & ~F.col("removed") & (F.col("status") == "FAILURE")
    lost = expired & ((back & F.col("not_before_us").isNull()) | failed)
    released = back & ~lost & (F.col("attempts") < F.col("previous_attempts"))
    held_us = F.greatest(F.col("changed_us") - F.col("held_since_us"), F.lit(0))
    return rows.select(
        "*",
        lost.alias("lease_lost"),
        released.alias("released"),
        (back & ~lost & ~released).alias("retried"),
        F.when(F.col("left"), held_us).alias("held_us"),
        F.coalesce(illegal_step(), F.when(other_value(), OTHER_VALUE)).alias("illegal"),
    )


def illegal_step() -> Column:
    """Return an illegal step between two states as text; null if the step is legal."""
    legal = F.lit(False)
    for before, after in _LEGAL.items():
        legal |= (F.col("previous_status") == before) & F.col("status").isin(*after)
    followed = (F.col("change") == "MODIFY") & F.col("previous_status").isNotNull()
    return F.when(followed & ~legal, F.concat_ws(" -> ", "previous_status", "status"))


def other_value() -> Column:
    """Return whether a change that is no put gave a task another value: then the values do not balance."""
    same = [F.col(name).eqNullSafe(F.col(f"previous_{name}")) for name in ("value_millionths", "decay")]
    followed = (F.col("change") == "MODIFY") & F.col("previous_status").isNotNull()
    return followed & ~(same[0] & same[1]) & (F.col("put_us") <= F.col("before_put_us"))


def hour_of(moment_us: Column) -> Column:
    """Return the UTC hour of a time, by number."""
    return F.floor(moment_us / HOUR_US).cast("int")


def date_of(moment_us: Column) -> Column:
    """Return the UTC day of a time as a date, which is much faster to make than its text."""
    return F.date_from_unix_date(F.floor(moment_us / DAY_US).cast("int"))


def in_hours(moment: Column, hours: Collection[int] | None, length: int = HOUR_US) -> Column:
    """Return whether a time is in the given hours.

    Args:
        moment: The time.
        hours: The hours; None: all.
        length: Duration of an hour in the unit of the time.
    """
    if hours is None:
        return F.lit(True)
    within = ((moment >= first * length) & (moment < end * length) for first, end in spans(hours))
    return reduce(Column.__or__, within, F.lit(False))


def until_us() -> Column:
    """Return the time until which the task waits or is in progress after a step; null if that is open."""
    return F.least("next_us", F.when(F.col("status") == "PENDING", F.col("deadline_us")))


def shed_us() -> Column:
    """Return the deadline at which a waiting task is shed without an event; null if it is not shed."""
    return F.when(F.col("is_last") & ~F.col("removed") & waits("status"), F.col("deadline_us"))


def is_open() -> Column:
    """Return whether a step is the last of a task that is in progress or waits without a deadline."""
    return F.col("is_last") & ~F.col("removed") & F.col("status").isin(*LIVE) & until_us().isNull()


def waits(status: str) -> Column:
    """Return whether a column holds the status of a waiting task."""
    return F.coalesce(F.col(status) == "PENDING", F.lit(False))
