"""The published tables of a run as relations of DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshq_pipeline.schemas import BY_DAY, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping


def relations(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the current run, as a query with its declared columns.

    Args:
        summary: Summary of the run.
    """
    file = Path(str(summary["manifest"]).removeprefix("file://"))
    manifest, folder = json.loads(file.read_text()), file.parent
    return {
        name: _relation(name, [str(folder / path) for path in files])
        for name, files in manifest["tables"].items()
    }


def _relation(name: str, files: list[str]) -> str:
    partitions = "hive_partitioning = true, hive_types_autocast = false"
    options = partitions if name in BY_DAY else "hive_partitioning = false"
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f"(select {', '.join(TABLES[name])} from read_parquet([{listed}], {options}))"
