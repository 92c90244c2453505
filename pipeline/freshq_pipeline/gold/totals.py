"""Totals of each day, and the tables from them: `ledger`, `violations`, `groups`, `kinds` and `workers`.

Totals of days add up. Open tasks are stored with them, because they matter to all later minutes. Totals of
steps have their hour in `created_us`, since a run may know the steps of only some hours of a day.
"""

from __future__ import annotations

from functools import reduce
from math import log
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from freshq_pipeline.gold.minutes import HISTOGRAM_BASE
from freshq_pipeline.gold.steps import MICROS, date_of, in_hours, is_open
from freshq_pipeline.gold.tasks import DEFAULT_MILLIONTHS, MILLIONTHS, NOT_CREATED, VALUE_CHANGED
from freshq_pipeline.schemas import OUTCOMES, TABLES, TOTALS, VALUES
from freshq_pipeline.storage.arrow import arrow_schema, grouped, moments_in
from freshq_pipeline.storage.days import HOUR_US, days_of, iso

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

    from freshq_pipeline.storage.folder import Folder

    Amounts: TypeAlias = NDArray[np.float64]
    Owners: TypeAlias = NDArray[np.intp]


# Name of the totals as a table, which only the next run reads.
TOTAL: Final = "totals"
# Kinds of totals.
FATES: Final = "fates"
KINDS: Final = "kinds"
WAITS: Final = "waits"
WORKERS: Final = "workers"
VIOLATIONS: Final = "violations"
OPEN: Final = "open"
SCHEMA: Final = arrow_schema(TOTALS)
# Columns of each kind that tables and figures over all days need.
_READ: Final = {
    FATES: (
        "queue", "day", "task_group", "tasks", "created", *OUTCOMES, "in_time", "run_us", "violations",
        "inversions", "valued", *VALUES,
    ),
    KINDS: ("queue", "task_kind", "tasks", "in_time", "shed", *VALUES),
    WAITS: ("queue", "class", "count", "shortest_us", "longest_us"),
    WORKERS: tuple(TABLES["workers"]),
    VIOLATIONS: tuple(TABLES["violations"]),
}  # fmt: skip
_OF_OPEN: Final = (
    "task_id", "queue", "task_group", "priority", "status", "created_us", "changed_us", "not_before_us",
)  # fmt: skip


def open_steps(totals: DataFrame, without: Collection[int]) -> DataFrame:
    """Return the last steps of open tasks, with the columns that `minutes` and `inversions` need.

    Args:
        totals: Totals of all kinds.
        without: Hours of creation to leave out.
    """
    elsewhere = ~in_hours(F.col("created_us"), without)
    steps = totals.where((F.col("kind") == OPEN) & elsewhere).select(*_OF_OPEN)
    nothing = {name: F.lit(None).cast("bigint") for name in ("next_us", "deadline_us")}
    return steps.withColumns(nothing | {"removed": F.lit(False)})


def count_open(out: Folder, paths: list[str]) -> int:
    """Return the number of open tasks in files with totals."""
    found: int = out.scan(paths, SCHEMA, ["kind"], pc.field("kind") == OPEN).count_rows()
    return found


def scan_totals(out: Folder, paths: list[str], kind: str, columns: Sequence[str] | None = None) -> Any:
    """Return a scanner of PyArrow for the totals of a kind other than `OPEN`.

    Args:
        out: The output folder.
        paths: Files with totals.
        kind: The kind.
        columns: Columns to read; None: the columns that tables and figures over all days need.
    """
    return out.scan(paths, SCHEMA, columns or _READ[kind], pc.field("kind") == kind)


def others(hours: Collection[int]) -> Any:
    """Return the condition for the totals that remain when the tasks of the given hours are computed.

    The table `tasks` has all tasks of these days, so their totals from tasks are recomputed.
    """
    elsewhere = ~moments_in(pc.field("created_us"), hours, HOUR_US)
    other_days = ~pc.field("day").isin([iso(day) for day in days_of(hours)])
    return other_days | (pc.field("kind").isin([WORKERS, OPEN]) & elsewhere)


def totals_of_steps(steps: DataFrame) -> DataFrame:
    """Return the totals of workers and the open tasks of each day.

    Args:
        steps: Steps from `distinct_steps`, of the hours that are computed.
    """
    steps = steps.withColumn("day", date_of(F.col("created_us")))
    by_hour = steps.withColumn("created_us", F.col("created_us") - F.pmod("created_us", F.lit(HOUR_US)))
    parts = {
        WORKERS: worked(by_hour, "day", "created_us"),
        OPEN: steps.where(is_open()).select("day", *_OF_OPEN),
    }
    text = F.col("day").cast("string")
    named = (rows.withColumns({"kind": F.lit(kind), "day": text}) for kind, rows in parts.items())
    found = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)
    nothing = {name: F.lit(None) for name in TOTALS.keys() - set(found.columns)}
    return found.withColumns(nothing).select(
        *(F.col(name).cast(kind).alias(name) for name, kind in TOTALS.items())
    )


# The columns of `tasks` that totals need.
OF_TASK: Final = (
    "queue", "day", "task_id", "life", "task_group", "kind", "created_ms", "wait_seconds", "run_seconds",
    "outcome", "inverted", "in_time", "value", "decay", "value_delivered", "problems",
)  # fmt: skip


def totals_of_tasks(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the totals of each day from tasks; several rows may have the same key, and add up.

    Args:
        tasks: The table `tasks`, with `OF_TASK`, of whole days.
    """
    waiting, count = list[pa.RecordBatch](), 0
    for batch in tasks:
        waiting.append(batch)
        count += len(batch)
        if count > ROWS_AT_A_TIME:
            yield from _totals_of(pa.Table.from_batches(waiting))
            waiting, count = [], 0
    if count:
        yield from _totals_of(pa.Table.from_batches(waiting))


def _totals_of(tasks: pa.Table) -> Iterator[pa.RecordBatch]:
    problems = tasks["problems"].combine_chunks()
    of_problem, problem = pc.list_parent_indices(problems), pc.list_flatten(problems)
    created_us = np.floor(tasks["created_ms"].to_numpy() * 1000 + 0.5).astype(np.int64)
    violations = tasks.append_column("created_us", pa.array(created_us)).take(of_problem)

    def with_problem(*names: str) -> NDArray[np.bool_]:
        found = np.zeros(len(tasks), dtype=np.bool_)
        found[of_problem.filter(pc.is_in(problem, pa.array(names))).to_numpy()] = True
        return found

    values = _values(tasks, with_problem(NOT_CREATED, VALUE_CHANGED))
    parts = {
        FATES: _fates(tasks, with_problem(NOT_CREATED), values),
        KINDS: _kinds(tasks, values),
        WAITS: _waits(tasks.filter(pc.field("wait_seconds").is_valid())),
        VIOLATIONS: violations.select(["task_id", "life", "queue", "day", "created_us"]).append_column(
            "problem", problem
        ),
    }
    for kind, rows in parts.items():
        named = rows.append_column("kind", pa.repeat(kind, len(rows)))
        whole = pa.concat_tables([SCHEMA.empty_table(), named], promote_options="default")
        yield from whole.combine_chunks().to_batches()


def _values(tasks: pa.Table, put_unknown: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return the value of each task in millionths: what was put, and what became of it."""
    in_time = pc.fill_null(tasks["in_time"], False).to_numpy()  # noqa: FBT003 - the value
    value, delivered = (
        np.floor(pc.fill_null(tasks[name], other).to_numpy() * MILLIONTHS + 0.5).astype(np.int64)
        for name, other in (("value", DEFAULT_MILLIONTHS / MILLIONTHS), ("value_delivered", 0.0))
    )
    ended = {name: pc.equal(tasks["outcome"], name).to_numpy() for name in OUTCOMES}
    parts = {
        "value_put": np.where(put_unknown, 0, value),
        "value_delivered": delivered,
        "value_decayed": np.where(in_time, value - delivered, 0),
        "value_late": np.where(ended["success"] & ~in_time, value, 0),
        **{f"value_{name}": np.where(ended[name], value, 0) for name in ("failure", "shed", "cancelled")},
        "value_open": np.where(ended["pending"] | ended["taken"], value, 0),
    }
    return {name: pa.array(parts[name]).cast(SCHEMA.field(name).type) for name in VALUES}


def _fates(tasks: pa.Table, not_created: NDArray[np.bool_], values: dict[str, pa.Array]) -> pa.Table:
    """Count the tasks of each queue, day and group by outcome, and other figures."""
    counts = {
        "tasks": pa.repeat(1, len(tasks)),
        "created": pa.array(~not_created),
        **{name: pc.equal(tasks["outcome"], name) for name in OUTCOMES},
        "in_time": pc.fill_null(tasks["in_time"], False),  # noqa: FBT003 - the value
        "violations": pc.greater(pc.list_value_length(tasks["problems"]), 0),
        "run_us": pc.floor(pc.add(pc.multiply(pc.fill_null(tasks["run_seconds"], 0.0), 1e6), 0.5)),
        # Null if all values are null.
        "inversions": tasks["inverted"],
        "valued": pc.or_(pc.is_valid(tasks["value"]), pc.is_valid(tasks["decay"])),
    }
    by = ("queue", "day", "task_group")
    whole = {name: pc.cast(counted, pa.int64()) for name, counted in counts.items()}
    return summed(pa.table({name: tasks[name] for name in by} | whole | values), by, (*counts, *values))


def _kinds(tasks: pa.Table, values: dict[str, pa.Array]) -> pa.Table:
    """Count the tasks of each queue, day and kind, with their values."""
    counts = {
        "tasks": pa.repeat(1, len(tasks)),
        "in_time": pc.cast(pc.fill_null(tasks["in_time"], False), pa.int64()),  # noqa: FBT003 - the value
        "shed": pc.cast(pc.equal(tasks["outcome"], "shed"), pa.int64()),
    }
    of = {"queue": tasks["queue"], "day": tasks["day"], "task_kind": tasks["kind"]}
    return summed(pa.table(of | counts | values), tuple(of), (*counts, *values))


def _waits(tasks: pa.Table) -> pa.Table:
    """Return the number, the shortest and the longest of the waits by day, queue and class."""
    us = np.floor(tasks["wait_seconds"].to_numpy() * MICROS + 0.5).astype(np.int64)
    classes = np.ceil(np.log(np.maximum(us, 1)) / log(HISTOGRAM_BASE)).astype(np.int32)
    columns = {"class": classes, "count": np.ones_like(us), "shortest_us": us, "longest_us": us}
    rows = pa.table({"day": tasks["day"], "queue": tasks["queue"]} | columns)
    return grouped(
        rows, ("day", "queue", "class"), {"count": "sum", "shortest_us": "min", "longest_us": "max"}
    )


def summed(rows: pa.Table, by: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return the sums of some columns, sorted by key; null counts as a key.

    Args:
        rows: The rows.
        by: Columns of the key.
        columns: Columns to add up.
    """
    found = grouped(rows, by, dict.fromkeys(columns, "sum"))
    return found.sort_by([(name, "ascending") for name in by])


_LEDGER_COUNTS: Final = ("created", *OUTCOMES, "violations", "valued", *VALUES)


def ledger(counts: pa.Table) -> pa.Table:
    """Return the table `ledger`, given the fates of all days; `day` is null in the rows for all days."""
    by_day = summed(counts, ("queue", "day"), _LEDGER_COUNTS)
    in_total = summed(by_day, ("queue",), _LEDGER_COUNTS)
    in_total = in_total.append_column("day", pa.nulls(len(in_total), pa.string()))
    rows = pa.concat_tables((by_day, in_total.select(by_day.column_names)))
    difference = rows["created"]
    for name in OUTCOMES:
        difference = pc.subtract(difference, rows[name])
    amounts = _millionths(rows)
    unaccounted = amounts["value_put"] - np.sum([amounts[name] for name in VALUES[1:]], axis=0)
    rows = _with_values(rows, amounts | {"value_difference": unaccounted})
    return rows.append_column("difference", difference)


def kinds(counts: pa.Table) -> pa.Table:
    """Return the table `kinds`, given the totals by kind of all days."""
    names = ("tasks", "in_time", "shed", *VALUES)
    rows = summed(counts, ("queue", "task_kind"), names)
    amounts = _millionths(rows)
    rows = rows.rename_columns(["queue", "kind", "offered", *names[1:]])
    delivered, offered = amounts["value_delivered"], np.sum([amounts[name] for name in VALUES[1:]], axis=0)
    lost = np.sum([amounts[f"value_{how}"] for how in ("decayed", "late", "failure", "shed")], axis=0)
    of_kind = {"value_offered": offered, "value_delivered": delivered, "value_lost": lost}
    share = ratio(*(amount.astype(np.float64) for amount in (delivered, offered)))
    return _with_values(rows.drop_columns(list(VALUES)), of_kind).append_column("value_share", share)


def _millionths(rows: pa.Table) -> dict[str, NDArray[Any]]:
    """Return sums of values as Python's integers, which are exact whatever their size."""
    return {name: np.array([int(one) for one in rows[name].to_pylist()], dtype=object) for name in VALUES}


def _with_values(rows: pa.Table, millionths: dict[str, NDArray[Any]]) -> pa.Table:
    """Return rows with values, given in millionths, in place of columns of the same names."""
    rows = rows.drop_columns([name for name in millionths if name in rows.column_names])
    for name, amounts in millionths.items():
        rows = rows.append_column(name, pa.array([amount / MILLIONTHS for amount in amounts], pa.float64()))
    return rows


# The share that each amount of a group has in its queue.
_SHARES: Final = {
    "offered": "offer_share", "succeeded": "service_share", "run_seconds": "time_share", "shed": "shed_share",
}  # fmt: skip


def groups(counts: pa.Table) -> pa.Table:
    """Return the table `groups`, given the fates of all days."""
    rows = summed(counts, ("queue", "task_group"), ("tasks", "success", "in_time", "shed", "run_us"))
    names = ["queue", "task_group", "offered", "succeeded", "in_time", "shed", "run_seconds"]
    rows = rows.rename_columns(names)
    rows = rows.set_column(6, "run_seconds", pc.divide(pc.cast(rows["run_seconds"], pa.float64()), 1e6))
    queues = rows["queue"].combine_chunks().dictionary_encode(null_encoding="encode")
    of_queue = queues.indices.to_numpy(zero_copy_only=False).astype(np.intp)
    amounts = {name: rows[name].to_numpy().astype(np.float64) for name in _SHARES}
    figures = {
        share: ratio(amounts[name], _sum_by_queue(amounts[name], of_queue)) for name, share in _SHARES.items()
    }
    figures["jain_index"] = jain_index(amounts["succeeded"], of_queue)
    figures["jain_index_of_demand"] = jain_index(amounts["succeeded"] / amounts["offered"], of_queue)
    for name, values in figures.items():
        rows = rows.append_column(name, values)
    return rows


def jain_index(amount: Amounts, of_queue: Owners) -> pa.Array:
    """Return Jain's fairness index: 1 if all amounts are equal, 1/n if one has everything, null if all are 0.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.

    Args:
        amount: Amount of each group.
        of_queue: Number of each group's queue; the index is computed for each queue.
    """
    # A fixed order, because floating-point sums depend on it.
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
# Rows to add up at a time; they take about 10 MB.
ROWS_AT_A_TIME: Final = 1 << 18


def worked(steps: DataFrame, *more: str) -> DataFrame:
    """Count claims, settles and lease losses by worker; leases without a worker belong to null.

    Args:
        steps: Steps from `distinct_steps`.
        more: Further columns to group by.
    """
    settled = F.col("left") & ~F.col("lease_lost") & ~F.col("removed") & ~F.col("claimed")
    begun = _acts(steps.where("claimed"), more, "worker", claims=F.lit(True))
    # A worker did not settle a task that was deleted while the worker held it.
    ended = _acts(
        steps.where(F.col("left") & (settled | F.col("lease_lost"))), more, "previous_worker",
        settles=settled, lease_losses=F.col("lease_lost"),
    )  # fmt: skip
    sums = (F.sum(name).alias(name) for name in _WORKER_COUNTS)
    return begun.unionByName(ended).groupBy(*more, *_WORKER).agg(*sums)


def _acts(steps: DataFrame, more: tuple[str, ...], worker: str, **done: Column) -> DataFrame:
    """Return the actions of a worker in each step, as counts of 0 or 1."""
    counts = (done.get(name, F.lit(False)).cast("bigint").alias(name) for name in _WORKER_COUNTS)
    return steps.select(*more, "queue", F.col(worker).alias("worker"), *counts)


def workers(counts: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the table `workers`, given the counts of all days; only some of them are in memory at a time."""
    waiting = [arrow_schema(TABLES["workers"]).empty_table()]
    for batch in counts:
        waiting.append(pa.Table.from_batches([batch]))
        if sum(map(len, waiting[1:])) > ROWS_AT_A_TIME:
            waiting = [summed(pa.concat_tables(waiting), _WORKER, _WORKER_COUNTS)]
    return summed(pa.concat_tables(waiting), _WORKER, _WORKER_COUNTS)
