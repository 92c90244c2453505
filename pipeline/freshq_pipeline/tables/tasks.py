"""`tasks`: one row for each task, from its put to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.schemas import TABLES
from freshq_pipeline.tables.steps import MICROS, STREAM_RESOLUTION_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FINAL: Final = ("SUCCESS", "FAILURE", "CANCELLED", "SHED")
_LAST: Final = (
    "status", "queue", "task_group", "priority", "deadline_us", "shed_reason", "attempts", "changed_us",
    "removed", "ttl_removal", "previous_status",
)  # fmt: skip


def lives(steps: DataFrame) -> DataFrame:
    """Return a row for each life of a task, without judging how it ended.

    Args:
        steps: From `distinct_steps`, which spread them by task: no shuffle is needed.
    """
    at = F.col("changed_us")
    last = F.max(F.when(F.col("is_last"), F.struct(*_LAST)))
    live = ~F.col("removed")
    final = live & F.col("status").isin(*_FINAL)
    begun = F.col("change").isin("INSERT", "SNAPSHOT")
    return steps.groupBy("task_id", "life").agg(
        F.min("created_us").alias("created_us"),
        F.min(at).alias("first_us"),
        F.max(begun).alias("begun"),
        F.min(F.when(F.col("claimed"), at)).alias("first_taken_us"),
        F.max(F.when(final, at)).alias("final_us"),
        F.sum(F.col("claimed").cast("int") - F.col("released").cast("int")).alias("claims"),
        F.sum("held_us").alias("run_us"),
        F.sum(F.col("lease_lost").cast("int")).cast("int").alias("lease_losses"),
        F.collect_list("illegal").alias("illegal"),
        last.alias("last"),
    )


def tasks(lives: DataFrame, inversions: DataFrame, as_of_us: int, since_us: int) -> DataFrame:
    """Return the table.

    Args:
        lives: From `lives`.
        inversions: `task_id` and `life` of the tasks that were taken while a newer one waited.
        as_of_us: The moment to say the outcome at.
        since_us: When the record begins; a task that was created before may lack its beginning.
    """
    inverted = inversions.select("task_id", "life", F.lit(True).alias("inverted"))  # noqa: FBT003 - lit
    judged = _judged(lives, as_of_us).join(inverted, ["task_id", "life"], "left")
    waited_us = F.col("first_taken_us") - F.col("created_us")
    # Clocks differ: a task may seem to be taken before it was put. One never taken has no wait.
    wait_us = F.when(waited_us < 0, F.lit(0)).otherwise(waited_us)
    done = F.col("outcome") == "success"
    # Without a deadline nothing is ever too late.
    timely = F.col("finished_us") <= F.coalesce(F.col("deadline_us"), F.col("finished_us"))
    values = {
        "attempts": F.greatest(F.col("claims"), F.col("last.attempts")),
        "wait_seconds": wait_us / MICROS,
        "run_seconds": F.col("run_us") / MICROS,
        "inverted": F.coalesce("inverted", F.lit(False)),  # noqa: FBT003 - lit
        "in_time": done & timely,
        "problems": problems(since_us),
    }
    values |= {
        f"{name}_ms": F.col(f"{name}_us") / 1000
        for name in ("created", "deadline", "first_taken", "finished", "removed")
    }
    values |= {name: F.col(f"last.{name}") for name in ("queue", "task_group", "priority")}
    return judged.select(
        *(values.get(name, F.col(name)).cast(kind).alias(name) for name, kind in TABLES["tasks"].items())
    )


def _judged(lives: DataFrame, as_of_us: int) -> DataFrame:
    """Return lives with outcome, reason and end."""
    last = F.col("last")
    # What was removed is judged by what it was before.
    status = F.when(last["removed"], F.coalesce(last["previous_status"], last["status"])).otherwise(
        last["status"]
    )
    removed_us = F.when(last["removed"], last["changed_us"])
    rows = lives.select(
        "*", status.alias("status"), removed_us.alias("removed_us"), last["deadline_us"].alias("deadline_us")
    )
    outcome = _outcome(as_of_us)
    rows = rows.withColumn("outcome", outcome)
    waiting = F.col("status") == "PENDING"
    finished = (
        F.when(F.col("outcome").isin("pending", "taken"), F.lit(None))
        .when(waiting & (F.col("outcome") == "shed"), F.coalesce("deadline_us", "removed_us"))
        .when(F.col("status").isin(*_FINAL), F.coalesce("final_us", "created_us"))
        .otherwise(F.col("removed_us"))
    )
    reason = F.when(waiting, F.lit("expired")).otherwise(F.coalesce(last["shed_reason"], F.lit("unknown")))
    return rows.select(
        "*", finished.alias("finished_us"), F.when(F.col("outcome") == "shed", reason).alias("shed_reason")
    )


def _outcome(as_of_us: int) -> Column:
    last = F.col("last")
    gone = F.col("removed_us").isNotNull()
    by_client = gone & ~last["ttl_removal"]
    stale = F.coalesce(F.col("deadline_us") <= as_of_us, F.lit(False))  # noqa: FBT003 - lit
    # The stream's whole second may be cut to before the deadline of a task that was shed by then.
    outlived = F.coalesce(F.col("deadline_us") < F.col("removed_us") + STREAM_RESOLUTION_US, F.lit(False))  # noqa: FBT003 - lit
    return (
        F.when(F.col("status").isin(*_FINAL), F.lower("status"))
        .when((F.col("status") == "PENDING") & gone & last["ttl_removal"], F.lit("shed"))
        .when((F.col("status") == "PENDING") & by_client & ~outlived, F.lit("cancelled"))
        .when((F.col("status") == "PENDING") & stale, F.lit("shed"))
        .when(by_client, F.lit("cancelled"))
        .otherwise(F.lower("status"))
    )


def problems(since_us: int) -> Column:
    """Return what the ledger has against a task, as a list that is mostly empty.

    Args:
        since_us: When the record begins.
    """
    last = F.col("last")
    ended_by_ttl = F.col("removed_us").isNotNull() & last["ttl_removal"]
    unborn = ~F.col("begun") & (F.col("created_us") >= since_us)
    early = F.col("deadline_us") >= F.col("removed_us") + STREAM_RESOLUTION_US
    found = F.array(
        F.when(unborn, F.lit("no creation recorded")),
        F.when(ended_by_ttl & (F.col("status") == "TAKEN"), F.lit("lost while it was taken")),
        F.when(ended_by_ttl & (F.col("status") == "PENDING") & early, F.lit("removed before its deadline")),
    )
    return F.concat(
        F.array_compact(found), F.transform("illegal", lambda step: F.concat(F.lit("illegal step "), step))
    )
