"""Compare tables row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

# Columns with floating-point sums or quotients depend on the order of operations, so they are rounded. All
# others are compared exactly. A percentile of whole microseconds is a multiple of a hundredth of one, so nine
# decimals of a second suffice.
DECIMALS: Final = {
    "wait_p50_seconds": 9,
    "wait_p90_seconds": 9,
    "wait_p99_seconds": 9,
    "jain_index_of_demand": 12,
}


def rows_that_differ(
    connection: duckdb.DuckDBPyConnection, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, int]:
    """Return by table the number of rows that only one of two engines has, comparing all columns.

    Args:
        connection: A connection to any database.
        ours: Relations, by table.
        theirs: Folders of Parquet files, for the tables to compare.

    Raises:
        ValueError: If the columns of a table or their types differ.
    """
    off = {}
    for name, folder in theirs.items():
        one, other = ours[name], f"read_parquet('{folder}/*.parquet')"
        if _types(connection, one) != _types(connection, other):
            msg = f"columns of {name}: {_types(connection, one)} and {_types(connection, other)}"
            raise ValueError(msg)
        off[name] = differing_rows(connection, comparable(connection, one), comparable(connection, other))
    return off


def comparable(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """Return a query for all columns of a relation, rounded as in `DECIMALS`."""
    names = connection.sql(f"from {relation}").columns
    rounded = (f"round({name}, {DECIMALS[name]}) as {name}" if name in DECIMALS else name for name in names)
    return f"select {', '.join(rounded)} from {relation}"


def differing_rows(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> int:
    """Return the number of rows that only one of two queries returns."""
    row = connection.execute(
        f"select count(*) from (({one} except all {other}) union all ({other} except all {one}))"
    ).fetchone()
    return int(row[0]) if row else -1


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    found = connection.sql(f"from {relation}")
    return {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}
