"""What groups cost on DynamoDB: puts of a group, claims in turn, and tasks alone in their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.capacity_bench import LEASE_SECONDS, PAYLOAD, new_bench
from freshq.stores.dynamodb.lines import RULES

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from benchmarks.capacity_bench import Cost
    from freshq import Receipt


def groups(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure puts of a group, and a claim from two groups in turn."""
    with new_bench(client) as bench:
        producer, worker = bench.queue(), bench.queue()

        def put(group: str, count: int) -> list[Receipt]:
            return producer.put_many([{"payload": PAYLOAD, "group": group}] * count)

        def claim() -> None:
            assert len(worker.claim(limit=tasks)) == tasks

        costs = [
            bench.measure("first put of a queue's first group", 1, lambda: put("a", 1)),
            bench.measure("put into a group that nothing waits in", 1, lambda: put("b", 1)),
            bench.measure(
                "put of a group, 10 in one call of `put_many`",
                2 * tasks,
                lambda: [put(group, tasks) for group in ("a", "b")],
            ),
            bench.measure("claim of 10 from two groups in turn", tasks, claim),
        ]
        bench.clock.now += 2 * RULES.trust_seconds
        look = "put of a group, its line record looked at again: at most once a second"
        return [*costs, bench.measure(look, 1, lambda: put("a", 1)), one_task_groups(client)]


def one_task_groups(client: DynamoDBClient, tasks: int = 48) -> Cost:
    """Measure the whole life of tasks that are each alone in their group."""
    with new_bench(client) as bench:
        worker = bench.queue()

        def live() -> None:
            worker.put_many([{"payload": PAYLOAD, "group": f"g{number}"} for number in range(tasks)])
            bench.clock.now += 10
            while claims := worker.claim(limit=10):
                list(map(worker.complete, claims))
            bench.clock.now += 2 * LEASE_SECONDS
            worker.recover()

        step = "whole life of a task alone in its group, claims of 10, completed one by one"
        return bench.measure(step, tasks, live)
