"""`freshq-pipeline run` on a small recording beside a bare PySpark script, which is the least Spark can take.

The script starts a session, reads the same files, groups once and writes Parquet. Both are timed from the
start of the process to its end, in turns, so that what else the machine does slows both. Before that the
command runs twice: the second run makes the archive of Java's classes.

    python -m benchmarks.pipeline_small [--events N] [--turns N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import figures
from benchmarks.lives import write_events
from freshq_pipeline.schemas import LANDED

# As a stream delivers a recording of a few minutes: many files, of a few events each.
EVENTS: Final = 1000
FILES: Final = 600
TURNS: Final = 5
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


def measure(folder: Path, events: int, turns: int) -> dict[str, Any]:
    """Return the costs of the command and of the bare script, and their ratios.

    Args:
        folder: For the recording and all output.
        events: Number of events to record.
        turns: How often to run each.
    """
    count = write_events(folder / "in", events, files=min(FILES, events))

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


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="number of events")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often to run each")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="freshq-bench-"))
    try:
        found = measure(folder, given.events, given.turns)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(figures.write("pipeline_small", found, ("pyspark",)).read_text())


if __name__ == "__main__":
    main()
