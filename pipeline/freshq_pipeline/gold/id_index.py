"""Which days have events of the same id of a queue: an index with a hash and a day for each.

Arrow makes and reads it, without jobs of Spark: that takes two columns of the new events, and of the index
only what has one of their ids. Two ids with the same hash only make a run read more than it needs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.gold.silver_days import silver_files
from freshq_pipeline.storage.partitions import PARQUET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

# With more parts than this, the index is rewritten as one.
MAX_PARTS: Final = 16
_THREADS: Final = 8
_SCHEMA: Final = pa.schema([("id_hash", pa.int64()), ("day", pa.int32())])
_EVENTS: Final = pa.schema([("queue", pa.string()), ("task_id", pa.string())])
# An odd number whose digits follow no rule: 2**64 divided by the golden ratio.
_SHIFT: Final = np.int64(-7046029254386353131)


def index_ids(out: Folder, state: State) -> None:
    """Add the ids of silver parts that are not in the index, and link the days that share ids."""
    parts = state.silver_parts() - set(state.indexed)
    if not parts:
        return
    out.write_parquet(f"ids/{state.run_id}/0{PARQUET}", _ids_of(out, state, parts), _SCHEMA)
    state.ids.append(state.run_id)
    state.indexed = sorted(state.silver_parts())
    if len(state.days) > 1:
        for day, other in _days_that_share(out, state):
            _link(state, day, other)
            _link(state, other, day)
    if len(state.ids) > MAX_PARTS:
        merged = f"{state.run_id}-all"
        whole = out.scan(_files(out, state.ids), _SCHEMA, _SCHEMA.names)
        out.write_parquet(f"ids/{merged}/0{PARQUET}", whole.to_batches(), _SCHEMA)
        state.ids = [merged]


def _ids_of(out: Folder, state: State, parts: set[str]) -> Iterator[pa.RecordBatch]:
    """Yield the keys of the index of some silver parts, day by day."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="ids") as pool:
        for day, known in sorted(state.days.items()):
            paths = silver_files(out, day, (part for part in known.silver if part in parts))
            found = list(pool.map(lambda path: _hashes(out, path), paths))
            if found:
                hashes = np.unique(np.concatenate(found))
                days = np.full(len(hashes), day, np.int32)
                yield pa.record_batch([pa.array(hashes), pa.array(days)], schema=_SCHEMA)


def _hashes(out: Folder, path: str) -> NDArray[np.int64]:
    """Return a hash of each id of a queue in a file of silver."""
    events = out.scan([path], _EVENTS, _EVENTS.names).to_table()
    ids = events.group_by(_EVENTS.names, use_threads=False).aggregate([])
    queues = ids["queue"].combine_chunks().fill_null("").dictionary_encode()
    of_queue = hashed(queues.dictionary.to_numpy(zero_copy_only=False))[queues.indices.to_numpy()]
    # Multiplied, so that all ids that are also the names of their queues do not get the same hash.
    found: NDArray[np.int64] = hashed(ids["task_id"].to_numpy()) ^ (of_queue * _SHIFT)
    return found


def hashed(ids: NDArray[np.object_]) -> NDArray[np.int64]:
    """Return the hashes that the index is made of."""
    found: NDArray[np.int64] = pd.util.hash_array(ids, categorize=False).view(np.int64)
    return found


def _days_that_share(out: Folder, state: State) -> set[tuple[int, int]]:
    """Return pairs of different days with an id in common, the first one with fresh events of it."""
    fresh = out.scan(_files(out, [state.run_id]), _SCHEMA, _SCHEMA.names).to_table()
    known = pc.field("id_hash").isin(fresh["id_hash"].combine_chunks())
    others = out.scan(_files(out, state.ids), _SCHEMA, _SCHEMA.names, known).to_table()
    pairs = fresh.join(others.rename_columns(["id_hash", "other"]), "id_hash", join_type="inner")
    pairs = pairs.filter(pc.field("day") != pc.field("other")).group_by(["day", "other"]).aggregate([])
    return set(zip(pairs["day"].to_pylist(), pairs["other"].to_pylist(), strict=True))


def _files(out: Folder, parts: list[str]) -> list[str]:
    return [file.path for part in parts for file in out.files(f"ids/{part}")]


def _link(state: State, day: int, other: int) -> None:
    if other not in state.days[day].linked:
        state.days[day].linked.append(other)
