"""The Spark session: embedded, unless spark-submit started this process."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.spark.environment import java_environment, without_spark_variables
from freshq_pipeline.spark.gateway import Java, lost_connections_unlogged
from freshq_pipeline.spark.interrupts import held_signals
from freshq_pipeline.spark.java import class_archive, java_home, submitted
from freshq_pipeline.spark.scratch import program_folder, scratch_folder
from freshq_pipeline.spark.tuning import HUGE, QUICK_JAVA, Tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from freshq_pipeline.spark.java import ClassArchive

_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|(spark|k8s)://.+|local-cluster\[.+\]")
# Settings that the pipeline relies on, embedded and on a cluster.
_ALWAYS: Final = {
    # Local paths stay local, even if Hadoop's configuration names another file system.
    "fs.defaultFS": "file:///",
    # A file that cannot be read ends a run; skipped, its tasks would be missing from the tables.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
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
    "spark.hadoop.fs.defaultFS": "file:///",
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
        with _embedded_session(builder, master, memory, tuning) as spark:
            yield spark


@contextmanager
def _embedded_session(
    builder: SparkSession.Builder, master: str, memory: str, tuning: Tuning
) -> Iterator[SparkSession]:
    """Start the embedded Spark; on exit, stop it and its Java, and delete its files."""
    with (
        scratch_folder() as scratch, program_folder(scratch) as programs, without_spark_variables()
    ):  # fmt: skip
        home = java_home(programs / "java")
        environment = java_environment(os.environ, scratch, home, master)
        archive = _archive(environment, scratch, master)
        options = tuning.java if archive is None else (*tuning.java, *archive.options)
        settings = _settings(master, memory, replace(tuning, java=options), scratch, programs)
        for name, value in settings.items():
            builder = builder.config(name, value)
        # PySpark starts a first Java only to print the command line of the second.
        environment["SPARK_LAUNCHER_OPTS"] = " ".join(QUICK_JAVA)
        java = Java(_command(settings, environment), environment, scratch)
        try:
            with lost_connections_unlogged(), java, _running(builder, java) as spark:
                adapt(spark, tuning)
                yield spark
        finally:
            if archive is not None:
                archive.keep(ended_well=java.ended_well)


@contextmanager
def _running(builder: SparkSession.Builder, java: Java) -> Iterator[SparkSession]:
    spark = _started(builder, java)
    try:
        with _one_line_errors(java):
            yield spark
    finally:
        _stop(spark, java)


def _archive(environment: Mapping[str, str], scratch: Path, master: str) -> ClassArchive | None:
    """Return the archive of classes for this start; other masters have other classes."""
    home = environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not master.startswith("local"):
        return None
    return class_archive(Path(program), scratch)


def _command(settings: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts Java, as PySpark would."""
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    return [f"{environment['SPARK_HOME']}/bin/spark-submit", *options, "pyspark-shell"]


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
def _one_line_errors(java: Java | None = None) -> Iterator[None]:
    """Turn an error of Spark into a one-line PipelineError while Java, which holds its text, still runs.

    Args:
        java: The embedded Java; None: spark-submit's.
    """
    from freshq_pipeline.spark.failures import SPARK_ERRORS, innermost_cause, is_of_connection

    try:
        yield
    except PipelineError:
        raise
    except SPARK_ERRORS as error:
        msg = f"Spark failed: {innermost_cause(error)}"
        raise PipelineError(msg) from None
    except Exception as error:
        if java is None or not is_of_connection(error) or not java.has_ended():
            raise
        msg = f"Spark failed: {java.reason()}"
        raise PipelineError(msg) from error


def _settings(master: str, memory: str, tuning: Tuning, scratch: Path, programs: Path) -> dict[str, str]:
    """Return Spark's settings. Relative paths are below the working folder of Java, which is `scratch`."""
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOG4J)
    java = (
        # A comma would begin the address of a second file.
        f"-Dlog4j2.configurationFile={logging.as_uri().replace(',', '%2C')}",
        f"-Djava.io.tmpdir={programs}",
        f"-Duser.home={scratch}",  # a user without an entry has none
        *tuning.java,
        "--enable-native-access=ALL-UNNAMED",
    )
    return (
        _EMBEDDED
        | tuning.spark
        | {
            "spark.master": master,
            "spark.driver.memory": memory,
            # A comma would separate two folders.
            "spark.local.dir": ".",
            "spark.sql.warehouse.dir": "warehouse",
            "spark.driver.extraJavaOptions": shlex.join(java),
        }
    )


class _Members:
    """The static members of a Java class, each fetched from Java only once."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._of, name)
        setattr(self, name, member)
        return member


def _ask_once(spark: SparkSession) -> None:
    """Cache the functions that make columns; PySpark would fetch them from Java at each call.

    That was a third of the messages of a run.
    """
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way to reach it
    java.PythonUtils, java.functions = _Members(java.PythonUtils), _Members(java.functions)
    setattr(java, "org.apache.spark.sql.functions", java.functions)


def adapt(spark: SparkSession, tuning: Tuning) -> None:
    """Give a session the settings of Spark for the size of an input. Java's loggers are unchanged."""
    every_core = {"spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    for name, value in (every_core | tuning.spark).items():
        spark.conf.set(name, value)


def _started(builder: SparkSession.Builder, java: Java) -> SparkSession:
    from pyspark import SparkContext

    from freshq_pipeline.spark import failures

    try:
        gateway = java.connect()
        # PySpark's handler of Ctrl-C would call Java, which fails if it interrupts another call.
        with held_signals(java.kill):
            SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the public way starts its own Java
            _name_user(gateway.jvm)
            spark = builder.getOrCreate()
            _ask_once(spark)
            return spark
    except BaseException as error:
        _disconnect()
        if failures.is_of_connection(error) and java.has_ended():
            reason = java.reason()
        elif isinstance(error, failures.SPARK_ERRORS):
            reason = failures.innermost_cause(error)
        else:
            raise
        msg = f"Spark did not start: {reason}"
        raise PipelineError(msg) from None


def _name_user(jvm: Any) -> None:
    """Give a user without an entry in the system's list a name, without which Hadoop opens no file."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        users = jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(f"uid{os.getuid()}"))


def _stop(spark: SparkSession, java: Java) -> None:
    """Stop Spark, and disconnect from its Java, which then can end."""
    with held_signals(java.kill):
        try:
            # A signal may have interrupted a call to Java; another thread uses another connection.
            with ThreadPoolExecutor(1, thread_name_prefix="stop") as beside:
                beside.submit(_stop_quietly, spark).result()
        except Exception:
            if not java.has_ended():
                raise
        finally:
            _disconnect()


def _stop_quietly(spark: SparkSession) -> None:
    """Stop Spark without PySpark's warning that Java is gone; the code that killed it reports it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def _disconnect() -> None:
    """Close the connection to Java, and forget it as PySpark does not."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the state after import
    if gateway is not None:
        with suppress(Py4JError, ConnectionError):  # Java has ended, as expected now
            gateway.shutdown()
