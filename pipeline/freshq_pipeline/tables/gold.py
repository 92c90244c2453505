"""Silver to all tables, for batches and streams alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import EVENT, OUTCOMES, TABLES, ddl
from freshq_pipeline.storage.state import table_path
from freshq_pipeline.tables.fates import fates
from freshq_pipeline.tables.groups import groups
from freshq_pipeline.tables.inversions import inversions
from freshq_pipeline.tables.ledger import ledger, violations
from freshq_pipeline.tables.minutes import minutes
from freshq_pipeline.tables.percentiles import wait_percentiles
from freshq_pipeline.tables.steps import distinct_steps
from freshq_pipeline.tables.tasks import lives, tasks
from freshq_pipeline.tables.workers import workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, Row, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.tables.percentiles import WaitPercentiles

# Compressed silver per partition: as much as one core can sort in memory.
PARTITION_BYTES: Final = 16 << 20
PARALLEL_TABLES: Final = 3


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that change the tables.

    Attributes:
        as_of_ms: Epoch milliseconds at which outcomes are determined, without later events; None: the time of
            the newest event.
        index_lag_seconds: Time after which a claimable task must be visible to claims.
    """

    as_of_ms: int | None = None
    index_lag_seconds: float = 0.0


def read_silver(spark: SparkSession, out: Folder, parts: list[str]) -> DataFrame:
    """Return the events of silver parts, duplicates included."""
    return spark.read.schema(ddl(EVENT)).parquet(*(out.at(f"silver/{part}") for part in parts))


def partitions_for(spark: SparkSession, out: Folder, parts: list[str]) -> int:
    """Return the number of partitions for the tasks, each small enough to be sorted in memory."""
    size_bytes = sum(found.size_bytes for part in parts for found in out.files(f"silver/{part}"))
    at_once = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    # A multiple of the cores: otherwise some would be idle in the last round.
    return at_once * max(1, ceil(size_bytes / PARTITION_BYTES / at_once))


def build(
    spark: SparkSession,
    out: Folder,
    parts: list[str],
    run_id: str,
    options: TableOptions,
    timed: Callable[[str], AbstractContextManager[None]],
) -> dict[str, Any]:
    """Write all tables of a run, and return their figures for the summary.

    Args:
        spark: The session.
        out: Folder of silver and of the tables.
        parts: Names of the silver parts.
        run_id: Id of the run.
        options: Options that change the tables.
        timed: Measures the duration of a block, given its name.

    Raises:
        BadInput: If there are no events.
    """
    events, after = _until(read_silver(spark, out, parts), options.as_of_ms)
    steps = distinct_steps(events, partitions_for(spark, out, parts)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with timed("steps"):
            seen = _extent(steps)
            later = 0 if after is None else int(after.get["later"])
        as_of_us = seen["until"] if options.as_of_ms is None else options.as_of_ms * 1000
        lag_us = round(options.index_lag_seconds * 1e6)
        with timed("tasks"):
            inverted = inversions(steps, as_of_us, lag_us)
            every = _write(out, run_id, "tasks", tasks(lives(steps), inverted, as_of_us, seen["since"]))
        with timed("minutes and others"):
            figures = _others(out, run_id, steps, every, as_of_us)
    finally:
        steps.unpersist()
    counted = {"events_distinct": seen["events"], "events_after_as_of": later}
    return counted | {"as_of_ms": as_of_us // 1000} | figures


def _until(events: DataFrame, as_of_ms: int | None) -> tuple[DataFrame, Observation | None]:
    """Return the events up to a time, and what will count the `later` ones once the others are read."""
    if as_of_ms is None:
        return events, None
    after = Observation()
    at = F.col("changed_us")
    counted = events.observe(after, F.count_if(at > as_of_ms * 1000).alias("later"))
    return counted.where(at <= as_of_ms * 1000), after


def _extent(steps: DataFrame) -> Row:
    """Return the number of steps (`events`), and the times of the first (`since`) and last (`until`)."""
    seen = steps.agg(
        F.count(F.lit(1)).alias("events"),
        F.min("changed_us").alias("since"),
        F.max("changed_us").alias("until"),
    ).first()
    if seen is None or not seen["events"]:
        raise BadInput("events: no event of a task in them, or none up to as-of; is the format right?")
    return seen


def _write(out: Folder, run_id: str, name: str, table: DataFrame) -> DataFrame:
    """Write a table, and return it as read from its files."""
    path = out.at(table_path(run_id, name))
    table.select(*TABLES[name]).write.parquet(path)
    return table.sparkSession.read.schema(ddl(TABLES[name])).parquet(path)


def _others(out: Folder, run_id: str, steps: DataFrame, every: DataFrame, as_of_us: int) -> dict[str, Any]:
    """Write all tables except `tasks`, and return the figures for the summary."""
    write = partial(_write, out, run_id)
    counts = fates(every).persist(StorageLevel.MEMORY_AND_DISK)
    # These tables are small: in parallel, one is computed while another is planned or written.
    with ThreadPoolExecutor(PARALLEL_TABLES) as pool:
        waits = pool.submit(wait_percentiles, every, (0.5, 0.99))
        work = [
            pool.submit(write, "minutes", minutes(steps, every, as_of_us)),
            pool.submit(write, "workers", workers(steps)),
            pool.submit(write, "ledger", ledger(counts)),
            pool.submit(write, "groups", groups(counts)),
            pool.submit(write, "violations", violations(every)),
        ]
        by_queue = _figures(counts)
    for one in work:
        one.result()
    counts.unpersist()
    return _with_waits(by_queue, waits.result())


def _figures(counts: DataFrame) -> list[dict[str, Any]]:
    """Return the figures of each queue, sorted by its name."""
    sums = {name: name for name in ("tasks", *OUTCOMES, "inversions")} | {"ledger_violations": "violations"}
    rows = counts.groupBy("queue").agg(*(F.sum(of).alias(name) for name, of in sums.items())).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["queue"] is None, row["queue"] or ""))


def _with_waits(by_queue: list[dict[str, Any]], waits: WaitPercentiles) -> dict[str, Any]:
    """Return the figures of all queues together, and in `queues` those of each."""
    names = [name for name in by_queue[0] if name != "queue"]
    total = {name: sum(row[name] for row in by_queue) for name in names} | _named(waits.overall)
    nothing: list[float | None] = [None, None]
    return total | {"queues": [row | _named(waits.by_queue.get(row["queue"], nothing)) for row in by_queue]}


def _named(waits: list[float | None]) -> dict[str, float | None]:
    return dict(zip(("wait_p50_seconds", "wait_p99_seconds"), waits, strict=True))
