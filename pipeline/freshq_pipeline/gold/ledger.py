"""`ledger`: created = all fates, per queue by day and in total. `violations`: the tasks that violate it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from freshq_pipeline.gold.sums import summed
from freshq_pipeline.schemas import OUTCOMES

_COUNTS: Final = ("created", *OUTCOMES, "violations")


def ledger(counts: pa.Table) -> pa.Table:
    """Return the table; `day` is null in the rows for all days.

    Args:
        counts: From `fates`, of all days.
    """
    by_day = summed(counts, ("queue", "day"), _COUNTS)
    in_total = summed(by_day, ("queue",), _COUNTS)
    in_total = in_total.append_column("day", pa.nulls(len(in_total), pa.string()))
    rows = pa.concat_tables((by_day, in_total.select(by_day.column_names)))
    difference = rows["created"]
    for name in OUTCOMES:
        difference = pc.subtract(difference, rows[name])
    return rows.append_column("difference", difference)


def violations(tasks: DataFrame) -> DataFrame:
    """Return a row for each problem of a task, with the task's creation time in `created_us`.

    Args:
        tasks: The table `tasks`, with `day`.
    """
    return tasks.where(F.size("problems") > 0).select(
        "task_id",
        "life",
        "queue",
        "day",
        F.floor(F.col("created_ms") * 1000 + 0.5).alias("created_us"),
        F.explode("problems").alias("problem"),
    )
