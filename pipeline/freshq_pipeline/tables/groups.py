"""`groups`: what each group offered and got, and how evenly."""

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
    counted = counts.groupBy("task_group").agg(
        F.sum("tasks").alias("offered"), F.sum("success").alias("succeeded"), F.sum("shed").alias("shed")
    )
    # A row a group: few enough for one window over all.
    everything = Window.partitionBy(F.lit(1))
    shares = {
        f"{name}_share": F.try_divide(F.col(of), F.sum(of).over(everything))
        for name, of in (("offer", "offered"), ("service", "succeeded"), ("shed", "shed"))
    }
    served = F.col("succeeded").cast("double")
    shares["jain_index"] = jain_index(served, everything)
    shares["jain_index_of_demand"] = jain_index(served / F.col("offered"), everything)
    return counted.select(
        *(shares.get(name, F.col(name)).cast(kind).alias(name) for name, kind in TABLES["groups"].items())
    )


def jain_index(amount: Column, over: WindowSpec) -> Column:
    """Return Jain's index of fairness: 1 if all have the same, 1/n if one has everything.

    Null if nobody has anything.
    """
    # A sum of fractions depends on their order, and that of the rows is chance.
    in_order = over.orderBy(amount).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    total = F.sum(amount).over(in_order)
    squares = F.sum(amount * amount).over(in_order)
    return F.try_divide(total * total, F.count(F.lit(1)).over(in_order) * squares)
