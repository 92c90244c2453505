"""The published tables of a run as relations of DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.storage.partitions import columns_with_day

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def relations(summary: Mapping[str, Any], *, with_day: bool = False) -> dict[str, str]:
    """Return each table of the current run, as a query with its declared columns.

    Args:
        summary: Summary of the run.
        with_day: Whether tables by day also have the day, as where they are registered.
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


def _relation(name: str, files: list[str], columns: Iterable[str]) -> str:
    partitions = "hive_partitioning = true, hive_types_autocast = false"
    options = partitions if name in BY_DAY else "hive_partitioning = false"
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f"(select {', '.join(columns)} from read_parquet([{listed}], {options}))"
