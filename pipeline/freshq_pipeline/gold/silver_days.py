"""Silver by day: its events, days that share task ids, and the start of each queue's recording.

An index of a hash and an hour for each id, and for the root of each chain, shows which days share ids and
chains, and which use an id in several hours. Up to some size, Arrow finds them in this process without a
Spark job: it reads four columns of the new events, and from the index only hashes that they contain. Beyond
it Spark's workers hash the ids, and Spark compares them. If two ids have the same hash, a run only reads more
than it needs.
"""

from __future__ import annotations

from functools import partial, reduce
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from freshq_pipeline.gold.steps import TASK, by_queue_name, in_hours, same_task
from freshq_pipeline.schemas import EVENT, ddl
from freshq_pipeline.storage.arrow import grouped
from freshq_pipeline.storage.days import HOUR_US, HOURS_A_DAY, linked_days
from freshq_pipeline.storage.state import ALL, silver_path
from freshq_pipeline.storage.table_files import PARQUET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import Column, SparkSession

    from freshq_pipeline.storage.days import Day
    from freshq_pipeline.storage.folder import FileInfo, Folder
    from freshq_pipeline.storage.state import State


# Compressed silver per partition: as much as a core can sort in memory.
PARTITION_BYTES: Final = 16 << 20


def silver_files(out: Folder, day: int, parts: Iterable[str]) -> list[str]:
    """Return the files of a day in the given parts of silver."""
    return [file.path for part in parts for file in out.files(silver_path(part, day))]


def count_events(out: Folder, paths: list[str]) -> int:
    """Return the number of events in files of silver."""
    found: int = out.scan(paths, _IDS, []).count_rows() if paths else 0
    return found


def events_of(
    spark: SparkSession, out: Folder, days: Mapping[int, Day], chosen: Collection[int],
    hours: Collection[int] | None, fresh: str | None,
) -> DataFrame:  # fmt: skip
    """Return all events, including those of other hours, of tasks with events in the given hours.

    Args:
        spark: The session.
        out: The output folder.
        days: All days.
        chosen: The days of the hours.
        hours: The hours of the tasks; None: all hours of all days.
        fresh: Part of silver whose events are marked `fresh`; None: omit this column.
    """
    within = in_hours(F.col("created_us"), hours)
    events = _marked(spark, out, days, chosen, fresh).where(within)
    elsewhere = {day for day in linked_days(days, chosen) if not days[day].forgotten}
    if elsewhere and hours is not None:
        here = events.select(*TASK).distinct()
        others = _marked(spark, out, days, elsewhere, fresh).where(~within)
        events = events.unionByName(others.join(here, same_task(others, here), "left_semi"))
    return events


def partitions_for(
    spark: SparkSession, days: Mapping[int, Day], chosen: Collection[int], hours: Collection[int] | None
) -> int:
    """Return the number of partitions with which a core can sort the tasks of the given hours in memory."""
    size_bytes = sum(days[day].silver_bytes(hours) for day in chosen)
    at_once = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    # A multiple of the cores, so that no core is idle in the last round.
    return at_once * max(1, ceil(size_bytes / PARTITION_BYTES / at_once))


def _marked(
    spark: SparkSession, out: Folder, days: Mapping[int, Day], chosen: Collection[int], fresh: str | None
) -> DataFrame:
    paths: dict[bool, list[str]] = {False: [], True: []}
    for day in sorted(chosen):
        for part in days[day].silver:
            paths[part == fresh].append(out.at(silver_path(part, day)))
    parts = {one: spark.read.schema(ddl(EVENT)).parquet(*some) for one, some in paths.items() if some}
    if fresh is None:
        return parts[False]
    return reduce(
        DataFrame.unionByName, (part.withColumn("fresh", F.lit(one)) for one, part in parts.items())
    )


# With more parts, the index is rewritten as one part.
MAX_PARTS: Final = 16
# A row of a task has its id, and a row of a child has the id of its root.
_INDEX: Final = pa.schema([("id_hash", pa.int64()), ("hour", pa.int32()), ("is_child", pa.bool_())])
_INDEX_DDL: Final = "id_hash bigint, hour int, is_child boolean"
_ID: Final = ("queue", "task_id", "root_id")
_IDS: Final = pa.schema([*((name, pa.string()) for name in _ID), ("created_us", pa.int64())])
# 2**64 divided by the golden ratio: an odd number without a pattern in its digits.
_SHIFT: Final = np.int64(-7046029254386353131)


# Silver whose ids are hashed together: a third of a second of work.
HASHED_BYTES: Final = 16 << 20
# Up to these sizes of new silver and of the index, this process hashes and compares ids. Comparing an id
# takes 133 bytes here, and it has about 60 bytes of silver.
SILVER_HERE_BYTES: Final = 64 << 20
INDEX_HERE_BYTES: Final = 256 << 20


def index_ids(spark: SparkSession, out: Folder, state: State) -> None:
    """Add the ids of new silver parts to the index, and link days that share ids."""
    parts = state.silver_parts() - set(state.indexed)
    if not parts:
        return
    files = [file for part in sorted(parts) for file in out.files(f"silver/{part}")]
    few = sum(file.size_bytes for file in files) <= SILVER_HERE_BYTES
    groups, work = _in_groups(files), partial(_write_hashes, out, state.run_id)
    if few:
        for group in groups:
            work(group)
    else:
        spark.sparkContext.parallelize(groups, len(groups)).foreach(work)
    state.ids.append(state.run_id)
    state.indexed = sorted(state.silver_parts())
    _link_days(spark, out, state, few=few)
    if len(state.ids) > MAX_PARTS:
        merged = f"{state.run_id}{ALL}"
        whole = out.scan(_index_files(out, state.ids), _INDEX, _INDEX.names)
        out.write_parquet(f"ids/{merged}/0{PARQUET}", whole.to_batches(), _INDEX)
        state.ids = [merged]


_Group = tuple[int, list[str]]


def _in_groups(files: Iterable[FileInfo]) -> list[_Group]:
    """Divide files into numbered groups of at most `HASHED_BYTES`; a larger file is a group of its own.

    Files of the same day share ids, so adjacent files stay together.
    """
    groups, filled_bytes = [list[str]()], 0
    for file in files:
        if filled_bytes + file.size_bytes > HASHED_BYTES and groups[-1]:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(file.path)
        filled_bytes += file.size_bytes
    return list(enumerate(groups))


def _write_hashes(out: Folder, part: str, group: _Group) -> None:
    """Write the rows of the index for a group of silver files. A second attempt writes the same file."""
    number, paths = group
    batches = out.scan(paths, _IDS, _IDS.names).to_batches()
    found = [_INDEX.empty_table(), *(_hashed(pa.Table.from_batches([batch])) for batch in batches)]
    distinct = pa.concat_tables(found).group_by(_INDEX.names, use_threads=False).aggregate([])
    rows = distinct.select(_INDEX.names).combine_chunks().to_batches()
    out.write_parquet(f"ids/{part}/{number}{PARQUET}", rows, _INDEX)


def _link_days(spark: SparkSession, out: Folder, state: State, *, few: bool) -> None:
    """Link days that share ids with the events of this run."""
    index_bytes = sum(file.size_bytes for part in state.ids for file in out.files(f"ids/{part}"))
    if few and index_bytes <= INDEX_HERE_BYTES:
        pairs = _days_that_share(out, state)
    else:
        pairs = _shared_by_spark(spark, out, state)
    for day, other, is_chain in pairs:
        for one, beside in ((day, other), (other, day)):
            known = state.days[one]
            days = known.chained if is_chain else known.linked
            if beside not in days:
                days.append(beside)


def _hashed(events: pa.Table) -> pa.Table:
    """Return a hash of each id, together with its queue, and of the root of each child, with their hours."""
    hours = pc.divide(events["created_us"], HOUR_US).cast(pa.int32())
    ids = events.select(list(_ID)).append_column("hour", hours)
    ids = ids.group_by(ids.column_names, use_threads=False).aggregate([])
    children = ids.filter(pc.is_valid(ids["root_id"]))
    roots = children.drop_columns("task_id").rename_columns({"root_id": "task_id"})
    return pa.concat_tables(
        pa.table([pa.array(_id_hashes(rows)), rows["hour"], pa.repeat(is_child, len(rows))], schema=_INDEX)
        for rows, is_child in ((ids, False), (roots, True))
    )


def _id_hashes(ids: pa.Table) -> NDArray[np.int64]:
    """Return a hash of each id, together with its queue."""
    queues = ids["queue"].combine_chunks().fill_null("").dictionary_encode()
    of_queue = hashed(queues.dictionary.to_numpy(zero_copy_only=False))[queues.indices.to_numpy()]
    # The factor keeps ids that equal the names of their queues from getting the same hash.
    found: NDArray[np.int64] = hashed(ids["task_id"].to_numpy()) ^ (of_queue * _SHIFT)
    return found


def hashed(ids: NDArray[np.object_]) -> NDArray[np.int64]:
    """Return the hashes stored in the index."""
    found: NDArray[np.int64] = pd.util.hash_array(ids, categorize=False).view(np.int64)
    return found


def _shared_by_spark(spark: SparkSession, out: Folder, state: State) -> set[tuple[int, int, bool]]:
    """Return the same as `_days_that_share`. Only pairs of days reach this process."""
    reader = spark.read.schema(_INDEX_DDL)
    fresh = reader.parquet(out.at(f"ids/{state.run_id}"))
    others = reader.parquet(*(out.at(f"ids/{part}") for part in state.ids))
    of_id = others.groupBy("id_hash").agg(F.min("hour").alias("first"), F.max("hour").alias("last"))
    # Nearly all ids have one hour. Spark joins the rest without a shuffle, as it knows how few it keeps.
    several = of_id.where("first <> last").select("id_hash").persist()
    try:
        if not several.count():
            return set()
        return _pairs(fresh.join(several, "id_hash"), others.join(several, "id_hash"))
    finally:
        several.unpersist()


def _pairs(fresh: DataFrame, others: DataFrame) -> set[tuple[int, int, bool]]:
    """Return the pairs of days of rows of the index, by Spark."""
    others = others.withColumnsRenamed({"hour": "other", "is_child": "other_is_child"})
    pairs = fresh.join(others, "id_hash").where("hour <> other")
    days = (F.expr(f"{name} div {HOURS_A_DAY}").alias(name) for name in ("hour", "other"))
    is_chain = (F.col("is_child") | F.col("other_is_child")).alias("is_chain")
    found = pairs.select(*days, is_chain).where("not is_chain or hour <> other").distinct().collect()
    return {(row["hour"], row["other"], row["is_chain"]) for row in found}


def _days_that_share(out: Folder, state: State) -> set[tuple[int, int, bool]]:
    """Return pairs of days with an id in common, and whether it is a root's; the first day has fresh events.

    A day is paired with itself if two of its hours have an id.
    """
    fresh = out.scan(_index_files(out, [state.run_id]), _INDEX, _INDEX.names).to_table()
    known = pc.field("id_hash").isin(fresh["id_hash"].combine_chunks())
    others = out.scan(_index_files(out, state.ids), _INDEX, _INDEX.names, known).to_table()
    others = others.rename_columns(["id_hash", "other", "other_is_child"])
    pairs = fresh.join(others, "id_hash", join_type="inner").filter(pc.field("hour") != pc.field("other"))
    days = {name: pc.divide(pairs[of], HOURS_A_DAY) for name, of in (("day", "hour"), ("other", "other"))}
    is_chain = pc.or_(pairs["is_child"], pairs["other_is_child"])
    kinds = pa.table({**days, "is_chain": is_chain})
    kinds = kinds.filter(~pc.field("is_chain") | (pc.field("day") != pc.field("other")))
    kinds = kinds.group_by(kinds.column_names).aggregate([])
    return set(zip(*(column.to_pylist() for column in kinds.columns), strict=True))


def _index_files(out: Folder, parts: list[str]) -> list[str]:
    return [file.path for part in parts for file in out.files(f"ids/{part}")]


_CREATED: Final = pa.schema([("created_us", pa.int64())])


def created_hours(out: Folder, part: str) -> set[int]:
    """Return the hours of creation of the events in a part of silver."""
    paths = [file.path for file in out.files(f"silver/{part}")]
    batches = out.scan(paths, _CREATED, _CREATED.names).to_batches() if paths else ()
    return {
        hour for batch in batches for hour in pc.unique(pc.divide(batch["created_us"], HOUR_US)).to_pylist()
    }


_TIMES: Final = pa.schema([("queue", pa.string()), ("changed_us", pa.int64())])


def starts_us(out: Folder, part: str) -> dict[str | None, int]:
    """Return the time of the first event of each queue in a part of silver; null counts as a queue."""
    paths = [file.path for file in out.files(f"silver/{part}")]
    if not paths:
        return {}
    batches = out.scan(paths, _TIMES, _TIMES.names).to_batches()
    firsts = [_firsts(pa.Table.from_batches([batch])) for batch in batches]
    found = _firsts(pa.concat_tables(firsts))
    return dict(zip(found["queue"].to_pylist(), found["changed_us"].to_pylist(), strict=True))


def _firsts(events: pa.Table) -> pa.Table:
    return grouped(events, ("queue",), {"changed_us": "min"})


def earliest(one: Mapping[str | None, int], other: Mapping[str | None, int]) -> dict[str | None, int]:
    """Return the earlier start of each queue."""
    return {queue: min(have[queue] for have in (one, other) if queue in have) for queue in one.keys() | other}


def start_us(starts: Mapping[str | None, int]) -> Column:
    """Return the start of the recording of the row's queue, given the start of each queue."""
    named = {queue: start for queue, start in starts.items() if queue is not None}
    return by_queue_name(named, starts.get(None, 0))
