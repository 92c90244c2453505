"""The pipeline on a recording of millions of events, beside DuckDB and Polars from the same files.

Both are oracles as well: every table must be DuckDB's to the row, and the tasks' outcomes Polars'.

    python -m benchmarks.pipeline [--events N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
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
from py4j.protocol import Py4JJavaError
from tests.pipeline.oracle import differing_rows, make_tables, rows_that_differ, write_tables

from benchmarks.lives import write_events
from freshq_pipeline.report.page import write_report
from freshq_pipeline.run.batch import execute
from freshq_pipeline.run.request import Request
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

OUT: Final = Path("build/pipeline.json")
THREADS: Final = 2
MASTER: Final = f"local[{THREADS}]"
MEMORY: Final = "4g"
EVENTS_A_FILE: Final = 32_000
WARM_RUNS: Final = 3
# Growth is shown by recordings of these shares of the whole one.
SHARES: Final = (0.25, 0.5)
MOST_TASKS: Final = 100_000


def cold(events: Path, out: Path) -> dict[str, Any]:
    """Run the command in a process of its own, and return its summary."""
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--events", str(events), "--out", str(out)]
    done = subprocess.run(  # noqa: S603 - no shell
        [*command, "--master", MASTER, "--memory", MEMORY, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@dataclass(frozen=True, slots=True)
class Warm:
    """The last of some runs in one session.

    Attributes:
        seconds: How long it took.
        parts_seconds: The same, by part.
        growth: Seconds for a million events, by how many there were.
        slowest_over_median: Of the tasks of the stage with the most work: 1 if all took as long.
        peak_rss_mib: The most memory that Spark's Java held, in mebibytes; None where nobody tells.
    """

    seconds: float
    parts_seconds: dict[str, float]
    growth: dict[int, float]
    slowest_over_median: float
    peak_rss_mib: int | None


def warm(recordings: dict[int, Path], out: Path) -> Warm:
    """Run over each recording in one session, the longest first, the compiler of Java being slow at first.

    Args:
        recordings: The folders, by how many events are in them.
        out: For the tables, deleted by the caller.
    """
    growth = {}
    with spark_session(MASTER, MEMORY) as spark:
        longest = max(recordings)
        for turn, events in enumerate([longest] * WARM_RUNS + sorted(recordings)[:-1]):
            folder = Folder(str(out / str(turn)))
            request = Request(Folder(str(recordings[events])), folder)
            seconds, summary = timed(lambda: execute(request, lambda: nullcontext(spark)))  # noqa: B023 - called here
            growth[events] = round(seconds * 1e6 / events, 1)
            if events == longest:
                whole, parts = seconds, folder.read_json(f"runs/{summary['run_id']}/{SECONDS}")
        skew, peak_mib = slowest_over_median(spark), peak_rss_mib(spark)
    return Warm(whole, parts, growth, skew, peak_mib)


def peak_rss_mib(spark: SparkSession) -> int | None:
    """Return the most memory that Spark's Java ever held, in mebibytes; None where the system does not tell.

    What the system says of all children would be no less than what this process held when it made them.
    """
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - the number of its process has no public way out
    status = Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def slowest_over_median(spark: SparkSession) -> float:
    """Return the time of the slowest task by that of the median one, in the stage with the most work."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - its figures have no public way out
    stages = []
    with suppress(Py4JJavaError):  # there is no further stage
        for number in count(0):
            stage = store.lastStageAttempt(number)
            stages.append((stage.executorRunTime(), number, stage.attemptId()))
    _, number, attempt = max(stages)
    tasks = store.taskList(number, attempt, MOST_TASKS)
    durations = sorted(tasks.apply(place).duration().get() for place in range(tasks.size()))
    slowest, median = float(durations[-1]), float(durations[len(durations) // 2])
    return round(slowest / median, 2)


@dataclass(frozen=True, slots=True)
class ByDuckdb:
    """All tables by DuckDB, written as the pipeline writes them.

    Attributes:
        seconds: How long it took to make and write all of them.
        inversions_seconds: What of it went into finding the inversions.
        folders: Of Parquet files, by table.
    """

    seconds: float
    inversions_seconds: float
    folders: dict[str, str]


def by_duckdb(events: Path, oracle: duckdb.DuckDBPyConnection, out: Path) -> ByDuckdb:
    """Make all tables on as many cores, with as much memory as the pipeline has.

    Args:
        events: Where the recording is.
        oracle: To an empty database.
        out: Where the tables are written.
    """
    oracle.execute(f"set threads to {THREADS}; set memory_limit = '{MEMORY}b'")
    making_seconds, parts_seconds = timed(lambda: make_tables(oracle, f"{events}/*.gz"))
    writing_seconds, folders = timed(lambda: write_tables(oracle, out))
    return ByDuckdb(making_seconds + writing_seconds, parts_seconds["inversions"], folders)


def by_polars(events: Path) -> pl.DataFrame:
    """Return outcome and wait of every task."""
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
    """Return how long a function takes, in seconds, and what it returns."""
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def main() -> None:
    """Measure, compare, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="how many (try 20000000)")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-bench-"))
    try:
        figures = measure(folder, given.events)
    finally:
        shutil.rmtree(folder)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(given.out.read_text())
    if figures["rows_that_differ"]:
        sys.exit("the engines do not agree")


def measure(folder: Path, wanted: int) -> dict[str, Any]:
    """Return the figures of all engines over one recording."""
    recordings = {}
    for share in (*SHARES, 1):
        part = round(wanted * share)
        events = folder / f"events-{part}"
        recordings[write_events(events, part, files=max(8, part // EVENTS_A_FILE))] = events
    total = max(recordings)
    load = os.getloadavg()[0]
    cold_seconds, summary = timed(lambda: cold(events, folder / "cold"))
    report_seconds, _ = timed(lambda: write_report(Folder(str(folder / "cold"))))
    hot = warm(recordings, folder / "warm")
    with duckdb.connect(str(folder / "oracle.db")) as oracle:
        duck = by_duckdb(events, oracle, folder / "duckdb")
        polars_seconds, tasks = timed(lambda: by_polars(events))
        tasks.write_parquet(folder / "polars.parquet")
        off = _compare(oracle, summary["tables"], duck.folders, f"read_parquet('{folder}/polars.parquet')")
    return {
        "events": total,
        "tasks": summary["tasks"],
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "spark_cold_seconds": round(cold_seconds, 1),
        "spark_report_seconds": round(report_seconds, 1),
        "spark_warm_seconds": round(hot.seconds, 1),
        "spark_warm_parts_seconds": hot.parts_seconds,
        "spark_warm_events_per_second": round(total / hot.seconds),
        "spark_warm_seconds_per_million": hot.growth,
        "spark_slowest_over_median_task": hot.slowest_over_median,
        "spark_peak_rss_mib": hot.peak_rss_mib,
        "duckdb_seconds": round(duck.seconds, 1),
        "duckdb_inversions_seconds": round(duck.inversions_seconds, 1),
        "polars_tasks_only_seconds": round(polars_seconds, 1),
        "rows_that_differ": off,
    }


def _compare(
    oracle: duckdb.DuckDBPyConnection, ours: dict[str, str], theirs: dict[str, str], tasks: str
) -> int:
    """Return how many rows differ between the pipeline and the others: DuckDB's tables, Polars' tasks."""
    off = sum(rows_that_differ(oracle, ours, theirs).values())
    shared = "select task_id, created_ms, first_taken_ms, outcome from"
    return off + differing_rows(
        oracle, f"{shared} {tasks}", f"{shared} read_parquet('{ours['tasks']}/*.parquet')"
    )


if __name__ == "__main__":
    main()
