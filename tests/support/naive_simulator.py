"""A second, slow simulator, written to be obviously right: the fast one is held against it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from freshq.simulate import Load

# Given the time and the live tasks that wait, oldest first, returns the one to serve.
Pick = Callable[[float, Sequence[int]], int | None]


@dataclass
class SlowQueue:
    """Serves a load, one look at everything at a time.

    Attributes:
        load: The tasks.
        pick: The policy.
        free: When each server is free.
        starts: When each task that was served started.
    """

    load: Load
    pick: Pick
    free: list[float]
    starts: dict[int, float] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)

    def run(self) -> dict[int, float]:
        """Return when which task was started."""
        for task, now in enumerate(self.load.created):
            while self.waiting and min(self.free) <= now:
                self._claim(min(self.free))
            self.waiting.append(task)
            if min(self.free) <= now:
                self._claim(now)
        while self.waiting:
            self._claim(min(self.free))
        return self.starts

    def _claim(self, now: float) -> None:
        live = [task for task in self.waiting if self.load.deadline[task] > now]
        task = self.pick(now, live) if live else None
        if task is None:
            self.waiting = []  # nothing that waits will ever be served
            return
        self.waiting = [other for other in live if other != task]
        self.starts[task] = now
        self.free[self.free.index(min(self.free))] = now + self.load.service[task]

    def in_time(self) -> int:
        """Return how many tasks were done by their deadline."""
        load = self.load
        return sum(start + load.service[task] <= load.deadline[task] for task, start in self.starts.items())
