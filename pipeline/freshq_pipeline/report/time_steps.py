"""The recording in time steps, for the charts: seconds if it is short, otherwise minutes or more.

Steps have the columns of `minutes`, for all groups of a queue together. Steps of seconds are computed from
`tasks`. They count a task as waiting until its first claim, because that table does not have later waits.
"""

from __future__ import annotations

from math import ceil, inf, log
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.gold.minutes import HISTOGRAM_BASE
from freshq_pipeline.report.tables import Sums

if TYPE_CHECKING:
    from freshq_pipeline.report.tables import Tables


# Largest number of time steps in a chart; more would be indistinguishable.
MAX_STEPS: Final = 240
# Lengths of a step; longer steps are whole days.
_STEP_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)
_DAY: Final = 1440
MINUTE_MS: Final = 60_000
_FLOWS: Final = dict.fromkeys(("offered", "succeeded", "failed", "cancelled", "shed"), "sum") | {
    "oldest_pending_seconds": "max",
    "newest_pending_seconds": "min",
    "service_horizon_seconds": "max",
}
_STEP: Final = ("queue", "minute_ms")


def by_minute(tables: Tables) -> pd.DataFrame:
    """Return a row for each queue and time step, with the start of the step in `at` and `minute_ms`.

    Each step has the sums of its minutes, and the largest backlog of any of them.
    """
    first_ms, last_ms = _ends(tables)
    width_ms = _step_ms(last_ms - first_ms + MINUTE_MS)
    first_ms -= first_ms % width_ms
    flows = Sums(_STEP, _FLOWS)
    waits = Sums((*_STEP, "bucket"), {"count": "sum"})
    backlog = Sums((*_STEP, "from_seconds"), {"count": "max"})
    columns = ("minute_ms", *_FLOWS, "wait_histogram", "backlog_by_age")
    for paths in tables.newest("minutes").values():
        of_groups = Sums((*_STEP, "from_seconds"), {"count": "sum"})
        for rows in tables.batches("minutes", paths, columns):
            steps = _in_steps(rows, first_ms, width_ms)
            flows.add(steps.select([*_STEP, *_FLOWS]))
            waits.add(_flat(steps, "wait_histogram", "bucket"))
            of_groups.add(_flat(rows, "backlog_by_age", "from_seconds"))
        backlog.add(_in_steps(of_groups.rows(), first_ms, width_ms))
    found = _every_step(flows.rows().to_pandas(), range(first_ms, last_ms + 1, width_ms))
    steps = list(zip(found["queue"], found["minute_ms"], strict=True))
    for name, sums, key in (("wait_histogram", waits, "bucket"), ("backlog_by_age", backlog, "from_seconds")):
        found[name] = pd.Series(map(_lists(sums, key).get, steps), dtype=object)
    return found.assign(at=pd.to_datetime(found["minute_ms"], unit="ms"))


def _step_ms(span_ms: int) -> int:
    """Return the shortest step length with which a chart has at most `MAX_STEPS`."""
    least = span_ms / MINUTE_MS / MAX_STEPS
    minutes = next((step for step in _STEP_MINUTES if step >= least), ceil(least / _DAY) * _DAY)
    return minutes * MINUTE_MS


def _every_step(flows: pd.DataFrame, steps: range) -> pd.DataFrame:
    """Return the flows, with rows also for steps in which nothing happened."""
    every = pd.MultiIndex.from_product([flows["queue"].unique(), steps], names=_STEP)
    filled = flows.set_index(list(_STEP)).reindex(every).reset_index()
    return filled.fillna({name: 0 for name, how in _FLOWS.items() if how == "sum"})


def _ends(tables: Tables) -> tuple[int, int]:
    """Return the first and the last minute."""
    days = list(tables.newest("minutes").values())
    first, last = (
        tables.dataset("minutes", paths).to_table(columns=["minute_ms"]) for paths in (days[0], days[-1])
    )
    return pc.min(first["minute_ms"]).as_py(), pc.max(last["minute_ms"]).as_py()


def _in_steps(rows: pa.Table, first_ms: int, width_ms: int) -> pa.Table:
    """Return rows with the start of their time step as `minute_ms`."""
    steps = pc.divide(pc.subtract(rows["minute_ms"], first_ms), width_ms)  # integer division
    at = pc.add(pc.multiply(steps, width_ms), first_ms)
    return rows.set_column(rows.schema.get_field_index("minute_ms"), "minute_ms", at)


def _flat(rows: pa.Table, name: str, key: str) -> pa.Table:
    """Return a row for each element of a column of lists, with its `key` and `count`."""
    lists = rows[name].combine_chunks()
    elements = pc.list_flatten(lists)
    owners = rows.select(list(_STEP)).take(pc.list_parent_indices(lists))
    for field in (key, "count"):
        owners = owners.append_column(field, pc.struct_field(elements, field))
    return owners


def _lists(sums: Sums, key: str) -> dict[tuple[str, int], list[dict[str, int]]]:
    """Return the elements of each queue and time step."""
    found: dict[tuple[str, int], list[dict[str, int]]] = {}
    for row in sums.rows().to_pylist():
        found.setdefault((row["queue"], row["minute_ms"]), []).append({key: row[key], "count": row["count"]})
    return found


Moments: TypeAlias = "np.ndarray[Any, Any]"

# Longest recording that is shown in steps of seconds.
SHORT_MS: Final = 30 * 60_000
SHORT_STEPS_MS: Final = (1000, 2000, 5000, 10_000, 15_000)
MAX_SHORT_STEPS: Final = 120
SHORT_AGES_SECONDS: Final[tuple[int, ...]] = (0, 1, 2, 5, 10, 30, 60, 300)
# Largest number of tasks to read as a whole; each takes about 200 bytes.
MAX_TASKS: Final = 500_000
SHORT_COLUMNS: Final = ("created_ms", "first_taken_ms", "finished_ms", "wait_seconds", "outcome")
_ENDS: Final = {"succeeded": "success", "failed": "failure", "cancelled": "cancelled", "shed": "shed"}


def short_recording(tables: Tables, as_of_ms: int) -> pd.DataFrame | None:
    """Return the tasks, if all were put within `SHORT_MS` before the end of the recording.

    None if they were not, or there are more than `MAX_TASKS`.
    """
    files = list(tables.newest("tasks").values())
    first = tables.dataset("tasks", files[0])
    # Statistics of the files would suffice, but other writers may omit them.
    firsts_ms = (pc.min(batch["created_ms"]).as_py() for batch in first.to_batches(columns=["created_ms"]))
    if as_of_ms - min(at for at in firsts_ms if at is not None) > SHORT_MS:
        return None
    paths = [path for one in files for path in one]
    if tables.dataset("tasks", paths).count_rows() > MAX_TASKS:
        return None
    rows = [*tables.batches("tasks", paths, SHORT_COLUMNS)]
    return pa.concat_tables(rows).to_pandas()


def by_second(tasks: pd.DataFrame, as_of_ms: int) -> pd.DataFrame:
    """Return a row for each queue and time step, with the start of the step in `at`.

    Args:
        tasks: At least one task, with `queue` and `SHORT_COLUMNS`.
        as_of_ms: End of the recording.
    """
    # If all tasks are delayed, none is created before the end.
    first_ms = float(np.floor(min(tasks["created_ms"].min(), as_of_ms) / 1000) * 1000)
    span_ms = max(1.0, as_of_ms - first_ms)
    step_ms = next(step for step in SHORT_STEPS_MS if step >= span_ms / MAX_SHORT_STEPS)
    edges = np.arange(first_ms, first_ms + span_ms + step_ms, step_ms)
    times = np.minimum(edges[1:], as_of_ms)
    queues = tasks.groupby("queue", dropna=False)
    rows = (_steps(one, edges, times).assign(queue=queue) for queue, one in queues)
    return pd.concat(rows, ignore_index=True)


def _steps(tasks: pd.DataFrame, edges: Moments, times: Moments) -> pd.DataFrame:
    """Return the time steps of a queue."""
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
        counts = np.histogram(ages, [*SHORT_AGES_SECONDS, inf])[0]
        by_age = [
            {"from_seconds": age, "count": int(count)}
            for age, count in zip(SHORT_AGES_SECONDS, counts, strict=True)
            if count
        ]
        ends = (ages.max(), ages.min()) if len(ages) else (None, None)
        found.append((by_age, *ends))
    ages_of = ["oldest_pending_seconds", "newest_pending_seconds"]
    # Even if no task ever waited, the rows of all queues must have the same types.
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
