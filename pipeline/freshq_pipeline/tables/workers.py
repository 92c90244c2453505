"""`workers`: claims, settles and lease losses of each worker of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def workers(steps: DataFrame) -> DataFrame:
    """Return the table; the null worker covers all lease tokens that name no worker.

    Args:
        steps: From `distinct_steps`.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    begun = steps.where("claimed").groupBy("queue", "worker").agg(F.count(F.lit(1)).alias("claims"))
    ended = (
        steps.where("left")
        .groupBy("queue", F.col("previous_worker").alias("worker"))
        .agg(F.count_if(settled).alias("settles"), F.count_if(F.col("lease_lost")).alias("lease_losses"))
        # A worker that held a task when it was deleted did not settle it.
        .where("settles > 0 or lease_losses > 0")
    )
    counts = begun.unionByName(ended, allowMissingColumns=True)
    names = [name for name in TABLES["workers"] if name not in ("queue", "worker")]
    sums = (F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name) for name in names)
    return counts.groupBy("queue", "worker").agg(*sums)
