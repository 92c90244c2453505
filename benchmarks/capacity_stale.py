"""What a claim on DynamoDB reads that first has to pass over tasks stale by their own max age."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from local.servers import load

from benchmarks.capacity_bench import PAYLOAD, new_bench

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

# A claim passes over the first; the second are more than it can.
STALE: Final = (3_000, 20_000)
CLAIM: Final = 10


@dataclass(frozen=True, slots=True)
class BehindStale:
    """What one claim reads.

    Attributes:
        stale: Stale tasks before the live ones.
        found: Tasks that the claim found, of ten.
        read_units: Read units of the claim.
    """

    stale: int
    found: int
    read_units: float


def behind_stale(client: DynamoDBClient, stale: int) -> BehindStale:
    """Measure a claim of 10, newest first, where so many stale tasks are newer than ten live ones."""
    with new_bench(client) as bench:
        queue, now = bench.queue(), bench.clock.now
        bench.fill(CLAIM)
        (taken,) = queue.claim()  # reads the control record
        live = queue.get(queue.put(PAYLOAD).task_id) or taken.task
        # Put in the same second, each a microsecond after the one before, and stale since.
        newer = [
            replace(
                live,
                task_id=str(uuid.uuid4()),
                created=round(now + 1 + number / 1e6, 6),
                deadline=now + 2,
            )
            for number in range(stale)
        ]
        load(client, bench.table, newer)
        bench.clock.now += 3
        found: list[int] = []
        cost = bench.measure("", 1, lambda: found.append(len(queue.claim(limit=CLAIM))))
    return BehindStale(stale, found[0], cost.read_units)
