"""What tells tasks apart: ids are unique within a queue only."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column

if TYPE_CHECKING:
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
