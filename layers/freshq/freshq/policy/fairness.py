"""Whose turn it is, when several groups have work."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


class ServedLately:
    """How much each group was served lately: a turn counts half after `half_life` more turns."""

    __slots__ = ("_growth", "_served", "_weight")

    def __init__(self, half_life: float = 100.0) -> None:
        """Start with nothing served.

        Args:
            half_life: In turns, 1 or more.
        """
        if not half_life >= 1:
            msg = f"half_life: must be 1 or more, got {half_life}"
            raise ValueError(msg)
        self._growth = 2.0 ** (1 / half_life)
        # Instead of shrinking every old turn, each new one weighs more than the one before.
        self._weight = 1.0
        self._served: dict[str | None, float] = {}

    def __getitem__(self, group: str | None) -> float:
        """Return how much a group was served, in a unit that only compares groups at one time."""
        return self._served.get(group, 0.0)

    def __len__(self) -> int:
        """Return how many groups are remembered."""
        return len(self._served)

    def record(self, group: str | None) -> bool:
        """Count a turn of a group; return whether all values were scaled anew by it."""
        self._served[group] = self[group] + self._weight
        self._weight *= self._growth
        if self._weight <= LARGEST_WEIGHT:
            return False
        # What has faded to nothing is forgotten: so the memory follows the groups that are alive.
        scaled = {group: served / self._weight for group, served in self._served.items()}
        self._served = {group: served for group, served in scaled.items() if served * LARGEST_WEIGHT > 1}
        self._weight = 1.0
        return True


class GroupTurns:
    """Gives the next slot to the group that was served least lately; in turn, if several were.

    Newest first alone lets one tenant that floods the queue starve the others, because its tasks are
    nearly always the newest. Among groups that always have work this is round robin: each of n gets
    every n-th slot, and what one does not use goes to the others (Nagle, RFC 970, 1985). Unlike plain
    round robin it remembers: a group that uses less than its share finds the next free slot open, even
    for a few tasks in a row, as the quiet tenants of SQS fair queues do.

    A turn counts half after `half_life` more turns, so that a group is not held to what it did long
    ago, and one that has just begun to flood gets no more than about so many slots in a row.

    It needs to know that a group has work, not how much: add groups as they are seen with work, and
    discard one when a claim in it finds nothing.
    """

    __slots__ = ("_queue", "_served", "_tick", "_working")

    def __init__(self, groups: Iterable[str | None] = (), half_life: float = 100.0) -> None:
        """Start with these groups, in this order.

        Args:
            groups: Groups that have work.
            half_life: After so many more turns a turn counts half, 1 or more.
        """
        self._served = ServedLately(half_life)
        # (what it was served, when it was put here, which group); the first may be out of date.
        self._queue: list[tuple[float, int, str | None]] = []
        self._working: dict[str | None, int] = {}
        self._tick = 0
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        """Return how many groups are known to have work."""
        return len(self._working)

    def add(self, group: str | None) -> None:
        """Take note that a group has work."""
        if group not in self._working:
            self._put(group)

    def discard(self, group: str | None) -> None:
        """Take note that a group has no work."""
        self._working.pop(group, None)

    def next(self) -> str | None:
        """Return the group whose turn it is.

        Raises:
            LookupError: If no group has work.
        """
        while self._queue:
            _served, tick, group = heappop(self._queue)
            if self._working.get(group) != tick:
                continue  # it was discarded since
            scaled_anew = self._served.record(group)
            self._put(group)
            if scaled_anew:
                self._rescale()
            return group
        raise LookupError("no group has work")

    def _put(self, group: str | None) -> None:
        self._tick += 1
        self._working[group] = self._tick
        heappush(self._queue, (self._served[group], self._tick, group))

    def _rescale(self) -> None:
        self._queue = [
            (self._served[group], tick, group)
            for _served, tick, group in self._queue
            if self._working.get(group) == tick
        ]
        heapify(self._queue)
