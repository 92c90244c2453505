"""Sums of rows that Spark has counted: few enough for Arrow on the driver, without a job of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


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
