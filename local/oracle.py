"""Make the pipeline's tables in DuckDB, from the same files, and compare them row by row.

Each table is a file of plain SQL in `duckdb_tables` over the changes of each task (`changes.sql`), which
shares only the meaning of the columns with the pipeline. It reads only valid landed events, and determines
outcomes at the newest event, without an index lag.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.storage.table_files import columns_with_day

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

STATEMENTS: Final = Path(__file__).with_name("duckdb_tables")
# The published tables.
MADE: Final = ("tasks", "minutes", "chains", "ledger", "violations", "groups", "workers")
# In the order of their dependencies.
_STATEMENTS: Final = ("changes", "inversions", "tasks", "standing", *MADE[1:])
# Columns with floating-point sums or quotients depend on the order of operations, so they are rounded. All
# other columns are compared exactly. A percentile of whole microseconds is a multiple of a hundredth of a
# microsecond, so nine decimals of a second suffice.
DECIMALS: Final = {
    "wait_p50_seconds": 9,
    "wait_p90_seconds": 9,
    "wait_p99_seconds": 9,
    "jain_index_of_demand": 12,
    "time_share": 12,
}


def make_tables(connection: duckdb.DuckDBPyConnection, files: str) -> dict[str, float]:
    """Make all tables and return the seconds of each statement by name.

    Args:
        connection: A connection to an empty database.
        files: Glob pattern of the files.
    """
    connection.execute("set variable files = $1", [files])
    seconds = {}
    for name in _STATEMENTS:
        start = time.perf_counter()
        connection.execute((STATEMENTS / f"{name}.sql").read_text())
        seconds[name] = time.perf_counter() - start
    return seconds


def write_tables(connection: duckdb.DuckDBPyConnection, out: Path) -> dict[str, str]:
    """Write all tables as Parquet and return the folder of each.

    Args:
        connection: A connection to the database with the tables.
        out: Parent of the folders.
    """
    folders = {name: out / name for name in MADE}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        connection.table(name).write_parquet(str(folder / "0.parquet"), compression="zstd")
    return {name: str(folder) for name, folder in folders.items()}


def rows_that_differ(
    connection: duckdb.DuckDBPyConnection, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, int]:
    """Return the number of rows that only one of two engines has by table, comparing all columns.

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


def relations(summary: Mapping[str, Any], *, with_day: bool = False) -> dict[str, str]:
    """Return each table of the current run, as a query with its declared columns.

    Args:
        summary: Summary of the run.
        with_day: Whether tables by day also have the day, as registered tables do.
    """
    file = Path(str(summary["manifest"]).removeprefix("file://"))
    manifest, out = json.loads(file.read_text()), file.parent.parent
    return {
        name: _relation(
            name,
            [str(out / path) for path in files],
            columns_with_day(name) if with_day else TABLES[name],
        )
        for name, files in manifest["tables"].items()
    }


def _relation(name: str, files: list[str], columns: Mapping[str, str]) -> str:
    if not files:
        nothing = (f"cast(null as {_type(kind)}) as {column}" for column, kind in columns.items())
        return f"(select {', '.join(nothing)} where false)"
    partitions = "hive_partitioning = true, hive_types_autocast = false"
    options = partitions if name in BY_DAY else "hive_partitioning = false"
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f"(select {', '.join(columns)} from read_parquet([{listed}], {options}))"


def _type(kind: str) -> str:
    """Return the DuckDB type of a column type of `schemas.py`."""
    if kind.startswith("array<"):
        return f"{_type(kind[len('array<') : -1])}[]"
    if kind.startswith("struct<"):
        fields = (field.split(":") for field in kind[len("struct<") : -1].split(","))
        return f"struct({', '.join(f'{name} {_type(of)}' for name, of in fields)})"
    return "varchar" if kind == "string" else kind
