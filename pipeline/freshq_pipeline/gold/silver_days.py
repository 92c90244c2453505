"""The events of some days from silver, complete for every task that has one of them."""

from __future__ import annotations

from functools import reduce
from math import ceil
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from freshq_pipeline.gold.task_key import TASK, same_task
from freshq_pipeline.schemas import EVENT, ddl
from freshq_pipeline.storage.days import linked_days
from freshq_pipeline.storage.state import silver_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.days import Day
    from freshq_pipeline.storage.folder import Folder

# Compressed silver per partition: as much as one core can sort in memory.
PARTITION_BYTES: Final = 16 << 20


def read_days(
    spark: SparkSession, out: Folder, days: Mapping[int, Day], chosen: Collection[int]
) -> DataFrame:
    """Return the events of silver of some days, duplicates included, and no others."""
    paths = [out.at(silver_path(part, day)) for day in sorted(chosen) for part in days[day].silver]
    return _read(spark, paths)


def silver_files(out: Folder, day: int, parts: Iterable[str]) -> list[str]:
    """Return the paths of the files of a day in some parts of silver."""
    return [file.path for part in parts for file in out.files(silver_path(part, day))]


def events_of(
    spark: SparkSession, out: Folder, days: Mapping[int, Day], chosen: Collection[int], fresh: str | None
) -> DataFrame:
    """Return all events of the tasks that have events on some days.

    Args:
        spark: The session.
        out: Folder with silver.
        days: All days.
        chosen: Those whose tasks are wanted.
        fresh: Part whose events are `fresh`; None: without this column.
    """
    events = _marked(spark, out, days, chosen, fresh)
    elsewhere = {day for day in linked_days(days, chosen) if not days[day].forgotten}
    if elsewhere:
        here = events.select(*TASK).distinct()
        others = _marked(spark, out, days, elsewhere, fresh)
        events = events.unionByName(others.join(here, same_task(others, here), "left_semi"))
    return events


def partitions_for(spark: SparkSession, days: Mapping[int, Day], chosen: Collection[int]) -> int:
    """Return the number of partitions for the tasks of some days, each small enough to sort in memory."""
    size_bytes = sum(sum(days[day].silver.values()) for day in chosen)
    at_once = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    # A multiple of the cores: otherwise some would be idle in the last round.
    return at_once * max(1, ceil(size_bytes / PARTITION_BYTES / at_once))


def _marked(
    spark: SparkSession, out: Folder, days: Mapping[int, Day], chosen: Collection[int], fresh: str | None
) -> DataFrame:
    if fresh is None:
        return read_days(spark, out, days, chosen)
    paths: dict[bool, list[str]] = {False: [], True: []}
    for day in sorted(chosen):
        for part in days[day].silver:
            paths[part == fresh].append(out.at(silver_path(part, day)))
    marked = [_read(spark, some).withColumn("fresh", F.lit(one)) for one, some in paths.items() if some]
    return reduce(DataFrame.unionByName, marked)


def _read(spark: SparkSession, paths: list[str]) -> DataFrame:
    return spark.read.schema(ddl(EVENT)).parquet(*paths)
