"""How far claims depart from the queue's order while several claimers drain it, on DynamoDB Local.

A claim passes over a better task if that task waits during the whole claim and is claimed later. Run it
with `python -m benchmarks.passed_over`.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from local.servers import DYNAMODB_LOCAL_PACKAGE, DYNAMODB_LOCAL_VERSION, DynamoDBLocal, create_without_stream
from rich.console import Console

from benchmarks import figures
from freshq import Order, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from types_boto3_dynamodb import DynamoDBClient

TASKS: Final = 400
CLAIMERS: Final = (1, 2, 4, 8)
ROUNDS: Final = 5
# Of the queue: longer than filling and draining it takes.
MAX_AGE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claimed task and the time that its claim took.

    Attributes:
        rank: Place of the task in the queue's order; 0 is the best.
        began: When the claim was made, on the monotonic clock, in seconds.
        ended: When it was answered.
    """

    rank: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Departures:
    """How far claims departed from the order.

    Attributes:
        claimers: Claimers at a time.
        share: Part of the claims that passed over a better task.
        mean_places: Better tasks passed over, per claim that did.
        most_places: Better tasks passed over by one claim, at most.
    """

    claimers: int
    share: float
    mean_places: float
    most_places: int


def departures(claims: Sequence[TimedClaim], claimers: int) -> Departures:
    """Return how far claims of single tasks departed from the order.

    Args:
        claims: All claims of a run, whose tasks were put before it.
        claimers: Claimers at a time.
    """
    places = [
        sum(other.rank < claim.rank and other.began > claim.ended for other in claims) for claim in claims
    ]
    passed = [count for count in places if count]
    return Departures(
        claimers,
        share=len(passed) / max(1, len(places)),
        mean_places=sum(passed) / max(1, len(passed)),
        most_places=max(places, default=0),
    )


def drain(client: DynamoDBClient, claimers: int, tasks: int = TASKS, shards: int = 1) -> Departures:
    """Fill a new queue, newest first, and drain it with claims of one task."""
    table = f"bench-{uuid.uuid4().hex}"
    queues = [
        Queue.dynamodb(table, client, shards=shards, order=Order.LIFO, max_age_seconds=MAX_AGE_SECONDS)
        for _ in range(claimers)
    ]
    create_without_stream(client, table)
    for rank in reversed(range(tasks)):
        queues[0].put(rank)
    claims: list[TimedClaim] = []
    start = threading.Barrier(claimers)

    def claim_all(queue: Queue) -> None:
        start.wait()
        while len(claims) < tasks:
            began = time.monotonic()
            found = queue.claim()
            ended = time.monotonic()
            claims.extend(TimedClaim(claim.task.payload, began, ended) for claim in found)

    threads = [threading.Thread(target=claim_all, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return departures(claims, claimers)


def main() -> None:
    """Print and write the departures of 1, 2, 4 and 8 claimers, in turns."""
    parser = argparse.ArgumentParser(description="Measure how far claims depart from the queue's order.")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks to claim in each run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each number of claimers")
    arguments = parser.parse_args()
    console = Console()
    report = []
    with DynamoDBLocal() as server:
        for claimers in CLAIMERS * arguments.rounds:
            found = drain(server.client(), claimers, arguments.tasks)
            report.append(asdict(found))
            console.print(
                f"{claimers} claimers: {found.share:.0%} of the claims pass over a better task, "
                f"{found.mean_places:.1f} places on average, {found.most_places} at most"
            )
    figures.write(
        "passed_over",
        {"tasks": arguments.tasks, "rounds": arguments.rounds, "runs": report},
        programs={DYNAMODB_LOCAL_PACKAGE: DYNAMODB_LOCAL_VERSION},
    )


if __name__ == "__main__":
    main()
