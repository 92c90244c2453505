"""Which days have events of the same task id: an index with a hash and a day for each.

Two ids with the same hash only make a run read more than it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.gold.silver_days import read_days
from freshq_pipeline.gold.touched import day_of
from freshq_pipeline.storage.days import Day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

# With more parts than this, the index is rewritten as one.
MAX_PARTS: Final = 16
_SCHEMA: Final = "id_hash bigint, day int"


def index_ids(spark: SparkSession, out: Folder, state: State) -> None:
    """Add the ids of silver parts that are not in the index, and link the days that share ids."""
    parts = state.silver_parts() - set(state.indexed)
    if not parts:
        return
    path = f"ids/{state.run_id}"
    _ids_of(spark, out, state, parts).write.mode("overwrite").parquet(out.at(path))
    state.ids.append(state.run_id)
    state.indexed = sorted(state.silver_parts())
    if len(state.days) > 1:
        other = _read(spark, out, state.ids).withColumnRenamed("day", "other")
        pairs = _read(spark, out, [state.run_id]).join(other, "id_hash").where("day <> other")
        for row in pairs.select("day", "other").distinct().collect():
            _link(state, row["day"], row["other"])
            _link(state, row["other"], row["day"])
    if len(state.ids) > MAX_PARTS:
        merged = f"{state.run_id}-all"
        _read(spark, out, state.ids).distinct().write.parquet(out.at(f"ids/{merged}"))
        state.ids = [merged]


def _ids_of(spark: SparkSession, out: Folder, state: State, parts: set[str]) -> DataFrame:
    """Return the distinct keys of the index of some silver parts."""
    days = {
        day: Day({part: size for part, size in known.silver.items() if part in parts})
        for day, known in state.days.items()
        if parts & known.silver.keys()
    }
    events = read_days(spark, out, days, days)
    key = (F.xxhash64("task_id").alias("id_hash"), day_of(F.col("created_us")).alias("day"))
    return events.select(*key).distinct()


def _read(spark: SparkSession, out: Folder, parts: list[str]) -> DataFrame:
    return spark.read.schema(_SCHEMA).parquet(*(out.at(f"ids/{part}") for part in parts))


def _link(state: State, day: int, other: int) -> None:
    if other not in state.days[day].linked:
        state.days[day].linked.append(other)
