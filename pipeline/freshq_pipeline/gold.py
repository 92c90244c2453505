"""Silver to tables: the same for a batch, an increment and a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import EVENT, OUTCOMES, TABLES, ddl
from freshq_pipeline.state import table_path
from freshq_pipeline.steps import distinct_steps
from freshq_pipeline.tables.groups import groups
from freshq_pipeline.tables.inversions import inversions
from freshq_pipeline.tables.ledger import ledger, violations
from freshq_pipeline.tables.minutes import minutes
from freshq_pipeline.tables.tasks import lives, tasks
from freshq_pipeline.tables.workers import workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage import Folder

# So much compressed silver is sorted at a time on each core.
PARTITION_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Choices:
    """What the tables depend on beside the events.

    Attributes:
        as_of_ms: The moment to say the outcome at, later events being left out; None: the newest event.
        index_lag_seconds: How long after it became claimable a task need not be visible to a claim.
    """

    as_of_ms: int | None = None
    index_lag_seconds: float = 0.0


def read_silver(spark: SparkSession, out: Folder, parts: list[str]) -> DataFrame:
    """Return the events of some parts, duplicates included."""
    return spark.read.schema(ddl(EVENT)).parquet(*(out.at(f"silver/{part}") for part in parts))


def partitions_for(spark: SparkSession, out: Folder, parts: list[str]) -> int:
    """Return over how many partitions tasks are spread: a multiple of what a core can sort in memory."""
    size_bytes = sum(found.size_bytes for part in parts for found in out.files(f"silver/{part}"))
    least = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(least, -(-size_bytes // PARTITION_BYTES))


def build(
    spark: SparkSession, out: Folder, parts: list[str], run_id: str, choices: Choices
) -> dict[str, Any]:
    """Write all tables of a run, and return their figures for the summary.

    Raises:
        BadInput: If there is no event at all.
    """
    events = read_silver(spark, out, parts)
    if choices.as_of_ms is not None:
        events = events.where(F.col("changed_us") <= choices.as_of_ms * 1000)
    steps = distinct_steps(events, partitions_for(spark, out, parts)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        seen = steps.agg(
            F.count(F.lit(1)).alias("events"),
            F.min("changed_us").alias("since"),
            F.max("changed_us").alias("until"),
        ).first()
        if seen is None or not seen["events"]:
            raise BadInput("events: not one event of a task in them; is the format right?")
        as_of_us = seen["until"] if choices.as_of_ms is None else choices.as_of_ms * 1000
        written = _tables(spark, out, run_id, steps, as_of_us, seen["since"], choices)
    finally:
        steps.unpersist()
    return {"events_distinct": seen["events"], "as_of_ms": as_of_us // 1000} | _figures(written)


def _tables(
    spark: SparkSession,
    out: Folder,
    run_id: str,
    steps: DataFrame,
    as_of_us: int,
    since_us: int,
    choices: Choices,
) -> DataFrame:
    """Write the tables, and return the one of tasks as it was written."""

    def write(name: str, table: DataFrame) -> None:
        table.select(*TABLES[name]).write.parquet(out.at(table_path(run_id, name)))

    inverted = inversions(steps, as_of_us, round(choices.index_lag_seconds * 1e6))
    write("tasks", tasks(lives(steps), inverted, as_of_us, since_us))
    every = spark.read.schema(ddl(TABLES["tasks"])).parquet(out.at(table_path(run_id, "tasks")))
    write("minutes", minutes(steps, every, as_of_us))
    write("workers", workers(steps))
    write("ledger", ledger(every))
    write("violations", violations(every))
    write("groups", groups(every))
    return every


def _figures(every: DataFrame) -> dict[str, Any]:
    waits = F.percentile("wait_seconds", F.array(F.lit(0.5), F.lit(0.99)))
    row = every.agg(
        F.count(F.lit(1)).alias("tasks"),
        *(F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES),
        F.count_if(F.size("problems") > 0).alias("ledger_violations"),
        F.count_if("inverted").alias("inversions"),
        waits.alias("waits"),
    ).first()
    figures = {} if row is None else row.asDict()
    median, highest = figures.pop("waits") or (None, None)
    return figures | {"wait_p50_seconds": median, "wait_p99_seconds": highest}
