"""The Spark session: embedded unless the process was started by spark-submit."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# Java says why in many words; only the first of them help.
LONGEST_REASON: Final = 300
LINES_OF_REASON: Final = 2
# What Java writes before it comes to why it does not start.
_ANYHOW: Final = ("WARNING:", "Setting default log level", "To adjust logging level", "at ")
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|(spark|k8s)://.+|local-cluster\[.+\]")
# What the pipeline relies on, wherever it runs.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",  # stream records come with userIdentity in two casings
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.adaptive.enabled": "true",
    # To look for the best encoding of each column costs more than it saves for what is read a few times.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Rows that are spread by task already are not spread again for a join by task and life.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Aggregates of objects are hashed for 128 groups and sorted from there on: nearly all of ours are larger.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
}
_EMBEDDED: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # A small file of its own for each partition would cost more than the work in it.
    "spark.sql.files.openCostInBytes": "1048576",
    # To look at files on a disk is quicker than to start a job for it.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
# What fails is told in one line by the command; the trace of every task that failed is not.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


def submitted() -> bool:
    """Return whether spark-submit started this process, and has decided where it runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def spark_session(master: str = "local[*]", memory: str = "2g") -> Iterator[SparkSession]:
    """Start Spark, and stop it afterwards with all that it left behind.

    Args:
        master: Where to run; spark-submit's own choice comes first.
        memory: Of the embedded Java, as Spark writes it.

    Raises:
        BadInput: If Spark knows no such master or size.
        PipelineError: If there is no Java, or it does not start.
    """
    if not submitted():
        _check(master, memory)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to load; options are checked before

    builder = SparkSession.Builder().appName("freshq-pipeline")
    for name, value in _ALWAYS.items():
        builder = builder.config(name, value)
    if submitted():
        spark = builder.getOrCreate()
        try:
            with _told_in_one_line():
                yield spark
        finally:
            spark.stop()
        return
    scratch = Path(tempfile.mkdtemp(prefix="freshq-pipeline-"))
    before = dict(os.environ)
    try:
        spark = _embedded(builder, scratch, master, memory)
        try:
            with _told_in_one_line():
                yield spark
        finally:
            _stop(spark)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(scratch, ignore_errors=True)


def _check(master: str, memory: str) -> None:
    if not _MEMORY.fullmatch(memory):
        msg = f"memory: must be a number with k, m, g or t, such as 2g, got {memory!r}"
        raise BadInput(msg)
    if not _MASTER.fullmatch(master):
        msg = f"master: must be local, local[N], yarn, spark://.. or k8s://.., got {master!r}"
        raise BadInput(msg)


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Say why Spark failed while it can still be asked: its errors are texts that Java keeps."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - slow to load

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        msg = f"Spark failed: {innermost(str(error))}"
        raise PipelineError(msg) from None


def innermost(text: str) -> str:
    """Return the innermost cause in a trace of Java, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    causes = [line for line in lines if "Caused by: " in line or line.startswith("java.")]
    told = causes[-1].rpartition("Caused by: ")[2] if causes else lines[0]
    return told[:LONGEST_REASON]


def _embedded(builder: SparkSession.Builder, scratch: Path, master: str, memory: str) -> SparkSession:
    home = java_home(scratch / "java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Otherwise workers take another python3, which need not have what they import.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOG4J)
    options = _EMBEDDED | {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging.as_uri()} -Djava.io.tmpdir={scratch} "
            "-XX:+UseParallelGC --enable-native-access=ALL-UNNAMED"
        ),
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = _started(builder, scratch / "java.log")
    spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    return spark


def _started(builder: SparkSession.Builder, log: Path) -> SparkSession:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - slow to load

    try:
        with _output_to(log):
            return builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        _end_java()
        msg = f"Spark did not start: {why(log.read_text(errors='replace')) or innermost(str(error))}"
        raise PipelineError(msg) from None


def why(log: str) -> str:
    """Return why Java did not start, in one line, from what it wrote; nothing if it wrote nothing of it."""
    lines = [line.strip() for line in log.splitlines()]
    told = [line for line in lines if line and not line.startswith(_ANYHOW)]
    return "; ".join(told[:LINES_OF_REASON])[:LONGEST_REASON]


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Have Java, which inherits standard output and error, write them into a file.

    What fails is raised here and told in one line; the rest is noise.
    """
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


def _stop(spark: SparkSession) -> None:
    """Stop Spark and its Java."""
    spark.stop()
    _end_java()


def _end_java() -> None:
    """End Java, which would otherwise live until the interpreter ends."""
    from pyspark import SparkContext  # noqa: PLC0415 - loaded by now

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # Java ends when its standard input does
        process.wait(timeout=60)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - as after the import
