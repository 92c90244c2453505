"""The parts of `make bench`, and the files in benchmarks/results: figures with machine, day and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEASUREMENTS: Final = "contributing/measurements.md"


@dataclass(frozen=True, slots=True)
class Part:
    """One part: a module of this package that measures, and writes benchmarks/results.

    Attributes:
        module: Its name, and after a colon the function if that is not `main`.
        what: What it finds, in one line.
        files: The results that it writes, without folder and suffix.
        minutes: How long it takes, roughly.
        counts: Whether what it finds is counted, and so does not depend on the machine.
        is_default: Whether it runs if no part is named.
        has_peers: Whether it takes an interpreter that has other queues.
        page: The page that shows its figures, in docs.
    """

    module: str
    what: str
    files: tuple[str, ...]
    minutes: int
    page: str
    counts: bool = False
    is_default: bool = False
    has_peers: bool = False


PARTS: Final = {
    "capacity": Part(
        "capacity", "units and calls of each step of a task, on DynamoDB Local", ("capacity",), 1,
        "costs.md", counts=True, is_default=True,
    ),
    "invocations": Part(
        "invocations", "invocations, run times and log bytes of the application, emulated", ("invocations",),
        8, "costs.md", counts=True,
    ),
    "growth": Part(
        "growth", "how the cost of a claim grows with the queue, on each store but MariaDB",
        ("growth_memory", "growth_sqlite", "growth_postgresql", "growth_dynamodb"), 40,
        "contributing/growth.md", counts=True,
    ),
    "overload": Part(
        "overload", "goodput by load and order, simulated and of the emulated application", ("overload",), 15,
        "overload.md",
    ),
    "passed-over": Part(
        "growth:passed_over_main", "how far claims depart from the order, several claimers at once",
        ("passed_over",), 1,
        "benchmarks.md", is_default=True,
    ),
    "worker": Part(
        "worker", "what a Worker gets through on SQL, beside other queues", ("worker", "worker_two"),
        20, "contributing/throughput.md",
        has_peers=True,
    ),
    "floor": Part(
        "floor", "processor time of each verb on SQL, beside the same statements by the bare driver",
        ("floor",), 1, "contributing/floor.md",
    ),
    "lone": Part(
        "worker:lone_main", "how long a lone task takes through an idle Worker on SQL", ("lone",), 1,
        "contributing/throughput.md",
    ),
    "distance": Part(
        "distance", "a Worker on DynamoDB Local whose answers come late", ("distance",), 5,
        "contributing/throughput.md",
    ),
    "history": Part(
        "history", "what the history of a SQL queue costs, in turns with none", ("history",), 3, MEASUREMENTS
    ),
    "telemetry": Part(
        "telemetry", "what OpenTelemetry costs for each task, in turns with none", ("telemetry",), 2,
        MEASUREMENTS,
    ),
    "sql": Part(
        "sql", "claims and puts by hand on SQL, beside other queues and pgbench", ("sql",), 15, MEASUREMENTS,
        has_peers=True,
    ),
    "sql-lasting": Part(
        "sql:lasting_main", "minutes of claims by hand on PostgreSQL, beside a million finished rows",
        ("sql_lasting",), 7, MEASUREMENTS,
    ),
    "sql-dead-index": Part(
        "sql:dead_index_main", "what the index of dead letters costs other tasks, on MariaDB",
        ("sql_dead_index",), 2, MEASUREMENTS,
    ),
    "asyncio": Part(
        "coroutines", "puts and sleeping handlers of one event loop, beside other queues", ("asyncio",), 4,
        MEASUREMENTS,
    ),
    "simulator": Part(
        "overload:simulator_main", "simulated tasks a second, by policy", ("simulator",), 1,
        MEASUREMENTS, is_default=True,
    ),
    "cli": Part(
        "coldstart:cli_main", "processor time of commands, against their limits",
        ("cli",), 1, MEASUREMENTS, is_default=True
    ),
    "coldstart": Part(
        "coldstart", "processor time of the functions' cold starts, traced or not", ("coldstart",),
        3, "contributing/cold-starts.md",
    ),
    "pipeline": Part(
        "pipeline", "the pipeline on 2 million events, beside DuckDB and Polars", ("pipeline",), 10,
        "contributing/pipeline.md",
    ),
    "pipeline-large": Part(
        "pipeline:large_main", "the pipeline on 20 million events, beside DuckDB", ("pipeline_large",), 20,
        "contributing/pipeline.md",
    ),
    "pipeline-nights": Part(
        "pipeline:nights_main", "a night of the pipeline beside a run over 62 days", ("pipeline_nights",), 15,
        "contributing/pipeline.md",
    ),
    "pipeline-small": Part(
        "pipeline:small_main", "the pipeline on 1,000 events beside a bare PySpark script",
        ("pipeline_small",), 5, "contributing/pipeline.md",
    ),
}  # fmt: skip


T = TypeVar("T")


def rotated(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders in the order of a round: each round begins with another one.

    What runs first finds a colder machine; so each has each place as often as the others.

    Args:
        contenders: All, in any order.
        number: Number of the round, from 0.
    """
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


RESULTS: Final = Path("benchmarks/results")
GIB: Final = 2**30
# Of the last minute, before this process did anything: what else the machine does.
LOAD_BEFORE: Final = os.getloadavg()[0]
# What a part writes itself does not change the code that it measured.
WRITTEN: Final = (":!benchmarks/results", ":!docs")


def machine(packages: Sequence[str] = (), programs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the shape of this machine, never its name.

    Args:
        packages: Installed packages whose versions matter to the figures.
        programs: Versions of other programs, by their names.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {name: version(name) for name in packages} | dict(programs or {})
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / GIB),
        "system": f"{platform.system()} on {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(LOAD_BEFORE, 1),
        # Of the last 15 minutes, this part's own work included.
        "load": round(os.getloadavg()[2], 1),
    } | ({"versions": versions} if versions else {})


def commit(folder: Path = Path()) -> str:
    """Return the commit of the code in a folder, with "+" if it was changed since.

    Raises:
        subprocess.CalledProcessError: If the folder is in no git repository.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def today() -> str:
    """Return the date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def write(
    name: str,
    figures: Any,
    packages: Sequence[str] = (),
    programs: Mapping[str, str] | None = None,
) -> Path:
    """Write the figures of a part, with the date, the commit and the machine; return the file."""
    whole = {
        "date": today(),
        "commit": commit(),
        "machine": machine(packages, programs),
        "figures": figures,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def read(name: str) -> dict[str, Any]:
    """Return the file of a part: its date, commit, machine and figures. Older files have no commit.

    Raises:
        FileNotFoundError: If the part was never measured.
    """
    whole: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return whole


def is_measured(name: str) -> bool:
    """Return whether there is a file of a part."""
    return (RESULTS / f"{name}.json").exists()


def figures_of(name: str) -> Any:
    """Return only the figures of a part."""
    return read(name)["figures"]
