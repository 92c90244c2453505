"""What dead letters cost on DynamoDB, and the verbs that repair a queue by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.capacity_bench import Bench, Cost


def dead_letters(bench: Bench, tasks: int = 10) -> list[Cost]:
    """Measure how tasks die and return, and a listing of one page."""
    queue = bench.queue()
    bench.fill(tasks)
    claims = queue.claim(limit=tasks)
    return [
        bench.measure(
            "fail: the task, and its entry among the dead letters",
            tasks,
            lambda: [queue.fail(claim) for claim in claims],
        ),
        bench.measure("list of 10 dead letters", tasks, lambda: queue.list("FAILURE", limit=tasks)),
        bench.measure("redrive of all dead letters", tasks, queue.redrive),
        bench.measure("bury", tasks, lambda: [queue.bury(claim.task.task_id) for claim in claims]),
        bench.measure(
            "restore of a dead letter", tasks, lambda: [queue.restore(claim.task.task_id) for claim in claims]
        ),
        bench.measure("dequeue of 10", tasks, lambda: queue.dequeue(limit=tasks)),
    ]
