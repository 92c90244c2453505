"""Totals of each day, and the tables computed from them: `ledger`, `violations`, `groups` and `workers`.

Totals of days add up. The tasks that have no end yet are kept with them: they matter to all later minutes.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from freshq_pipeline.gold.minutes import histogram_class, wait_us
from freshq_pipeline.gold.steps import date_of, is_open
from freshq_pipeline.gold.tasks import NOT_CREATED
from freshq_pipeline.schemas import OUTCOMES, TABLES, TOTALS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column

    from freshq_pipeline.storage.folder import Folder

    Amounts: TypeAlias = NDArray[np.float64]
    Owners: TypeAlias = NDArray[np.intp]


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


def fates(tasks: DataFrame) -> DataFrame:
    """Return `tasks`, `created`, outcomes, `in_time`, `violations` and `inversions` per queue, day and group.

    Args:
        tasks: The table `tasks`, with `day`.
    """
    conditions = {
        "created": ~F.array_contains("problems", NOT_CREATED),
        **{name: F.col("outcome") == name for name in OUTCOMES},
        "in_time": F.col("in_time"),
        "violations": F.size("problems") > 0,
    }
    counts = [F.count_if(condition).alias(name) for name, condition in conditions.items()]
    # Null if it is null for all of them.
    counts.append(F.sum(F.col("inverted").cast("bigint")).alias("inversions"))
    return tasks.groupBy("queue", "day", "task_group").agg(F.count(F.lit(1)).alias("tasks"), *counts)


# So many rows are added up at a time, which take some 10 MB.
ROWS_AT_A_TIME: Final = 1 << 18


def summed(rows: pa.Table, by: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return the sums of some columns under their own names, sorted by key; null is a key of its own.

    Args:
        rows: Has all these columns.
        by: The key.
        columns: What to add up.
    """
    # One thread, so that the rows of a key come together in the same order each time.
    found = rows.group_by(list(by), use_threads=False).aggregate([(name, "sum") for name in columns])
    found = found.select([*by, *(f"{name}_sum" for name in columns)]).rename_columns([*by, *columns])
    return found.sort_by([(name, "ascending") for name in by])


def summed_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, by: Sequence[str], columns: Sequence[str]
) -> pa.Table:
    """Return the same of batches, of which only some are in memory, and the sums so far.

    Args:
        batches: Have these columns, in this order.
        schema: The columns of the key, then what to add up.
        by: The key.
        columns: What to add up.
    """
    waiting = [schema.empty_table()]
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]))
        if sum(map(len, waiting[1:])) > ROWS_AT_A_TIME:
            waiting = [summed(pa.concat_tables(waiting), by, columns)]
    return summed(pa.concat_tables(waiting), by, columns)


_LEDGER_COUNTS: Final = ("created", *OUTCOMES, "violations")


def ledger(counts: pa.Table) -> pa.Table:
    """Return the table; `day` is null in the rows for all days.

    Args:
        counts: From `fates`, of all days.
    """
    by_day = summed(counts, ("queue", "day"), _LEDGER_COUNTS)
    in_total = summed(by_day, ("queue",), _LEDGER_COUNTS)
    in_total = in_total.append_column("day", pa.nulls(len(in_total), pa.string()))
    rows = pa.concat_tables((by_day, in_total.select(by_day.column_names)))
    difference = rows["created"]
    for name in OUTCOMES:
        difference = pc.subtract(difference, rows[name])
    return rows.append_column("difference", difference)


def violations(tasks: DataFrame) -> DataFrame:
    """Return a row for each problem of a task, with the task's creation time in `created_us`.

    Args:
        tasks: The table `tasks`, with `day`.
    """
    return tasks.where(F.size("problems") > 0).select(
        "task_id",
        "life",
        "queue",
        "day",
        F.floor(F.col("created_ms") * 1000 + 0.5).alias("created_us"),
        F.explode("problems").alias("problem"),
    )


def groups(counts: pa.Table) -> pa.Table:
    """Return the table.

    Args:
        counts: From `fates`, of all days.
    """
    rows = summed(counts, ("queue", "task_group"), ("tasks", "success", "shed"))
    rows = rows.rename_columns(["queue", "task_group", "offered", "succeeded", "shed"])
    queues = rows["queue"].combine_chunks().dictionary_encode(null_encoding="encode")
    of_queue = queues.indices.to_numpy(zero_copy_only=False).astype(np.intp)
    offered, succeeded, shed = (
        rows[name].to_numpy().astype(np.float64) for name in ("offered", "succeeded", "shed")
    )
    figures = {
        "offer_share": ratio(offered, _sum_by_queue(offered, of_queue)),
        "service_share": ratio(succeeded, _sum_by_queue(succeeded, of_queue)),
        "shed_share": ratio(shed, _sum_by_queue(shed, of_queue)),
        "jain_index": jain_index(succeeded, of_queue),
        "jain_index_of_demand": jain_index(succeeded / offered, of_queue),
    }
    for name, values in figures.items():
        rows = rows.append_column(name, values)
    return rows


def jain_index(amount: Amounts, of_queue: Owners) -> pa.Array:
    """Return Jain's fairness index: 1 if all amounts are equal, 1/n if one has everything, null if all are 0.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.

    Args:
        amount: What each group got.
        of_queue: Number of the queue of each group; the index is that of its queue.
    """
    # Floating-point sums depend on the order, so it is always the same.
    order = np.argsort(amount, kind="stable")
    total, squares = np.empty_like(amount), np.empty_like(amount)
    total[order] = _sum_by_queue(amount[order], of_queue[order])
    squares[order] = _sum_by_queue(amount[order] ** 2, of_queue[order])
    return ratio(total * total, _sum_by_queue(np.ones_like(amount), of_queue) * squares)


def _sum_by_queue(amount: Amounts, of_queue: Owners) -> Amounts:
    """Return for each group the sum over its queue, added up in the given order."""
    found: Amounts = np.bincount(of_queue, amount).astype(np.float64)[of_queue]
    return found


def ratio(amount: Amounts, of: Amounts) -> pa.Array:
    """Return quotients, null where the divisor is 0."""
    nothing = of == 0
    return pa.array(amount / np.where(nothing, 1.0, of), mask=nothing)


_WORKER: Final = ("queue", "worker")
_WORKER_COUNTS: Final = ("claims", "settles", "lease_losses")


def worked(steps: DataFrame, *more: str) -> DataFrame:
    """Return the counts of each worker of a queue; the null worker covers all leases that name no worker.

    Args:
        steps: From `distinct_steps`.
        more: Further columns to count by.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    begun = _acts(steps.where("claimed"), more, "worker", claims=F.lit(True))
    # A worker that held a task when it was deleted did not settle it.
    ended = _acts(
        steps.where(F.col("left") & (settled | F.col("lease_lost"))), more, "previous_worker",
        settles=settled, lease_losses=F.col("lease_lost"),
    )  # fmt: skip
    sums = (F.sum(name).alias(name) for name in _WORKER_COUNTS)
    return begun.unionByName(ended).groupBy(*more, *_WORKER).agg(*sums)


def _acts(steps: DataFrame, more: tuple[str, ...], worker: str, **done: Column) -> DataFrame:
    """Return what a worker did in each step, as counts of 0 or 1."""
    counts = (done.get(name, F.lit(False)).cast("bigint").alias(name) for name in _WORKER_COUNTS)
    return steps.select(*more, "queue", F.col(worker).alias("worker"), *counts)


def workers(counts: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the table.

    Args:
        counts: From `worked`, of all days.
    """
    return summed_batches(counts, arrow_schema(TABLES["workers"]), _WORKER, _WORKER_COUNTS)
