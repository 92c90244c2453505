"""Capacity units and calls of each step of a task's life, counted on Amazon's DynamoDB Local.

The units come from ReturnConsumedCapacity, so that they do not depend on the machine. A write whose
condition failed reports none; it is billed by the item's size all the same, one unit here.

    python -m benchmarks.capacity [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from tests.support.dynamodb_local import DynamoDBLocal, stop_stream
from tests.support.faults import AFTER, client_at, hooked, meanwhile

from freshq import Queue
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Claim, Receipt
    from freshq.stores.conflicts import OnConflict

READS: Final = ("GetItem", "BatchGetItem", "Query", "Scan")
WRITES: Final = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
START_SECONDS: Final = 1_700_000_000.0
LEASE_SECONDS: Final = 60.0
QUEUE_MAX_AGE_SECONDS: Final = 3600.0
# A payload of the size of a usual reference; an item stays well under the 1 KB of one write unit.
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}
# Of an eventually consistent read of up to 4 KB.
LEAST_READ_UNITS: Final = 0.5
OUT: Final = Path("build/capacity.json")


@dataclass
class Clock:
    """A clock that moves only when it is told to."""

    now: float = START_SECONDS

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@dataclass(eq=False)
class Meter:
    """What the calls of a client consumed.

    Attributes:
        write_units: Write request units.
        read_units: Read request units.
        calls: Calls of the SDK by operation.
        refused: Writes whose condition did not hold, included in the others.
    """

    write_units: float = 0.0
    read_units: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def ask(self, params: dict[str, Any], **_rest: Any) -> dict[str, Any]:  # noqa: ANN401 - botocore's
        """Have DynamoDB tell what a call consumes."""
        return params | {"ReturnConsumedCapacity": "INDEXES"}

    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:  # noqa: ANN401 - botocore's
        """Add up what a call consumed."""
        self.calls[model.name] += 1
        if parsed.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            self.refused += 1
            self.write_units += 1
            return
        consumed = parsed["ConsumedCapacity"]
        parts = consumed if isinstance(consumed, list) else [consumed]
        units = sum(part["CapacityUnits"] for part in parts)
        if model.name in READS:
            # A read that finds nothing is billed as the least read, which DynamoDB Local leaves out.
            self.read_units += max(units, LEAST_READ_UNITS)
        else:
            self.write_units += units


@contextmanager
def metered(client: DynamoDBClient) -> Iterator[Meter]:
    """Count what a client consumes."""
    meter = Meter()
    with ExitStack() as hooks:
        for operation in (*READS, *WRITES):
            hooks.enter_context(hooked(client, "provide-client-params", meter.ask, operation))
            hooks.enter_context(hooked(client, AFTER, meter.count, operation))
        yield meter


@dataclass(frozen=True)
class Cost:
    """What one step costs for one task.

    Attributes:
        step: Name of the step.
        tasks: Over how many tasks it was measured.
        write_units: Write request units a task.
        read_units: Read request units a task.
        calls: Calls of the SDK a task.
    """

    step: str
    tasks: int
    write_units: float
    read_units: float
    calls: float


class Bench:
    """A fresh table, queues on it, and steps measured one by one."""

    def __init__(self, client: DynamoDBClient) -> None:
        """Make the table."""
        self.client = client
        self.clock = Clock()
        self.table = f"bench-{uuid.uuid4().hex}"
        self.queue().create_table()
        stop_stream(client, self.table)

    def queue(self) -> Queue:
        """Return a queue as another process would have it."""
        return Queue.dynamodb(
            self.table,
            self.client,
            clock=self.clock,
            rng=random.Random(7),  # noqa: S311 - jitter
            lease_seconds=LEASE_SECONDS,
            max_age_seconds=QUEUE_MAX_AGE_SECONDS,
        )

    def fill(self, tasks: int) -> None:
        """Put tasks, unmeasured."""
        self.queue().put_many([{"payload": PAYLOAD}] * tasks)

    def measure(self, step: str, tasks: int, action: Callable[[], object]) -> Cost:
        """Return what an action costs for each of its tasks."""
        with metered(self.client) as meter:
            action()
        return Cost(
            step,
            tasks,
            round(meter.write_units / tasks, 3),
            round(meter.read_units / tasks, 3),
            round(meter.calls.total() / tasks, 3),
        )


def whole_life(client: DynamoDBClient, claim_size: int, tasks: int = 200) -> Cost:
    """Put tasks, claim and complete them all, close the worker, and let the sweep look after it."""
    bench = Bench(client)

    def live() -> None:
        bench.fill(tasks)
        worker = bench.queue()
        while claims := worker.claim(limit=claim_size):
            for claim in claims:
                bench.clock.now += 0.1
                worker.complete(claim, {"ok": True})
        worker.close()
        bench.clock.now += LEASE_SECONDS
        bench.queue().recover()

    cost = bench.measure(f"whole life, claims of {claim_size}", tasks, live)
    assert bench.queue().stats().success == tasks  # noqa: S101 - a figure of anything else would be wrong
    return cost


def shed_task(client: DynamoDBClient, max_age_seconds: float | None = None, tasks: int = 20) -> Cost:
    """Put tasks and let them go stale; then a worker looks for work once.

    Args:
        client: Where to measure.
        max_age_seconds: The tasks' own; None for the queue's.
        tasks: How many.
    """
    bench = Bench(client)

    def go_stale() -> None:
        bench.queue().put_many([{"payload": PAYLOAD, "max_age_seconds": max_age_seconds}] * tasks)
        bench.clock.now += (max_age_seconds or QUEUE_MAX_AGE_SECONDS) + 1
        assert bench.queue().claim(limit=10) == []  # noqa: S101 - a figure of anything else would be wrong

    step = "shed by the queue's max age" if max_age_seconds is None else "shed by its own, shorter max age"
    return bench.measure(f"{step}, its put included", tasks, go_stale)


def groups(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure puts of a group, and claims that let two groups take turns."""
    bench = Bench(client)
    producer, worker = bench.queue(), bench.queue()

    def put(group: str, count: int) -> list[Receipt]:
        return producer.put_many([{"payload": PAYLOAD, "group": group}] * count)

    def claim() -> None:
        assert len(worker.claim(limit=tasks)) == tasks  # noqa: S101 - a figure of anything else would be wrong

    return [
        bench.measure("first put of a queue's first group", 1, lambda: put("a", 1)),
        bench.measure("first put of another group, every 30 s for each process", 1, lambda: put("b", 1)),
        bench.measure("put of a group", 2 * tasks, lambda: [put(group, tasks) for group in ("a", "b")]),
        bench.measure("claim of 10 out of two groups in turn", tasks, claim),
    ]


def steps(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure single steps at claims of `tasks`."""
    bench = Bench(client)
    worker = bench.queue()
    worker.claim()  # the control record is read
    held: list[Claim] = []
    costs: list[Cost] = []

    def measure(step: str, action: Callable[[], object], of: int = tasks) -> None:
        costs.append(bench.measure(step, of, action))

    def claim() -> None:
        held[:] = worker.claim(limit=tasks)
        assert len(held) == tasks  # noqa: S101 - a figure of anything else would be wrong

    def bounce() -> None:
        for claim_ in held:
            worker.release(claim_)
        claim()

    def fail_and_wait() -> None:
        for claim_ in held:
            worker.retry(claim_, "busy", delay_seconds=5)
        bench.clock.now += 5
        worker.recover()
        claim()

    def extend() -> None:
        held[:] = [worker.extend(claim_, 2 * LEASE_SECONDS) for claim_ in held]

    measure("put", lambda: bench.fill(tasks))
    measure("claim of 10, the lease record included", claim)
    measure("release and claim again", bounce)
    measure("retry, wait, come in and claim again", fail_and_wait)
    measure("extend", extend)
    measure("complete", lambda: [worker.complete(claim_) for claim_ in held])
    worker.put(PAYLOAD, task_id="a")
    measure("put of an id that is taken", lambda: worker.put(PAYLOAD, task_id="a"), 1)
    measure("touch", lambda: worker.touch("a"), 1)
    measure("cancel", lambda: worker.cancel("a"), 1)
    measure("get", lambda: worker.get("a"), 1)
    worker.claim()  # reads the control record again where a second has passed
    measure("claim from an empty queue", worker.claim, 1)
    measure("sweep with nothing to do", worker.recover, 1)
    bench.fill(tasks)
    worker.claim(limit=tasks)
    bench.clock.now += LEASE_SECONDS

    def look_after() -> None:
        assert bench.queue().recover() == tasks  # noqa: S101 - a figure of anything else would be wrong
        bench.clock.now += LATE_CLAIM_SECONDS + 1
        bench.queue().recover()  # deletes the dead worker's lease record

    measure("orphan brought back, 10 of one dead worker", look_after)
    return costs


def puts_over(client: DynamoDBClient) -> list[Cost]:
    """Measure puts of an id whose task waits, is in work, or is over."""
    bench = Bench(client)
    queue = bench.queue()

    def put(payload: object, on_conflict: OnConflict) -> Receipt:
        return queue.put(payload, task_id="a", on_conflict=on_conflict)

    costs = [
        bench.measure("put, `ignore` or `update`, of a free id", 1, lambda: put(PAYLOAD, "update")),
        bench.measure("`ignore` of a task that lives", 1, lambda: put("new", "ignore")),
        bench.measure("`update` of a task that waits", 1, lambda: put("new", "update")),
        bench.measure("`update` by the same work", 1, lambda: put("new", "update")),
    ]
    queue.claim()
    costs.append(bench.measure("`update` of a task in work", 1, lambda: put("newer", "update")))
    queue.complete(queue.claim()[0])
    return [*costs, bench.measure("put over a task that is over", 1, lambda: put(PAYLOAD, "ignore"))]


def races(client: DynamoDBClient) -> list[Cost]:
    """Measure a claim of one task, and one that finds the newest task taken by another claimer."""
    bench = Bench(client)
    worker = bench.queue()
    bench.fill(1)
    worker.claim()
    bench.fill(3)
    other = client_at(client.meta.endpoint_url)
    rival = Queue.dynamodb(bench.table, other, clock=bench.clock)
    costs = [bench.measure("claim of 1", 1, worker.claim)]
    with meanwhile(client, "UpdateItem", rival.claim):
        costs.append(bench.measure("claim of 1 that loses one race", 1, worker.claim))
    return costs


def approximate_stats(client: DynamoDBClient, tasks: int) -> Cost:
    """Measure the counts that gauges use, with a backlog."""
    bench = Bench(client)
    bench.fill(tasks)
    queue = bench.queue()
    return bench.measure(
        f"approximate stats, {tasks} tasks waiting", 1, lambda: queue.stats(approximate=True)
    )


def all_costs(client: DynamoDBClient) -> list[Cost]:
    """Measure everything."""
    return [
        *(whole_life(client, size) for size in (1, 5, 10)),
        shed_task(client),
        shed_task(client, max_age_seconds=60),
        *steps(client),
        *puts_over(client),
        *races(client),
        *groups(client),
        *(approximate_stats(client, tasks) for tasks in (200, 2000)),
    ]


def as_table(costs: list[Cost]) -> Table:
    """Return the costs as a table for a terminal."""
    table = Table("step, a task", "WRU", "RRU", "calls", title="Capacity, DynamoDB Local")
    for cost in costs:
        figures = (cost.write_units, cost.read_units, cost.calls)
        table.add_row(cost.step, *(f"{figure:.2f}" for figure in figures))
    return table


def main() -> None:
    """Measure everything, print it, and write it down."""
    parser = argparse.ArgumentParser(description="Count capacity units and calls on DynamoDB Local.")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go, as JSON")
    out: Path = parser.parse_args().out
    with DynamoDBLocal() as server:
        costs = all_costs(server.client())
    Console().print(as_table(costs))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
