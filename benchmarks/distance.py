"""How many tasks a second one worker gets through on DynamoDB when every answer takes milliseconds longer.

    python -m benchmarks.distance [--delays-ms N ...] [--tasks N] [--rounds N]

DynamoDB Local is on this machine; a proxy in a process of its own delays its answers as a network would.
Handlers are empty. A figure counts from the first run to the last settlement, without the time to start. In
turns, one endpoint does not know batches of statements, so that each task is written by separate calls. The
figures go to benchmarks/results/distance.json, from which `benchmarks.worker_page` makes its table.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from local.faults import Fault, Proxy, refused
from local.servers import DYNAMODB_LOCAL_PACKAGE, DYNAMODB_LOCAL_VERSION, DynamoDBLocal, create_without_stream
from rich.console import Console

from benchmarks import figures
from benchmarks.figures import rotated
from freshq import Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Task

SLOTS: Final = 25
TOGETHER: Final = "25 writes a call"
ALONE: Final = "one write a call"
PAYLOAD: Final = {"text": "x" * 1000}
# More than a worker asks for at once, so that none waits for a connection.
CONNECTIONS: Final = 60
TABLE: Final = "distance"
# Figures in the file: tasks a second by delay, and the processor time of a task.
RATE: Final = "delays_ms"
WORKER_TIME: Final = "worker_processor_ms"
SERVER_TIME: Final = "server_processor_ms"
FIGURES: Final = (RATE, WORKER_TIME, SERVER_TIME)
START_SECONDS: Final = 60
CONTEXT: Final = multiprocessing.get_context("spawn")


def client_through(port: int) -> DynamoDBClient:
    """Return a client whose calls pass the proxy."""
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - DynamoDB Local takes any
        config=Config(max_pool_connections=CONNECTIONS),
    )
    return client


def measured_once(far: Far, tasks: int) -> dict[str, float]:
    """Have one worker run tasks; return how many a second, and both sides' processor time for each."""
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
        msg = f"{tasks} tasks were put, and the worker reports {report.outcomes}"
        raise RuntimeError(msg)
    return {
        RATE: round(tasks / seconds, 1),
        WORKER_TIME: round(1000 * own / tasks, 2),
        SERVER_TIME: round(1000 * of_server / tasks, 2),
    }


def processor_seconds(process_id: int) -> float:
    """Return the processor time of a process, by proc(5): the fields utime and stime."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Far:
    """A table far away.

    Attributes:
        server: Where it is.
        client: Leads there.
    """

    server: DynamoDBLocal
    client: DynamoDBClient


@contextmanager
def far_away(delay_seconds: float) -> Iterator[Far]:
    """Start a server with a table, whose answers are late."""
    ready, over = CONTEXT.Queue(), CONTEXT.Event()
    with DynamoDBLocal() as server:
        proxy = CONTEXT.Process(target=_stand_between, args=(server.port, delay_seconds, ready, over))
        proxy.start()
        try:
            client = client_through(ready.get(timeout=START_SECONDS))
            create_without_stream(client, TABLE)
            yield Far(server, client)
            client.close()
        finally:
            over.set()
            proxy.join()


def _stand_between(port: int, delay_seconds: float, ready: Any, over: Any) -> None:
    """Delay the answers of a server, in this process."""
    with Proxy(port) as proxy:
        proxy.delay_seconds, proxy.fault = delay_seconds, Fault.DELAY
        ready.put(proxy.port)
        over.wait()


def measured(delays_ms: Sequence[float], tasks: int, rounds: int) -> dict[str, Any]:
    """Measure both ways in turns at each distance; return each figure by distance and way, for each round."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in FIGURES}
    for delay_ms in delays_ms:
        ways: dict[str, list[dict[str, float]]] = {TOGETHER: [], ALONE: []}
        with (
            far_away(delay_ms / 1000) as many,
            far_away(delay_ms / 1000) as single,
            refused(single.client, "BatchExecuteStatement", code="UnknownOperationException"),
        ):
            measured_once(many, tasks)  # Java compiles
            for number in range(rounds):
                for way, far in rotated([(TOGETHER, many), (ALONE, single)], number):
                    ways[way].append(measured_once(far, tasks))
        for name, by_delay in found.items():
            by_delay[f"{delay_ms:g}"] = {way: [one[name] for one in each] for way, each in ways.items()}
    return {"rounds": rounds, "slots": SLOTS, "tasks": tasks, **found}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[0.0, 5.0, 20.0])
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that batches are refused
    report = measured(options.delays_ms, options.tasks, options.rounds)
    for delay_ms, ways in report[RATE].items():
        for way, each in ways.items():
            Console().print(f"{delay_ms} ms, {way}: {statistics.median(each):,.0f}/s")
    figures.write("distance", report, ("boto3",), {DYNAMODB_LOCAL_PACKAGE: DYNAMODB_LOCAL_VERSION})


if __name__ == "__main__":
    main()
