"""Sums of rows that Spark has counted, by Arrow on the driver, without a job of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# So many rows are added up at a time, which take some 10 MB.
ROWS_AT_A_TIME: Final = 1 << 18


def summed(rows: pa.Table, by: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return the sums of some columns under their own names, sorted by key; null is a key of its own.

    Args:
        rows: Has all these columns.
        by: The key.
        columns: What to add up.
    """
    # One thread, so that the rows of a key come together in the same order each time.
    found = rows.group_by(list(by), use_threads=False).aggregate([(name, "sum") for name in columns])
    found = found.select([*by, *(f"{name}_sum" for name in columns)]).rename_columns([*by, *columns])
    return found.sort_by([(name, "ascending") for name in by])


def summed_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, by: Sequence[str], columns: Sequence[str]
) -> pa.Table:
    """Return the same of batches, of which only some are in memory, and the sums so far.

    Args:
        batches: Have these columns, in this order.
        schema: The columns of the key, then what to add up.
        by: The key.
        columns: What to add up.
    """
    waiting = [schema.empty_table()]
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]))
        if sum(map(len, waiting[1:])) > ROWS_AT_A_TIME:
            waiting = [summed(pa.concat_tables(waiting), by, columns)]
    return summed(pa.concat_tables(waiting), by, columns)
