"""`ledger`: created = all fates, per day and in total; `violations`: every task that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.schemas import OUTCOMES, TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a task has against it if its put was never seen.
_UNBORN = "no creation recorded"


def ledger(tasks: DataFrame) -> DataFrame:
    """Return the table.

    Args:
        tasks: The table `tasks`.
    """
    created = ~F.array_contains("problems", _UNBORN)
    counts = [F.sum(created.cast("bigint")).alias("created")]
    counts += [F.sum((F.col("outcome") == name).cast("bigint")).alias(name) for name in OUTCOMES]
    broken = (F.size("problems") > 0).cast("bigint")
    rows = (
        tasks.select(_day().alias("day"), "outcome", "problems")
        .rollup("day")
        .agg(*counts, F.sum(broken).alias("violations"), F.grouping("day").alias("total"))
    )
    fates = sum((F.col(name) for name in OUTCOMES), F.lit(0))
    # Of no task at all there is no day, but a total of nothing.
    return rows.select(
        *(
            (F.col("created") - fates if name == "difference" else F.col(name)).cast(kind).alias(name)
            for name, kind in TABLES["ledger"].items()
        )
    )


def violations(tasks: DataFrame) -> DataFrame:
    """Return a row for each problem of a task.

    Args:
        tasks: The table `tasks`.
    """
    return tasks.where(F.size("problems") > 0).select(
        "task_id", "life", _day().alias("day"), F.explode("problems").alias("problem")
    )


def _day() -> Column:
    return F.date_format(F.timestamp_millis(F.col("created_ms").cast("bigint")), "yyyy-MM-dd")
