"""`workers`: claims, settles and lease losses of each worker of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OWNER: Final = ("queue", "worker")
_COUNTS: Final = ("claims", "settles", "lease_losses")


def workers(steps: DataFrame, *more: str) -> DataFrame:
    """Return the table; the null worker covers all lease tokens that name no worker.

    Args:
        steps: From `distinct_steps`.
        more: Further columns to count by.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    begun = steps.where("claimed").groupBy(*more, *_OWNER).agg(F.count(F.lit(1)).alias("claims"))
    ended = (
        steps.where("left")
        .groupBy(*more, "queue", F.col("previous_worker").alias("worker"))
        .agg(F.count_if(settled).alias("settles"), F.count_if(F.col("lease_lost")).alias("lease_losses"))
        # A worker that held a task when it was deleted did not settle it.
        .where("settles > 0 or lease_losses > 0")
    )
    return summed(begun.unionByName(ended, allowMissingColumns=True), *more)


def summed(counts: DataFrame, *more: str) -> DataFrame:
    """Return the table from the counts of its parts."""
    sums = (F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name) for name in _COUNTS)
    return counts.groupBy(*more, *_OWNER).agg(*sums)
