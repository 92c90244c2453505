"""`stream`: files as they arrive, by Structured Streaming, to the very tables of a batch.

The checkpoint says which files belong to which micro-batch; a batch that was killed is given again.
What a batch does with its files is a run: it reads those that no published run has read, and publishes
all tables at once. So a batch that is given twice changes nothing, and there is no second way to
compute a table that could disagree with the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.run.batch import Plan, advance, plan
from freshq_pipeline.schemas import Format

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.run.batch import Request

FILES_PER_BATCH: Final = 64


def stream(
    spark: SparkSession,
    request: Request,
    checkpoint: str,
    every_seconds: float | None = None,
    published: Callable[[dict[str, Any]], None] = lambda _summary: None,
    files_per_batch: int = FILES_PER_BATCH,
) -> None:
    """Publish the tables anew whenever files have arrived.

    Args:
        spark: The session.
        request: What to read and where to write.
        checkpoint: Folder of the query's own progress.
        every_seconds: How often to look for files, until it is stopped; None: once, and return.
        published: Called with each summary.
        files_per_batch: Bound of a micro-batch.

    Raises:
        BadInput: If the format cannot be followed, or there is nothing to follow.
    """
    if request.form is Format.EXPORT:
        raise BadInput("format: an export is finished when it is there; use run")
    plan(request)  # says what is wrong before anything starts
    # Only the names are taken from here: the content is read by the run itself.
    names = (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length bigint, content binary")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(request.events.uri)
        .select("path")
    )

    def batch(arrived: DataFrame, _batch_id: int) -> None:
        paths = {row["path"] for row in arrived.select(F.col("path")).distinct().collect()}
        todo = plan(request)
        wanted = [path for path in todo.new if _plain(request.events.at(path)) in set(map(_plain, paths))]
        if wanted:
            published(advance(spark, request, Plan(todo.before, todo.files, wanted)))

    writer = names.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{every_seconds} seconds").start()
    query.awaitTermination()


def _plain(address: str) -> str:
    """Return an address without the ways in which it can be spelled."""
    return address.removeprefix("file:").replace("s3a://", "s3://").replace("//", "/")
