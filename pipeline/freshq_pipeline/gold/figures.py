"""The figures over all days, for the summary: counts, percentiles of waits, and new ledger violations.

Percentiles come from histograms. Histograms of days add up, so a run needs only histograms of days that
changed. With the shortest and the longest wait of each class, percentiles are exact in classes of one or two
waits, and otherwise off by at most the width of the class.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import floor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from freshq_pipeline.gold.steps import MICROS
from freshq_pipeline.gold.totals import FATES, TOTAL, VIOLATIONS, WAITS, scan_totals, summed
from freshq_pipeline.schemas import OUTCOMES, TOTALS, VALUES, WAIT_PERCENTILES, ddl
from freshq_pipeline.storage.arrow import grouped
from freshq_pipeline.storage.results import NEW
from freshq_pipeline.storage.table_files import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


# Identifies a violation of the ledger. A task may have several problems, and the number of its life changes
# if an event of an earlier life comes late.
_VIOLATION: Final = ["queue", "task_id", "created_us"]
_SHARES: Final = tuple(WAIT_PERCENTILES.values())


def figures(out: Folder, state: State) -> dict[str, Any]:
    """Return the figures of all queues together, and of each queue in `queues`."""
    paths = paths_of(state.tables, TOTAL)
    counts = ("tasks", *OUTCOMES, "in_time", "inversions")
    names = {name: name for name in counts} | {"ledger_violations": "violations"}
    names |= {name: name for name in ("valued", *VALUES)}
    fates = summed(scan_totals(out, paths, FATES).to_table(), ("queue",), tuple(names.values()))
    by_queue = _with_values(fates.rename_columns(["queue", *names]).to_pylist())
    events = state.days.values()
    return {
        "events_distinct": sum(day.events for day in events),
        "events_after_as_of": sum(day.later for day in events),
        "as_of_ms": state.as_of_us // 1000,
        **_with_waits(by_queue, wait_percentiles(_waits(scan_totals(out, paths, WAITS).to_table()), _SHARES)),
    }


def _with_values(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace values in millionths by what was offered and delivered; leave them out if no task has one."""
    has_values = any(row["valued"] for row in rows)
    found = []
    for row in rows:
        counts = {name: count for name, count in row.items() if name not in ("valued", *VALUES)}
        offered, delivered = sum(int(row[name]) for name in VALUES[1:]), int(row["value_delivered"])
        values = {"valued": row["valued"], "value_offered": offered / 1e6, "value_delivered": delivered / 1e6}
        found.append(counts | (values if has_values else {}))
    return found


def _waits(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the number, the shortest and the longest of the waits by queue and class."""
    how = {"count": "sum", "shortest_us": "min", "longest_us": "max"}
    waits: list[dict[str, Any]] = grouped(rows, ("queue", "class"), how).to_pylist()
    return waits


def _with_waits(by_queue: list[dict[str, Any]], waits: WaitPercentiles) -> dict[str, Any]:
    """Return the figures of all queues together, and of each queue in `queues`."""
    names = [name for name in by_queue[0] if name != "queue"]
    total = {name: _sum(row[name] for row in by_queue) for name in names} | _named(waits.overall)
    nothing: list[float | None] = [None] * len(_SHARES)
    return total | {"queues": [row | _named(waits.by_queue.get(row["queue"], nothing)) for row in by_queue]}


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values: queues that are not served newest first have no inversions."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _named(waits: list[float | None]) -> dict[str, float | None]:
    return dict(zip(WAIT_PERCENTILES, waits, strict=True))


# Up to this many violations are compared in this process, at about 100 bytes each.
VIOLATIONS_HERE: Final = 500_000


def with_new_violations(
    spark: SparkSession, found: dict[str, Any], out: Folder, state: State, before: State | None
) -> dict[str, Any]:
    """Add the number of ledger violations that the previous run did not have.

    Args:
        spark: The session, for many violations.
        found: Figures from `figures`.
        out: The output folder.
        state: State of the run, with its tables.
        before: State of the previous run, whose files still exist; None: all violations are new.
    """
    new = _new_violations(spark, out, state, before)
    queues = [_beside_all(row, new[row["queue"]]) for row in found["queues"]]
    return _beside_all(found, new.total()) | {"queues": queues}


def _beside_all(row: dict[str, Any], new: int) -> dict[str, Any]:
    """Insert the number of new violations after the number of all violations."""
    place = list(row).index("ledger_violations") + 1
    items = list(row.items())
    return dict([*items[:place], (NEW, new), *items[place:]])


def _new_violations(
    spark: SparkSession, out: Folder, state: State, before: State | None
) -> Counter[str | None]:
    """Return the number of new violations by queue.

    Only the days that the run computed can have new ones.
    """
    runs = [(one, known) for one, known in ((state, 0), (before, 1)) if one]
    paths = [path for one, _ in runs for path in paths_of(one.tables, TOTAL)]
    if scan_totals(out, paths, VIOLATIONS, ["day"]).count_rows() > VIOLATIONS_HERE:
        return _new_by_spark(spark, out, runs, state.opened)
    parts = [_violating(out, one, state.opened, known=known) for one, known in runs]
    found = pa.concat_tables(parts).group_by(_VIOLATION, use_threads=False).aggregate([("known", "max")])
    return Counter(found.filter(pc.field("known_max") == 0)["queue"].to_pylist())


def _new_by_spark(
    spark: SparkSession, out: Folder, runs: list[tuple[State, int]], days: list[str]
) -> Counter[str | None]:
    """Do the same with Spark: one row for each queue reaches this process."""
    parts = []
    for one, known in runs:
        rows = spark.read.schema(ddl(TOTALS)).parquet(*map(out.at, paths_of(one.tables, TOTAL)))
        rows = rows.where((F.col("kind") == VIOLATIONS) & F.col("day").isin(*days))
        parts.append(rows.select(*_VIOLATION, F.lit(known).alias("known")))
    every = reduce(DataFrame.unionByName, parts).groupBy(*_VIOLATION).agg(F.max("known").alias("known"))
    counts = every.where("known = 0").groupBy("queue").count().collect()
    return Counter({row["queue"]: row["count"] for row in counts})


def _violating(out: Folder, state: State, days: list[str], *, known: int) -> pa.Table:
    """Return the violations of the given days, with the given value of `known`."""
    rows = scan_totals(out, paths_of(state.tables, TOTAL), VIOLATIONS, [*_VIOLATION, "day"]).to_table()
    rows = rows.filter(pc.field("day").isin(pa.array(days, pa.string()))).select(_VIOLATION)
    return rows.append_column("known", pa.repeat(known, len(rows)))


@dataclass(frozen=True, slots=True)
class WaitPercentiles:
    """Percentiles of the waits before the first claim, in seconds, interpolated linearly.

    Attributes:
        overall: Percentiles of all queues; None if nothing was claimed.
        by_queue: Percentiles of each queue in which a task was claimed.
    """

    overall: list[float | None]
    by_queue: dict[str | None, list[float | None]]


@dataclass(slots=True)
class _Class:
    """The waits of a histogram class: their number, the shortest and the longest in microseconds."""

    count: int = 0
    shortest_us: int = 2**62
    longest_us: int = 0

    def add(self, row: Mapping[str, int]) -> None:
        self.count += row["count"]
        self.shortest_us = min(self.shortest_us, row["shortest_us"])
        self.longest_us = max(self.longest_us, row["longest_us"])

    def at(self, rank: int) -> float:
        """Return the wait at a rank in the class, assuming that waits are spread evenly; ranks start at 0."""
        if self.count == 1:
            return self.shortest_us
        return self.shortest_us + (self.longest_us - self.shortest_us) * rank / (self.count - 1)


_Classes: TypeAlias = dict[int, _Class]


def _percentiles(classes: _Classes, shares: Sequence[float]) -> list[float | None]:
    """Return percentiles in seconds; None if there are no waits."""
    ordered = [classes[one] for one in sorted(classes)]
    ends = list(accumulate(one.count for one in ordered))
    if not ends:
        return [None for _ in shares]
    result: list[float | None] = []
    for place in (share * (ends[-1] - 1) for share in shares):
        low, high = (_at(ordered, ends, min(floor(place) + more, ends[-1] - 1)) for more in (0, 1))
        result.append((low + (high - low) * (place - floor(place))) / MICROS)
    return result


def _at(ordered: list[_Class], ends: list[int], rank: int) -> float:
    """Return the wait at a rank among all classes."""
    place = next(place for place, end in enumerate(ends) if rank < end)
    return ordered[place].at(rank - ends[place] + ordered[place].count)


def wait_percentiles(waits: Iterable[Mapping[str, Any]], shares: Sequence[float]) -> WaitPercentiles:
    """Return percentiles of the waits before the first claim.

    Args:
        waits: Rows with `queue`, `class`, `count`, `shortest_us` and `longest_us`; a class may have several.
        shares: Shares from 0 to 1; 0.5 is the median.
    """
    overall, by_queue = _Classes(), dict[str | None, _Classes]()
    for row in waits:
        for classes in (overall, by_queue.setdefault(row["queue"], _Classes())):
            classes.setdefault(row["class"], _Class()).add(row)
    found = {queue: _percentiles(classes, shares) for queue, classes in by_queue.items()}
    return WaitPercentiles(_percentiles(overall, shares), found)
