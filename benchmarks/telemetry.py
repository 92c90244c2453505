"""What telemetry costs: puts and empty runs without it and with it, in turns, on one SQLite database.

    python -m benchmarks.telemetry [--rounds N]

Each round does the same with every setting, one after the other, and the figures are ratios of processor time
within a round: how fast the machine is, and what else it does, hardly matters. They go to
benchmarks/results/telemetry.json. The bytes of a trace context are those that DynamoDB counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import rotated
from benchmarks.worker import processor_seconds
from freshq import OpenTelemetry, Queue, Worker
from freshq.model.telemetry import Telemetry
from freshq.stores.dynamodb.items import Keyspace, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler


TASKS: Final = 1000
CONCURRENCY: Final = 8
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}
OFF: Final = "off"
SETTINGS: Final = (OFF, "no SDK", "SDK, not sampled", "SDK, every trace sampled")
Figure = dict[str, float]


class Nowhere(SpanExporter):
    """Drops spans, as what a collector does with them is not measured."""

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def told(setting: str) -> Iterator[Telemetry]:
    """Return the telemetry of a setting."""
    if setting in (OFF, "no SDK"):
        yield Telemetry() if setting == OFF else OpenTelemetry()
        return
    sampler: Sampler = ALWAYS_OFF if "not sampled" in setting else ALWAYS_ON
    tracers = TracerProvider(sampler, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    yield OpenTelemetry(tracers, meters)
    tracers.shutdown()
    meters.shutdown()


def measured(setting: str) -> Figure:
    """Put tasks one by one, and run them in a worker; return the processor time for each task."""
    with tempfile.TemporaryDirectory() as folder, told(setting) as telemetry:
        queue = Queue.sql(f"sqlite:///{folder}/tasks.db", durable=False, telemetry=telemetry)
        queue.create_table()
        began, wall = processor_seconds(), time.monotonic()
        for _ in range(TASKS):
            queue.put(PAYLOAD)
        put, put_wall = processor_seconds() - began, time.monotonic() - wall
        began, wall = processor_seconds(), time.monotonic()
        report = Worker(queue, lambda _task: None, concurrency=CONCURRENCY, idle_exit_seconds=0).run()
        if report.progress != TASKS:
            msg = f"{setting}: {report.progress} of {TASKS} tasks were run"
            raise RuntimeError(msg)
        work, work_wall = processor_seconds() - began, time.monotonic() - wall
    seconds = {"put": put, "work": work, "put_wall": put_wall, "work_wall": work_wall}
    return {f"{name}_microseconds": value / TASKS * 1e6 for name, value in seconds.items()}


def context_bytes() -> int:
    """Return by how much a traceparent makes an item larger; the name of the attribute counts too."""
    queue = Queue.memory()
    queue.put(PAYLOAD, task_id="a", trace_context=f"00-{'1' * 32}-{'2' * 16}-01")
    (task,) = queue.list()
    return len("traceContext") + len(encode(task, Keyspace(1))["traceContext"]["S"])


def ratios(rounds: Sequence[dict[str, Figure]]) -> dict[str, Figure]:
    """Return the medians of each setting, and of its ratios to no telemetry in the same round."""
    found: dict[str, Figure] = {}
    for setting in SETTINGS:
        figures = [each[setting] for each in rounds]
        found[setting] = {
            name: round(statistics.median(figure[name] for figure in figures), 1) for name in figures[0]
        }
        for part in ("put", "work"):
            name = f"{part}_microseconds"
            each = [one[setting][name] / one[OFF][name] for one in rounds]
            found[setting][f"{part}_ratio"] = round(statistics.median(each), 3)
    return found


def shown(found: dict[str, Figure]) -> Table:
    """Return the figures as a table."""
    table = Table("telemetry", "put, µs", "ratio", "claim, run, settle, µs", "ratio")
    for setting, figure in found.items():
        parts = [(figure[f"{part}_microseconds"], figure[f"{part}_ratio"]) for part in ("put", "work")]
        table.add_row(setting, *(f"{value:g}" for part in parts for value in part))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and show the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    measured(OFF)  # loads what is needed
    rounds = [
        {setting: measured(setting) for setting in rotated(SETTINGS, number)}
        for number in range(options.rounds)
    ]
    found = ratios(rounds)
    console = Console()
    console.print(shown(found), f"a trace context takes {context_bytes()} bytes of an item")
    results = {
        "rounds": options.rounds,
        "tasks": TASKS,
        "context_bytes": context_bytes(),
        "settings": found,
    }
    figures.write("telemetry", results, ("opentelemetry-sdk",))


if __name__ == "__main__":
    main()
