"""The pipeline, DuckDB and Polars on the same recording of millions of events.

The results are compared too: all tables with DuckDB's, and the outcomes of the tasks with Polars'.

    python -m benchmarks.pipeline [--events N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
from local.oracle import differing_rows, make_tables, relations, rows_that_differ, write_tables
from py4j.protocol import Py4JJavaError

from benchmarks import figures
from benchmarks.lives import write_events
from freshq_pipeline.report.page import write_report
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

THREADS: Final = 2
MASTER: Final = f"local[{THREADS}]"
MEMORY: Final = "4g"
EVENTS_A_FILE: Final = 32_000
# The last ones count: until then Java compiles.
WARM_RUNS: Final = 4
COUNTED_RUNS: Final = 2
# Growth is measured with recordings of these shares of the full one.
SHARES: Final = (0.25, 0.5)
MAX_TASKS: Final = 100_000


def cold(events: Path, out: Path) -> dict[str, Any]:
    """Run the command in a new process, and return its summary."""
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--events", str(events), "--out", str(out)]
    done = subprocess.run(
        # Without an index lag, which DuckDB does not know.
        [*command, "--index-lag-seconds", "0", "--master", MASTER, "--memory", MEMORY, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@dataclass(frozen=True, slots=True)
class Warm:
    """The last of several runs in one session.

    Attributes:
        seconds: Duration of each.
        parts_seconds: Duration of each part of the last one.
        growth: Seconds per million events, by number of events.
        slowest_over_median: Slowest task over median task, in the stage with the most work.
        peak_rss_mib: Peak memory of Spark's Java, in mebibytes; None if the system does not report it.
    """

    seconds: list[float]
    parts_seconds: dict[str, float]
    growth: dict[int, float]
    slowest_over_median: float
    peak_rss_mib: int | None


def warm(recordings: dict[int, Path], out: Path) -> Warm:
    """Run each recording in one session, the longest first, to warm up Java's compiler.

    Args:
        recordings: Folders by number of events.
        out: Folder for the tables; the caller deletes it.
    """
    growth, longest_seconds = {}, []
    with spark_session(MASTER, MEMORY) as spark:
        longest = max(recordings)
        for turn, events in enumerate([longest] * WARM_RUNS + sorted(recordings)[:-1]):
            folder = Folder(str(out / str(turn)))
            request = RunRequest(Folder(str(recordings[events])), folder)
            seconds, summary = timed(lambda: execute(request, lambda _tuning: nullcontext(spark)))  # noqa: B023 - called here
            growth[events] = round(seconds * 1e6 / events, 1)
            if events == longest:
                longest_seconds.append(round(seconds, 1))
                parts = folder.read_json(f"runs/{summary['run_id']}/{SECONDS}")
        skew, peak_mib = slowest_over_median(spark), peak_rss_mib(spark)
    return Warm(longest_seconds[-COUNTED_RUNS:], parts, growth, skew, peak_mib)


def peak_rss_mib(spark: SparkSession) -> int | None:
    """Return the peak memory of Spark's Java in mebibytes, None if the system does not report it.

    `RUSAGE_CHILDREN` would include the memory of this process at the time of the fork.
    """
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to the process id
    status = Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def slowest_over_median(spark: SparkSession) -> float:
    """Return the time of the slowest task over that of the median task, in the stage with the most work."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - there is no public way to these figures
    stages = []
    with suppress(Py4JJavaError):  # no more stages
        for number in count(0):
            stage = store.lastStageAttempt(number)
            stages.append((stage.executorRunTime(), number, stage.attemptId()))
    _, number, attempt = max(stages)
    tasks = store.taskList(number, attempt, MAX_TASKS)
    durations = sorted(tasks.apply(place).duration().get() for place in range(tasks.size()))
    slowest, median = float(durations[-1]), float(durations[len(durations) // 2])
    return round(slowest / median, 2)


@dataclass(frozen=True, slots=True)
class ByDuckdb:
    """All tables in DuckDB, written in the pipeline's format.

    Attributes:
        seconds: Time to make and write all tables.
        inversions_seconds: Part of it for the inversions.
        folders: Folder of Parquet files of each table.
    """

    seconds: float
    inversions_seconds: float
    folders: dict[str, str]


def by_duckdb(events: Path, oracle: duckdb.DuckDBPyConnection, out: Path) -> ByDuckdb:
    """Make all tables with as many cores and as much memory as the pipeline.

    Args:
        events: Folder with the recording.
        oracle: A connection to an empty database.
        out: Folder for the tables.
    """
    oracle.execute(f"set threads to {THREADS}; set memory_limit = '{MEMORY}b'")
    making_seconds, parts_seconds = timed(lambda: make_tables(oracle, f"{events}/*.gz"))
    writing_seconds, folders = timed(lambda: write_tables(oracle, out))
    return ByDuckdb(making_seconds + writing_seconds, parts_seconds["inversions"], folders)


def by_polars(events: Path) -> pl.DataFrame:
    """Return outcome and first claim of every task."""
    columns = {
        **dict.fromkeys(("event_id", "sequence", "task_id", "change", "status"), pl.String),
        **dict.fromkeys(("created_ms", "updated_ms", "stream_ms", "deadline_ms"), pl.Float64),
    }
    taken = (pl.col("status") == "TAKEN") & (pl.col("change") != "REMOVE")
    at = pl.coalesce("updated_ms", "stream_ms")
    lazy = (
        pl.scan_ndjson(sorted(events.glob("*.gz")), schema=columns)
        .unique("event_id")
        .sort("task_id", pl.col("sequence").str.zfill(40))
        .group_by("task_id")
        .agg(
            pl.col("created_ms").first(),
            pl.col("deadline_ms").last(),
            at.filter(taken).min().alias("first_taken_ms"),
            pl.col("status").last(),
            at.max().alias("at"),
        )
    )
    stale = (pl.col("status") == "PENDING") & (pl.col("deadline_ms") <= pl.col("at").max())
    outcome = pl.when(stale).then(pl.lit("shed")).otherwise(pl.col("status").str.to_lowercase())
    return lazy.with_columns(outcome.alias("outcome")).collect()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the duration of a call in seconds, and its result."""
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def main() -> None:
    """Measure, compare, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="number of events")
    publish("pipeline", measure, parser.parse_args().events)


def publish(name: str, measured: Callable[[Path, int], dict[str, Any]], events: int) -> None:
    """Measure in a folder that is deleted then, and write the figures; exit if the engines disagree."""
    folder = Path(tempfile.mkdtemp(prefix="freshq-bench-"))
    try:
        found = measured(folder, events)
    finally:
        shutil.rmtree(folder)
    packages = ("pyspark", "duckdb", "polars")
    sys.stdout.write(figures.write(name, found, packages).read_text())
    if found["rows_that_differ"]:
        sys.exit("the engines disagree")


def measure(folder: Path, wanted: int) -> dict[str, Any]:
    """Return the figures of all engines over one recording."""
    recordings = {}
    for share in (*SHARES, 1):
        part = round(wanted * share)
        events = folder / f"events-{part}"
        recordings[recorded(events, part)] = events
    found, summary = started_cold(folder, events)
    report_seconds, _ = timed(lambda: write_report(Folder(str(folder / "cold"))))
    hot = warm(recordings, folder / "warm")
    with duckdb.connect(str(folder / "first.db")) as first:
        earlier = by_duckdb(events, first, folder / "duckdb-first")
    with duckdb.connect(str(folder / "oracle.db")) as oracle:
        duck = by_duckdb(events, oracle, folder / "duckdb")
        polars_seconds, tasks = timed(lambda: by_polars(events))
        tasks.write_parquet(folder / "polars.parquet")
        off = _compare(oracle, relations(summary), duck.folders, f"read_parquet('{folder}/polars.parquet')")
    return found | {
        "events": max(recordings),
        "spark_report_seconds": round(report_seconds, 1),
        "spark_warm_seconds": hot.seconds,
        "spark_warm_parts_seconds": hot.parts_seconds,
        "spark_warm_seconds_per_million": hot.growth,
        "spark_slowest_over_median_task": hot.slowest_over_median,
        "spark_peak_rss_mib": hot.peak_rss_mib,
        "duckdb_seconds": [round(each.seconds, 1) for each in (earlier, duck)],
        "duckdb_inversions_seconds": [round(each.inversions_seconds, 1) for each in (earlier, duck)],
        "polars_tasks_only_seconds": round(polars_seconds, 1),
        "rows_that_differ": off,
    }


def recorded(folder: Path, events: int) -> int:
    """Write a recording; return the number of its events."""
    return write_events(folder, events, files=max(8, events // EVENTS_A_FILE))


def started_cold(folder: Path, events: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures of one run of the command, and its summary."""
    seconds, summary = timed(lambda: cold(events, folder / "cold"))
    out = Folder(str(folder / "cold"))
    files = sorted(events.glob("*.gz"))
    found = {
        "tasks": summary["tasks"],
        "files": len(files),
        "gzip_mb": round(sum(file.stat().st_size for file in files) / 1e6),
        "json_mb": round(sum(map(inflated_bytes, files)) / 1e6),
        "spark_cold_seconds": round(seconds, 1),
        "spark_cold_parts_seconds": out.read_json(f"runs/{summary['run_id']}/{SECONDS}"),
    }
    return found, summary


def inflated_bytes(file: Path) -> int:
    """Return the size of a gzip file's content, which its last four bytes say (RFC 1952)."""
    return int.from_bytes(file.read_bytes()[-4:], "little")


def _compare(
    oracle: duckdb.DuckDBPyConnection, ours: dict[str, str], theirs: dict[str, str], tasks: str
) -> int:
    """Return the number of rows that differ from DuckDB's tables and Polars' tasks."""
    off = sum(rows_that_differ(oracle, ours, theirs).values())
    shared = "select task_id, created_ms, first_taken_ms, outcome from"
    return off + differing_rows(oracle, f"{shared} {tasks}", f"{shared} {ours['tasks']}")


if __name__ == "__main__":
    main()
