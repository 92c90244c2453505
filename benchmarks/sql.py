"""Tasks a second through a SQL queue by hand, and the costs of its history and of telemetry, all in turns."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
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
from benchmarks.figures import PAYLOAD, in_processes, in_turns
from benchmarks.library_pages import BY_TEN, DURABLE, ONE_BY_ONE, PUT
from freshq import Queue, Settlement, Worker
from freshq.model.telemetry import Telemetry
from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.telemetry import OpenTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

MAX_PROCESSES: Final = 2
# Enough for several seconds of work.
TASKS: Final = {1: 1600, 8: 6400, 32: 6400}
SQLITE_TASKS: Final = 3000


def divided(number: int, parts: int) -> list[int]:
    """Split a number into parts that differ by at most one."""
    return [number // parts + (part < number % parts) for part in range(parts)]


def fill(url: str, tasks: int, payload: Any = PAYLOAD, *, durable: bool = True) -> None:
    """Leave only a number of new tasks in a queue."""
    queue = Queue.sql(url, durable=durable)
    queue.create_table()
    queue.purge(confirm="default")
    queue.put_many([{"payload": payload} for _ in range(tasks)])
    queue.close()


def put_all(queue: Queue, tasks: int) -> None:
    """Put tasks one by one."""
    for _ in range(tasks):
        queue.put(PAYLOAD)


def complete_all(queue: Queue, limit: int) -> None:
    """Claim and complete tasks until none is left."""
    while claims := queue.claim(limit=limit):
        if limit == 1:
            queue.complete(claims[0])
        else:
            queue.settle_many([Settlement.complete(claim) for claim in claims])


def in_threads(threads: int, work: Callable[[], object]) -> None:
    """Run the same work in a number of threads."""
    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def by_hand(ready: Callable[[], object], workers: int, url: str, work: partial[None]) -> tuple[float, float]:
    """Work in threads of this process; return when they began and ended.

    Args:
        ready: Waits until every process is connected.
        workers: Number of threads.
        url: The queue.
        work: Called with the queue in each thread.
    """
    queue = Queue.sql(url)
    queue.stats(approximate=True)  # connects
    ready()
    began = time.monotonic()
    in_threads(workers, partial(work, queue))
    ended = time.monotonic()
    queue.close()
    return began, ended


def rate(url: str, workers: int, tasks: int, work: partial[None], filled: int) -> float:
    """Return the tasks a second of workers in at most two processes.

    Args:
        url: The queue.
        workers: Threads in all.
        tasks: Tasks that they put, or complete.
        work: Called with the queue in each thread.
        filled: Tasks in the queue beforehand.
    """
    fill(url, filled)
    processes = divided(workers, min(workers, MAX_PROCESSES))
    spans = in_processes(by_hand, [(threads, url, work) for threads in processes])
    return round(tasks / (max(ended for _, ended in spans) - min(began for began, _ in spans)), 1)


def on_postgresql(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the tasks a second of each contender by number of workers."""
    measured: dict[tuple[str, int], Callable[[], float]] = {}
    with Postgres(durable=True) as server:
        for workers, tasks in TASKS.items():
            puts = partial(put_all, tasks=tasks // workers)
            measured[PUT, workers] = partial(rate, server.url, workers, tasks, puts, 0)
            for name, limit in ((ONE_BY_ONE, 1), (BY_TEN, 10)):
                work = partial(complete_all, limit=limit)
                measured[name, workers] = partial(rate, server.url, workers, tasks, work, tasks)
        found = in_turns(measured, rounds)
    by_name: dict[str, dict[str, list[float]]] = {}
    for (name, workers), rates in found.items():
        by_name.setdefault(name, {})[str(workers)] = rates
    return by_name


def on_sqlite(tasks: int, limit: int | None, *, durable: bool) -> float:
    """Return the claims and completions a second in a new file, or the puts a second if there is no limit."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'freshq.db'}"
        fill(url, tasks if limit else 0, durable=durable)
        queue = Queue.sql(url, durable=durable)
        queue.stats(approximate=True)  # connects
        began = time.monotonic()
        if limit:
            complete_all(queue, limit)
        else:
            put_all(queue, tasks)
        seconds = time.monotonic() - began
        queue.close()
    return round(tasks / seconds, 1)


def main(rounds: int = 3, tasks: int = SQLITE_TASKS) -> None:
    """Measure on SQLite and PostgreSQL.

    Args:
        rounds: How often each contender runs.
        tasks: Tasks of a run on SQLite.
    """
    ways = {PUT: None, ONE_BY_ONE: 1, BY_TEN: 10}
    sqlite = in_turns(
        {
            name + DURABLE * durable: partial(on_sqlite, tasks, limit, durable=durable)
            for durable, (name, limit) in product((False, True), ways.items())
        },
        rounds,
    )
    figures.write("sql", {"rounds": rounds, "sqlite": sqlite, "postgresql": on_postgresql(rounds)})


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


TELEMETRY_TASKS: Final = 1000
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
        for _ in range(TELEMETRY_TASKS):
            queue.put(PAYLOAD)
        put = time.process_time() - began
        report = Worker(queue, lambda _task: None, concurrency=CONCURRENCY, idle_exit_seconds=0).run()
        work = time.process_time() - began - put
    if report.progress != TELEMETRY_TASKS:
        msg = f"{setting}: the worker ran {report.progress} of {TELEMETRY_TASKS} tasks"
        raise RuntimeError(msg)
    return {"put": put / TELEMETRY_TASKS * 1e6, "work": work / TELEMETRY_TASKS * 1e6}


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
    report = {
        "rounds": rounds,
        "tasks": TELEMETRY_TASKS,
        "context_bytes": context_bytes(),
        "settings": ratios(found),
    }
    figures.write("telemetry", report)
