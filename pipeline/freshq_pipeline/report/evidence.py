"""The events of tasks that violate the ledger, read from silver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.gold.silver_days import silver_files
from freshq_pipeline.report.words import moment, queue_name
from freshq_pipeline.schemas import EVENT
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import linked_days, number
from freshq_pipeline.storage.state import required_current

if TYPE_CHECKING:
    import pandas as pd

    from freshq_pipeline.report.tables import Tables

# Number of events of a task to show: the first ones.
MAX_EVENTS: Final = 20
_SHOWN: Final = ("changed", "change", "status", "queue", "attempts", "worker", "event_id")
_READ: Final = (
    "event_id",
    "task_id",
    "change",
    "sequence",
    "changed_us",
    "status",
    "queue",
    "attempts",
    "worker",
)


def events_of(tables: Tables, violations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the events of violating tasks, by task id; tasks whose events were deleted have none.

    Args:
        tables: Tables of the current run.
        violations: Rows of the table `violations`.
    """
    days = required_current(tables.out).days
    chosen = {number(day) for day in violations["day"]} & days.keys()
    chosen |= linked_days(days, chosen)
    paths = [path for day in sorted(chosen) for path in silver_files(tables.out, day, days[day].silver)]
    wanted = pc.field("task_id").isin(pa.array(violations["task_id"].unique(), pa.string()))
    found = tables.out.scan(paths, arrow_schema({name: EVENT[name] for name in _READ}), _READ, wanted)
    events = found.to_table().to_pandas().drop_duplicates("event_id")
    events = events.sort_values(["sequence", "changed_us"], kind="stable")
    events["changed"] = [moment(us / 1000) for us in events["changed_us"]]
    events["queue"] = [queue_name(queue) for queue in events["queue"]]
    return {
        str(task): rows.head(MAX_EVENTS)[list(_SHOWN)] for task, rows in events.groupby("task_id", sort=False)
    }
