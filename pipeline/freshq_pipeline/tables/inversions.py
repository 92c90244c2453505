"""Which tasks were taken while a newer one of the same queue and level waited.

The one computation for which Spark has no operator: the newest of what waits at a moment needs a heap.
It runs on the executors over Arrow batches, a chunk of time of one level at a time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

# A level is cut into chunks of time, so that a busy one is spread; what waits across chunks is in each.
CHUNK_US: Final = 900 * 1_000_000
FOREVER_US: Final = 2**62
SCHEMA: Final = "task_id string, life int"
_ARROW: Final = pa.schema([("task_id", pa.string()), ("life", pa.int32())])


def inversions(steps: DataFrame, as_of_us: int, index_lag_us: int = 0) -> DataFrame:
    """Return `task_id` and `life` of the tasks that were ever taken out of turn.

    Args:
        steps: From `distinct_steps`.
        as_of_us: The end of the record.
        index_lag_us: How long after it became claimable a task need not be visible to a claim.
    """
    level = ("queue", "priority")
    claims = steps.where("claimed").select(
        *level,
        F.col("changed_us").alias("since_us"),
        F.lit(None).cast("bigint").alias("until_us"),
        "created_us",
        "task_id",
        "life",
        F.expr(f"changed_us div {CHUNK_US}").alias("chunk"),
    )
    # What waits until a time may not be in the index yet.
    waiting = steps.where("status = 'PENDING' and not removed and not_before_us is null")
    until = F.coalesce(F.least("next_us", "deadline_us"), F.lit(FOREVER_US))
    since = F.col("changed_us") + index_lag_us
    chunks = F.sequence(
        F.expr(f"(changed_us + {index_lag_us}) div {CHUNK_US}"),
        F.floor(F.least(until, F.lit(as_of_us)) / CHUNK_US),
    )
    waits = waiting.where(since < F.least(until, F.lit(as_of_us))).select(
        *level,
        since.alias("since_us"),
        until.alias("until_us"),
        "created_us",
        F.lit(None).cast("string").alias("task_id"),
        F.lit(None).cast("int").alias("life"),
        F.explode(chunks).alias("chunk"),
    )
    chunked = claims.unionByName(waits).groupBy(*level, "chunk")
    return chunked.applyInArrow(_out_of_turn, SCHEMA).distinct()


def _out_of_turn(chunk: pa.Table) -> pa.Table:
    """Return the claims of a chunk that were out of turn."""
    is_claim = chunk["until_us"].is_null()
    claims = chunk.filter(is_claim).sort_by("since_us")
    waits = chunk.filter(chunk["until_us"].is_valid()).sort_by("since_us")
    found = list(_scan(claims, waits))
    return claims.select(["task_id", "life"]).take(pa.array(found, pa.int64())).cast(_ARROW)


def _scan(claims: pa.Table, waits: pa.Table) -> Iterator[int]:
    """Yield the positions of the claims before which a newer task waited, in order of time."""
    since, until, created = (waits[name].to_pylist() for name in ("since_us", "until_us", "created_us"))
    newest: list[tuple[int, int]] = []
    position, count = 0, len(since)
    moments: list[tuple[Any, Any]] = list(
        zip(claims["since_us"].to_pylist(), claims["created_us"].to_pylist(), strict=True)
    )
    for index, (moment, own) in enumerate(moments):
        while position < count and since[position] < moment:
            heappush(newest, (-created[position], until[position]))
            position += 1
        # Who stopped waiting is only looked for at the top.
        while newest and newest[0][1] <= moment:
            heappop(newest)
        if newest and -newest[0][0] > own:
            yield index
