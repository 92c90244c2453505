"""A table on DynamoDB Local, queues on it by a clock of the benchmark's own, and measured steps."""

from __future__ import annotations

import random
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, Final
from unittest.mock import patch

from local.servers import create_without_stream

from benchmarks.metering import metered
from freshq import Queue
from freshq.stores import clocks
from freshq.stores.dynamodb import lines, shared_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_dynamodb import DynamoDBClient

START_SECONDS: Final = 1_700_000_000.0
LEASE_SECONDS: Final = 60.0
QUEUE_MAX_AGE_SECONDS: Final = 3600.0
# Of usual size: an item stays well under the 1 KB of one write unit.
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}


@dataclass
class Clock:
    """A clock that stands still unless a benchmark moves it."""

    now: float = START_SECONDS
    # So that no store looks whether it is.
    simulated: ClassVar[bool] = True

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@dataclass(frozen=True)
class Cost:
    """The cost of one step for one task.

    Attributes:
        step: Name of the step.
        tasks: Number of tasks measured.
        write_units: Write request units per task.
        read_units: Read request units per task.
        calls: SDK calls per task.
    """

    step: str
    tasks: int
    write_units: float
    read_units: float
    calls: float


class Bench:
    """A new table, queues on it, and measured steps."""

    def __init__(self, client: DynamoDBClient) -> None:
        """Create the table."""
        self.client = client
        self.clock = Clock()
        self.table = f"bench-{uuid.uuid4().hex}"
        create_without_stream(client, self.table)

    def queue(self) -> Queue:
        """Return a queue as a new process has it."""
        return Queue.dynamodb(
            self.table,
            self.client,
            clock=self.clock,
            rng=random.Random(7),
            lease_seconds=LEASE_SECONDS,
            max_age_seconds=QUEUE_MAX_AGE_SECONDS,
        )

    def fill(self, tasks: int) -> None:
        """Put tasks without measuring."""
        self.queue().put_many([{"payload": PAYLOAD}] * tasks)

    def measure(self, step: str, tasks: int, action: Callable[[], object]) -> Cost:
        """Return the cost of an action per task."""
        with metered(self.client) as meter:
            action()
        figures = (meter.write_units, meter.read_units, meter.calls.total())
        return Cost(step, tasks, *(round(figure / tasks, 3) for figure in figures))


@contextmanager
def new_bench(client: DynamoDBClient) -> Iterator[Bench]:
    """Return a bench by whose clock everything goes that freshq times by the machine's."""
    bench = Bench(client)
    machine = SimpleNamespace(time=bench.clock, monotonic=bench.clock)
    with ExitStack() as patches:
        for module in (clocks, shared_records, lines):
            patches.enter_context(patch.object(module, "time", machine))
        yield bench
