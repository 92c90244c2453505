"""The command, started cold, and DuckDB on a recording of 20 million events; their tables are compared.

python -m benchmarks.pipeline_large [--events N]
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import duckdb
from local.oracle import relations, rows_that_differ

from benchmarks.pipeline import by_duckdb, publish, recorded, started_cold

if TYPE_CHECKING:
    from pathlib import Path


def measure(folder: Path, wanted: int) -> dict[str, Any]:
    """Return the figures of both engines over one recording."""
    events = folder / "events"
    count = recorded(events, wanted)
    found, summary = started_cold(folder, events)
    with duckdb.connect(str(folder / "oracle.db")) as oracle:
        duck = by_duckdb(events, oracle, folder / "duckdb")
        off = sum(rows_that_differ(oracle, relations(summary), duck.folders).values())
    return found | {
        "events": count,
        "duckdb_seconds": round(duck.seconds, 1),
        "duckdb_inversions_seconds": round(duck.inversions_seconds, 1),
        "rows_that_differ": off,
    }


def main() -> None:
    """Measure, compare, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000_000, help="number of events")
    publish("pipeline_large", measure, parser.parse_args().events)


if __name__ == "__main__":
    main()
