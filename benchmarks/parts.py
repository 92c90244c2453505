"""The parts of `make bench`, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
        "cli", "processor time of commands, against their limits", ("cli",), 1, MEASUREMENTS, is_default=True
    ),
    "coldstart": Part(
        "coldstart", "processor time of the functions' cold starts, traced or not", ("coldstart",),
        3, "deploy.md",
    ),
    "pipeline": Part(
        "pipeline", "the pipeline on 2 million events, beside DuckDB and Polars", ("pipeline",), 10,
        "pipeline.md",
    ),
    "pipeline-large": Part(
        "pipeline:large_main", "the pipeline on 20 million events, beside DuckDB", ("pipeline_large",), 20,
        "pipeline.md",
    ),
    "pipeline-nights": Part(
        "pipeline:nights_main", "a night of the pipeline beside a run over 62 days", ("pipeline_nights",), 15,
        "pipeline.md",
    ),
    "pipeline-small": Part(
        "pipeline:small_main", "the pipeline on 1,000 events beside a bare PySpark script",
        ("pipeline_small",), 5, "pipeline.md",
    ),
}  # fmt: skip
