"""`ledger`: created = all fates, per queue by day and in total. `violations`: the tasks that violate it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.gold.fates import day_of_creation
from freshq_pipeline.schemas import OUTCOMES, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def ledger(counts: DataFrame) -> DataFrame:
    """Return the table.

    Args:
        counts: From `fates`.
    """
    summed = ("created", *OUTCOMES, "violations")
    by_day_and_in_total = counts.groupingSets([["queue", "day"], ["queue"]], "queue", "day")
    rows = by_day_and_in_total.agg(*(F.sum(name).alias(name) for name in summed))
    fates = sum((F.col(name) for name in OUTCOMES), F.lit(0))
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
        "task_id", "life", "queue", day_of_creation().alias("day"), F.explode("problems").alias("problem")
    )
