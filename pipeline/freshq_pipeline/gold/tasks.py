"""`tasks`: a row for each task, from its put to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq.policy.value import DEFAULT_VALUE, Decay
from freshq_pipeline.gold.steps import MICROS, OTHER_VALUE, OVER, STREAM_RESOLUTION_US, TASK, same_task
from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame


# The problem of a task whose put was not recorded, and of a task whose value changed after its put.
NOT_CREATED: Final = "no creation recorded"
ILLEGAL_STEP: Final = "illegal step "
VALUE_CHANGED: Final = ILLEGAL_STEP + OTHER_VALUE
# The value of a task that was put without one.
MILLIONTHS: Final = 1_000_000
DEFAULT_MILLIONTHS: Final = int(DEFAULT_VALUE * MILLIONTHS)
_AS_PUT: Final = ("task_group", "kind", "parent_id", "root_id", "priority", "decay")
_LAST: Final = (
    "status", *_AS_PUT, "value_millionths", "deadline_us", "shed_reason",
    "attempts", "changed_us", "removed", "ttl_removal",
    "previous_status",
)  # fmt: skip


def lives(steps: DataFrame) -> DataFrame:
    """Return a row for each life of a task, without its outcome.

    Args:
        steps: Steps from `distinct_steps`; they are partitioned by task, so no shuffle is needed.
    """
    at = F.col("changed_us")
    last = F.max(F.when(F.col("is_last"), F.struct(*_LAST)))
    live = ~F.col("removed")
    final = live & F.col("status").isin(*OVER)
    begun = F.col("change").isin("INSERT", "SNAPSHOT")
    return steps.groupBy(*TASK, "life").agg(
        F.min("created_us").alias("created_us"),
        F.min("put_us").alias("put_us"),
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


def tasks(
    lives: DataFrame,
    inversions: DataFrame | None,
    as_of_us: int,
    since_us: Column,
    other_order: Collection[str] = (),
) -> DataFrame:
    """Return the table.

    Args:
        lives: Lives from `lives`.
        inversions: `queue`, `task_id` and `life` of claims out of turn; a claim may occur several times. None
            if there are none.
        as_of_us: Time at which outcomes are determined.
        since_us: Start of the recording of the task's queue, before which a put may be missing.
        other_order: Queues that are not served newest first.
    """
    with_outcome = _with_inverted(_with_outcome(lives, as_of_us), inversions, other_order)
    waited_us = F.col("first_taken_us") - F.col("created_us")
    # Clocks differ, so a claim may seem to precede the put. Tasks that were never claimed have no wait.
    wait_us = F.when(waited_us < 0, F.lit(0)).otherwise(waited_us)
    in_time = _in_time()
    values = {
        "attempts": F.greatest(F.col("claims"), F.col("last.attempts")),
        "wait_seconds": wait_us / MICROS,
        "run_seconds": F.col("run_us") / MICROS,
        "in_time": in_time,
        "value": F.col("last.value_millionths") / MILLIONTHS,
        "value_delivered": _delivered_millionths(in_time) / MILLIONTHS,
        "problems": problems(since_us),
    }
    values |= {
        f"{name}_ms": F.col(f"{name}_us") / 1000
        for name in ("put", "created", "deadline", "first_taken", "finished", "removed")
    }
    values |= {name: F.col(f"last.{name}") for name in _AS_PUT}
    columns = TABLES["tasks"].items()
    return with_outcome.select(
        *(values.get(name, F.col(name)).cast(kind).alias(name) for name, kind in columns)
    )


def _in_time() -> Column:
    """Return whether a task succeeded by its deadline; without a deadline it is never late."""
    timely = F.col("finished_us") <= F.coalesce(F.col("deadline_us"), F.col("finished_us"))
    return (F.col("outcome") == "success") & timely


def _delivered_millionths(in_time: Column) -> Column:
    """Return the value that a task delivered, as `policy.value.value_at` does; null if it is not over."""
    value = F.coalesce(F.col("last.value_millionths"), F.lit(DEFAULT_MILLIONTHS))
    left_us, life_us = (F.col("deadline_us") - F.col(of) for of in ("finished_us", "created_us"))
    left = F.least(F.lit(1.0), left_us / F.greatest(F.lit(1), life_us))
    decays = (F.col("last.decay") == Decay.LINEAR) & F.col("deadline_us").isNotNull()
    worth = F.when(decays, F.floor(value * left + 0.5)).otherwise(value)
    return F.when(in_time, worth).when(~F.col("outcome").isin("pending", "taken"), F.lit(0))


def _with_inverted(lives: DataFrame, inversions: DataFrame | None, other_order: Collection[str]) -> DataFrame:
    """Add whether a claim was out of turn; null in queues that are not served newest first."""
    # Only resources and callers have such ids. They are matched by fit, oldest first.
    matched = F.endswith("task_id", F.concat(F.lit("#"), F.col("created_us").cast("string")))
    newest_first = ~(matched | F.coalesce(F.col("queue").isin(*other_order), F.lit(False)))
    if inversions is None:
        return lives.withColumn("inverted", F.when(newest_first, F.lit(False)))
    found = inversions.select(*TASK, "life").distinct().withColumn("found", F.lit(True))
    joined = lives.join(found, same_task(lives, found, "life"), "left").select(lives["*"], "found")
    return joined.withColumn("inverted", F.when(newest_first, F.coalesce("found", F.lit(False))))


def _with_outcome(lives: DataFrame, as_of_us: int) -> DataFrame:
    """Add the outcome, the end and the shed reason."""
    last = F.col("last")
    # The outcome of a removed task depends on its last state.
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
        .when(F.col("status").isin(*OVER), F.coalesce("final_us", "created_us"))
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
    stale = F.coalesce(F.col("deadline_us") <= as_of_us, F.lit(False))
    # The stream's time is rounded down, so it may precede the deadline of a task that was shed.
    outlived = F.coalesce(F.col("deadline_us") < F.col("removed_us") + STREAM_RESOLUTION_US, F.lit(False))
    waiting = F.col("status") == "PENDING"
    return (
        F.when(F.col("status").isin(*OVER), F.lower("status"))
        .when(waiting & gone & last["ttl_removal"], F.lit("shed"))
        .when(waiting & by_client & ~outlived, F.lit("cancelled"))
        .when(waiting & stale, F.lit("shed"))
        .when(by_client, F.lit("cancelled"))
        .otherwise(F.lower("status"))
    )


def problems(since_us: Column) -> Column:
    """Return the ledger violations of a task, given the start of the recording of its queue."""
    last = F.col("last")
    ended_by_ttl = F.col("removed_us").isNotNull() & last["ttl_removal"]
    not_created = ~F.col("begun") & (F.col("put_us") >= since_us)
    early = F.col("deadline_us") >= F.col("removed_us") + STREAM_RESOLUTION_US
    found = (
        F.when(not_created, F.lit(NOT_CREATED)),
        F.when(ended_by_ttl & (F.col("status") == "TAKEN"), F.lit("lost while it was taken")),
        F.when(ended_by_ttl & (F.col("status") == "PENDING") & early, F.lit("removed before its deadline")),
    )
    steps = F.transform("illegal", lambda step: F.concat(F.lit(ILLEGAL_STEP), step))
    # Spark does not compile functions over lists, and nearly all tasks have no problems.
    none = F.coalesce(*found).isNull() & (F.size("illegal") == 0)
    return F.when(none, F.array().cast("array<string>")).otherwise(
        F.concat(F.array_compact(F.array(*found)), steps)
    )
