"""The figures over all days for the summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.gold.new_violations import NEW
from freshq_pipeline.gold.percentiles import wait_percentiles
from freshq_pipeline.gold.sums import summed
from freshq_pipeline.gold.totals import FATES, TOTAL, VIOLATIONS, WAITS, read_totals
from freshq_pipeline.schemas import OUTCOMES
from freshq_pipeline.storage.partitions import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq_pipeline.gold.percentiles import WaitPercentiles
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


# What tells a violation of the ledger from all others. One task may have several problems, and the number of
# its life changes if an event of an earlier life comes late.
_VIOLATION: Final = ["queue", "task_id", "created_us"]


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
    total = {name: _sum(row[name] for row in by_queue) for name in names} | _named(waits.overall)
    nothing: list[float | None] = [None, None]
    return total | {"queues": [row | _named(waits.by_queue.get(row["queue"], nothing)) for row in by_queue]}


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known: queues that are not served newest first have no inversions."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _named(waits: list[float | None]) -> dict[str, float | None]:
    return dict(zip(("wait_p50_seconds", "wait_p99_seconds"), waits, strict=True))


def with_new_violations(
    found: dict[str, Any], out: Folder, state: State, before: State | None
) -> dict[str, Any]:
    """Return figures with the number of ledger violations that the run before did not have.

    Args:
        found: From `figures`.
        out: The output folder.
        state: State of the run, with its tables.
        before: State of the run before, whose files are still there; None: all are new.
    """
    new = _new_violations(out, state, before)
    queues = [_beside_all(row, new[row["queue"]]) for row in found["queues"]]
    return _beside_all(found, new.total()) | {"queues": queues}


def _beside_all(row: dict[str, Any], new: int) -> dict[str, Any]:
    """Return figures with the number of new violations after that of all."""
    place = list(row).index("ledger_violations") + 1
    items = list(row.items())
    return dict([*items[:place], (NEW, new), *items[place:]])


def _new_violations(out: Folder, state: State, before: State | None) -> Counter[str | None]:
    """Return the number of new violations of each queue.

    The tasks of all other days than those that the run computed, and so their violations, are as before.
    """
    parts = [
        _violating(out, one, state.opened, known=known) for one, known in ((state, 0), (before, 1)) if one
    ]
    found = pa.concat_tables(parts).group_by(_VIOLATION, use_threads=False).aggregate([("known", "max")])
    return Counter(found.filter(pc.field("known_max") == 0)["queue"].to_pylist())


def _violating(out: Folder, state: State, days: list[str], *, known: int) -> pa.Table:
    """Return the violations of some days, and whether they are known, in `known`."""
    rows = read_totals(out, paths_of(state.tables, TOTAL), VIOLATIONS, [*_VIOLATION, "day"])
    rows = rows.filter(pc.field("day").isin(pa.array(days, pa.string()))).select(_VIOLATION)
    return rows.append_column("known", pa.repeat(known, len(rows)))
