"""Schemas of tables that Arrow reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return a schema of plain columns.

    Args:
        columns: Their names, with Spark's names of their types.
    """
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
