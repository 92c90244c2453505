"""`groups`: offers and successes of each group of a queue, and their fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec


def groups(counts: DataFrame) -> DataFrame:
    """Return the table.

    Args:
        counts: From `fates`.
    """
    counted = counts.groupBy("queue", "task_group").agg(
        F.sum("tasks").alias("offered"), F.sum("success").alias("succeeded"), F.sum("shed").alias("shed")
    )
    whole_queue = Window.partitionBy("queue")
    shares = {
        f"{name}_share": F.try_divide(F.col(of), F.sum(of).over(whole_queue))
        for name, of in (("offer", "offered"), ("service", "succeeded"), ("shed", "shed"))
    }
    served = F.col("succeeded").cast("double")
    shares["jain_index"] = jain_index(served, whole_queue)
    shares["jain_index_of_demand"] = jain_index(served / F.col("offered"), whole_queue)
    return counted.select(
        *(shares.get(name, F.col(name)).cast(kind).alias(name) for name, kind in TABLES["groups"].items())
    )


def jain_index(amount: Column, over: WindowSpec) -> Column:
    """Return Jain's fairness index: 1 if all amounts are equal, 1/n if one has everything, null if all are 0.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    # Floating-point sums depend on the order, and rows come in any order.
    in_order = over.orderBy(amount).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    total = F.sum(amount).over(in_order)
    squares = F.sum(amount * amount).over(in_order)
    return F.try_divide(total * total, F.count(F.lit(1)).over(in_order) * squares)
