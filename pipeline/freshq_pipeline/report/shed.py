"""The section of the report about shed tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.report import axes, charts
from freshq_pipeline.report.sections import Section
from freshq_pipeline.report.tables import Sums
from freshq_pipeline.report.words import NO_NAME

if TYPE_CHECKING:
    import pandas as pd

    from freshq_pipeline.report.tables import Tables

_TITLE: Final = "Shed, by reason and group"
_BY: Final = ("queue", "task_group", "shed_reason")
# The groups of a queue in its chart: those with the most shed tasks.
MAX_GROUPS: Final = 20


def shed_section(tables: Tables, recent: str) -> Section:
    """Return the shed tasks as charts, or as a sentence if one is enough.

    Args:
        tables: The tables.
        recent: Of which days they are, if not of all.
    """
    counts = shed_counts(tables)
    total = counts["tasks"].sum()
    if not total:
        return Section(_TITLE, f"No task was shed{recent}.")
    if len(counts) == 1:
        reason = counts["shed_reason"].iloc[0]
        return Section(_TITLE, f"{total:,} tasks were shed{recent}, all for the reason {reason!r}.")
    drawn = {
        str(queue): [axes.dressed(charts.shed(_largest_groups(one)))]
        for queue, one in counts.groupby("queue")
    }
    return Section(_TITLE, f"Tasks that were shed{recent}.", drawn)


def shed_counts(tables: Tables) -> pd.DataFrame:
    """Return the number of shed tasks by queue, group and reason."""
    counts = Sums(_BY, {"tasks": "sum"})
    for paths in tables.tasks.values():
        for rows in tables.batches("tasks", paths, _BY[1:], pc.field("outcome") == "shed"):
            group = pc.fill_null(rows["task_group"], NO_NAME)
            reason = pc.fill_null(rows["shed_reason"], "unknown")
            each = pa.array([1] * len(rows), pa.int64())
            counts.add(pa.table([rows["queue"], group, reason, each], names=[*_BY, "tasks"]))
    return counts.rows().to_pandas()


def _largest_groups(counts: pd.DataFrame) -> pd.DataFrame:
    most = counts.groupby("task_group")["tasks"].sum().nlargest(MAX_GROUPS).index
    return counts[counts["task_group"].isin(most)]
