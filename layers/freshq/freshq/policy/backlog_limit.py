"""A bound on the number of waiting tasks, and which one is shed when it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Mapping


class WhenFull(StrEnum):
    """What to shed when the backlog is full."""

    DROP_OLDEST = "drop-oldest"
    REFUSE_NEWEST = "refuse-newest"


class Victim(StrEnum):
    """Which task is shed: the oldest of the lowest level, the same within one group, or the newcomer."""

    OLDEST = "oldest"
    OLDEST_OF_GROUP = "oldest-of-group"
    NEWCOMER = "newcomer"


@dataclass(frozen=True, slots=True)
class Eviction:
    """One task to shed.

    Attributes:
        reason: Why.
        victim: Which task.
        group: Its group, for OLDEST_OF_GROUP.
    """

    reason: ShedReason
    victim: Victim
    group: str | None = None


@dataclass(frozen=True, slots=True)
class BacklogLimit:
    """A bound on the number of waiting tasks.

    Attributes:
        max_waiting: Most live tasks that may wait, 1 or more.
        when_full: What to shed.
        group_share: A group with more than this share of the backlog is noisy. When the backlog is full,
            the oldest task of the noisiest group is shed first. None: groups do not matter.
    """

    max_waiting: int
    when_full: WhenFull = WhenFull.DROP_OLDEST
    group_share: float | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.max_waiting < 1:
            msg = f"max_waiting: must be 1 or more, got {self.max_waiting}"
            raise ValueError(msg)
        if self.group_share is not None and not 0 < self.group_share < 1:
            msg = f"group_share: must be greater than 0 and less than 1, got {self.group_share}"
            raise ValueError(msg)

    def eviction(self, waiting: int, by_group: Mapping[str | None, int]) -> Eviction | None:
        """Return which task to shed; None if the backlog is within its bound.

        Args:
            waiting: Number of live tasks that wait, including the newcomer.
            by_group: Number of these by group; only used if `group_share` is set. Of two groups that are
                equally noisy, the first is shed.
        """
        if waiting <= self.max_waiting:
            return None
        if self.group_share is not None and by_group:
            noisiest = max(by_group, key=by_group.__getitem__)
            if by_group[noisiest] > self.group_share * self.max_waiting:
                return Eviction(ShedReason.GROUP, Victim.OLDEST_OF_GROUP, noisiest)
        drops = self.when_full is WhenFull.DROP_OLDEST
        return Eviction(ShedReason.OVERFLOW, Victim.OLDEST if drops else Victim.NEWCOMER)
