"""The pipeline, DuckDB and Polars on the same recording of millions of events.

The results are compared too: all tables with DuckDB's, and the outcomes of the tasks with Polars'.

    python -m benchmarks.pipeline [--events N]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
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
from freshq_pipeline.schemas import LANDED
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS, State, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from freshq_pipeline.spark.tuning import Tuning

# As a stream delivers a recording of a few minutes: many files, of a few events each.
SMALL_EVENTS: Final = 1000
SMALL_FILES: Final = 600
SMALL_TURNS: Final = 5
FIRST_RUNS: Final = 2
BARE: Final = f"""
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
events = spark.read.schema("{LANDED}").option("recursiveFileLookup", "true").json(sys.argv[1])
events.groupBy("queue", "status").count().write.parquet(sys.argv[2])
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()  # the processor time of a Java that nobody waits for is lost
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process and those it started took.

    Attributes:
        seconds: From start to end.
        processor_seconds: Of all processors.
    """

    seconds: float
    processor_seconds: float


def cost(command: list[str], cache: Path) -> Cost:
    """Run a command to its end, and return what it took.

    Args:
        command: The program and its arguments.
        cache: Folder for what is made once on a machine.
    """
    before, start = os.times(), time.perf_counter()
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    seconds, after = time.perf_counter() - start, os.times()
    of_children = (after.children_user - before.children_user, after.children_system - before.children_system)
    return Cost(round(seconds, 1), round(sum(of_children), 1))


def medians(costs: list[Cost]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: median(asdict(one)[name] for one in costs) for name in asdict(costs[0])}


def ratios(ours: list[Cost], theirs: list[Cost]) -> dict[str, list[float]]:
    """Return of each figure the ratio within each turn."""
    pairs = [(asdict(mine), asdict(other)) for mine, other in zip(ours, theirs, strict=True)]
    return {name: [round(mine[name] / other[name], 3) for mine, other in pairs] for name in pairs[0][0]}


def small_figures(folder: Path, events: int, turns: int) -> dict[str, Any]:
    """Return the costs of the command and of the bare script, and their ratios.

    Args:
        folder: For the recording and all output.
        events: Number of events to record.
        turns: How often to run each.
    """
    count = write_events(folder / "in", events, files=min(SMALL_FILES, events))

    def ours(name: str) -> Cost:
        places = ["--events", str(folder / "in"), "--out", str(folder / name)]
        return cost([sys.executable, "-m", "freshq_pipeline", "run", *places], folder / "cache")

    def bare(name: str) -> Cost:
        places = [str(folder / "in"), str(folder / name)]
        return cost([sys.executable, "-c", BARE, *places], folder / "cache")

    first = [ours(f"first{number}") for number in range(FIRST_RUNS)]
    pairs = [(bare(f"bare{turn}"), ours(f"ours{turn}")) for turn in range(turns)]
    theirs, mine = ([pair[place] for pair in pairs] for place in range(2))
    return {
        "events": count,
        "files": len(list((folder / "in").rglob("*.gz"))),
        "turns": turns,
        "first_runs": [asdict(one) for one in first],
        "bare_script": medians(theirs),
        "freshq_pipeline_run": medians(mine),
        "ratios": ratios(mine, theirs),
    }


def small_main() -> None:
    """Time the command on a small recording beside a bare PySpark script, in turns.

    The script starts a session, reads the same files, groups once and writes Parquet. Before that the command
    runs twice: the second run makes the archive of Java's classes.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=SMALL_EVENTS, help="number of events")
    parser.add_argument("--turns", type=int, default=SMALL_TURNS, help="how often to run each")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-bench-"))
    try:
        found = small_figures(folder, given.events, given.turns)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(figures.write("pipeline_small", found, ("pyspark",)).read_text())


MEMORY: Final = "4g"
DAYS: Final = 62
DAY_MS: Final = 86_400_000
NIGHT_TURNS: Final = 2
# Days recorded before the measured night, each with as many events.
GROWTH: Final = (10, 100)
SMALL_DAY_EVENTS: Final = 400


def nights_main() -> None:
    """Time a night with one more day of events, in turns with a run over all days.

    Each run is a command of its own, as at night. Spark's jobs and tasks are counted in further runs.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="number of events in 62 days")
    parser.add_argument("--days", type=int, nargs="*", default=GROWTH, help="recorded days before a night")
    parser.add_argument(
        "--turns", type=int, default=NIGHT_TURNS, help="how often to run all days, and a night"
    )
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-nights-"))
    try:
        found = nights_figures(folder, given.events, given.days, given.turns)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(figures.write("pipeline_nights", found, ("pyspark",)).read_text())


@dataclass(frozen=True, slots=True)
class Nights:
    """Recordings and outputs of runs below one folder.

    Attributes:
        folder: For all files.
    """

    folder: Path

    def without_last(self, name: str, days: int, events: int) -> str:
        """Record some days, run all but the last, and return the name of the output."""
        record(self.folder / name, days, events)
        last = self.folder / name / name_of(days - 1)
        held = last.rename(self.folder / "held")
        out = f"{name}-before"
        self.command(name, out)
        held.rename(last)
        return out

    def night(self, name: str, before: str, out: str) -> dict[str, Any]:
        """Return what it costs to run a folder on top of an output, which stays as it is."""
        shutil.copytree(self.folder / before, self.folder / out)
        return self.command(name, out)

    def command(self, name: str, out: str) -> dict[str, Any]:
        """Run the command, and return what it cost and what it wrote."""
        places = ["--events", str(self.folder / name), "--out", str(self.folder / out)]
        settings = ["--master", MASTER, "--memory", MEMORY]
        command = [sys.executable, "-m", "freshq_pipeline", "run", *places, *settings]
        return asdict(cost(command, self.folder / "cache")) | self._written(out)

    def _written(self, out: str) -> dict[str, Any]:
        folder = Folder(str(self.folder / out))
        state = current(folder)
        if state is None:
            sys.exit("the run published nothing")
        return {
            "parts_seconds": folder.read_json(f"runs/{state.run_id}/{SECONDS}"),
            "events": sum(day.events for day in state.days.values()),
            "days": len(state.days),
            "days_computed": len(state.opened),
            "files_of_tables_written": _written(state),
        }

    def counted(self, name: str, before: str | None) -> dict[str, int]:
        """Return how many jobs and tasks Spark has for a run on top of an output; None: of all days."""
        out = self.folder / "counted"
        if before is not None:
            shutil.copytree(self.folder / before, out)
        found: dict[str, int] = {}

        @contextmanager
        def session(tuning: Tuning) -> Iterator[SparkSession]:
            with spark_session(MASTER, MEMORY, tuning) as spark:
                yield spark
                found.update(jobs_of(spark))

        execute(RunRequest(Folder(str(self.folder / name)), Folder(str(out))), session)
        shutil.rmtree(out)
        return found


def nights_figures(folder: Path, events: int, growth: list[int], turns: int) -> dict[str, Any]:
    """Return the figures of all nights."""
    nights = Nights(folder)
    before = nights.without_last("in", DAYS, events // DAYS)
    nights.night("in", before, "warm")  # makes the archive of Java's classes
    pairs = [
        (nights.command("in", f"all-{turn}"), nights.night("in", before, f"night-{turn}"))
        for turn in range(turns)
    ]
    whole, one = ([pair[place] for pair in pairs] for place in (0, 1))
    costs = [[Cost(run["seconds"], run["processor_seconds"]) for run in runs] for runs in (whole, one)]
    grown = {}
    for days in growth:
        earlier = nights.without_last(f"in-{days}", days + 1, SMALL_DAY_EVENTS)
        grown[days] = nights.night(f"in-{days}", earlier, f"out-{days}")
        grown[days] |= nights.counted(f"in-{days}", earlier)
    return {
        "turns": turns,
        "run_over_62_days": whole[-1] | medians(costs[0]) | nights.counted("in", None),
        "night_of_day_62": one[-1] | medians(costs[1]) | nights.counted("in", before),
        "night_over_run": ratios(costs[1], costs[0]),
        "nights_after_days": grown,
    }


def jobs_of(spark: SparkSession) -> dict[str, int]:
    """Return the number of jobs and tasks that a session has run."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - there is no public way to these figures
    jobs = tasks = 0
    with suppress(Py4JJavaError):  # no more jobs
        for number in count(0):
            tasks += store.job(number).numCompletedTasks()
            jobs = number + 1
    return {"jobs": jobs, "tasks": tasks}


def _written(state: State) -> int:
    """Return how many files of tables the current run wrote."""
    files = (file for days in state.tables.values() for paths in days.values() for file in paths)
    return sum(file.rpartition("/")[2].startswith(state.run_id) for file in files)


def record(folder: Path, days: int, events: int) -> None:
    """Write a file of events for each day; some tasks of a day are still waiting when the next one begins."""
    one = folder.with_name(f"{folder.name}-day")
    write_events(one, events, files=1)
    text = gzip.decompress(b"".join(file.read_bytes() for file in one.iterdir())).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    times = [event.get("updated_ms", event["stream_ms"]) for event in lines]
    # The last minute of the recording is the first one of the next day.
    offset_ms = DAY_MS - (max(times) - min(times)) + 60_000
    folder.mkdir(parents=True)
    for day in range(days):
        shifted = "".join(json.dumps(_shifted(event, day, offset_ms)) + "\n" for event in lines)
        (folder / name_of(day)).write_bytes(gzip.compress(shifted.encode(), compresslevel=1))


def name_of(day: int) -> str:
    """Return the name of the file of a day."""
    return f"day-{day:04}.json.gz"


def _shifted(event: dict[str, Any], day: int, offset_ms: float) -> dict[str, Any]:
    """Return an event as it happens on another day, to a task of that day."""
    moved = {name: value + offset_ms + day * DAY_MS for name, value in event.items() if name.endswith("_ms")}
    ids = {name: f"{day}-{event[name]}" for name in ("event_id", "task_id")}
    return event | moved | ids


def large_figures(folder: Path, wanted: int) -> dict[str, Any]:
    """Return the figures of both engines over one recording."""
    events = folder / "events"
    count = recorded(events, wanted)
    found, summary = started_cold(folder, events)
    with duckdb.connect(str(folder / "oracle.db")) as oracle:
        duck = by_duckdb(events, oracle, folder / "duckdb")
        off = sum(rows_that_differ(oracle, relations(summary), duck.folders).values())
    return found | {
        "events": count,
        "duckdb_seconds": round(duck.seconds, 1),
        "duckdb_inversions_seconds": round(duck.inversions_seconds, 1),
        "rows_that_differ": off,
    }


def large_main() -> None:
    """Run the command, started cold, and DuckDB on 20 million events; compare their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000_000, help="number of events")
    publish("pipeline_large", large_figures, parser.parse_args().events)


THREADS: Final = 2
MASTER: Final = f"local[{THREADS}]"
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
