"""What tells tasks apart: ids are unique within a queue only."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

# What differs more comes first: sorting compares that.
TASK: Final = ("task_id", "queue")


def same_task(one: DataFrame, other: DataFrame, *more: str) -> Column:
    """Return the condition of a join that rows are of the same task; no queue is a queue of its own.

    Args:
        one: Has the columns of `TASK`.
        other: Likewise.
        more: Further columns that must be equal.
    """
    return reduce(Column.__and__, (one[name].eqNullSafe(other[name]) for name in (*TASK, *more)))


def by_queue_name(values: Mapping[str, int], otherwise: int) -> Column:
    """Return the value of the queue in the column `queue`.

    Args:
        values: Values by name of the queue.
        otherwise: The value of other queues, and of no queue.
    """
    if not values:
        return F.lit(otherwise)
    # Text that the optimizer turns into a map once: an expression for each of many queues would be slow.
    known = F.from_json(F.lit(json.dumps(values)), "map<string,bigint>")
    return F.coalesce(known[F.col("queue")], F.lit(otherwise))
