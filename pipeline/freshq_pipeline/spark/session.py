"""The Spark session: embedded, unless spark-submit started the process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.spark.java import class_archive, java_home, java_program, submitted
from freshq_pipeline.spark.tuning import LARGE, QUICK_JAVA, Tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|(spark|k8s)://.+|local-cluster\[.+\]")
JAVA_END_SECONDS: Final = 60
# Settings that the pipeline relies on, embedded or on a cluster.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",  # stream records have userIdentity in two casings
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # Writing into several folders at a time saves sorting by folder first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # Choosing an encoding for each column costs more than it saves on data that is read a few times.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Rows that are partitioned by task are not shuffled again for a join by task and life.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Otherwise Spark adds up the size of a batch after each row. The number of rows is limited, too.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Object aggregates hash up to 128 groups and sort beyond that. Nearly all of ours are larger.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # Only statuses change case. Before it changes the first one, ICU lists the cases of all characters, which
    # takes a sixth of the processor time of a run over a small input.
    "spark.sql.icu.caseMappings.enabled": "false",
}
# A setting that a session cannot change later. PySpark would tell Java the line of each call that makes a
# column: more than half of all it sends.
_AT_START: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
_EMBEDDED: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # Listing files on a disk is faster than starting a job for it.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
# The command prints an error in one line, without a trace for each failed task.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


@contextmanager
def spark_session(
    master: str = "local[*]", memory: str = "2g", tuning: Tuning = LARGE
) -> Iterator[SparkSession]:
    """Start Spark, and at the end stop it and delete its files.

    Args:
        master: Where to run; ignored under spark-submit.
        memory: Memory of the embedded Java, such as 2g.
        tuning: Settings for the size of the input; ignored under spark-submit.

    Raises:
        BadInput: If the master or the memory is not valid.
        PipelineError: If there is no Java, Java does not start, or Spark fails.
    """
    if not submitted():
        _validate(master, memory)
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName("freshq-pipeline")
    for name, value in (_ALWAYS | _AT_START).items():
        builder = builder.config(name, value)
    if submitted():
        spark = builder.getOrCreate()
        try:
            with _one_line_errors():
                yield spark
        finally:
            spark.stop()
    else:
        with _embedded_session(builder, master, memory, tuning) as spark, _one_line_errors():
            yield spark


@contextmanager
def _embedded_session(
    builder: SparkSession.Builder, master: str, memory: str, tuning: Tuning
) -> Iterator[SparkSession]:
    """Start the embedded Spark, and at the end stop it with its Java, and delete its files."""
    scratch = Path(tempfile.mkdtemp(prefix="freshq-pipeline-"))
    before = dict(os.environ)
    try:
        _prepare_environment(scratch)
        java = java_program()
        archive = None if java is None else class_archive(java)
        options = tuning.java if archive is None else (*tuning.java, *archive.options)
        spark = _embedded(builder, scratch, master, memory, replace(tuning, java=options))
        ended_well = False
        try:
            yield spark
        finally:
            # A signal may have ended a call to Java halfway. Another thread has a connection of its own.
            with ThreadPoolExecutor(1, thread_name_prefix="stop") as beside:
                beside.submit(spark.stop).result()
                ended_well = beside.submit(_end_java).result()
        if archive is not None:
            archive.keep(ended_well=ended_well)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(scratch, ignore_errors=True)


def session_beside(spark: SparkSession) -> SparkSession:
    """Return a session beside another one, with its settings and those that the pipeline relies on.

    Both share the Spark context and nothing that can be set.

    Raises:
        BadInput: If the session is of Spark Connect or has stopped.
    """
    from pyspark.sql import SparkSession

    # A session of Spark Connect is of another class. After the end of a session its context has no Java.
    if not isinstance(spark, SparkSession) or spark.sparkContext._jsc is None:  # noqa: SLF001 - nothing else says so
        raise BadInput("spark: must be a running session with a Spark context; Spark Connect has none")
    beside = spark.newSession()
    given = {name: value for name, value in spark.conf.getAll.items() if spark.conf.isModifiable(name)}
    for name, value in (given | _ALWAYS).items():
        beside.conf.set(name, value)
    return beside


def _validate(master: str, memory: str) -> None:
    if not _MEMORY.fullmatch(memory):
        msg = f"memory: must be a number with k, m, g or t, such as 2g, got {memory!r}"
        raise BadInput(msg)
    if not _MASTER.fullmatch(master):
        msg = f"master: must be local, local[N], yarn, spark://.. or k8s://.., got {master!r}"
        raise BadInput(msg)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn an error of Spark into a one-line PipelineError while Java, which holds its text, still runs."""
    from freshq_pipeline.spark.failures import SPARK_ERRORS, innermost_cause

    try:
        yield
    except SPARK_ERRORS as error:
        msg = f"Spark failed: {innermost_cause(error)}"
        raise PipelineError(msg) from None


def _prepare_environment(scratch: Path) -> None:
    """Set the variables by which PySpark starts Java, and Java starts Python."""
    home = java_home(scratch / "java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Without these, workers would start whichever python3 is first in PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A first Java only prints the command that starts the second.
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join((os.environ.get("SPARK_LAUNCHER_OPTS", ""), *QUICK_JAVA))


def _embedded(
    builder: SparkSession.Builder, scratch: Path, master: str, memory: str, tuning: Tuning
) -> SparkSession:
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOG4J)
    options = (
        _EMBEDDED
        | tuning.spark
        | {
            "spark.master": master,
            "spark.driver.memory": memory,
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={logging.as_uri()} -Djava.io.tmpdir={scratch} "
                f"{' '.join(tuning.java)} --enable-native-access=ALL-UNNAMED"
            ),
        }
    )
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = _started(builder, scratch / "java.log")
    if "spark.sql.shuffle.partitions" not in tuning.spark:
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    return spark


def _started(builder: SparkSession.Builder, log: Path) -> SparkSession:
    from freshq_pipeline.spark import failures

    try:
        with _output_to(log), _same_interrupts():
            return builder.getOrCreate()
    except failures.SPARK_ERRORS as error:
        _end_java()
        reason = failures.start_failure(log.read_text(errors="replace")) or failures.innermost_cause(error)
        msg = f"Spark did not start: {reason}"
        raise PipelineError(msg) from None


@contextmanager
def _same_interrupts() -> Iterator[None]:
    """Keep who handles Ctrl-C, and let it wait until Spark has started.

    PySpark sets a handler that calls Java, which fails in the middle of another call.
    """
    handler = signal.getsignal(signal.SIGINT)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send what Java prints to a file; Java inherits standard output and error."""
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        with log.open("w") as file:
            for stream in kept:
                os.dup2(file.fileno(), stream)
        yield
    finally:
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)


def _end_java() -> bool:
    """End Java, which would otherwise run until the interpreter ends; return whether it ended well."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM
    if gateway is None:
        return False
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - as after the import
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None or process.stdin is None:
        return False
    process.stdin.close()  # Java ends when its standard input does
    try:
        return process.wait(timeout=JAVA_END_SECONDS) == 0
    except subprocess.TimeoutExpired:  # it holds nothing that is not written yet
        process.kill()
        process.wait()
        return False
