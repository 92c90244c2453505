"""How many tasks a second one worker gets through on DynamoDB when every answer takes milliseconds longer.

    python -m benchmarks.distance [--delays-ms N ...] [--tasks N] [--rounds N]

DynamoDB Local is on this machine; a proxy delays its answers as a network would. Handlers are empty. A
figure counts from the first run to the last settlement, without the time to start. In turns, one endpoint
does not know batches of statements, so that every task is written by calls of its own. The figures go to
benchmarks/results/distance.json, from which `benchmarks.worker_page` makes its table.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from rich.console import Console
from tests.support import dynamodb_local
from tests.support.dynamodb_local import DynamoDBLocal, create_without_stream
from tests.support.faults import refused
from tests.support.proxy import Fault, Proxy

from benchmarks import figures
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


def tasks_per_second(client: DynamoDBClient, tasks: int) -> float:
    """Put tasks, have one worker run them, and return how many it got through in a second."""
    queue = Queue.dynamodb(TABLE, client)
    queue.put_many([{"payload": PAYLOAD} for _ in range(tasks)])
    ran: list[float] = []

    def run(_task: Task) -> None:
        ran.append(time.monotonic())

    worker = Worker(queue, run, concurrency=SLOTS)
    report = worker.run(until=lambda: len(ran) >= tasks)
    ended = time.monotonic()
    if sum(report.outcomes.values()) != tasks:
        msg = f"{tasks} tasks were put, and the worker reports {report.outcomes}"
        raise RuntimeError(msg)
    return tasks / (ended - ran[0])


@contextmanager
def far_away(delay_seconds: float) -> Iterator[DynamoDBClient]:
    """Start a server with a table, whose answers are late; yield its client."""
    with DynamoDBLocal() as server, Proxy(server.port) as proxy:
        client = client_through(proxy.port)
        create_without_stream(client, TABLE)
        proxy.delay_seconds, proxy.fault = delay_seconds, Fault.DELAY
        try:
            yield client
        finally:
            client.close()


def measured(delays_ms: Sequence[float], tasks: int, rounds: int) -> dict[str, Any]:
    """Measure both ways in turns at each distance; return the tasks a second of each round."""
    found: dict[str, Any] = {}
    for delay_ms in delays_ms:
        ways: dict[str, list[float]] = {TOGETHER: [], ALONE: []}
        with (
            far_away(delay_ms / 1000) as many,
            far_away(delay_ms / 1000) as single,
            refused(single, "BatchExecuteStatement", code="UnknownOperationException"),
        ):
            for _ in range(rounds):
                ways[TOGETHER].append(round(tasks_per_second(many, tasks), 1))
                ways[ALONE].append(round(tasks_per_second(single, tasks), 1))
        found[f"{delay_ms:g}"] = ways
    return {
        "rounds": rounds,
        "slots": SLOTS,
        "delays_ms": found,
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[5.0, 20.0])
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that batches are refused
    report = measured(options.delays_ms, options.tasks, options.rounds)
    for delay_ms, ways in report["delays_ms"].items():
        for way, each in ways.items():
            Console().print(f"{delay_ms} ms, {way}: {statistics.median(each):,.0f}/s")
    figures.write("distance", report, ("boto3",), {dynamodb_local.PACKAGE: dynamodb_local.VERSION})


if __name__ == "__main__":
    main()
