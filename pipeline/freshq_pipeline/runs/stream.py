"""`stream`: process files as they arrive with Structured Streaming; each micro-batch is a run.

The checkpoint assigns files to micro-batches, and Spark repeats a batch that was killed. A batch reads only
files that no published run has read, and publishes all tables together, so repeating it changes nothing.
Streams and batches compute the tables with the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput, Unfinished
from freshq_pipeline.runs.batch import execute_plan, finish_last, plan
from freshq_pipeline.runs.progress import IDLE, Stopwatch
from freshq_pipeline.schemas import Format
from freshq_pipeline.spark.java import submitted
from freshq_pipeline.spark.session import adapt, session_beside
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import check_current, only_run, prune_killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from freshq_pipeline.runs.request import RunRequest

FILES_PER_BATCH: Final = 64
# Folder of a checkpoint with a file for each completed batch.
COMMITS: Final = "commits"
# Time within which a stream notices a request to stop.
POLL_SECONDS: Final = 0.5


def stream(
    spark: SparkSession,
    request: RunRequest,
    checkpoint: str,
    every_seconds: float | None = None,
    published: Callable[[dict[str, Any]], None] = lambda _summary: None,
    files_per_batch: int = FILES_PER_BATCH,
    stop: Event | None = None,
    begun: Callable[[str], None] = lambda _part: None,
) -> None:
    """Publish the tables whenever files have arrived.

    Args:
        spark: The session.
        request: The folders and options.
        checkpoint: Folder for the progress of the streaming query.
        every_seconds: Interval between looks for new files; None: process the existing files and return.
        published: Called with the summary of each published batch.
        files_per_batch: Maximum number of files per micro-batch.
        stop: Set to end the stream after the batch in progress; None: never.
        begun: Called with the name of each part of a batch when it starts, and with `IDLE` after a batch.

    Raises:
        BadInput: If the format cannot be streamed, or the events are missing or unusable.
        PipelineError: If a run failed; earlier runs stay published.
    """
    if request.options.form is Format.EXPORT:
        raise BadInput("format: an export is complete when it appears; use run")
    # Batches of different sizes have different settings.
    batches = _Batches(session_beside(spark), request, published, files_per_batch, stop or Event(), begun)
    begun(IDLE)
    found = batches.begin(Folder(checkpoint))
    paths = _paths(spark, request.events.uri, files_per_batch)
    writer = paths.writeStream.foreachBatch(batches.run).option("checkpointLocation", checkpoint)
    batches.follow(writer, {"availableNow": True})
    batches.catch_up(found)
    if every_seconds is not None:
        batches.follow(writer, {"processingTime": f"{every_seconds} seconds"})


@dataclass(slots=True)
class _Batches:
    """The micro-batches of a stream.

    Attributes:
        spark: Their own session.
        request: The folders and options.
        published: Called with each summary.
        most_files: Maximum number of files per batch.
        stop: Set when no further batch should begin.
        begun: Called with the name of each part of a batch.
        working: Held by the batch in progress.
        failure: Error of the last batch that failed. Spark reports Python errors truncated and without class.
    """

    spark: SparkSession
    request: RunRequest
    published: Callable[[dict[str, Any]], None]
    most_files: int
    stop: Event
    begun: Callable[[str], None]
    working: Lock = field(default_factory=Lock)
    failure: Exception | None = None

    def begin(self, checkpoint: Folder) -> set[str]:
        """Finish the previous run; return the paths of files that no run has read.

        If the output is new but the checkpoint is not, read all files here: the query would not deliver files
        that the checkpoint knows.

        Raises:
            BadInput: If the stream cannot begin.
        """
        todo = plan(self.request)
        with only_run(self.request.out):
            check_current(self.request.out, todo.published)
            prune_killed(self.request.out)
            finish_last(self.request, todo)
        if todo.before is None and checkpoint.files(COMMITS):
            self.catch_up(set(todo.new))
        return set(todo.new)

    def run(self, arrived: DataFrame, _batch_id: int) -> None:
        """Read the unread files of a micro-batch, and publish the tables."""
        with self.working:
            try:
                self._refuse_if_stopped()
                found = {
                    normalized(row["path"]) for row in arrived.select(F.col("path")).distinct().collect()
                }
                self._run(lambda path: normalized(self.request.events.at(path)) in found, None)
            except Exception as error:
                self.failure = error
                raise

    def _refuse_if_stopped(self) -> None:
        """Fail the batch if the stream should stop: the checkpoint must not count its files as read."""
        if self.stop.is_set():
            raise _Stopped

    def follow(self, writer: DataStreamWriter, trigger: dict[str, Any]) -> None:
        """Run the query until it ends, or the stream should stop and no batch is in progress."""
        if self.stop.is_set():
            return
        query = writer.trigger(**trigger).start()
        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type] # also takes fractions
                if self.stop.is_set():
                    with self.working:  # wait for the batch in progress
                        pass
                    query.stop()
                    break
        except StreamingQueryException:
            if self.failure is None:
                raise
        # The batch in progress may have failed after the request to stop.
        if self.failure is not None and not isinstance(self.failure, _Stopped):
            raise self.failure

    def catch_up(self, found: set[str]) -> None:
        """Read initial files that the query did not deliver.

        The checkpoint may know files that the output lacks, for example after the output was restored from a
        backup. The query also skips files that are much older than others.
        """
        while not self.stop.is_set() and self._run(found.__contains__, self.most_files):
            pass

    def _run(self, is_wanted: Callable[[str], bool], most_files: int | None) -> bool:
        """Read the wanted files that no run has read, and publish the tables; return whether there were any.

        Args:
            is_wanted: Returns whether a file is wanted, given its path.
            most_files: Maximum number of files to read; None: no maximum.
        """
        with only_run(self.request.out, wait=True):
            todo = plan(self.request)
            todo = replace(todo, new=[path for path in todo.new if is_wanted(path)][:most_files])
            if todo.new:
                if not submitted():
                    adapt(self.spark, todo.tuning())
                try:
                    self.published(execute_plan(self.spark, self.request, todo, Stopwatch(self.begun)))
                except Unfinished as error:
                    if error.summary is not None:
                        self.published(error.summary)
                    raise
                self.begun(IDLE)
        return bool(todo.new)


class _Stopped(Exception):
    """The batch did not begin because the stream should stop."""


def _paths(spark: SparkSession, folder: str, files_per_batch: int) -> DataFrame:
    """Return a stream of the paths of new files; the runs read their content."""
    return (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length bigint, content binary")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", files_per_batch)
        .load(folder)
        .select("path")
    )
