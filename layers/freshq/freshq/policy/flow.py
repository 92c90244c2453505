"""Counts the tasks that go through a queue, by windows of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from math import floor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# The flow is measured over the last deadline, but no longer than a producer would wait for news.
LONGEST_WINDOW_SECONDS: Final = 60.0
# The shortest time over which a rate is taken, when counting has just begun.
SHORTEST_WINDOW_SECONDS: Final = 1.0
# Counts in each of two rows that groups share: on DynamoDB all of them together are a write of two units.
GROUP_COUNTS: Final = 64
# Groups whose counts a process need not compute again.
MAX_KNOWN_GROUPS: Final = 10_000


@lru_cache(MAX_KNOWN_GROUPS)
def group_counts(group: str | None) -> tuple[str, str]:
    """Return the names of the two counts of a group.

    The number of counts is fixed, so groups share them, by a hash of the name. A group is judged by the
    smaller of its two: two groups are taken for one only if they share both (the count-min sketch of
    Cormode and Muthukrishnan, Journal of Algorithms 55(1), 2005).
    """
    first, second = blake2b((group or "").encode(), digest_size=2).digest()
    return f"g{first % GROUP_COUNTS}", f"h{second % GROUP_COUNTS}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The recent flow of a queue, in tasks per second.

    Attributes:
        offered: Tasks put, including those that admission control rejected.
        served: Tasks done, in time or not.
        served_in_time: Tasks done in time.
        shed_early: Tasks shed before their deadline: overflow, group, codel.
        by_group: The offered tasks by the counts of `group_counts`, if they are counted.
    """

    offered: float
    served: float
    served_in_time: float
    shed_early: float = 0.0
    by_group: Mapping[str, float] = field(default_factory=dict)

    def offered_by(self, group: str | None) -> float:
        """Return how much a group offers, or slightly more if it shares its counts."""
        return min(self.by_group.get(name, 0.0) for name in group_counts(group))

    def demands(self) -> list[float]:
        """Return how much the groups offer; those that share a count are one."""
        return [rate for name, rate in self.by_group.items() if name.startswith("g")]


FLOW_NAMES: Final = ("offered", "served", "served_in_time", "shed_early")


def flow_window_seconds(deadline_seconds: float) -> float:
    """Return the window over which the flow of a queue is measured, in seconds."""
    return min(deadline_seconds, LONGEST_WINDOW_SECONDS)


def flow_between(
    window_seconds: float, into_seconds: float, current: Mapping[str, float], before: Mapping[str, float]
) -> Flow:
    """Return the flow over the window that ends now, from counts by whole windows.

    The window before counts for the part that is still covered, as if its events were spread evenly. If
    it counted nothing, counting began in the current one, and rates are over the part of it that has
    passed.

    Args:
        window_seconds: Length of a window.
        into_seconds: How much of the current one has passed.
        current: Counts of the current window, by the names of the fields of `Flow` and of `group_counts`.
        before: Counts of the window before.
    """
    covered = 1.0 - into_seconds / window_seconds
    observed_seconds = window_seconds
    if not any(before.values()):
        observed_seconds = min(window_seconds, max(into_seconds, SHORTEST_WINDOW_SECONDS))

    def rate(name: str) -> float:
        return (current.get(name, 0) + covered * before.get(name, 0)) / observed_seconds

    groups = {*current, *before}.difference(FLOW_NAMES)
    offered, served, served_in_time, shed_early = map(rate, FLOW_NAMES)
    by_group = {name: rate(name) for name in sorted(groups)}
    return Flow(offered, served, served_in_time, shed_early, by_group)


class FlowCounter:
    """Counts tasks by whole windows of time.

    Two windows are enough for the flow, and are what a store keeps for many processes.

    Attributes:
        window_seconds: Length of a window.
    """

    __slots__ = ("_windows", "window_seconds")

    def __init__(self, deadline_seconds: float) -> None:
        """Start with nothing counted.

        Args:
            deadline_seconds: Age at which tasks of the queue are stale.
        """
        self.window_seconds = flow_window_seconds(deadline_seconds)
        self._windows: dict[int, Counter[str]] = {}

    def window(self, now: float) -> int:
        """Return the number of the window that `now` (seconds) is in."""
        return floor(now / self.window_seconds)

    def counts(self, window: int) -> Counter[str]:
        """Return the counts of a window, to be added to."""
        counts = self._windows.get(window)
        if counts is None:
            counts = self._windows[window] = Counter()
        return counts

    def offered(self, now: float, count: int = 1) -> None:
        """Count tasks that were put, including rejected ones."""
        self.counts(floor(now / self.window_seconds))["offered"] += count

    def offered_by(self, group: str | None, now: float) -> None:
        """Count a task of a group that was put, rejected or not."""
        counts = self.counts(floor(now / self.window_seconds))
        for name in group_counts(group):
            counts[name] += 1

    def served(self, now: float, *, in_time: bool) -> None:
        """Count a task that was done."""
        counts = self.counts(floor(now / self.window_seconds))
        counts["served"] += 1
        if in_time:
            counts["served_in_time"] += 1

    def shed_early(self, now: float, count: int = 1) -> None:
        """Count tasks that were shed before their deadline."""
        self.counts(floor(now / self.window_seconds))["shed_early"] += count

    def take(self) -> dict[int, Counter[str]]:
        """Return the counts by window, and start again with nothing."""
        windows, self._windows = self._windows, {}
        return windows

    def flow(self, now: float) -> Flow:
        """Return the flow at `now` (seconds) from these counts alone; forget windows that are over."""
        number = self.window(now)
        current, before = self.counts(number), self.counts(number - 1)
        self._windows = {number - 1: before, number: current}
        return self.between(now, current, before)

    def between(self, now: float, current: Mapping[str, float], before: Mapping[str, float]) -> Flow:
        """Return the flow at `now` (seconds) from the counts of its window and the one before."""
        into_seconds = now - self.window(now) * self.window_seconds
        return flow_between(self.window_seconds, into_seconds, current, before)
