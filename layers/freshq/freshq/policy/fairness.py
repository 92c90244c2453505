"""Fairness among groups: which has the next turn, and how much of a limited rate each may use."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Group: TypeAlias = str | None
_Group = TypeVar("_Group", bound=Group)

# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


def fair_share(demands: Iterable[float], capacity: float) -> float:
    """Return the max-min fair share: the most that each may use so that together they use the capacity.

    A group that asks for less than its share gets all it asks for. The others share the rest equally
    (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

    Args:
        demands: Demand of each group, such as tasks per second.
        capacity: Total capacity, in the same unit.

    Returns:
        The share; infinite if there is enough for all.
    """
    ascending = sorted(demands)
    left = capacity
    for index, demand in enumerate(ascending):
        share = left / (len(ascending) - index)
        if demand > share:
            return max(0.0, share)
        left -= demand
    return math.inf


class _Served(dict[Group, float]):
    """Weighted turns by group; 0 for a group without any."""

    def __missing__(self, group: Group) -> float:
        return 0.0


class GroupTurns:
    """Gives each turn to the group with the least recent service. One object per priority level.

    Newest first alone lets one tenant that floods the queue starve the others, because its tasks are
    nearly always the newest. Among groups that always have work this is round robin: each of n gets
    every n-th turn, and what one does not use goes to the others (Nagle, RFC 970, 1985). Unlike plain
    round robin it remembers: a group that uses less than its share gets the next turn, even for a few
    tasks in a row, as the quiet tenants of SQS fair queues do.

    A turn counts half after `half_life` more turns. So an old flood is forgotten, and a new one gets at
    most about that many turns in a row.
    """

    __slots__ = ("_growth", "_served", "_weight")

    def __init__(self, half_life: float = 100.0) -> None:
        """Start with no group served.

        Args:
            half_life: In turns, 1 or more.

        Raises:
            ValueError: If it is less than 1.
        """
        if not half_life >= 1:
            msg = f"half_life: must be 1 or more, got {half_life}"
            raise ValueError(msg)
        self._growth = 2.0 ** (1 / half_life)
        # Instead of shrinking every old turn, each new one weighs more than the one before.
        self._weight = 1.0
        self._served = _Served()

    def __len__(self) -> int:
        """Return how many groups are remembered."""
        return len(self._served)

    def next_group(self, groups: Iterable[_Group]) -> _Group:
        """Return the group whose turn it is; the first of those that were served equally.

        Args:
            groups: Groups that may have work, at least one.
        """
        return min(groups, key=self._served.__getitem__)

    def plan(self, groups: Iterable[_Group], count: int) -> dict[_Group, int]:
        """Return how many of the next turns each group has if all of them always have work.

        Args:
            groups: Groups that may have work.
            count: Number of turns.

        Returns:
            The turns by group, in turn order; 0 for groups without a turn.
        """
        heap = [(self._served[group], place, group) for place, group in enumerate(groups)]
        heapq.heapify(heap)
        turns: dict[_Group, int] = {}
        weight = self._weight
        for _ in range(count if heap else 0):
            served, place, group = heap[0]
            turns[group] = turns.get(group, 0) + 1
            heapq.heapreplace(heap, (served + weight, place, group))
            weight *= self._growth
        for _served, _place, group in sorted(heap):
            turns.setdefault(group, 0)
        return turns

    def record(self, group: Group) -> None:
        """Count a turn that a group used."""
        served = self._served
        served[group] = served[group] + self._weight
        self._weight *= self._growth
        if self._weight > LARGEST_WEIGHT:
            self._rescale()

    def _rescale(self) -> None:
        # Groups whose turns have faded are forgotten, so that memory follows the groups in use.
        faded = self._weight / LARGEST_WEIGHT
        kept = {group: served / self._weight for group, served in self._served.items() if served > faded}
        self._served = _Served(kept)
        self._weight = 1.0
