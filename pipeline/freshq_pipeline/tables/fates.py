"""How many tasks ended in which way, by day and group: small, and enough for ledger, groups and summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.schemas import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a task has against it if its put was never seen.
UNBORN: Final = "no creation recorded"


def fates(tasks: DataFrame) -> DataFrame:
    """Return a row for each day of creation and group: `tasks`, `created`, fates, `violations`, `inversions`.

    Args:
        tasks: The table `tasks`.
    """
    conditions = {
        "created": ~F.array_contains("problems", UNBORN),
        **{name: F.col("outcome") == name for name in OUTCOMES},
        "violations": F.size("problems") > 0,
        "inversions": F.col("inverted"),
    }
    counts = [F.count_if(condition).alias(name) for name, condition in conditions.items()]
    return tasks.groupBy(day_of_creation().alias("day"), "task_group").agg(
        F.count(F.lit(1)).alias("tasks"), *counts
    )


def day_of_creation() -> Column:
    """Return the day, UTC, as text."""
    return F.date_format(F.timestamp_millis(F.col("created_ms").cast("bigint")), "yyyy-MM-dd")
