"""Find tasks that were claimed while a newer task of the same queue and level waited.

Spark has no operator for the newest waiting task at each of many times. Python finds it, vectorized over
Arrow tables: executors take one chunk of time of one level at a time; few steps are compared in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from freshq_pipeline.gold.steps import by_queue_name
from freshq_pipeline.schemas import ddl
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import DAY_US, FOREVER_US

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

    from freshq_pipeline.storage.recording import IndexLag

    Moments: TypeAlias = NDArray[np.int64]

# Levels are cut into chunks of time, so that executors share busy levels; a wait is in every chunk it
# overlaps.
CHUNK_US: Final = 900 * 1_000_000
NEVER_US: Final = -FOREVER_US
# A claim out of turn; events without a queue form a queue of their own.
CLAIM: Final = {"queue": "string", "task_id": "string", "life": "int"}
SCHEMA: Final = ddl(CLAIM | {"day": "int"})
_ARROW: Final = arrow_schema(CLAIM | {"day": "int"})
_LEVEL: Final = ("queue", "priority")


def inversions(
    steps: DataFrame, as_of_us: int, lag_us: Column | int = 0, days: Collection[int] | None = None
) -> DataFrame:
    """Return `queue`, `task_id`, `life` and `day` of claims out of turn; a claim may occur several times.

    Args:
        steps: Steps from `distinct_steps`.
        as_of_us: End of the recording.
        lag_us: Time after which a claimable task must be visible to claims.
        days: Days whose claims to check; None: all.
    """
    claims, waits = _claims_and_waits(steps, as_of_us, lag_us)
    first = F.expr(f"since_us div {CHUNK_US}")
    last = F.floor(F.least(F.col("until_us"), F.lit(as_of_us)) / CHUNK_US)
    rows = claims.withColumn("chunk", first).unionByName(
        waits.withColumn("chunk", F.explode(F.sequence(first, last)))
    )
    if days is not None:
        rows = rows.where(F.expr(f"chunk div {DAY_US // CHUNK_US}").isin(*days))
    return rows.groupBy(*_LEVEL, "chunk").applyInArrow(_out_of_turn, SCHEMA)


def inversions_here(
    steps: DataFrame, as_of_us: int, lag_us: Column | int = 0, days: Collection[int] | None = None
) -> pa.Table:
    """Return the same without starting a Python worker, which takes longer than comparing few steps.

    Args:
        steps: Steps from `distinct_steps`, whose claims and waits must fit into memory.
        as_of_us: As above.
        lag_us: As above.
        days: As above.
    """
    claims, waits = _claims_and_waits(steps, as_of_us, lag_us)
    if days is not None:
        claims = claims.where(F.expr(f"since_us div {DAY_US}").isin(*days))
    found = claims.unionByName(waits).toArrow()
    queue = found["queue"].combine_chunks().dictionary_encode(null_encoding="encode")
    names = np.stack((queue.indices.to_numpy(zero_copy_only=False), found["priority"].to_numpy()))
    _, level = np.unique(names, axis=1, return_inverse=True)
    return pa.concat_tables(
        [_ARROW.empty_table(), *(_out_of_turn(found.filter(level == one)) for one in np.unique(level))]
    )


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
    nothing = (F.lit(None).cast(CLAIM[name]).alias(name) for name in ("task_id", "life"))
    waits = waiting.where(since < F.least(until, F.lit(as_of_us))).select(
        *_LEVEL, since.alias("since_us"), until.alias("until_us"), "created_us", *nothing
    )
    return claims, waits


def _out_of_turn(chunk: pa.Table) -> pa.Table:
    """Return the claims out of turn in a chunk."""
    is_claim = chunk["until_us"].is_null()
    claims, waits = chunk.filter(is_claim), chunk.filter(chunk["until_us"].is_valid())
    found = out_of_turn(
        *(claims[name].to_numpy() for name in ("since_us", "created_us")),
        *(waits[name].to_numpy() for name in ("since_us", "until_us", "created_us")),
    )
    inverted = claims.filter(pa.array(found))
    days = pa.array(inverted["since_us"].to_numpy() // DAY_US)
    return inverted.select(list(CLAIM)).append_column("day", days).cast(_ARROW)


def out_of_turn(
    claimed_us: Moments, own_us: Moments, since_us: Moments, until_us: Moments, created_us: Moments
) -> NDArray[np.bool_]:
    """Return for each claim whether a task newer than the claimed one was waiting.

    A wait lasts from after `since_us` to before `until_us`. All times are whole microseconds.

    Sorted by time, the claims during a wait are adjacent. As in a sparse table, each wait is recorded in two
    overlapping runs of adjacent claims whose length is a power of two. Then longer runs pass their maximum
    down to shorter ones.

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
