"""Counts the capacity units and calls of each step of a task's life, on Amazon's DynamoDB Local.

The units come from ReturnConsumedCapacity, so they do not depend on the machine. A write whose condition
failed reports no units, but is billed by the size of the item: one unit here.

    python -m benchmarks.capacity [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from tests.support.bulk import load
from tests.support.dynamodb_local import DynamoDBLocal, create_without_stream
from tests.support.faults import client_at, meanwhile

from benchmarks.dead_letters import dead_letters
from benchmarks.metering import metered
from freshq import Queue, Settlement
from freshq.stores.dynamodb.lease_items import LATE_CLAIM_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Claim, Receipt
    from freshq.stores.conflicts import OnConflict

START_SECONDS: Final = 1_700_000_000.0
LEASE_SECONDS: Final = 60.0
QUEUE_MAX_AGE_SECONDS: Final = 3600.0
# Of usual size: an item stays well under the 1 KB of one write unit.
PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}
OUT: Final = Path("build/capacity.json")


@dataclass
class Clock:
    """A clock that stands still unless a benchmark moves it."""

    now: float = START_SECONDS

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
            rng=random.Random(7),  # noqa: S311 - jitter
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


def whole_life(client: DynamoDBClient, claim_size: int, tasks: int = 200) -> Cost:
    """Measure put, claim and, together, complete of tasks, the close of the worker and the sweep after it."""
    bench = Bench(client)

    def live() -> None:
        bench.fill(tasks)
        worker = bench.queue()
        while claims := worker.claim(limit=claim_size):
            bench.clock.now += 0.1 * len(claims)
            worker.settle_many([Settlement.complete(claim, {"ok": True}) for claim in claims])
        worker.close()
        bench.clock.now += LEASE_SECONDS
        bench.queue().recover()

    cost = bench.measure(f"whole life, claims of {claim_size}", tasks, live)
    assert bench.queue().stats().success == tasks  # noqa: S101 - a figure of anything else would be wrong
    return cost


def shed_task(client: DynamoDBClient, max_age_seconds: float | None = None, tasks: int = 20) -> Cost:
    """Measure tasks that go stale before a worker looks for work.

    Args:
        client: Client of DynamoDB Local.
        max_age_seconds: Max age of the tasks; None for the queue's.
        tasks: Number of tasks.
    """
    bench = Bench(client)

    def go_stale() -> None:
        bench.queue().put_many([{"payload": PAYLOAD, "max_age_seconds": max_age_seconds}] * tasks)
        bench.clock.now += (max_age_seconds or QUEUE_MAX_AGE_SECONDS) + 1
        assert bench.queue().claim(limit=10) == []  # noqa: S101 - a figure of anything else would be wrong

    whose = "the queue's max age" if max_age_seconds is None else "its own, shorter max age"
    return bench.measure(f"shed by {whose}, its put included", tasks, go_stale)


def groups(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure puts of a group, and a claim from two groups in turn."""
    bench = Bench(client)
    producer, worker = bench.queue(), bench.queue()

    def put(group: str, count: int) -> list[Receipt]:
        return producer.put_many([{"payload": PAYLOAD, "group": group}] * count)

    def claim() -> None:
        assert len(worker.claim(limit=tasks)) == tasks  # noqa: S101 - a figure of anything else would be wrong

    return [
        bench.measure("first put of a queue's first group", 1, lambda: put("a", 1)),
        bench.measure("put into a group that nothing waits in", 1, lambda: put("b", 1)),
        bench.measure("put of a group", 2 * tasks, lambda: [put(group, tasks) for group in ("a", "b")]),
        bench.measure("claim of 10 out of two groups in turn", tasks, claim),
        one_task_groups(client),
    ]


def one_task_groups(client: DynamoDBClient, tasks: int = 48) -> Cost:
    """Measure the whole life of tasks that are each alone in their group."""
    bench = Bench(client)
    worker = bench.queue()

    def live() -> None:
        worker.put_many([{"payload": PAYLOAD, "group": f"g{number}"} for number in range(tasks)])
        bench.clock.now += 10
        while claims := worker.claim(limit=10):
            list(map(worker.complete, claims))
        bench.clock.now += 2 * LEASE_SECONDS
        worker.recover()

    return bench.measure("whole life, alone in its group, claims of 10", tasks, live)


class _Worker:
    """A worker whose steps are measured at claims of several tasks."""

    def __init__(self, bench: Bench, tasks: int) -> None:
        self.bench = bench
        self.queue = bench.queue()
        self.tasks = tasks
        self.held: list[Claim] = []

    def claim(self) -> None:
        self.held = self.queue.claim(limit=self.tasks)
        assert len(self.held) == self.tasks  # noqa: S101 - a figure of anything else would be wrong

    def bounce(self) -> None:
        for claim in self.held:
            self.queue.release(claim)
        self.claim()

    def fail_and_wait(self) -> None:
        for claim in self.held:
            self.queue.retry(claim, "busy", delay_seconds=5)
        self.bench.clock.now += 5
        self.queue.recover()
        self.claim()

    def extend(self) -> None:
        self.held = [self.queue.extend(claim, 2 * LEASE_SECONDS) for claim in self.held]

    def complete(self) -> None:
        for claim in self.held:
            self.queue.complete(claim)


def steps(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure single steps, at claims of `tasks`."""
    bench = Bench(client)
    worker = _Worker(bench, tasks)
    worker.queue.claim()  # reads the control record
    costs = [
        bench.measure("put", tasks, lambda: bench.fill(tasks)),
        bench.measure("claim of 10, the lease record included", tasks, worker.claim),
        bench.measure("release and claim again", tasks, worker.bounce),
        bench.measure("retry, wait, come in and claim again", tasks, worker.fail_and_wait),
        bench.measure("extend", tasks, worker.extend),
        bench.measure("complete", tasks, worker.complete),
    ]
    others = [*_single_calls(bench, worker.queue), _recovery(bench, worker)]
    return [*costs, *others, *dead_letters(bench)]


def _single_calls(bench: Bench, queue: Queue) -> list[Cost]:
    """Measure verbs of one task, and looks that find nothing."""
    queue.put(PAYLOAD, task_id="a")
    costs = [
        bench.measure("put of an id that is taken", 1, lambda: queue.put(PAYLOAD, task_id="a")),
        bench.measure("touch", 1, lambda: queue.touch("a")),
        bench.measure("cancel", 1, lambda: queue.cancel("a")),
        bench.measure("get", 1, lambda: queue.get("a")),
    ]
    # Once a second a claim also reads the control record: on a slow machine perhaps one of these.
    idle = [bench.measure("claim from an empty queue", 1, queue.claim) for _ in range(4)]
    return [
        *costs,
        min(idle, key=lambda cost: cost.calls),
        bench.measure("sweep with nothing to do", 1, queue.recover),
    ]


def _recovery(bench: Bench, worker: _Worker) -> Cost:
    """Measure the sweep after a worker died."""
    bench.fill(worker.tasks)
    worker.claim()
    bench.clock.now += LEASE_SECONDS

    def sweep() -> None:
        assert bench.queue().recover() == worker.tasks  # noqa: S101 - a figure of anything else would be wrong
        bench.clock.now += LATE_CLAIM_SECONDS + 1
        bench.queue().recover()  # deletes the lease record of the dead worker

    return bench.measure("orphan brought back, 10 of one dead worker", worker.tasks, sweep)


def puts_over(client: DynamoDBClient) -> list[Cost]:
    """Measure puts of an id whose task is waiting, taken or over."""
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
    """Measure a claim of one task, and one that loses the newest task to another claimer."""
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
    """Measure approximate stats with a backlog."""
    bench = Bench(client)
    queue = bench.queue()
    first = queue.get(queue.put(PAYLOAD).task_id)
    assert first is not None  # noqa: S101 - a figure of anything else would be wrong
    load(client, bench.table, [replace(first, task_id=str(number)) for number in range(1, tasks)])
    return bench.measure(
        f"approximate stats, {tasks} tasks waiting", 1, lambda: queue.stats(approximate=True)
    )


def all_costs(client: DynamoDBClient) -> list[Cost]:
    """Measure everything."""
    return [
        *(whole_life(client, size) for size in (1, 5, 10, 25)),
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
        table.add_row(
            cost.step, *(f"{value:.2f}" for value in (cost.write_units, cost.read_units, cost.calls))
        )
    return table


def main() -> None:
    """Measure everything, print it and write it to a file."""
    parser = argparse.ArgumentParser(description="Count capacity units and calls on DynamoDB Local.")
    parser.add_argument("--out", type=Path, default=OUT, help="file for the figures, as JSON")
    out: Path = parser.parse_args().out
    with DynamoDBLocal() as server:
        costs = all_costs(server.client())
    Console().print(as_table(costs))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
