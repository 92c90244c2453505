"""What a night costs: one more day of events, beside a run over all of them, and after more and more days.

All runs are in one session of Spark, which is warm before anything is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.lives import write_events
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.spark.tuning import LARGE
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SECONDS, State, current

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT: Final = Path(__file__).parent / "results" / "pipeline_nights.json"
DAYS: Final = 62
DAY_MS: Final = 86_400_000
# Days recorded before the measured night, each with as many events.
GROWTH: Final = (10, 100, 1000)
SMALL_DAY_EVENTS: Final = 400


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="number of events in 62 days")
    parser.add_argument("--days", type=int, nargs="*", default=GROWTH, help="recorded days before a night")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-nights-"))
    try:
        with spark_session("local[*]", "4g", LARGE) as spark:
            figures = measure(spark, folder, given.events, given.days)
    finally:
        shutil.rmtree(folder)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(given.out.read_text())


def measure(spark: SparkSession, folder: Path, events: int, growth: list[int]) -> dict[str, Any]:
    """Return the figures of all nights."""
    load = os.getloadavg()[0]
    record(folder / "in", DAYS, events // DAYS)
    last = folder / "in" / name_of(DAYS - 1)
    held = last.rename(folder / "held")
    before = run(spark, folder / "in", folder / "nights")
    held.rename(last)
    full = run(spark, folder / "in", folder / "all")
    night = run(spark, folder / "in", folder / "nights")
    grown = {}
    for days in growth:
        record(folder / f"in-{days}", days + 1, SMALL_DAY_EVENTS)
        last = folder / f"in-{days}" / name_of(days)
        held = last.rename(folder / "held")
        run(spark, folder / f"in-{days}", folder / f"out-{days}")
        held.rename(last)
        grown[days] = run(spark, folder / f"in-{days}", folder / f"out-{days}")
    return {
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "first_run_of_61_days": before,
        "run_over_62_days": full,
        "night_of_day_62": night,
        "night_over_run": round(night["seconds"] / full["seconds"], 3),
        "nights_after_days": grown,
    }


def run(spark: SparkSession, events: Path, out: Path) -> dict[str, Any]:
    """Run the pipeline, and return what it cost."""
    folder = Folder(str(out))
    start = time.perf_counter()
    summary = execute(RunRequest(Folder(str(events)), folder), lambda _tuning: nullcontext(spark))
    seconds = time.perf_counter() - start
    state = current(folder)
    if state is None:
        sys.exit("the run published nothing")
    return {
        "seconds": round(seconds, 1),
        "parts_seconds": folder.read_json(f"runs/{summary['run_id']}/{SECONDS}"),
        "events": summary["events_distinct"],
        "days": len(state.days),
        "days_computed": len(state.opened),
        "files_of_tables_written": _written(state),
    }


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
