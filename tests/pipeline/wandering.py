"""Random lives with every verb and every end, over hours and at the boundaries of minutes."""

import random

from tests.pipeline.recording import Recording, ms

HOURS = 7
# Two tables, in which the same ids are of different tasks.
QUEUES = ("one", "two")
OTHER_QUEUES = ("three",)
# Seconds between changes: many fall on boundaries of minutes, age classes and deadlines.
STAYS = (0.0, 0.001, 1.0, 10.0, 59.999, 60.0, 300.0, 900.0, 3600.0, 4000.5)
MAX_AGES = (10.0, 60.0, 600.0, 4000.0, 30_000.0)
VALUES = (None, 0.000001, 0.1, 2.5, 40, 123_456.789, 1e12)
FROM_PENDING = ("take", "take", "take", "take", "cancel", "cancel as dead", "shed", "delay", "stay")
FROM_TAKEN = (
    *("succeed", "succeed", "fail", "retry", "release", "expire", "extend", "hand over", "stay"),
    "cancel by force",
)


def wandering(tasks: int, seed: int, hours: float = HOURS, again_after: float = 1) -> Recording:
    """Return the lives of a number of tasks; some ids are used again, every second one by both tables.

    Args:
        tasks: How many.
        seed: The same seed gives the same lives.
        hours: Period in which they are put.
        again_after: Seconds until an id is used again.
    """
    rng = random.Random(seed)
    tape = Recording()
    tables = ((tape, QUEUES), (Recording(tape.records, {}, tape.numbers), OTHER_QUEUES))
    for number in range(tasks):
        task_id = f"wandering-{number // 2}"
        table, queues = tables[number % 2]
        start = rng.choice((0.0, 60.0, rng.uniform(0, 3600 * hours)))
        at = _live(table, rng, task_id, start, rng.choice(queues))
        if rng.random() < 0.5 and _is_over(table, task_id):
            # Perhaps in the other queue, as only a record of an attached table can be.
            _live(table, rng, task_id, at + again_after, rng.choice(queues))
    return tape


def _is_over(tape: Recording, task_id: str) -> bool:
    """Return whether an id may be used again: its task is deleted or in a final state."""
    item = tape.items.get(task_id)
    return item is None or item["taskStatus"]["S"] in {"SUCCESS", "FAILURE", "CANCELLED", "SHED"}


def _live(tape: Recording, rng: random.Random, task_id: str, at: float, queue: str) -> float:
    """Write one life, and return the time of its last change."""
    worth = random.Random(f"{task_id} at {at}")  # on its own, so that values do not change the lives
    tape.put(
        at, task_id, max_age=rng.choice(MAX_AGES), group=rng.choice((None, "red", "blue")),
        queue=queue, priority=rng.choice((0, 1)),
        delay=rng.choice((0, 0, 0, 90.5, 7200)),
        value=worth.choice(VALUES), decay=worth.choice((None, "linear", "step")),
    )  # fmt: skip
    for _ in range(rng.randrange(8)):
        status = tape.items[task_id]["taskStatus"]["S"]
        at += rng.choice(STAYS)
        if status == "PENDING":
            _wait(tape, rng, task_id, at)
        elif status == "TAKEN":
            _work(tape, rng, task_id, at)
    at += rng.choice(STAYS)
    removal = rng.random()
    if removal < 0.3:
        tape.remove(at, task_id, by_ttl=removal < 0.15)
    return at


def _wait(tape: Recording, rng: random.Random, task_id: str, at: float) -> None:
    """Claim, end or delay a waiting task."""
    match rng.choice(FROM_PENDING):
        case "take":
            holder = f"w{rng.randrange(4)}:{at}" if rng.random() < 0.8 else f"{at}"
            tape.take(at, task_id, holder=holder, lease=rng.choice((30, 60)))
        case "cancel":
            tape.change(at, task_id, "CANCELLED")
        case "cancel as dead":
            tape.change(at, task_id, "FAILURE")
        case "shed":
            tape.change(at, task_id, "SHED", shedReason=rng.choice(({"S": "overflow"}, None)))
        case "delay":
            tape.change(at, task_id, "PENDING", notBefore=rng.choice((ms(at + 60), None)))


def _work(tape: Recording, rng: random.Random, task_id: str, at: float) -> None:
    """Settle, release, lose or extend a taken task."""
    attempts = int(tape.items[task_id]["attempts"]["N"])
    match rng.choice(FROM_TAKEN):
        case "succeed":
            tape.settle(at, task_id, "SUCCESS")
        case "fail":
            tape.settle(at, task_id, "FAILURE")
        case "cancel by force":
            tape.settle(at, task_id, "CANCELLED")
        case "retry":
            tape.settle(at, task_id, "PENDING", notBefore=ms(at + 60))
        case "release":
            tape.settle(at, task_id, "PENDING", attempts={"N": str(attempts - 1)})
        case "expire":
            tape.settle(at, task_id, "PENDING")
        case "extend":
            tape.change(at, task_id, "TAKEN", leaseUntil=ms(at + 60))
        case "hand over":
            tape.take(at, task_id, holder=f"w{rng.randrange(4)}:{at}")
