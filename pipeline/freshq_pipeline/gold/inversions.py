"""Find tasks that were claimed while a newer task of the same queue and level waited.

Spark has no operator for the newest waiting task at each of many times. Vectorized Python finds them in Arrow
tables: executors compare one chunk of time of a level at a time; this process compares small inputs.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from freshq_pipeline.gold.minutes import blocks
from freshq_pipeline.gold.steps import by_queue_name, in_hours
from freshq_pipeline.schemas import ddl
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import FOREVER_US, HOUR_US

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from freshq_pipeline.storage.recording import IndexLag

    Moments: TypeAlias = NDArray[np.int64]

# Levels are cut into chunks of time, so that executors share busy levels.
CHUNK_US: Final = 900 * 1_000_000
# A chunk with more claims and waits, of about 100 bytes each, is cut into this many pieces of a quarter of a
# second. Then a group has as many rows as there are changes in that time.
GROUP_ROWS: Final = 1 << 20
PIECES: Final = 3600
NEVER_US: Final = -FOREVER_US
# A claim out of turn; events without a queue form their own queue.
CLAIM: Final = {"queue": "string", "task_id": "string", "life": "int"}
# By the hour of the clock, a later run finds the claims to check again.
WITH_HOUR: Final = CLAIM | {"hour": "int"}
_ARROW: Final = arrow_schema(WITH_HOUR)
_LEVEL: Final = ("queue", "priority")
# Longer waits (2**20 chunks of 15 minutes are thirty years) can only come from a wrong clock.
MOST_LEVELS: Final = 20


def inversions(
    steps: DataFrame,
    as_of_us: int,
    lag_us: Column | int = 0,
    hours: Collection[int] | None = None,
    *,
    many: bool = False,
) -> DataFrame:
    """Return `queue`, `task_id`, `life` and `hour` of claims out of turn; a claim may occur several times.

    Args:
        steps: Steps from `distinct_steps`.
        as_of_us: End of the recording.
        lag_us: Time after which a claimable task must be visible to claims.
        hours: Hours whose claims to check; None: all.
        many: Whether a chunk may have more than `GROUP_ROWS` rows. Such chunks are found by another job.
    """
    claims, waits = _claims_and_waits(steps, as_of_us, lag_us)
    claims = claims.where(in_hours(F.col("since_us"), hours))
    waits = waits.withColumn("until_us", F.least("until_us", F.lit(as_of_us + 1)))
    return (
        chunks(claims, waits, many=many)
        .groupBy(*_LEVEL, "chunk_us", "chunk")
        .applyInArrow(_out_of_turn, ddl(WITH_HOUR))
    )


def chunks(claims: DataFrame, waits: DataFrame, chunk_us: int = CHUNK_US, *, many: bool) -> DataFrame:
    """Return claims, and the waits that matter to them, by `chunk`, the number of their time in `chunk_us`.

    A wait is in the chunks of its start and of its end. All waits that cover a whole chunk are one row, since
    only the newest of their tasks matters. So there are at most two rows for a wait and two for a claim.

    Args:
        claims: Claims, whose `until_us` is null.
        waits: Waits.
        chunk_us: Duration of a chunk.
        many: Whether a chunk may have more than `GROUP_ROWS` rows; they are cut into pieces.
    """
    length = F.lit(chunk_us).alias("chunk_us")
    first, last = (F.expr(f"{name} div {chunk_us}") for name in ("since_us", "until_us"))
    begun = claims.withColumn("chunk", first)
    spans = waits.withColumns({"first": first, "last": last})
    ends = F.explode(F.array_distinct(F.array("first", "last")))
    own = begun.unionByName(spans.withColumn("chunk", ends).drop("first", "last"))
    rows = own.unionByName(_covering(begun, spans, chunk_us)).select("*", length)
    if not many:
        return rows
    # The wait that covers a chunk is one row more, which is expensive to find.
    crowded = own.groupBy(*_LEVEL, "chunk").count().where(F.col("count") >= GROUP_ROWS).drop("count")
    found = crowded.toArrow()
    if not len(found):
        return rows
    hot = F.broadcast(rows.sparkSession.createDataFrame(found.to_pandas(), crowded.schema))
    same = reduce(Column.__and__, (rows[name].eqNullSafe(hot[name]) for name in (*_LEVEL, "chunk")))
    begin_us = F.col("chunk") * chunk_us
    within = rows.join(hot, same, "left_semi").withColumns(
        {
            "since_us": F.greatest("since_us", begin_us - 1),
            "until_us": F.when(F.col("until_us").isNotNull(), F.least("until_us", begin_us + chunk_us)),
        }
    )
    within = within.drop("chunk", "chunk_us")
    parts = (within.where("until_us is null"), within.where("until_us is not null"))
    shorter = chunks(*parts, chunk_us // PIECES, many=False)
    return rows.join(hot, same, "left_anti").unionByName(shorter)


def _covering(claims: DataFrame, spans: DataFrame, chunk_us: int) -> DataFrame:
    """Return the wait of the newest task that covers a whole chunk, for each chunk with claims.

    Args:
        claims: Claims with their `chunk`.
        spans: Waits with their `first` and `last` chunk.
        chunk_us: Duration of a chunk.
    """
    newest = F.max("created_us").alias("created_us")
    inner = spans.where(F.col("last") - F.col("first") > 1).groupBy(*_LEVEL, "first", "last").agg(newest)
    inner = inner.withColumns({"first": F.col("first") + 1, "last": F.col("last") - 1})
    covering = blocks(inner, (*_LEVEL, "created_us")).groupBy(*_LEVEL, "level", "block").agg(newest)
    wanted = claims.select(*_LEVEL, "chunk").distinct()
    levels = F.explode(F.sequence(F.lit(0), F.lit(MOST_LEVELS))).alias("level")
    wanted = wanted.select("*", levels).withColumn("block", F.expr("shiftright(chunk, level)"))
    same = (wanted[name].eqNullSafe(covering[name]) for name in (*_LEVEL, "level", "block"))
    found = wanted.join(covering, reduce(Column.__and__, same)).select(
        *(wanted[name] for name in (*_LEVEL, "chunk")), covering["created_us"]
    )
    begin_us = F.col("chunk") * chunk_us
    return found.groupBy(*_LEVEL, "chunk").agg(newest).select(
        *_LEVEL, (begin_us - 1).alias("since_us"), (begin_us + chunk_us).alias("until_us"), "created_us",
        *_no_task(), "chunk",
    )  # fmt: skip


def inversions_here(
    steps: DataFrame, as_of_us: int, lag_us: Column | int = 0, hours: Collection[int] | None = None
) -> pa.Table:
    """Do the same without starting a Python worker, which takes longer than comparing few steps.

    Args:
        steps: Steps from `distinct_steps`, whose claims and waits must fit into memory.
        as_of_us: As above.
        lag_us: As above.
        hours: As above.
    """
    claims, waits = _claims_and_waits(steps, as_of_us, lag_us)
    claims = claims.where(in_hours(F.col("since_us"), hours))
    found = claims.unionByName(waits).toArrow()
    return pa.concat_tables([_ARROW.empty_table(), *map(_out_of_turn, _levels(found))])


def _levels(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each queue and priority."""
    names = rows["queue"].combine_chunks().dictionary_encode(null_encoding="encode").indices
    queue, priority = names.to_numpy(zero_copy_only=False), rows["priority"].to_numpy()
    order = np.lexsort((priority, queue))
    changes = (np.diff(queue[order]) != 0) | (np.diff(priority[order]) != 0)
    placed = rows.take(order)
    # Filtering all rows once for each level would take too long with many levels.
    for start, end in pairwise(np.unique([0, *(np.flatnonzero(changes) + 1), len(order)])):
        yield placed.slice(start, end - start)


def index_lag_us(lag: IndexLag) -> Column:
    """Return the index lag of the row's queue."""
    by_queue = {queue: round(seconds * 1e6) for queue, seconds in lag.by_queue.items()}
    return by_queue_name(by_queue, round(lag.seconds * 1e6))


def _claims_and_waits(steps: DataFrame, as_of_us: int, lag_us: Column | int) -> tuple[DataFrame, DataFrame]:
    """Return claims, whose `until_us` is null, and the times during which tasks waited."""
    claims = steps.where("claimed").select(
        *_LEVEL, F.col("changed_us").alias("since_us"), F.lit(None).cast("bigint").alias("until_us"),
        "created_us", "task_id", "life",
    )  # fmt: skip
    # A delayed task may not be in the index yet.
    waiting = steps.where("status = 'PENDING' and not removed and not_before_us is null")
    until = F.coalesce(F.least("next_us", "deadline_us"), F.lit(FOREVER_US))
    since = F.col("changed_us") + lag_us
    waits = waiting.where(since < F.least(until, F.lit(as_of_us))).select(
        *_LEVEL, since.alias("since_us"), until.alias("until_us"), "created_us", *_no_task()
    )
    return claims, waits


def _no_task() -> list[Column]:
    return [F.lit(None).cast(CLAIM[name]).alias(name) for name in ("task_id", "life")]


def _out_of_turn(chunk: pa.Table) -> pa.Table:
    """Return the claims out of turn in a chunk."""
    is_claim = chunk["until_us"].is_null()
    claims, waits = chunk.filter(is_claim), chunk.filter(chunk["until_us"].is_valid())
    found = out_of_turn(
        *(claims[name].to_numpy() for name in ("since_us", "created_us")),
        *(waits[name].to_numpy() for name in ("since_us", "until_us", "created_us")),
    )
    inverted = claims.filter(pa.array(found))
    hours = pa.array(inverted["since_us"].to_numpy() // HOUR_US)
    return inverted.select(list(CLAIM)).append_column("hour", hours).cast(_ARROW)


def out_of_turn(
    claimed_us: Moments, own_us: Moments, since_us: Moments, until_us: Moments, created_us: Moments
) -> NDArray[np.bool_]:
    """Return for each claim whether a task newer than the claimed one was waiting.

    A wait lasts from after `since_us` to before `until_us`. All times are whole microseconds.

    Sorted by time, the claims during a wait are adjacent. As in a sparse table, each wait is recorded in two
    overlapping runs of adjacent claims whose length is a power of two. Then each longer run passes its
    maximum down to the shorter runs in it.

    Args:
        claimed_us: Time of each claim.
        own_us: Creation time of the claimed task.
        since_us: Start of each wait.
        until_us: End of each wait.
        created_us: Creation time of the waiting task.
    """
    order = np.argsort(claimed_us, kind="stable")
    moments = claimed_us[order]
    first = np.searchsorted(moments, since_us, side="right")
    count = np.searchsorted(moments, until_us, side="left") - first
    # A run at level n has 2**n claims; frexp() gives the longest run that fits.
    level = np.frexp(np.maximum(count, 0))[1] - 1
    newest = np.full(len(moments), NEVER_US)
    for length in (1 << at for at in range(int(level.max(initial=-1)), -1, -1)):
        longer, newest = newest, newest.copy()
        np.maximum(newest[length:], longer[:-length], out=newest[length:])
        runs = level == length.bit_length() - 1
        begins, created = first[runs], created_us[runs]
        np.maximum.at(newest, begins, created)
        np.maximum.at(newest, begins + count[runs] - length, created)
    found = np.empty(len(moments), dtype=np.bool_)
    found[order] = newest > own_us[order]
    return found
