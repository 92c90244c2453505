"""The Spark session: embedded, unless spark-submit started this process."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.spark.java import class_archive, java_home, java_program, submitted
from freshq_pipeline.spark.tuning import HUGE, QUICK_JAVA, Tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|(spark|k8s)://.+|local-cluster\[.+\]")
JAVA_END_SECONDS: Final = 60
# Settings that the pipeline relies on, embedded and on a cluster.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",  # stream records have userIdentity in two casings
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # Tables are written in partitions of this size, which become files of about half of it.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "256m",
    # Keeping several folders open while writing avoids a sort by folder.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # Compressing cached columns costs more than it saves: they are read only a few times.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Lets rows partitioned by task join by task and life without another shuffle.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Without a byte limit, Spark does not measure the batch after each row. The row limit still applies.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Object aggregates switch from hashing to sorting at 128 groups, and nearly all of ours have more.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # Only statuses change case. ICU would first list the case mappings of all characters, which takes a sixth
    # of the processor time of a run over a small input.
    "spark.sql.icu.caseMappings.enabled": "false",
}
# Must be set at the start of the session.
_AT_START: Final = {
    # By default PySpark sends Java the source line of every call that makes a column: more than half of its
    # traffic.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A run over many events generates 200 classes. By default Spark keeps the 100 used last, so each run in a
    # session would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
_EMBEDDED: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # Listing local files is faster than starting a job to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
# The command prints one line for an error; Spark would add a stack trace for each failed task.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


@contextmanager
def spark_session(
    master: str = "local[*]", memory: str = "2g", tuning: Tuning = HUGE
) -> Iterator[SparkSession]:
    """Start Spark; on exit, stop it and delete its files.

    Args:
        master: Spark's master URL; ignored under spark-submit.
        memory: Memory of the embedded Java, such as 2g.
        tuning: Settings for the size of the input; ignored under spark-submit.

    Raises:
        BadInput: If `master` or `memory` is invalid.
        PipelineError: If Java is missing or does not start, or Spark fails.
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
    """Start the embedded Spark; on exit, stop it and its Java, and delete its files."""
    before = dict(os.environ)
    with _scratch_folder() as scratch, ExitStack() as restored:
        restored.callback(os.environ.update, before)
        restored.callback(os.environ.clear)
        _prepare_environment(scratch)
        java = java_program()
        archive = None if java is None else class_archive(java, scratch)
        options = tuning.java if archive is None else (*tuning.java, *archive.options)
        spark = _embedded(builder, scratch, master, memory, replace(tuning, java=options))
        try:
            yield spark
        finally:
            # A signal may have interrupted a call to Java; another thread uses another connection.
            with ThreadPoolExecutor(1, thread_name_prefix="stop") as beside:
                beside.submit(spark.stop).result()
                ended_well = beside.submit(_end_java).result()
            if archive is not None:
                archive.keep(ended_well=ended_well)


SCRATCH_PREFIX: Final = "freshq-pipeline-"
# A process that holds the lock on this file in its folder still lives.
SCRATCH_LOCK: Final = "lock"
# A folder this old without a lock was left behind by an earlier version, or by a process killed at its start.
LOCKLESS_SECONDS: Final = 86_400


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Return a folder for temporary files; delete it on exit, and first those of killed processes."""
    prune_scratch(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    try:
        with (scratch / SCRATCH_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("locked")
            lock.flush()
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def prune_scratch(parent: Path) -> None:
    """Delete the folders that killed processes of this user left in a folder."""
    for folder in parent.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError):  # another process was faster
            if folder.lstat().st_uid == os.getuid() and folder.is_dir() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the lock of a folder. An empty file was not locked yet."""
    file = folder / SCRATCH_LOCK
    if not file.exists() or not file.stat().st_size:
        return folder.stat().st_mtime < time.time() - LOCKLESS_SECONDS
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def session_beside(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of `spark` and the settings that the pipeline relies on.

    The two sessions share the Spark context, but no settings.

    Raises:
        BadInput: If the session belongs to Spark Connect or has stopped.
    """
    from pyspark.sql import SparkSession

    # Sessions of Spark Connect have another class; the context of a stopped session has no Java.
    if not isinstance(spark, SparkSession) or spark.sparkContext._jsc is None:  # noqa: SLF001 - no public check exists
        raise BadInput("spark: must be a running session with a Spark context, not one of Spark Connect")
    beside = spark.newSession()
    given = {name: value for name, value in spark.conf.getAll.items() if spark.conf.isModifiable(name)}
    for name, value in (given | _ALWAYS).items():
        beside.conf.set(name, value)
    return beside


def _validate(master: str, memory: str) -> None:
    if not _MEMORY.fullmatch(memory):
        msg = f"memory: must be a number with k, m, g or t, such as 2g; got {memory!r}"
        raise BadInput(msg)
    if not _MASTER.fullmatch(master):
        msg = f"master: must be local, local[N], yarn, spark://... or k8s://...; got {master!r}"
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
    """Set the variables that PySpark needs to start Java, and Java to start Python."""
    home = java_home(scratch / "java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Otherwise workers start whichever python3 comes first in PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # PySpark starts a first Java only to print the command line of the second.
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
    _ask_once(spark)
    adapt(spark, tuning)
    return spark


class _Members:
    """The static members of a Java class, each of which Java is asked for once."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._of, name)
        setattr(self, name, member)
        return member


def _ask_once(spark: SparkSession) -> None:
    """Keep the functions that make columns, for which PySpark asks Java again at each call.

    That was a third of the messages of a run.
    """
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way to reach it
    java.PythonUtils, java.functions = _Members(java.PythonUtils), _Members(java.functions)
    setattr(java, "org.apache.spark.sql.functions", java.functions)


def adapt(spark: SparkSession, tuning: Tuning) -> None:
    """Give a session the settings of Spark for the size of an input. Those of Java stay as they are."""
    every_core = {"spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    for name, value in (every_core | tuning.spark).items():
        spark.conf.set(name, value)


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
    """Defer Ctrl-C until Spark has started, and keep its current handler.

    PySpark installs a handler that calls Java, which fails if it interrupts another call.
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
    """Redirect Java's output to a file; Java inherits standard output and error."""
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
    """End Java, which would otherwise live as long as Python; return whether it exited cleanly."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM
    if gateway is None:
        return False
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the state after import
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None or process.stdin is None:
        return False
    process.stdin.close()  # Java exits when its standard input closes
    try:
        return process.wait(timeout=JAVA_END_SECONDS) == 0
    except subprocess.TimeoutExpired:  # everything is written by now
        process.kill()
        process.wait()
        return False
