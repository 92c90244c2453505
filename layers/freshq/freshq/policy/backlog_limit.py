"""Bound the backlog: the share of each group, and the tasks to evict when a put exceeds the limit."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from freshq.errors import quoted
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self


class WhenFull(StrEnum):
    """Which tasks to shed when the backlog is full."""

    DROP_OLDEST = "drop-oldest"
    REFUSE_NEWEST = "refuse-newest"


class Victim(StrEnum):
    """Which task is shed: the oldest of the lowest level, of all tasks or of one group, or the new one."""

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
        max_waiting: Maximum number of live tasks that may wait, 1 or more.
        when_full: Which tasks to shed.
        group_share: A group with more than this share of the time that the backlog takes is noisy. When the
            backlog is full, the oldest task of the noisiest group is shed first. None: groups do not matter.

    Examples:
        >>> from freshq.policy import BacklogLimit, WhenFull
        >>> queue = Queue.memory(backlog=BacklogLimit(1000, WhenFull.REFUSE_NEWEST))
    """

    max_waiting: int
    when_full: WhenFull = WhenFull.DROP_OLDEST
    group_share: float | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.max_waiting < 1:
            msg = f"max_waiting: must be 1 or more, got {self.max_waiting}"
            raise ValueError(msg)
        if self.when_full not in tuple(WhenFull):
            msg = f"when_full: must be one of {', '.join(WhenFull)}, got {quoted(self.when_full)}"
            raise ValueError(msg)
        object.__setattr__(self, "when_full", WhenFull(self.when_full))  # its value is allowed, too
        if self.group_share is not None and not 0 < self.group_share < 1:
            msg = f"group_share: must be greater than 0 and less than 1, got {self.group_share}"
            raise ValueError(msg)

    def eviction(
        self,
        waiting: int,
        by_group: Mapping[str | None, int],
        seconds_of: Callable[[str | None], float] | None = None,
    ) -> Eviction | None:
        """Return which task to shed; None if the backlog is within its bound.

        Args:
            waiting: Number of live tasks that wait, including the newcomer.
            by_group: Number of these by group; only used if `group_share` is set. If two groups are equally
                noisy, the first is shed.
            seconds_of: Returns the average time of a group's tasks; None: all take the same.
        """
        if waiting <= self.max_waiting:
            return None
        if self.group_share is not None and by_group:
            seconds: Mapping[str | None, float] = by_group
            if seconds_of is not None:
                seconds = {group: count * seconds_of(group) for group, count in by_group.items()}
            noisiest = max(seconds, key=seconds.__getitem__)
            whole_seconds = self.max_waiting * sum(seconds.values())
            if seconds[noisiest] * sum(by_group.values()) > self.group_share * whole_seconds:
                return Eviction(ShedReason.GROUP, Victim.OLDEST_OF_GROUP, noisiest)
        drops = self.when_full is WhenFull.DROP_OLDEST
        return Eviction(ShedReason.OVERFLOW, Victim.OLDEST if drops else Victim.NEWCOMER)


class CountedBacklog:
    """The number of waiting tasks, kept up to date while tasks are admitted and shed."""

    def __init__(
        self,
        limit: BacklogLimit,
        by_group: Mapping[str | None, int],
        of_any_group: int = 0,
        seconds_of: Callable[[str | None], float] | None = None,
    ) -> None:
        """Start from a count.

        Args:
            limit: The bound.
            by_group: Number of waiting tasks of each group.
            of_any_group: Number of waiting tasks whose group is unknown.
            seconds_of: As in `BacklogLimit.eviction`.
        """
        self._limit = limit
        self._seconds_of = seconds_of
        self._by_group = dict(by_group)
        # Without the tasks that were admitted, which are not stored yet.
        self._stored_by_group = dict(by_group)
        self._waiting = sum(by_group.values()) + of_any_group

    @property
    def room(self) -> int:
        """Number of tasks that still fit within the bound."""
        return max(0, self._limit.max_waiting - self._waiting)

    def admit(self, group: str | None) -> Eviction | None:
        """Add a task of a group; return which task to shed for it, None if it fits.

        If the noisiest group has no stored task to evict, the new task is shed.
        """
        self._waiting += 1
        self._by_group[group] = self._by_group.get(group, 0) + 1
        eviction = self._limit.eviction(self._waiting, self._by_group, self._seconds_of)
        if eviction is None:
            return None
        if eviction.victim is Victim.OLDEST_OF_GROUP and not self._stored_by_group.get(eviction.group):
            eviction = Eviction(eviction.reason, Victim.NEWCOMER)
        self._count_out(eviction, group)
        return eviction

    def excess(self) -> Iterator[Eviction]:
        """Yield tasks to shed until the backlog is within its limit."""
        while (eviction := self._limit.eviction(self._waiting, self._by_group, self._seconds_of)) is not None:
            self._count_out(eviction)
            yield eviction

    def _count_out(self, eviction: Eviction, newcomers_group: str | None = None) -> None:
        self._waiting -= 1
        if eviction.victim is Victim.NEWCOMER:
            self._by_group[newcomers_group] -= 1
        elif eviction.victim is Victim.OLDEST_OF_GROUP:
            self._by_group[eviction.group] -= 1
            self._stored_by_group[eviction.group] -= 1


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one worker.

    Attributes:
        until: When it expires, in seconds, unless the worker renews it.
        slots: Number of tasks that the worker may run at a time.
        peak: Peak number of running tasks in its last window.
    """

    until: float
    slots: int
    peak: int


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """The shares of all live workers.

    Attributes:
        shares: By worker.
    """

    shares: Mapping[str, Share]

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]], now: float) -> Self:
        """Return the shares that have not expired, from the result of `values`."""
        shares = {
            worker: Share(until, int(slots), int(peak)) for worker, (until, slots, peak) in values.items()
        }
        return cls({worker: share for worker, share in shares.items() if share.until > now})

    def values(self) -> dict[str, list[float]]:
        """Return the shares as JSON values."""
        return {worker: list(astuple(share)) for worker, share in self.shares.items()}

    def peak_of_others(self, worker: str) -> int:
        """Return the sum of the other workers' peaks."""
        return sum(share.peak for other, share in self.shares.items() if other != worker)

    def without(self, worker: str) -> WorkerShares:
        """Return the shares of the other workers."""
        return WorkerShares({other: share for other, share in self.shares.items() if other != worker})

    def taken(
        self, worker: str, share: Share, limit: int, wanted: int, in_flight: int
    ) -> tuple[WorkerShares, int]:
        """Return the shares after one worker took its share, and the number of slots in it.

        A share is an equal part of the limit, with the remainder going to the first workers by name, but
        never more than the others leave. They shrink to their own part when they renew, so a new worker has
        its part within a window.

        Args:
            worker: The worker that takes the share.
            share: Its `until` and `peak`; the slots are computed.
            limit: Number of slots in all.
            wanted: Number of slots that the worker can use.
            in_flight: Number of slots in use, which it cannot return.
        """
        others = self.without(worker).shares
        ranked = sorted([*others, worker])
        part, left_over = divmod(limit, len(ranked))
        due = part + (ranked.index(worker) < left_over)
        left = limit - sum(other.slots for other in others.values())
        slots = max(in_flight, min(wanted, due, left), 0)
        mine = Share(share.until, slots, share.peak)
        return WorkerShares({**others, worker: mine}), slots
