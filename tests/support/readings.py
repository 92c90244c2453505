"""Short ways to read a queue in a test."""

import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Final

from freshq import AttachedQueue, Claim, Queue, Stats, Task

STATES: Final = [field.name for field in fields(Stats) if field.type == "int"]


def counts(stats: Stats) -> dict[str, int]:
    """Return how many tasks are in each state that has any."""
    return {state: number for state in STATES if (number := getattr(stats, state))}


def total(queue: Queue) -> int:
    """Return the number of tasks that the queue knows, in any state."""
    return sum(counts(queue.stats()).values())


def payloads(claims: Iterable[Claim]) -> list[object]:
    """Return the work of each claim."""
    return [claim.task.payload for claim in claims]


def ids(claims: Iterable[Claim]) -> list[str]:
    """Return the task id of each claim."""
    return [claim.task.task_id for claim in claims]


def known(queue: Queue | AttachedQueue, task_id: str) -> Task:
    """Return a task that must be there."""
    task = queue.get(task_id)
    assert task is not None
    return task


def within_seconds(seconds: float, condition: Callable[[], bool]) -> bool:
    """Poll until the condition holds; return whether it did in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
