"""Whether two tables are the same, to the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

# Everything is compared exactly but what is computed in fractions, where the order of operations shows in the
# last digits. A percentile of whole microseconds is a whole number of hundredths of one: nine decimals of a
# second keep all of it. The index of successes for each offer sums quotients.
DECIMALS: Final = {
    "wait_p50_seconds": 9,
    "wait_p90_seconds": 9,
    "wait_p99_seconds": 9,
    "jain_index_of_demand": 12,
}


def rows_that_differ(
    connection: duckdb.DuckDBPyConnection, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, int]:
    """Return by table how many rows only one of two engines has, all columns compared.

    Args:
        connection: To any database.
        ours: Folders of Parquet files, by table.
        theirs: Likewise; these say which tables are compared.

    Raises:
        ValueError: If the columns of a table or their types differ.
    """
    off = {}
    for name, folder in theirs.items():
        one, other = (f"read_parquet('{path}/*.parquet')" for path in (ours[name], folder))
        if _types(connection, one) != _types(connection, other):
            msg = f"columns of {name}: {_types(connection, one)} and {_types(connection, other)}"
            raise ValueError(msg)
        off[name] = differing_rows(connection, comparable(connection, one), comparable(connection, other))
    return off


def comparable(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """Return the query of all columns of a relation, fractions rounded to the decimals that are compared."""
    names = connection.sql(f"from {relation}").columns
    rounded = (f"round({name}, {DECIMALS[name]}) as {name}" if name in DECIMALS else name for name in names)
    return f"select {', '.join(rounded)} from {relation}"


def differing_rows(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> int:
    """Return how many rows two queries do not share."""
    row = connection.execute(
        f"select count(*) from (({one} except all {other}) union all ({other} except all {one}))"
    ).fetchone()
    return int(row[0]) if row else -1


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    found = connection.sql(f"from {relation}")
    return {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}
