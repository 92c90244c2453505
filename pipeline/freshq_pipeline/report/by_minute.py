"""A longer recording in steps of minutes or more, for the report: all groups of a queue together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.report.tables import Sums

if TYPE_CHECKING:
    from freshq_pipeline.report.tables import Tables

# Most time steps in a chart; more would be indistinguishable.
MAX_STEPS: Final = 240
# The lengths of a step, in minutes; longer ones are whole days.
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)
_DAY: Final = 1440
MINUTE_MS: Final = 60_000
_FLOWS: Final = dict.fromkeys(("offered", "succeeded", "failed", "cancelled", "shed"), "sum") | {
    "oldest_pending_seconds": "max",
    "newest_pending_seconds": "min",
    "service_horizon_seconds": "max",
}
_STEP: Final = ("queue", "minute_ms")


def by_minute(tables: Tables) -> pd.DataFrame:
    """Return one row per queue and time step, with the start of the step in `at` and `minute_ms`.

    A step has the sums of its minutes, and the largest backlog of one of them.
    """
    first_ms, last_ms = _ends(tables)
    width_ms = _step_ms(last_ms - first_ms + MINUTE_MS)
    first_ms -= first_ms % width_ms
    flows = Sums(_STEP, _FLOWS)
    waits = Sums((*_STEP, "bucket"), {"count": "sum"})
    backlog = Sums((*_STEP, "from_seconds"), {"count": "max"})
    columns = ("minute_ms", *_FLOWS, "wait_histogram", "backlog_by_age")
    for paths in tables.minutes.values():
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
    """Return the length of a step: the shortest with which a chart has at most `MAX_STEPS`."""
    least = span_ms / MINUTE_MS / MAX_STEPS
    minutes = next((step for step in _STEPS if step >= least), math.ceil(least / _DAY) * _DAY)
    return minutes * MINUTE_MS


def _every_step(flows: pd.DataFrame, steps: range) -> pd.DataFrame:
    """Return the flows with a row also for each step in which nothing happened."""
    every = pd.MultiIndex.from_product([flows["queue"].unique(), steps], names=_STEP)
    filled = flows.set_index(list(_STEP)).reindex(every).reset_index()
    return filled.fillna({name: 0 for name, how in _FLOWS.items() if how == "sum"})


def _ends(tables: Tables) -> tuple[int, int]:
    """Return the first and the last minute."""
    days = list(tables.minutes.values())
    first, last = (
        tables.dataset("minutes", paths).to_table(columns=["minute_ms"]) for paths in (days[0], days[-1])
    )
    return pc.min(first["minute_ms"]).as_py(), pc.max(last["minute_ms"]).as_py()


def _in_steps(rows: pa.Table, first_ms: int, width_ms: int) -> pa.Table:
    """Return rows with the start of their time step as `minute_ms`."""
    steps = pc.divide(pc.subtract(rows["minute_ms"], first_ms), width_ms)  # whole numbers
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
