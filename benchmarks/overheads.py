"""Costs of a SQL queue's history and of telemetry: the same tasks with and without them, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from local.servers import MariaDB, Postgres, Unavailable
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from rich.console import Console
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import PAYLOAD, in_turns
from freshq import Queue, Settlement, Worker
from freshq.model.telemetry import Telemetry
from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.telemetry import OpenTelemetry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

OFF: Final = "off"
# Each kind of history in its own table. "of another queue": the table's triggers write another queue's
# history.
TABLES: Final = {OFF: "tasks_off", "of another queue": "tasks_other", "on": "tasks_on"}
KEPT_OF: Final = {"of another queue": "other", "on": "default"}
BATCHES: Final = (1, 10)
# Wall and processor seconds.
Times = tuple[float, float]


def databases(stack: ExitStack) -> Iterator[tuple[str, str]]:
    """Yield name and URL of each database that can run here; the stack stops the servers."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    yield "SQLite", f"sqlite:///{folder}/tasks.db"
    for name, server in (("PostgreSQL", Postgres(durable=True)), ("MariaDB", MariaDB())):
        try:
            yield name, stack.enter_context(server).url
        except Unavailable as missing:
            Console(stderr=True).print(f"{name}: {missing}")


def opened(url: str, table: str, kept_of: str | None) -> Queue:
    """Return the queue `default` in a new table that keeps the history of one queue, or of none."""
    for name in {kept_of or "default", "default"}:
        queue = Queue.sql(url, table, name=name, history=True if name == kept_of else None)
        queue.create_table()
        queue.close()
    return Queue.sql(url, table)


def processed(queue: Queue, tasks: int, batch: int) -> Times:
    """Put, claim and complete tasks; return the wall and processor time per task in µs."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(0, tasks, batch):
        if batch == 1:
            queue.put({"n": 1})
            (claim,) = queue.claim()
            queue.complete(claim)
        else:
            queue.put_many([{"payload": {"n": 1}}] * batch)
            queue.settle_many([Settlement.complete(claim) for claim in queue.claim(limit=batch)])
    ended = time.perf_counter() - start, time.process_time() - busy
    return round(ended[0] / tasks * 1e6, 1), round(ended[1] / tasks * 1e6, 1)


def summary(found: dict[str, list[Times]]) -> dict[str, dict[str, Any]]:
    """Return the median times of a task and the quartiles of the ratios to none, by kind of history."""
    summed: dict[str, dict[str, Any]] = {name: {} for name in found}
    for name, times in found.items():
        for kind, title in enumerate(("wall", "processor")):
            ratios = [one[kind] / off[kind] for one, off in zip(times, found[OFF], strict=True)]
            quartiles = statistics.quantiles(ratios, n=4, method="inclusive")
            summed[name][f"{title}_us"] = round(statistics.median(each[kind] for each in times), 1)
            summed[name][f"{title}_ratios"] = [round(ratio, 3) for ratio in quartiles]
    return summed


def history_of(url: str, rounds: int, tasks: int) -> dict[str, Any]:
    """Return the summary of one database by batch size."""
    queues = {name: opened(url, table, KEPT_OF.get(name)) for name, table in TABLES.items()}
    for queue in queues.values():
        processed(queue, 20, 10)  # opens the connections
    found = in_turns(
        {
            (batch, name): partial(processed, queue, tasks, batch)
            for batch in BATCHES
            for name, queue in queues.items()
        },
        rounds,
    )
    for queue in queues.values():
        queue.close()
    return {str(batch): summary({name: found[batch, name] for name in queues}) for batch in BATCHES}


def history(rounds: int = 100, tasks: int = 20) -> None:
    """Measure puts, claims and completions with and without a history on each database.

    Rounds are short, so that the machine's noise is the same for all. At least two are needed for quartiles.
    """
    with ExitStack() as stack:
        found = {name: history_of(url, rounds, tasks) for name, url in databases(stack)}
    figures.write("history", {"rounds": rounds, "tasks": tasks, "databases": found})


TASKS: Final = 1000
CONCURRENCY: Final = 8
SAMPLERS: Final = {"SDK, not sampled": ALWAYS_OFF, "SDK, every trace sampled": ALWAYS_ON}
SETTINGS: Final = (OFF, "no SDK", *SAMPLERS)


class Nowhere(SpanExporter):
    """Drops spans: the cost of a collector is not measured."""

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def telemetry_of(setting: str) -> Iterator[Telemetry]:
    """Yield the telemetry of a setting."""
    if setting not in SAMPLERS:
        yield Telemetry() if setting == OFF else OpenTelemetry()
        return
    tracers = TracerProvider(SAMPLERS[setting], shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    yield OpenTelemetry(tracers, meters)
    tracers.shutdown()
    meters.shutdown()


def put_and_run(setting: str) -> dict[str, float]:
    """Put tasks one by one and run them in a worker; return the processor time per task in µs."""
    with tempfile.TemporaryDirectory() as folder, telemetry_of(setting) as telemetry:
        queue = Queue.sql(f"sqlite:///{folder}/tasks.db", durable=False, telemetry=telemetry)
        queue.create_table()
        began = time.process_time()
        for _ in range(TASKS):
            queue.put(PAYLOAD)
        put = time.process_time() - began
        report = Worker(queue, lambda _task: None, concurrency=CONCURRENCY, idle_exit_seconds=0).run()
        work = time.process_time() - began - put
    if report.progress != TASKS:
        msg = f"{setting}: the worker ran {report.progress} of {TASKS} tasks"
        raise RuntimeError(msg)
    return {"put": put / TASKS * 1e6, "work": work / TASKS * 1e6}


def context_bytes() -> int:
    """Return by how many bytes a traceparent enlarges an item, including the attribute's name."""
    queue = Queue.memory()
    queue.put(PAYLOAD, task_id="a", trace_context=f"00-{'1' * 32}-{'2' * 16}-01")
    (task,) = queue.list()
    return len("traceContext") + len(encode(task, Keyspace(1))["traceContext"]["S"])


def ratios(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return, by setting, the medians and the medians of the ratios to no telemetry within a round."""
    return {
        setting: {
            f"{step}_{kind}": round(statistics.median(values), digits)
            for step in ("put", "work")
            for kind, digits, values in (
                ("microseconds", 1, [each[step] for each in rounds]),
                ("ratio", 3, [each[step] / off[step] for each, off in zip(rounds, found[OFF], strict=True)]),
            )
        }
        for setting, rounds in found.items()
    }


def telemetry(rounds: int = 9) -> None:
    """Measure puts and empty runs with and without telemetry, on one SQLite database.

    Ratios of processor time within a round hardly depend on the machine and its load.
    """
    put_and_run(OFF)  # loads the modules
    found = in_turns({setting: partial(put_and_run, setting) for setting in SETTINGS}, rounds)
    report = {"rounds": rounds, "tasks": TASKS, "context_bytes": context_bytes(), "settings": ratios(found)}
    figures.write("telemetry", report)
