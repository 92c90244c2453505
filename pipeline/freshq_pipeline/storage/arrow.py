"""Schemas and aggregates of Arrow tables."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from freshq_pipeline.storage.days import spans

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of columns without lists, given by name and Spark's type."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


def grouped(rows: pa.Table, by: Sequence[str], how: Mapping[str, str]) -> pa.Table:
    """Aggregate columns under their own names; null counts as a key.

    Args:
        rows: The rows.
        by: Columns of the key.
        how: `sum`, `min` or `max` for each other column.
    """
    # With one thread, the rows of a key are always added up in the same order.
    found = rows.group_by(list(by), use_threads=False).aggregate(list(how.items()))
    return found.select([*by, *(f"{name}_{kind}" for name, kind in how.items())]).rename_columns([*by, *how])


def moments_in(moment: Any, hours: Collection[int], length: int) -> Any:
    """Return the condition that a time is in the given hours, like `steps.in_hours`.

    Args:
        moment: The field with the time.
        hours: The hours.
        length: Duration of an hour in the unit of the time.
    """
    within = ((moment >= first * length) & (moment < end * length) for first, end in spans(hours))
    return reduce(or_, within, pc.scalar(False))  # noqa: FBT003 - the value
