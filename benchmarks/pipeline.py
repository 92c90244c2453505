"""The pipeline beside DuckDB, beside a bare script on a small recording, and night by night.

DuckDB makes the same tables, and every row is compared. `scale` runs it on a local cluster of two workers.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import count, groupby, pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import duckdb
from local.facts import make_tables, relations, rows_that_differ, write_tables
from py4j.protocol import Py4JJavaError

from benchmarks import figures
from benchmarks.lives import START_MS, write_events
from freshq_pipeline.report.page import write_report
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.runs.stream import stream
from freshq_pipeline.schemas import BY_DAY, LANDED
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.days import HOURS_A_DAY
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS, State, current, required_current
from freshq_pipeline.storage.table_files import paths_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


# Many files of a few events each, as a stream delivers them.
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
gateway.proc.wait()  # a process's time counts only once it was waited for
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a process and its children.

    Attributes:
        seconds: From start to end.
        processor_seconds: On all processors.
    """

    seconds: float
    processor_seconds: float


def cost(command: list[str], cache: Path) -> Cost:
    """Run a command to its end and return its cost.

    Args:
        command: The program and its arguments.
        cache: Folder for files that a machine makes once.
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
    """Return the ratios of each figure by turn."""
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


def small(events: int = SMALL_EVENTS, turns: int = SMALL_TURNS) -> None:
    """Time the command on a small recording, in turns with a bare PySpark script.

    The script starts a session, reads the same files, groups once and writes Parquet. The command runs twice
    beforehand: the second run makes the archive of Java's classes.
    """
    figures.write("pipeline_small", in_folder(lambda folder: small_figures(folder, events, turns)))


def in_folder(measured: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Measure in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="freshq-bench-") as folder:
        return measured(Path(folder))


MEMORY: Final = "4g"
DAYS: Final = 62
DAY_MS: Final = 86_400_000
NIGHT_TURNS: Final = 2
# Events of a day in the recordings of other lengths.
SMALL_DAY_EVENTS: Final = 400


def nights(events: int = 2_000_000, days: str = "10,100", turns: int = NIGHT_TURNS) -> None:
    """Time a night with one more day of events, in turns with a run over all 62 days.

    Each run is a command of its own.

    Args:
        events: Number of events in 62 days.
        days: Numbers of days recorded before a night.
        turns: How often to run all days, and a night.
    """
    growth = figures.numbers(days)
    figures.write("pipeline_nights", in_folder(lambda folder: nights_figures(folder, events, growth, turns)))


@dataclass(frozen=True, slots=True)
class Nights:
    """Recordings and outputs of runs below one folder.

    Attributes:
        folder: For all files.
    """

    folder: Path

    def without_last(self, name: str, days: int, events: int) -> str:
        """Record several days, run all but the last, and return the name of the output."""
        record(self.folder / name, days, events)
        last = self.folder / name / name_of(days - 1)
        held = last.rename(self.folder / "held")
        out = f"{name}-before"
        self.command(name, out)
        held.rename(last)
        return out

    def night(self, name: str, before: str, out: str) -> dict[str, Any]:
        """Return the cost of a run on top of a copy of an output."""
        shutil.copytree(self.folder / before, self.folder / out)
        return self.command(name, out)

    def command(self, name: str, out: str) -> dict[str, Any]:
        """Run the command; return its cost and its output."""
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


def nights_figures(folder: Path, events: int, growth: list[int], turns: int) -> dict[str, Any]:
    """Return the figures of all nights."""
    of_nights = Nights(folder)
    before = of_nights.without_last("in", DAYS, events // DAYS)
    of_nights.night("in", before, "warm")  # makes the archive of Java's classes
    pairs = [
        (of_nights.command("in", f"all-{turn}"), of_nights.night("in", before, f"night-{turn}"))
        for turn in range(turns)
    ]
    whole, one = ([pair[place] for pair in pairs] for place in (0, 1))
    costs = [[_cost(run) for run in runs] for runs in (whole, one)]
    grown = {}
    for days in growth:
        earlier = of_nights.without_last(f"in-{days}", days + 1, SMALL_DAY_EVENTS)
        grown[days] = of_nights.night(f"in-{days}", earlier, f"out-{days}")
    return {
        "turns": turns,
        "run_over_62_days": whole[-1] | medians(costs[0]),
        "night_of_day_62": one[-1] | medians(costs[1]),
        "night_over_run": ratios(costs[1], costs[0]),
        "nights_after_days": grown,
    }


NEW_EVENTS: Final = 200
# Hours of a stream after which some batches of new events are timed.
STREAM_HOURS: Final = (1, 10, 24)
BATCHES: Final = 5
START: Final = f"""
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.spark.tuning import SMALL
with spark_session("local[2]", "{MEMORY}", SMALL):
    pass
"""


def increments(events: int = 200_000, turns: int = SMALL_TURNS) -> None:
    """Count the processor time of 200 more events on a day, beside a run over the day, and in a stream.

    Args:
        events: Number of events of the day.
        turns: How often to run each.
    """
    figures.write("pipeline_increments", in_folder(lambda folder: increments_figures(folder, events, turns)))


def increments_figures(folder: Path, events: int, turns: int) -> dict[str, Any]:
    """Return the costs of the whole day, of its last events, and of starting Spark."""
    lines, runs = _day(folder, events), Nights(folder)
    _write_lines(folder / "in" / "0", lines[:-NEW_EVENTS])
    runs.command("in", "before")
    _write_lines(folder / "in" / "1", lines[-NEW_EVENTS:])
    runs.night("in", "before", "warm")  # makes the archive of Java's classes
    rounds = [
        (
            asdict(cost([sys.executable, "-c", START], folder / "cache")),
            runs.command("in", f"all-{turn}"),
            runs.night("in", "before", f"more-{turn}"),
        )
        for turn in range(turns)
    ]
    start, whole, more = ([round_[place] for round_ in rounds] for place in range(3))
    costs = [[_cost(run) for run in runs] for runs in (start, whole, more)]
    return {
        "turns": turns,
        "new_events": NEW_EVENTS,
        "start": medians(costs[0]),
        "run_over_day": whole[-1] | medians(costs[1]),
        "increment": more[-1] | medians(costs[2]),
        "increment_over_run": ratios(costs[2], costs[1]),
        "stream_batch_processor_seconds": stream_figures(folder, lines),
    }


def _cost(run: dict[str, Any]) -> Cost:
    return Cost(run["seconds"], run["processor_seconds"])


def _day(folder: Path, events: int) -> list[str]:
    """Return the lines of a day of even load, by time."""
    write_events(folder / "day", events, files=1, hours=24)
    text = gzip.decompress(b"".join(file.read_bytes() for file in (folder / "day").iterdir())).decode()
    return sorted(text.splitlines(keepends=True), key=_changed_ms)


def _changed_ms(line: str) -> float:
    event = json.loads(line)
    return float(event.get("updated_ms", event["stream_ms"]))


def _write_lines(file: Path, lines: list[str]) -> None:
    """Write lines as a file that is as old as the last of them."""
    file.parent.mkdir(exist_ok=True)
    written = file.with_suffix(".json.gz")
    written.write_bytes(gzip.compress("".join(lines).encode(), compresslevel=1))
    os.utime(written, (_changed_ms(lines[-1]) / 1000,) * 2)


def stream_figures(folder: Path, lines: list[str]) -> dict[int, list[float]]:
    """Return the processor seconds of batches of new events after some hours of a day.

    The stream has a batch for each hour. It runs twice in one session: Java compiles during the first time.
    """
    sizes = _write_stream(folder / "stream", lines)
    with spark_session(MASTER, MEMORY) as spark:
        costs = [_streamed(spark, folder, name) for name in ("first", "second")][-1]
    each: dict[int, list[float]] = {hour: [] for hour in STREAM_HOURS}
    for (hour, size), batch in zip(sizes, costs, strict=True):
        if size == NEW_EVENTS:
            each[hour].append(batch)
    return each


def _write_stream(folder: Path, lines: list[str]) -> list[tuple[int, int]]:
    """Write a file for each batch of a day; return its hour, beginning with 1, and its number of events."""
    sizes = list[tuple[int, int]]()
    for hour, of_hour in groupby(lines, _hour):
        events = list(of_hour)
        new = NEW_EVENTS * BATCHES if hour in STREAM_HOURS else 0
        ends = [*range(len(events) - new, len(events), NEW_EVENTS), len(events)]
        for start, end in pairwise((0, *ends) if hour <= HOURS_A_DAY else ()):
            _write_lines(folder / f"{len(sizes):02}", events[start:end])
            sizes.append((hour, end - start))
    return sizes


def _hour(line: str) -> int:
    return int(_changed_ms(line) - START_MS) // 3_600_000 + 1


def _streamed(spark: SparkSession, folder: Path, name: str) -> list[float]:
    """Return the processor seconds of each batch of a stream with a file in each."""
    spent = [_processor_seconds(spark)]
    stream(
        spark,
        RunRequest(Folder(str(folder / "stream")), Folder(str(folder / name))),
        str(folder / f"checkpoint-{name}"),
        published=lambda _summary: spent.append(_processor_seconds(spark)),
        files_per_batch=1,
    )
    return [round(after - before, 2) for before, after in pairwise(spent)]


def _processor_seconds(spark: SparkSession) -> float:
    """Return the processor time of this process and of Spark's Java."""
    fields = Path(f"/proc/{java_id(spark)}/stat").read_text().rpartition(")")[2].split()
    own = os.times()
    return own.user + own.system + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written(state: State) -> int:
    """Return the number of table files that the current run wrote."""
    files = (file for days in state.tables.values() for paths in days.values() for file in paths)
    return sum(file.rpartition("/")[2].startswith(state.run_id) for file in files)


def record(folder: Path, days: int, events: int) -> None:
    """Write a file of events for each day; some tasks still wait when the next day begins."""
    one = folder.with_name(f"{folder.name}-day")
    write_events(one, events, files=1)
    text = gzip.decompress(b"".join(file.read_bytes() for file in one.iterdir())).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    times = [event.get("updated_ms", event["stream_ms"]) for event in lines]
    # The last minute of the recording is the first minute of the next day.
    offset_ms = DAY_MS - (max(times) - min(times)) + 60_000
    folder.mkdir(parents=True)
    for day in range(days):
        shifted = "".join(json.dumps(_shifted(event, day, offset_ms)) + "\n" for event in lines)
        (folder / name_of(day)).write_bytes(gzip.compress(shifted.encode(), compresslevel=1))


def name_of(day: int) -> str:
    """Return the name of the file of a day."""
    return f"day-{day:04}.json.gz"


def _shifted(event: dict[str, Any], day: int, offset_ms: float) -> dict[str, Any]:
    """Return the same event of a task of another day."""
    moved = {name: value + offset_ms + day * DAY_MS for name, value in event.items() if name.endswith("_ms")}
    ids = {name: f"{day}-{event[name]}" for name in ("event_id", "task_id")}
    return event | moved | ids


THREADS: Final = 2
MASTER: Final = f"local[{THREADS}]"
EVENTS_A_FILE: Final = 32_000
# Only the last runs count, because Java compiles during the first ones.
WARM_RUNS: Final = 4
COUNTED_RUNS: Final = 2
# Growth is also measured with these shares of the recording.
SHARES: Final = (0.25, 0.5)
MAX_TASKS: Final = 100_000


def cold(events: Path, out: Path) -> dict[str, Any]:
    """Run the command in a new process and return its summary."""
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--events", str(events), "--out", str(out)]
    done = subprocess.run(
        # Without an index lag, which DuckDB does not have.
        [*command, "--index-lag-seconds", "0", "--master", MASTER, "--memory", MEMORY, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def warm(recordings: dict[int, Path], out: Path) -> dict[str, Any]:
    """Return the figures of runs in one session; the longest goes first, to warm up Java's compiler.

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
        return {
            "spark_warm_seconds": longest_seconds[-COUNTED_RUNS:],
            "spark_warm_parts_seconds": parts,
            "spark_warm_seconds_per_million": growth,
            "spark_slowest_over_median_task": slowest_over_median(spark),
            "spark_peak_rss_mib": peak_rss_mib(spark),
        }


def peak_rss_mib(spark: SparkSession) -> int | None:
    """Return the peak memory of Spark's Java in mebibytes, None if the system does not report it.

    `RUSAGE_CHILDREN` would include the memory of this process at the time of the fork.
    """
    status = Path(f"/proc/{java_id(spark)}/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def java_id(spark: SparkSession) -> int:
    """Return the process id of Spark's Java."""
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to the process id
    return int(java.java.lang.ProcessHandle.current().pid())


def slowest_over_median(spark: SparkSession) -> float:
    """Return the ratio of the slowest to the median task's time, in the stage with the most work."""
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


def by_duckdb(folder: Path, events: Path, tables: dict[str, str]) -> dict[str, Any]:
    """Make and write all tables with as many cores and as much memory as the pipeline; compare them.

    Args:
        folder: For DuckDB's files.
        events: Folder with the recording.
        tables: The pipeline's tables.
    """
    folder.mkdir()
    with duckdb.connect(str(folder / "oracle.db")) as oracle:
        oracle.execute(f"set threads to {THREADS}; set memory_limit = '{MEMORY}b'")
        making_seconds, parts_seconds = timed(lambda: make_tables(oracle, f"{events}/*.gz"))
        writing_seconds, folders = timed(lambda: write_tables(oracle, folder / "tables"))
        return {
            "duckdb_seconds": round(making_seconds + writing_seconds, 1),
            "duckdb_inversions_seconds": round(parts_seconds["inversions"], 1),
            "rows_that_differ": sum(rows_that_differ(oracle, tables, folders).values()),
        }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call and its result."""
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def main(events: int = 2_000_000) -> None:
    """Time the pipeline, warm and cold, and DuckDB; compare their tables."""

    def measured(folder: Path) -> dict[str, Any]:
        recordings = {}
        for share in (*SHARES, 1):
            part = round(events * share)
            recording = folder / f"events-{part}"
            recordings[recorded(recording, part)] = recording
        found, summary = started_cold(folder, recording)
        report_seconds, _ = timed(lambda: write_report(Folder(str(folder / "cold"))))
        found |= warm(recordings, folder / "warm")
        runs = [
            by_duckdb(folder / f"duckdb-{number}", recording, relations(summary))
            for number in range(COUNTED_RUNS)
        ]
        in_runs = {
            name: [run[name] for run in runs] for name in ("duckdb_seconds", "duckdb_inversions_seconds")
        }
        return (
            found
            | runs[-1]
            | in_runs
            | {
                "events": max(recordings),
                "spark_report_seconds": round(report_seconds, 1),
            }
        )

    compare("pipeline", measured)


def large(events: int = 20_000_000) -> None:
    """Time the command, started cold, and DuckDB; compare their tables."""

    def measured(folder: Path) -> dict[str, Any]:
        recording = folder / "events"
        count = recorded(recording, events)
        found, summary = started_cold(folder, recording)
        return found | {"events": count} | by_duckdb(folder / "duckdb", recording, relations(summary))

    compare("pipeline_large", measured)


def compare(name: str, measured: Callable[[Path], dict[str, Any]]) -> None:
    """Measure in a temporary folder and save the results; exit with an error if the engines disagree."""
    found = in_folder(measured)
    figures.write(name, found)
    if found["rows_that_differ"]:
        sys.exit("the engines disagree")


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


DAY_EVENTS: Final = 20_000
# Three years; a larger recording has larger days.
MOST_DAYS: Final = 1000
# Two executors of one core and 1.5 GiB, each a process of its own.
CLUSTER: Final = "local-cluster[2,1,1536]"
DRIVER_MEMORY: Final = "1g"
SUMMED: Final = ("shuffleWriteBytes", "memoryBytesSpilled", "diskBytesSpilled", "numTasks")


def scale(events: str = "200000,2000000") -> None:
    """Run the pipeline on recordings of several sizes, each in a process and a session of its own.

    Args:
        events: Approximate numbers of events, the smallest first.
    """
    sizes = figures.numbers(events)
    figures.write(
        "pipeline_scale", in_folder(lambda folder: {"runs": [_one_size(folder, one) for one in sizes]})
    )


def _one_size(folder: Path, events: int) -> dict[str, Any]:
    days = min(max(1, events // DAY_EVENTS), MOST_DAYS)
    recording, out = folder / f"in-{events}", folder / f"out-{events}"
    # Each call has a new process, so that a run's memory does not include a recording's or another run's.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as process:
        process.submit(record, recording, days, events // days).result()
        return process.submit(_run_on_cluster, recording, out).result()


def _run_on_cluster(recording: Path, folder: Path) -> dict[str, Any]:
    out = Folder(str(folder))
    request = RunRequest(Folder(str(recording)), out)
    with spark_session(CLUSTER, DRIVER_MEMORY) as spark:
        seconds, summary = timed(lambda: execute(request, lambda _tuning: nullcontext(spark)))
        state = required_current(out)
        folders = {path.rpartition("/")[0] for table in BY_DAY for path in paths_of(state.tables, table)}
        return {
            "events": summary["events_distinct"],
            "days": len(state.days),
            "seconds": round(seconds, 1),
            "files_by_day": sum(len(paths_of(state.tables, table)) for table in BY_DAY),
            "folders_by_day": len(folders),
            "driver_java_mib": peak_rss_mib(spark),
            "driver_python_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **_work(spark),
        }


def _work(spark: SparkSession) -> dict[str, Any]:
    """Return the total time of all stages."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - there is no public way to these figures
    stages = []
    with suppress(Py4JJavaError):  # no more stages
        for number in count(0):
            stages.append(store.lastStageAttempt(number))  # noqa: PERF401 - until an error
    work = {name: sum(getattr(stage, name)() for stage in stages) for name in SUMMED}
    cpu_ns = sum(stage.executorCpuTime() for stage in stages)
    return {
        "stages": len(stages),
        "tasks": work["numTasks"],
        "executor_processor_seconds": round(cpu_ns / 1e9, 1),
        "shuffle_mb": round(work["shuffleWriteBytes"] / 1e6, 1),
        "spill_mb": round((work["memoryBytesSpilled"] + work["diskBytesSpilled"]) / 1e6, 1),
    }
