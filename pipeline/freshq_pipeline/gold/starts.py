"""When the recording of each queue begins: what happened before it is missing, and no violation.

Arrow reads two columns of the new events for it, without a job of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from freshq_pipeline.gold.task_key import by_queue_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from freshq_pipeline.storage.folder import Folder

_EVENTS: Final = pa.schema([("queue", pa.string()), ("changed_us", pa.int64())])


def starts_us(out: Folder, part: str) -> dict[str | None, int]:
    """Return the time of the first event of each queue in a part of silver; no queue is a queue of its own.

    Args:
        out: Folder with silver.
        part: Name of the part.
    """
    paths = [file.path for file in out.files(f"silver/{part}")]
    if not paths:
        return {}
    batches = out.scan(paths, _EVENTS, _EVENTS.names).to_batches()
    firsts = [_firsts(pa.Table.from_batches([batch])) for batch in batches]
    found = _firsts(pa.concat_tables(firsts))
    return dict(zip(found["queue"].to_pylist(), found["changed_us"].to_pylist(), strict=True))


def _firsts(events: pa.Table) -> pa.Table:
    found = events.group_by("queue", use_threads=False).aggregate([("changed_us", "min")])
    return found.select(["queue", "changed_us_min"]).rename_columns(_EVENTS.names)


def earliest(one: Mapping[str | None, int], other: Mapping[str | None, int]) -> dict[str | None, int]:
    """Return the earlier start of each queue."""
    return {queue: min(have[queue] for have in (one, other) if queue in have) for queue in one.keys() | other}


def start_us(starts: Mapping[str | None, int]) -> Column:
    """Return when the recording of the column `queue` begins.

    Args:
        starts: The start of each queue.
    """
    named = {queue: start for queue, start in starts.items() if queue is not None}
    return by_queue_name(named, starts.get(None, 0))
