"""`stream`: process files as they arrive, with Structured Streaming; each micro-batch is a run.

The checkpoint assigns files to micro-batches, and Spark repeats a batch that was killed. A batch reads only
files that no published run has read, and publishes all tables at once. So a repeated batch changes nothing,
and streams and batches share the code that computes the tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.runs.batch import execute_plan, finish_last, plan
from freshq_pipeline.runs.stopwatch import Stopwatch
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.one_run import only_run
from freshq_pipeline.storage.state import check_current

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.runs.request import RunRequest

FILES_PER_BATCH: Final = 64


def stream(
    spark: SparkSession,
    request: RunRequest,
    checkpoint: str,
    every_seconds: float | None = None,
    published: Callable[[dict[str, Any]], None] = lambda _summary: None,
    files_per_batch: int = FILES_PER_BATCH,
) -> None:
    """Publish the tables whenever files have arrived.

    Args:
        spark: The session.
        request: What to read and where to write.
        checkpoint: Folder for the progress of the streaming query.
        every_seconds: Interval between looks for new files; None: process what is there, and return.
        published: Called with each summary.
        files_per_batch: The most files per micro-batch.

    Raises:
        BadInput: If the format cannot be streamed, or there are no files.
    """
    if request.options.form is Format.EXPORT:
        raise BadInput("format: an export is complete when it appears; use run")
    request = request.with_recorded_lag()
    _begin(request)

    def batch(arrived: DataFrame, _batch_id: int) -> None:
        in_batch = {normalized(row["path"]) for row in arrived.select(F.col("path")).distinct().collect()}
        with only_run(request.out, wait=True):
            todo = plan(request)
            new = [path for path in todo.new if normalized(request.events.at(path)) in in_batch]
            if new:
                published(execute_plan(spark, request, replace(todo, new=new), Stopwatch()))

    paths = _paths(spark, request.events.uri, files_per_batch)
    writer = paths.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    every: Any = {"availableNow": True}
    if every_seconds is not None:
        every = {"processingTime": f"{every_seconds} seconds"}
    writer.trigger(**every).start().awaitTermination()


def _begin(request: RunRequest) -> None:
    """Finish what the previous run did not.

    Raises:
        BadInput: If the stream cannot begin.
    """
    todo = plan(request)
    with only_run(request.out):
        check_current(request.out, todo.published)
        finish_last(request, todo)


def _paths(spark: SparkSession, folder: str, files_per_batch: int) -> DataFrame:
    """Return a stream of the paths of new files; the run reads their content itself."""
    return (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length bigint, content binary")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(folder)
        .select("path")
    )
