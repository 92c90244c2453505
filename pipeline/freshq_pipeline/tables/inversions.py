"""Which tasks were taken while a newer one of the same queue and level waited.

The one computation for which Spark has no operator: the newest of all that waits at each of many moments.
It runs on the executors over Arrow batches, a chunk of time of one level at a time, and by whole arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    Moments: TypeAlias = NDArray[np.int64]

# A level is cut into chunks of time, so that a busy one is spread; what waits across chunks is in each.
CHUNK_US: Final = 900 * 1_000_000
FOREVER_US: Final = 2**62
NEVER_US: Final = -FOREVER_US
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
    claims, waits = chunk.filter(is_claim), chunk.filter(chunk["until_us"].is_valid())
    found = out_of_turn(
        *(claims[name].to_numpy() for name in ("since_us", "created_us")),
        *(waits[name].to_numpy() for name in ("since_us", "until_us", "created_us")),
    )
    return claims.select(["task_id", "life"]).filter(pa.array(found)).cast(_ARROW)


def out_of_turn(
    claimed_us: Moments, own_us: Moments, since_us: Moments, until_us: Moments, created_us: Moments
) -> NDArray[np.bool_]:
    """Return for each claim whether a task that is newer than the claimed one waited.

    A wait lasts from after `since_us` to before `until_us`; all arrays are of whole microseconds.

    In the order of time, the claims during a wait are neighbours. Which waits are the newest is noted for
    runs of 2, 4, 8, ... neighbours, two runs a wait, and then handed down from long runs to short ones.

    Args:
        claimed_us: When each claim was made.
        own_us: When the claimed task was created.
        since_us: When each wait began.
        until_us: When it ended.
        created_us: When the task that waited was created.
    """
    order = np.argsort(claimed_us, kind="stable")
    moments = claimed_us[order]
    first = np.searchsorted(moments, since_us, side="right")
    count = np.searchsorted(moments, until_us, side="left") - first
    # The length of a run is 2 to the power of its level; frexp() says which is the longest that fits.
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
