"""Counts the capacity units and calls of each step of a task's life, on Amazon's DynamoDB Local.

The units come from ReturnConsumedCapacity, so they do not depend on the machine. A write whose condition
failed reports no units, but is billed by the size of the item: one unit here. Every clock that freshq goes by
is the benchmark's own: what a process does once in some seconds is counted by that time, not by how long this
machine took.

    python -m benchmarks.capacity

It writes benchmarks/results/capacity.json, from which docs/costs.md is made.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from local.faults import client_at, meanwhile
from local.servers import DYNAMODB_LOCAL_PACKAGE, DYNAMODB_LOCAL_VERSION, DynamoDBLocal, load

from benchmarks import figures
from benchmarks.bills import ALONE
from benchmarks.capacity_bench import LEASE_SECONDS, PAYLOAD, QUEUE_MAX_AGE_SECONDS, new_bench
from benchmarks.capacity_groups import groups
from benchmarks.capacity_stale import STALE, behind_stale
from benchmarks.dead_letters import dead_letters
from benchmarks.match_capacity import matching
from freshq import Queue, Settlement
from freshq.aws.worker_pass import WorkerSettings
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.dynamodb.claim import WorkerPasses
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS
from freshq.worker.options import WorkerConfig

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from benchmarks.capacity_bench import Bench, Cost
    from freshq import Claim, Receipt
    from freshq.stores.base import OnConflict

# How often a task comes where each has a pass for itself: as in benchmarks.invocations.
EVERY_SECONDS: Final = 4.0
SLOTS: Final = 25


def whole_life(
    client: DynamoDBClient, claim_size: int, rate_per_second: float = 100, tasks: int = 200
) -> Cost:
    """Measure put, claim and, together, complete of tasks, the close of the worker and the sweep after it.

    Args:
        client: Client of DynamoDB Local.
        claim_size: Tasks of a claim.
        rate_per_second: How fast the worker gets through them. What it does once in some seconds, such as its
            look at the control record, is shared by the tasks of that time.
        tasks: Number of tasks.
    """
    with new_bench(client) as bench:

        def live() -> None:
            bench.fill(tasks)
            worker = bench.queue()
            while claims := worker.claim(limit=claim_size):
                bench.clock.now += len(claims) / rate_per_second
                worker.settle_many([Settlement.complete(claim, {"ok": True}) for claim in claims])
            worker.close()
            bench.clock.now += LEASE_SECONDS
            bench.queue().recover()

        cost = bench.measure(f"whole life, claims of {claim_size}", tasks, live)
        assert bench.queue().stats().success == tasks
    return cost


def whole_lives(client: DynamoDBClient) -> list[Cost]:
    """Measure whole lives by the size of claims, by the rate, and without writes in batches."""
    slow = whole_life(client, 10, rate_per_second=10)
    with patch.object(Batches, "serve", return_value=False):
        one_by_one = whole_life(client, 10)
    return [
        *(whole_life(client, size) for size in (25, 10, 5, 1)),
        replace(slow, step=f"{slow.step}, at 10 tasks a second"),
        replace(one_by_one, step=f"{one_by_one.step}, each write a call of its own"),
        alone(client),
    ]


def alone(client: DynamoDBClient, tasks: int = 20) -> Cost:
    """Measure tasks that come one every four seconds: each has a pass of the worker function for itself.

    It does what Trigger and ProcessTasks do, in their order: the question whether a pass is under way, the
    pass slot, the claim, the looks until the pass is idle for long enough, and the one before it ends.
    """
    idle_seconds = WorkerSettings.model_fields["idle_exit_seconds"].default
    poll_seconds = WorkerConfig.model_fields["poll_seconds"].default
    with new_bench(client) as bench:
        producer, worker = bench.queue(), bench.queue()
        passes = WorkerPasses(bench.table, worker.name, 1, client, clock=bench.clock)

        def live() -> None:
            for number in range(tasks):
                producer.put(PAYLOAD)
                assert not passes.all_taken()
                with passes.slot(f"pass {number}") as entered:
                    assert entered
                    for claim in worker.claim(limit=SLOTS):
                        worker.complete(claim)
                    for _ in range(round(idle_seconds / poll_seconds)):
                        bench.clock.now += poll_seconds
                        worker.claim(limit=SLOTS)
                    worker.close()
                worker.stats(approximate=True)
                bench.clock.now += EVERY_SECONDS - idle_seconds

        cost = bench.measure(ALONE, tasks, live)
        assert worker.stats().success == tasks
    return cost


def shed_task(client: DynamoDBClient, max_age_seconds: float | None = None, tasks: int = 20) -> Cost:
    """Measure tasks that go stale before a worker looks for work.

    Args:
        client: Client of DynamoDB Local.
        max_age_seconds: Max age of the tasks; None for the queue's.
        tasks: Number of tasks.
    """
    with new_bench(client) as bench:

        def go_stale() -> None:
            bench.queue().put_many([{"payload": PAYLOAD, "max_age_seconds": max_age_seconds}] * tasks)
            bench.clock.now += (max_age_seconds or QUEUE_MAX_AGE_SECONDS) + 1
            assert bench.queue().claim(limit=10) == []

        whose = "the queue's max age" if max_age_seconds is None else "its own, shorter max age"
        return bench.measure(f"shed by {whose}, put included", tasks, go_stale)


class _Worker:
    """A worker whose steps are measured at claims of several tasks."""

    def __init__(self, bench: Bench, tasks: int) -> None:
        self.bench = bench
        self.queue = bench.queue()
        self.tasks = tasks
        self.held: list[Claim] = []

    def claim(self) -> None:
        self.held = self.queue.claim(limit=self.tasks)
        assert len(self.held) == self.tasks

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
    with new_bench(client) as bench:
        worker = _Worker(bench, tasks)
        worker.queue.claim()  # reads the control record
        costs = [
            bench.measure("put, 10 in one call of `put_many`", tasks, lambda: bench.fill(tasks)),
            bench.measure("claim of 10, lease record included", tasks, worker.claim),
            bench.measure("release, one by one, and claim again", tasks, worker.bounce),
            bench.measure("retry, one by one, wait, promote and claim again", tasks, worker.fail_and_wait),
            bench.measure("extend", tasks, worker.extend),
            bench.measure("complete, one by one", tasks, worker.complete),
        ]
        others = [*_single_calls(bench, worker.queue), _recovery(bench, worker)]
        return [*costs, *others, *dead_letters(bench)]


def _single_calls(bench: Bench, queue: Queue) -> list[Cost]:
    """Measure verbs of one task, and looks that find nothing."""
    queue.put(PAYLOAD, task_id="a")
    costs = [
        bench.measure("put of a taken id", 1, lambda: queue.put(PAYLOAD, task_id="a")),
        bench.measure("touch", 1, lambda: queue.touch("a")),
        bench.measure("cancel", 1, lambda: queue.cancel("a")),
        bench.measure("get", 1, lambda: queue.get("a")),
    ]
    return [
        *costs,
        bench.measure("claim from an empty queue", 1, queue.claim),
        bench.measure("sweep with nothing to do", 1, queue.recover),
    ]


def _recovery(bench: Bench, worker: _Worker) -> Cost:
    """Measure the sweep after a worker died."""
    bench.fill(worker.tasks)
    worker.claim()
    bench.clock.now += LEASE_SECONDS

    def sweep() -> None:
        assert bench.queue().recover() == worker.tasks
        bench.clock.now += LATE_CLAIM_SECONDS + 1
        bench.queue().recover()  # deletes the lease record of the dead worker

    return bench.measure("recover an orphan, 10 of one dead worker", worker.tasks, sweep)


def puts_over(client: DynamoDBClient) -> list[Cost]:
    """Measure puts of an id whose task is waiting, taken or over."""
    with new_bench(client) as bench:
        queue = bench.queue()

        def put(payload: object, on_conflict: OnConflict) -> Receipt:
            return queue.put(payload, task_id="a", on_conflict=on_conflict)

        costs = [
            bench.measure("put with `on_conflict`, the id free", 1, lambda: put(PAYLOAD, "update")),
            bench.measure("`ignore` of a live task", 1, lambda: put("new", "ignore")),
            bench.measure("`update` of a PENDING task", 1, lambda: put("new", "update")),
            bench.measure("`update` of a live task with equal work", 1, lambda: put("new", "update")),
        ]
        queue.claim()
        costs.append(bench.measure("`update` of a TAKEN task", 1, lambda: put("newer", "update")))
        queue.complete(queue.claim()[0])
        over = bench.measure("put with `on_conflict`, its task over", 1, lambda: put(PAYLOAD, "ignore"))
        return [*costs, over]


def races(client: DynamoDBClient) -> list[Cost]:
    """Measure claims of one task, and one that loses the newest task to another claimer."""
    with new_bench(client) as bench:
        worker = bench.queue()
        bench.fill(1)
        worker.claim()
        bench.fill(4)
        rival = Queue.dynamodb(bench.table, client_at(client.meta.endpoint_url), clock=bench.clock)
        costs = [
            bench.measure("claim of 1", 1, worker.claim),
            bench.measure("claim of 1 whose lease record names the task already", 1, worker.claim),
        ]
        with meanwhile(client, "UpdateItem", rival.claim):
            raced = "claim of 1 that loses one race, both tasks named already"
            costs.append(bench.measure(raced, 1, worker.claim))
        return costs


def approximate_stats(client: DynamoDBClient, tasks: int) -> Cost:
    """Measure approximate stats with a backlog."""
    with new_bench(client) as bench:
        queue = bench.queue()
        first = queue.get(queue.put(PAYLOAD).task_id)
        assert first is not None
        load(client, bench.table, [replace(first, task_id=str(uuid.uuid4())) for _ in range(1, tasks)])
        step = f"approximate stats, {tasks:,} tasks waiting"
        return bench.measure(step, 1, lambda: queue.stats(approximate=True))


def all_costs(client: DynamoDBClient) -> list[Cost]:
    """Measure everything."""
    return [
        *whole_lives(client),
        shed_task(client),
        shed_task(client, max_age_seconds=60),
        *steps(client),
        *puts_over(client),
        *races(client),
        *groups(client),
        *(approximate_stats(client, tasks) for tasks in (200, 2000)),
    ]


def main() -> None:
    """Measure everything, write the figures and print the page."""
    with DynamoDBLocal() as server:
        report = {"steps": [asdict(cost) for cost in all_costs(server.client())]}
        report["matching"] = matching(server.client())
        report["behind_stale"] = [asdict(behind_stale(server.client(), stale)) for stale in STALE]
    figures.write("capacity", report, ["boto3"], {DYNAMODB_LOCAL_PACKAGE: DYNAMODB_LOCAL_VERSION})


if __name__ == "__main__":
    main()
