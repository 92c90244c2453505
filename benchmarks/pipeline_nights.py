"""What a night costs: one more day of events, beside a run over all of them, and after more and more days.

Each run is a command of its own, as at night. The run over all days and the night take turns, so that what
else the machine does slows both. Spark's jobs and tasks are counted in further runs.

    python -m benchmarks.pipeline_nights [--events N] [--days N ...] [--turns N]
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from benchmarks import figures
from benchmarks.lives import write_events
from benchmarks.pipeline_small import Cost, cost, medians, ratios
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS, State, current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from freshq_pipeline.spark.tuning import Tuning

MASTER: Final = "local[2]"
MEMORY: Final = "4g"
DAYS: Final = 62
DAY_MS: Final = 86_400_000
TURNS: Final = 2
# Days recorded before the measured night, each with as many events.
GROWTH: Final = (10, 100)
SMALL_DAY_EVENTS: Final = 400


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="number of events in 62 days")
    parser.add_argument("--days", type=int, nargs="*", default=GROWTH, help="recorded days before a night")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often to run all days, and a night")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-nights-"))
    try:
        found = measure(folder, given.events, given.days, given.turns)
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


def measure(folder: Path, events: int, growth: list[int], turns: int) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
