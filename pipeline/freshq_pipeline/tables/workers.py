"""`workers`: what each worker claimed, settled and lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def workers(steps: DataFrame) -> DataFrame:
    """Return the table; a null worker stands for all whose lease tokens do not name them.

    Args:
        steps: From `distinct_steps`.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    done = F.array(
        F.when(F.col("claimed"), F.struct(F.col("worker"), F.lit("claims").alias("deed"))),
        F.when(settled, F.struct(F.col("previous_worker").alias("worker"), F.lit("settles").alias("deed"))),
        F.when(
            F.col("lease_lost"),
            F.struct(F.col("previous_worker").alias("worker"), F.lit("lease_losses").alias("deed")),
        ),
    )
    deeds = steps.where("claimed or left").select(F.explode(F.array_compact(done)).alias("d")).select("d.*")
    counts = [
        F.sum((F.col("deed") == name).cast("bigint")).cast(kind).alias(name)
        for name, kind in TABLES["workers"].items()
        if name != "worker"
    ]
    return deeds.groupBy("worker").agg(*counts)
