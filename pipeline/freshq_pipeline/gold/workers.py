"""`workers`: claims, settles and lease losses of each worker of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.gold.sums import summed_batches
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.arrow_schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_OWNER: Final = ("queue", "worker")
_COUNTS: Final = ("claims", "settles", "lease_losses")


def worked(steps: DataFrame, *more: str) -> DataFrame:
    """Return the counts of each worker of a queue; the null worker covers all leases that name no worker.

    Args:
        steps: From `distinct_steps`.
        more: Further columns to count by.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    begun = _acts(steps.where("claimed"), more, "worker", claims=F.lit(True))
    # A worker that held a task when it was deleted did not settle it.
    ended = _acts(
        steps.where(F.col("left") & (settled | F.col("lease_lost"))), more, "previous_worker",
        settles=settled, lease_losses=F.col("lease_lost"),
    )  # fmt: skip
    sums = (F.sum(name).alias(name) for name in _COUNTS)
    return begun.unionByName(ended).groupBy(*more, *_OWNER).agg(*sums)


def _acts(steps: DataFrame, more: tuple[str, ...], worker: str, **done: Column) -> DataFrame:
    """Return what a worker did in each step, as counts of 0 or 1."""
    counts = (done.get(name, F.lit(False)).cast("bigint").alias(name) for name in _COUNTS)
    return steps.select(*more, "queue", F.col(worker).alias("worker"), *counts)


def workers(counts: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the table.

    Args:
        counts: From `worked`, of all days.
    """
    return summed_batches(counts, arrow_schema(TABLES["workers"]), _OWNER, _COUNTS)
