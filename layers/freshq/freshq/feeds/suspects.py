"""Tasks on which a destination fails while it takes others."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from freshq.policy.retry import Backoff

BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=300.0)
# The oldest suspects are forgotten beyond this number.
MAX_SUSPECTS: Final = 10_000


class Suspects:
    """Counts how often the destination failed for a task and took others in the same batch, or since.

    The first failure is no proof: the destination may have recovered in between, or another task may have
    made it fail for the whole batch. So a suspect is put alone, and from its second failure on it waits
    longer each time and holds up no other.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._arrived: dict[str, int] = {}

    def __contains__(self, task_id: str) -> bool:
        """Return whether the destination failed for a task before."""
        return task_id in self._failures

    def add(self, task_id: str, arrived: int) -> None:
        """Count a failure of a task, when `arrived` tasks in all had arrived."""
        self._failures[task_id] = self._failures.pop(task_id, 0) + 1
        self._arrived[task_id] = arrived
        while len(self._failures) > MAX_SUSPECTS:
            self.clear(next(iter(self._failures)))

    def arrived_before(self, task_id: str) -> float:
        """Return how many tasks had arrived at the last failure of a task; infinite if it is no suspect."""
        return self._arrived.get(task_id, float("inf"))

    def delay_seconds(self, task_id: str) -> float:
        """Return the upper bound of the delay before the next try; 0 before the second failure."""
        failures = self._failures.get(task_id, 0)
        return BACKOFF.delay_seconds(failures - 1, 1.0) if failures > 1 else 0.0

    def clear(self, task_id: str) -> None:
        """Forget a task."""
        self._failures.pop(task_id, None)
        self._arrived.pop(task_id, None)
