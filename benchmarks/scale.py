"""The pipeline on a local cluster of two workers: how work and memory of the driver grow with the events."""

from __future__ import annotations

import resource
from contextlib import nullcontext, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from benchmarks import figures
from benchmarks.pipeline import in_folder, peak_rss_mib, record, timed
from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.schemas import BY_DAY
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import required_current
from freshq_pipeline.storage.table_files import paths_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAY_EVENTS: Final = 20_000
# Two executors of one core and 1.5 GiB, each a process of its own.
CLUSTER: Final = "local-cluster[2,1,1536]"
EXECUTORS: Final = 2
DRIVER_MEMORY: Final = "1g"
SUMMED: Final = ("shuffleWriteBytes", "memoryBytesSpilled", "diskBytesSpilled", "numTasks")


def main(events: str = "200000,2000000") -> None:
    """Run the pipeline on recordings of several sizes, the smallest first, each in a session of its own.

    Args:
        events: Approximate numbers of events.
    """
    sizes = figures.numbers(events)
    figures.write("pipeline_scale", in_folder(lambda folder: {"runs": [_run(folder, one) for one in sizes]}))


def _run(folder: Path, events: int) -> dict[str, Any]:
    recording, out = folder / f"in-{events}", Folder(str(folder / f"out-{events}"))
    record(recording, max(1, events // DAY_EVENTS), min(events, DAY_EVENTS))
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
    """Return what all stages took together."""
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
