"""Whose turn it is, when several groups have work."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


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

    __slots__ = ("_growth", "_queue", "_served", "_tick", "_weight", "_working")

    def __init__(self, groups: Iterable[str | None] = (), half_life: float = 100.0) -> None:
        """Start with these groups, in this order.

        Args:
            groups: Groups that have work.
            half_life: After so many more turns a turn counts half, 1 or more.
        """
        if not half_life >= 1:
            msg = f"half_life: must be 1 or more, got {half_life}"
            raise ValueError(msg)
        self._growth = 2.0 ** (1 / half_life)
        # Instead of shrinking every old turn, each new one weighs more than the one before.
        self._weight = 1.0
        self._served: dict[str | None, float] = {}
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
            served, tick, group = heappop(self._queue)
            if self._working.get(group) != tick:
                continue  # it was discarded since
            self._served[group] = served + self._weight
            self._put(group)
            self._weight *= self._growth
            if self._weight > LARGEST_WEIGHT:
                self._rescale()
            return group
        raise LookupError("no group has work")

    def _put(self, group: str | None) -> None:
        self._tick += 1
        self._working[group] = self._tick
        heappush(self._queue, (self._served.get(group, 0.0), self._tick, group))

    def _rescale(self) -> None:
        # What has faded to nothing is forgotten: so the memory follows the groups that are alive.
        scaled = {group: served / self._weight for group, served in self._served.items()}
        self._served = {group: served for group, served in scaled.items() if served * LARGEST_WEIGHT > 1}
        self._queue = [
            (self._served.get(group, 0.0), tick, group)
            for _served, tick, group in self._queue
            if self._working.get(group) == tick
        ]
        heapify(self._queue)
        self._weight = 1.0
