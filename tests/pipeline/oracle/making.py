"""From files of landed events to tables, statement by statement."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb

# The published tables.
TABLES: Final = ("tasks", "minutes", "ledger", "violations", "groups", "workers")
# In the order of their dependencies.
_STATEMENTS: Final = ("changes", "inversions", "tasks", "standing", *TABLES[1:])


def make_tables(connection: duckdb.DuckDBPyConnection, files: str) -> dict[str, float]:
    """Make all tables, and return the seconds that each statement took, by name.

    Args:
        connection: A connection to an empty database.
        files: Glob pattern of the files.
    """
    connection.execute("set variable files = $1", [files])
    seconds = {}
    for name in _STATEMENTS:
        start = time.perf_counter()
        connection.execute(Path(__file__).with_name(f"{name}.sql").read_text())
        seconds[name] = time.perf_counter() - start
    return seconds


def write_tables(connection: duckdb.DuckDBPyConnection, out: Path) -> dict[str, str]:
    """Write all tables as Parquet, and return the folder of each.

    Args:
        connection: A connection to the database with the tables.
        out: Parent of the folders.
    """
    folders = {name: out / name for name in TABLES}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        connection.table(name).write_parquet(str(folder / "0.parquet"), compression="zstd")
    return {name: str(folder) for name, folder in folders.items()}
