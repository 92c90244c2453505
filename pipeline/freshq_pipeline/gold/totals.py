"""Totals of each day from which the tables and figures over all days are computed: they add up.

The tasks that have no end yet are kept with them: they matter to all later minutes.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from pyspark.sql import functions as F

from freshq_pipeline.gold.fates import fates
from freshq_pipeline.gold.ledger import violations
from freshq_pipeline.gold.minutes import histogram_class, wait_us
from freshq_pipeline.gold.touched import date_of, is_open
from freshq_pipeline.gold.workers import worked
from freshq_pipeline.schemas import OUTCOMES, TABLES, TOTALS
from freshq_pipeline.storage.arrow_schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from freshq_pipeline.storage.folder import Folder

# The name of the totals as a table that only the next run reads.
TOTAL: Final = "totals"
# Their kinds.
FATES: Final = "fates"
WAITS: Final = "waits"
WORKERS: Final = "workers"
VIOLATIONS: Final = "violations"
OPEN: Final = "open"
SCHEMA: Final = arrow_schema(TOTALS)
# What the tables and figures over all days need of each kind.
_READ: Final = {
    FATES: (
        "queue", "day", "task_group", "tasks", "created", *OUTCOMES, "in_time", "violations", "inversions",
    ),
    WAITS: ("queue", "class", "count", "shortest_us", "longest_us"),
    WORKERS: tuple(TABLES["workers"]),
    VIOLATIONS: tuple(TABLES["violations"]),
}  # fmt: skip
_OF_OPEN: Final = (
    "task_id", "queue", "task_group", "priority", "status", "created_us", "changed_us", "not_before_us",
)  # fmt: skip


def open_steps(totals: DataFrame, without: Collection[str]) -> DataFrame:
    """Return the last steps of open tasks, with what `minutes` and `inversions` need of them.

    Args:
        totals: From `totals`.
        without: Days of creation to leave out.
    """
    steps = totals.where((F.col("kind") == OPEN) & ~F.col("day").isin(*without)).select(*_OF_OPEN)
    nothing = {name: F.lit(None).cast("bigint") for name in ("next_us", "deadline_us")}
    return steps.withColumns(nothing | {"removed": F.lit(False)})


def count_open(out: Folder, paths: list[str]) -> int:
    """Return the number of open tasks in files with totals."""
    found: int = out.scan(paths, SCHEMA, ["kind"], pc.field("kind") == OPEN).count_rows()
    return found


def read_totals(out: Folder, paths: list[str], kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the totals of a kind, without those of `OPEN`.

    Args:
        out: The output folder.
        paths: Paths of files with totals.
        kind: One of the kinds.
        columns: Which columns; None: those that the table or the figures over all days need.
    """
    return _scanner(out, paths, kind, columns or _READ[kind]).to_table()


def scan_totals(out: Folder, paths: list[str], kind: str) -> Iterator[pa.RecordBatch]:
    """Return the same in batches, of which only some are in memory at a time.

    Args:
        out: As above.
        paths: As above.
        kind: As above.
    """
    batches: Iterator[pa.RecordBatch] = _scanner(out, paths, kind, _READ[kind]).to_batches()
    return batches


def _scanner(out: Folder, paths: list[str], kind: str, columns: Sequence[str]) -> Any:
    return out.scan(paths, SCHEMA, columns, pc.field("kind") == kind)


def totals(steps: DataFrame, tasks: DataFrame) -> DataFrame:
    """Return the totals of each day that `steps` and `tasks` are of.

    Args:
        steps: From `distinct_steps`.
        tasks: The table `tasks`, with `day`.
    """
    waited = tasks.where("wait_seconds is not null")
    waits = waited.groupBy("day", "queue", histogram_class(wait_us()).alias("class")).agg(
        F.count(F.lit(1)).alias("count"),
        F.min(wait_us()).alias("shortest_us"),
        F.max(wait_us()).alias("longest_us"),
    )
    steps = steps.withColumn("day", date_of(F.col("created_us")))
    parts = {
        FATES: fates(tasks),
        WAITS: waits,
        WORKERS: worked(steps, "day"),
        VIOLATIONS: violations(tasks),
        OPEN: steps.where(is_open()).select("day", *_OF_OPEN),
    }
    text = F.col("day").cast("string")
    named = (rows.withColumns({"kind": F.lit(kind), "day": text}) for kind, rows in parts.items())
    found = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)
    return found.select(*(F.col(name).cast(kind).alias(name) for name, kind in TOTALS.items()))
