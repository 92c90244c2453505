"""Fates: tasks per outcome, queue, day of creation and group.

Ledger, groups and summary are computed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.schemas import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The violation of a task whose put was not recorded.
NOT_CREATED: Final = "no creation recorded"


def fates(tasks: DataFrame) -> DataFrame:
    """Return `tasks`, `created`, outcomes, `in_time`, `violations` and `inversions` per queue, day and group.

    Args:
        tasks: The table `tasks`, with `day`.
    """
    conditions = {
        "created": ~F.array_contains("problems", NOT_CREATED),
        **{name: F.col("outcome") == name for name in OUTCOMES},
        "in_time": F.col("in_time"),
        "violations": F.size("problems") > 0,
    }
    counts = [F.count_if(condition).alias(name) for name, condition in conditions.items()]
    # Null if it is null for all of them.
    counts.append(F.sum(F.col("inverted").cast("bigint")).alias("inversions"))
    return tasks.groupBy("queue", "day", "task_group").agg(F.count(F.lit(1)).alias("tasks"), *counts)
