"""Throughput of one worker on DynamoDB when every answer takes some milliseconds longer.

A proxy in its own process delays the answers of DynamoDB Local, as a network would. Handlers are empty. A
figure counts from the first run to the last settlement. In turns, one endpoint refuses batches of statements,
so that each task is written by its own calls.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from local.faults import Fault, Proxy, client_at, refused
from local.servers import DynamoDBLocal, create_without_stream

from benchmarks import figures
from benchmarks.figures import CONTEXT, in_turns
from freshq import Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Task

SLOTS: Final = 25
TOGETHER: Final = "25 writes a call"
ALONE: Final = "one write a call"
PAYLOAD: Final = {"text": "x" * 1000}
# More than a worker uses at the same time, so that no call waits for a connection.
CONNECTIONS: Final = 60
TABLE: Final = "distance"
# Figures in the file: tasks a second by delay, and the processor time of a task.
RATE: Final = "delays_ms"
WORKER_TIME: Final = "worker_processor_ms"
SERVER_TIME: Final = "server_processor_ms"
FIGURES: Final = (RATE, WORKER_TIME, SERVER_TIME)
START_SECONDS: Final = 60


class Far(NamedTuple):
    """A server with a table, and a client whose calls are delayed."""

    server: DynamoDBLocal
    client: DynamoDBClient


def measured_once(far: Far, tasks: int) -> dict[str, float]:
    """Run tasks in one worker; return the tasks a second, and both sides' processor time per task."""
    queue = Queue.dynamodb(TABLE, far.client)
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    ran: list[tuple[float, float, float]] = []

    def now() -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), processor_seconds(far.server.process_id)

    def run(_task: Task) -> None:
        ran.append(now() if not ran else ran[0])

    worker = Worker(queue, run, concurrency=SLOTS)
    report = worker.run(until=lambda: len(ran) >= tasks)
    seconds, own, of_server = (end - start for end, start in zip(now(), ran[0], strict=True))
    if sum(report.outcomes.values()) != tasks:
        msg = f"{tasks} tasks were put, but the worker reports {report.outcomes}"
        raise RuntimeError(msg)
    return {
        RATE: round(tasks / seconds, 1),
        WORKER_TIME: round(1000 * own / tasks, 2),
        SERVER_TIME: round(1000 * of_server / tasks, 2),
    }


def processor_seconds(process_id: int) -> float:
    """Return the processor time of a process: the fields utime and stime of proc(5)."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def far_away(delay_seconds: float) -> Iterator[Far]:
    """Start a server with a table whose answers are delayed."""
    ready, over = CONTEXT.Queue(), CONTEXT.Event()
    with DynamoDBLocal() as server:
        proxy = CONTEXT.Process(target=_delay, args=(server.port, delay_seconds, ready, over))
        proxy.start()
        try:
            port = ready.get(timeout=START_SECONDS)
            client = client_at(f"http://127.0.0.1:{port}", connections=CONNECTIONS)
            create_without_stream(client, TABLE)
            yield Far(server, client)
            client.close()
        finally:
            over.set()
            proxy.join()


def _delay(port: int, delay_seconds: float, ready: Any, over: Any) -> None:
    """Delay the answers of a server, in this process."""
    with Proxy(port) as proxy:
        proxy.delay_seconds, proxy.fault = delay_seconds, Fault.DELAY
        ready.put(proxy.port)
        over.wait()


def main(delays_ms: str = "0,5,20", tasks: int = 500, rounds: int = 4) -> None:
    """Measure both ways of writing at each distance, in turns."""
    logging.disable(logging.WARNING)  # of refused batches
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in FIGURES}
    for delay_ms in figures.numbers(delays_ms):
        with (
            far_away(delay_ms / 1000) as many,
            far_away(delay_ms / 1000) as single,
            refused(single.client, "BatchExecuteStatement", code="UnknownOperationException"),
        ):
            measured_once(many, tasks)  # lets Java compile
            ways = {
                TOGETHER: partial(measured_once, many, tasks),
                ALONE: partial(measured_once, single, tasks),
            }
            results = in_turns(ways, rounds)
        for name, by_delay in found.items():
            by_delay[str(delay_ms)] = {way: [one[name] for one in each] for way, each in results.items()}
    figures.write("distance", {"rounds": rounds, "slots": SLOTS, "tasks": tasks, **found})
