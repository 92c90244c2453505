"""Runs in the caller's Spark session, with their tables as DataFrames."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.spark.session import session_beside
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import required_current
from freshq_pipeline.storage.table_files import manifest_path, published_paths, read_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_DEFAULTS: Final = Options()


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run and its tables.

    Attributes:
        summary: The content of `OUT/summary.json`.
        tables: The tables by name, as `tables` returns them.
    """

    summary: dict[str, Any]
    tables: dict[str, DataFrame]


def run(
    spark: SparkSession, events: str | Path, out: str | Path, options: Options = _DEFAULTS
) -> PipelineRun:
    """Read the new files of a folder, compute the tables that they change, and publish them.

    Works like `freshq-pipeline run`, without the report. The session keeps its settings and stays open.
    Errors of Spark are raised unchanged.

    Args:
        spark: The session to use.
        events: Folder with the recorded changes, or s3://BUCKET/PREFIX.
        out: Folder for the output.
        options: Options of the run.

    Raises:
        BadInput: If the events, an option or the session cannot be used; nothing was published.
        PipelineError: If the run failed for another reason.
    """
    own, folder = session_beside(spark), Folder(str(out))
    request = RunRequest(Folder(str(events)), folder, options)
    summary = execute(request, lambda _tuning: nullcontext(own))
    return PipelineRun(summary, _tables(spark, folder, summary["run_id"]))


def tables(spark: SparkSession, out: str | Path, run_id: str | None = None) -> dict[str, DataFrame]:
    """Return the tables of a run, by name.

    The DataFrames read the files of this run while it is kept (`Options.keep_runs`), even if other runs are
    published in the meantime. `tasks` and `minutes` also have the column `day`, by which Spark selects files.

    Args:
        spark: The session of the DataFrames.
        out: Output folder of the runs.
        run_id: Id of the run, from its summary; None: the current run.

    Raises:
        BadInput: If there is no such run, or another version of the pipeline made it.
    """
    folder = Folder(str(out))
    if run_id is None:
        run_id = required_current(folder).run_id
    elif not folder.exists(manifest_path(run_id)):
        kept = ", ".join(folder.folders("runs")) or "none"
        msg = f"run_id: {folder.uri} has no run {run_id!r}; it has {kept}"
        raise BadInput(msg)
    return _tables(spark, folder, run_id)


def _tables(spark: SparkSession, out: Folder, run_id: str) -> dict[str, DataFrame]:
    return {name: read_table(spark, out, published_paths(out, run_id, name), name) for name in TABLES}
