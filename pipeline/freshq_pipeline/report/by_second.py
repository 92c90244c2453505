"""A short recording in steps of seconds, for the report: by minutes it would be a few points.

The columns are those of `minutes` for all groups of a queue together, computed from the table `tasks`. A task
counts as waiting until its first claim, because the table does not have later waits.
"""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.gold.minutes import HISTOGRAM_BASE

if TYPE_CHECKING:
    from freshq_pipeline.report.tables import Tables

Moments: TypeAlias = "np.ndarray[Any, Any]"

# The longest recording that is shown in steps of seconds.
SHORT_MS: Final = 30 * 60_000
STEPS_MS: Final = (1000, 2000, 5000, 10_000, 15_000)
MAX_STEPS: Final = 120
AGES_SECONDS: Final[tuple[int, ...]] = (0, 1, 2, 5, 10, 30, 60, 300)
# Most tasks that are read as a whole; they take some 200 bytes each.
MAX_TASKS: Final = 500_000
COLUMNS: Final = ("created_ms", "first_taken_ms", "finished_ms", "wait_seconds", "outcome")
_ENDS: Final = {"succeeded": "success", "failed": "failure", "cancelled": "cancelled", "shed": "shed"}


def short_recording(tables: Tables, as_of_ms: int) -> pd.DataFrame | None:
    """Return the tasks, if all were put within `SHORT_MS` before the end of the recording.

    None if they were not, or are more than `MAX_TASKS`.
    """
    files = list(tables.tasks.values())
    first = tables.dataset("tasks", files[0])
    # Statistics of files would do, but other writers may leave them out.
    firsts_ms = (pc.min(batch["created_ms"]).as_py() for batch in first.to_batches(columns=["created_ms"]))
    if as_of_ms - min(at for at in firsts_ms if at is not None) > SHORT_MS:
        return None
    paths = [path for one in files for path in one]
    if tables.dataset("tasks", paths).count_rows() > MAX_TASKS:
        return None
    rows = [*tables.batches("tasks", paths, COLUMNS)]
    return pa.concat_tables(rows).to_pandas()


def by_second(tasks: pd.DataFrame, as_of_ms: int) -> pd.DataFrame:
    """Return one row per queue and time step, with the start of the step in `at`.

    Args:
        tasks: At least one task, with `queue` and `COLUMNS`.
        as_of_ms: End of the recording.
    """
    # If all tasks are delayed, none is created yet.
    first_ms = float(np.floor(min(tasks["created_ms"].min(), as_of_ms) / 1000) * 1000)
    span_ms = max(1.0, as_of_ms - first_ms)
    step_ms = next(step for step in STEPS_MS if step >= span_ms / MAX_STEPS)
    edges = np.arange(first_ms, first_ms + span_ms + step_ms, step_ms)
    times = np.minimum(edges[1:], as_of_ms)
    return pd.concat(
        (
            _steps(one, edges, times).assign(queue=queue)
            for queue, one in tasks.groupby("queue", dropna=False)
        ),
        ignore_index=True,
    )


def _steps(tasks: pd.DataFrame, edges: Moments, times: Moments) -> pd.DataFrame:
    """Return the time steps of one queue."""
    rows = pd.DataFrame({"minute_ms": edges[:-1], "at": pd.to_datetime(edges[:-1], unit="ms")})
    rows["offered"] = np.histogram(tasks["created_ms"], edges)[0]
    for name, outcome in _ENDS.items():
        rows[name] = np.histogram(tasks.loc[tasks["outcome"] == outcome, "finished_ms"].dropna(), edges)[0]
    return rows.join(_stocks(tasks, times)).join(_claims(tasks, edges))


def _stocks(tasks: pd.DataFrame, times: Moments) -> pd.DataFrame:
    """Return the tasks waiting for their first claim at each time."""
    created = tasks["created_ms"].to_numpy()
    left = tasks["first_taken_ms"].fillna(tasks["finished_ms"]).fillna(inf).to_numpy()
    found = []
    for at in times:
        ages = (at - created[(created < at) & (left >= at)]) / 1000
        counts = np.histogram(ages, [*AGES_SECONDS, inf])[0]
        by_age = [
            {"from_seconds": age, "count": int(count)}
            for age, count in zip(AGES_SECONDS, counts, strict=True)
            if count
        ]
        ends = (ages.max(), ages.min()) if len(ages) else (None, None)
        found.append((by_age, *ends))
    ages_of = ["oldest_pending_seconds", "newest_pending_seconds"]
    # Also if no task ever waited: the rows of all queues must have the same types.
    return pd.DataFrame(found, columns=["backlog_by_age", *ages_of]).astype(dict.fromkeys(ages_of, float))


def _claims(tasks: pd.DataFrame, edges: Moments) -> pd.DataFrame:
    """Return the waits of the tasks first claimed in each step."""
    claimed = tasks.dropna(subset=["first_taken_ms"])
    step = pd.Series(np.searchsorted(edges, claimed["first_taken_ms"], side="right") - 1, name="step")
    wait_us = np.maximum(claimed["wait_seconds"].to_numpy() * 1e6, 1)
    waits = pd.DataFrame(
        {"step": step, "us": wait_us, "bucket": np.ceil(np.log(wait_us) / log(HISTOGRAM_BASE))}
    )
    found = []
    for number in range(len(edges) - 1):
        mine = waits[waits["step"] == number]
        counts = mine["bucket"].value_counts().sort_index()
        histogram = [{"bucket": int(bucket), "count": int(count)} for bucket, count in counts.items()]
        found.append((histogram or None, mine["us"].max() / 1e6 if len(mine) else None))
    rows = pd.DataFrame(found, columns=["wait_histogram", "service_horizon_seconds"])
    return rows.astype({"service_horizon_seconds": float})
