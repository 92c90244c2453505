"""The figures over all days for the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq_pipeline.gold.percentiles import wait_percentiles
from freshq_pipeline.gold.sums import summed
from freshq_pipeline.gold.totals import FATES, TOTAL, WAITS, read_totals
from freshq_pipeline.schemas import OUTCOMES
from freshq_pipeline.storage.partitions import paths_of

if TYPE_CHECKING:
    import pyarrow as pa

    from freshq_pipeline.gold.percentiles import WaitPercentiles
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


def figures(out: Folder, state: State) -> dict[str, Any]:
    """Return the figures of all queues together, and in `queues` those of each.

    Args:
        out: The output folder.
        state: State of the run, with its tables.
    """
    paths = paths_of(state.tables, TOTAL)
    counts = ("tasks", *OUTCOMES, "in_time", "inversions")
    names = {name: name for name in counts} | {"ledger_violations": "violations"}
    fates = summed(read_totals(out, paths, FATES), ("queue",), tuple(names.values()))
    by_queue = fates.rename_columns(["queue", *names]).to_pylist()
    events = state.days.values()
    return {
        "events_distinct": sum(day.events for day in events),
        "events_after_as_of": sum(day.later for day in events),
        "as_of_ms": state.as_of_us // 1000,
        **_with_waits(by_queue, wait_percentiles(_waits(read_totals(out, paths, WAITS)), (0.5, 0.99))),
    }


def _waits(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the number, the shortest and the longest of the waits of each queue and class."""
    by, of = ["queue", "class"], {"count": "sum", "shortest_us": "min", "longest_us": "max"}
    found = rows.group_by(by, use_threads=False).aggregate(list(of.items()))
    found = found.select([*by, *(f"{name}_{how}" for name, how in of.items())]).rename_columns([*by, *of])
    waits: list[dict[str, Any]] = found.to_pylist()
    return waits


def _with_waits(by_queue: list[dict[str, Any]], waits: WaitPercentiles) -> dict[str, Any]:
    """Return the figures of all queues together, and in `queues` those of each."""
    names = [name for name in by_queue[0] if name != "queue"]
    total = {name: sum(row[name] for row in by_queue) for name in names} | _named(waits.overall)
    nothing: list[float | None] = [None, None]
    return total | {"queues": [row | _named(waits.by_queue.get(row["queue"], nothing)) for row in by_queue]}


def _named(waits: list[float | None]) -> dict[str, float | None]:
    return dict(zip(("wait_p50_seconds", "wait_p99_seconds"), waits, strict=True))
