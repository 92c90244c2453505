"""Unit tasks with values and deadlines, and the most value that anybody could have delivered."""

import random
from collections.abc import Iterator
from typing import NamedTuple

# Deadlines of the dear, the middling and the cheap tasks, in seconds from and to.
MIXES = {
    "alike": ((2, 30), (2, 30), (2, 30)),
    "dear are urgent": ((2, 8), (5, 15), (10, 30)),
    "dear can wait": ((10, 30), (5, 15), (2, 8)),
}
VALUES = (10.0, 4.0, 1.0)


class Offered(NamedTuple):
    """A task that takes one second.

    Attributes:
        arrives: When it is put, in whole seconds.
        deadline: When it must be done, in whole seconds.
        value: What it is worth then.
    """

    arrives: int
    deadline: int
    value: float


def offered(rng: random.Random, load: float, seconds: int, mix: str) -> list[Offered]:
    """Return tasks that arrive at random, `load` a second, of three values that differ by half each way."""
    tasks = []
    for second in range(seconds):
        for _ in range(_poisson(rng, load)):
            kind = rng.randrange(len(VALUES))
            deadline = second + int(rng.uniform(*MIXES[mix][kind]))
            tasks.append(Offered(second, deadline, VALUES[kind] * rng.uniform(0.5, 1.5)))
    return tasks


def _poisson(rng: random.Random, mean: float) -> int:
    count, passed = 0, rng.expovariate(1)
    while passed < mean:
        count += 1
        passed += rng.expovariate(1)
    return count


def most_value(tasks: list[Offered]) -> float:
    """Return the value of the best schedule of one slot that knows the future: a matching of tasks and times.

    Sets of tasks that can be scheduled together are the independent sets of a matroid. So the dearest task is
    taken first, each if the others can be moved to make room for it (Edmonds, 1971).
    """
    ranked = sorted(tasks, key=lambda task: -task.value)
    taken: dict[int, int] = {}

    def makes_room(number: int, seen: set[int]) -> bool:
        task = ranked[number]
        seconds = range(task.arrives, task.deadline)
        free = next((second for second in seconds if second not in taken), None)
        if free is not None:
            taken[free] = number
            return True
        for second in seconds:
            if second not in seen:
                seen.add(second)
                if makes_room(taken[second], seen):
                    taken[second] = number
                    return True
        return False

    return sum(task.value for number, task in enumerate(ranked) if makes_room(number, set()))


def by_second(tasks: list[Offered]) -> Iterator[tuple[int, list[tuple[int, Offered]]]]:
    """Yield each second until the last deadline, with the numbered tasks that arrive in it."""
    for second in range(max(task.deadline for task in tasks)):
        yield second, [(number, task) for number, task in enumerate(tasks) if task.arrives == second]
