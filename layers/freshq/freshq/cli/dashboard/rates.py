"""Measures taken from a series of snapshots: the rate at which tasks are shed, and the waits of claims."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.stores.base import Stats

# Waits of claims are kept for this long.
WAITS_SECONDS: Final = 60.0
LIVE: Final = ("pending", "delayed", "taken")


class ShedRate:
    """Estimates the rate of what ends without being served, from the balance of the queue.

    What was offered was served, is still live, or ended otherwise: shed, turned away, failed or cancelled.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._live: deque[tuple[float, int]] = deque()

    def per_second(self, now: float, stats: Stats, pressure: Pressure) -> float | None:
        """Return the rate; None if it is not known yet, or the live tasks are too many to count."""
        if any(state in stats.bounded for state in ("pending", "delayed")):
            self._live.clear()
            return None
        self._live.append((now, sum(getattr(stats, state) for state in LIVE)))
        while len(self._live) > 1 and now - self._live[1][0] >= self._window_seconds:
            self._live.popleft()
        since, live_then = self._live[0]
        if now - since < min(1.0, self._window_seconds):
            return None
        growth = (self._live[-1][1] - live_then) / (now - since)
        return max(0.0, pressure.offered_per_second - pressure.served_per_second - growth)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long tasks waited for their first claim, of those that a snapshot found in work.

    Attributes:
        tasks: How many.
        p50_seconds: The median; None without any.
        p90_seconds: What nine in ten did not exceed.
        p99_seconds: What 99 in a hundred did not exceed.
    """

    tasks: int
    p50_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None


class WaitSamples:
    """Collects the waits of tasks that were claimed first since the last snapshot, and are still in work."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._last_snapshot: float | None = None

    def add(self, now: float, held: Iterable[Task]) -> Waits:
        """Take the tasks found in work, and return the waits of the last minute."""
        since = now if self._last_snapshot is None else self._last_snapshot
        for task in held:
            if task.first_claim_at is not None and since < task.first_claim_at <= now:
                self._samples.append((now, max(0.0, task.first_claim_at - task.created)))
        self._last_snapshot = now
        while self._samples and now - self._samples[0][0] > WAITS_SECONDS:
            self._samples.popleft()
        waits = sorted(wait for _at, wait in self._samples)
        return Waits(len(waits), *(nearest_rank(waits, share) for share in (0.5, 0.9, 0.99)))


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """Return the value that a share of the values does not exceed, by nearest rank; None without values."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None
