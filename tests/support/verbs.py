"""Every verb of a queue, for tests of rules that hold for all verbs."""

from collections.abc import Callable
from typing import Final

from freshq import Claim, Queue
from freshq.queue.core import core_of


def prepared(queue: Queue) -> Claim:
    """Fill a queue so that every verb has something to do; return a claim."""
    queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(3)])
    queue.put("dead letter", task_id="dead")
    queue.fail(queue.claim()[0])
    return queue.claim()[0]


# Each is called with a queue and the claim that `prepared` returned.
VERBS: Final[dict[str, Callable[[Queue, Claim], object]]] = {
    "put": lambda queue, _: queue.put("new"),
    "put_many": lambda queue, _: queue.put_many([{"payload": 1}, {"payload": 2}]),
    "put of a new priority": lambda queue, _: queue.put("urgent", priority=7),
    "put behind": lambda queue, claim: queue.put("new", task_id=claim.task.task_id, on_conflict="after"),
    "put over what waits": lambda queue, _: queue.put("new", task_id="t0", on_conflict="update"),
    "put over what is over": lambda queue, _: queue.put("new", task_id="dead", on_conflict="ignore"),
    "claim": lambda queue, _: queue.claim(),
    "complete": lambda queue, claim: queue.complete(claim),
    "fail": lambda queue, claim: queue.fail(claim),
    "retry": lambda queue, claim: queue.retry(claim),
    "release": lambda queue, claim: queue.release(claim),
    "extend": lambda queue, claim: queue.extend(claim, lease_seconds=90),
    "recover": lambda queue, _: queue.admin.recover(),
    "cancel": lambda queue, _: queue.cancel("t0"),
    "cancel by force": lambda queue, claim: queue.cancel(claim.task.task_id, force=True),
    "cancel as dead": lambda queue, _: queue.cancel("t0", dead=True, error="by hand"),
    "redrive as new": lambda queue, _: queue.redrive(["dead"], as_new=True),
    "redrive as new of a waiting task": lambda queue, _: queue.redrive(["t0"], as_new=True),
    "reprioritize": lambda queue, _: queue.reprioritize("t0", priority=3),
    "redrive": lambda queue, _: queue.redrive(),
    "redrive one": lambda queue, _: queue.redrive(["dead"]),
    "held": lambda queue, claim: queue.admin.held(claim.task.task_id, claim.token),
    "purge of dead letters": lambda queue, _: queue.purge(status="FAILURE", confirm=queue.name),
    "purge of one": lambda queue, _: queue.purge(status="FAILURE", task_ids=["dead"], confirm=queue.name),
    "get": lambda queue, _: queue.get("t0"),
    "find": lambda queue, _: core_of(queue).found("t0"),
    "list": lambda queue, _: queue.list(),
    "list of dead letters": lambda queue, _: queue.list("FAILURE"),
    "stats": lambda queue, _: queue.stats(),
    "approximate stats": lambda queue, _: queue.stats(approximate=True),
    "purge": lambda queue, _: queue.purge(confirm="default"),
    "pause": lambda queue, _: queue.pause(),
    "resume": lambda queue, _: queue.resume(),
}
