"""Which tasks are given up, and why. Every one of them has a reason, and is counted under it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from freshq.policy.order import Order
from freshq.policy.quantile import QuantileSketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ShedReason(StrEnum):
    """Why a task was not done.

    EXPIRED: its deadline passed while it waited. RESERVE: a claim passed it over, because what was left
    until its deadline was shorter than the time that a task takes. OVERFLOW: the backlog was full.
    GROUP: the backlog was full, and its group held more than its share. CODEL: it had waited for more
    than twice CoDel's target. DOOR: it was refused before it was put.
    """

    EXPIRED = "expired"
    RESERVE = "reserve"
    OVERFLOW = "overflow"
    GROUP = "group"
    CODEL = "codel"
    DOOR = "door"


def too_late(now: float, deadline: float, reserve_seconds: float) -> ShedReason | None:
    """Return why a task must not be claimed, None if there is time enough.

    Args:
        now: Current time in seconds.
        deadline: When the task is stale, in seconds.
        reserve_seconds: How long it is expected to take.
    """
    if deadline <= now:
        return ShedReason.EXPIRED
    return ShedReason.RESERVE if deadline <= now + reserve_seconds else None


# --- deadline with a reserve


class Reserve(Protocol):
    """How much time a task must still have when it is claimed.

    Without a reserve FIFO above capacity serves every task at the edge of its deadline, too late. With
    a reserve r its goodput is the share of services that take no longer than r: C * F(r).

    Attributes:
        seconds: The reserve now.
    """

    seconds: float

    def observe(self, service_seconds: float) -> None:
        """Take note of how long a task took, whether in time or not."""


class FixedReserve:
    """The same reserve at all times; 0 for none."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        """Keep the reserve in seconds, 0 or more."""
        self.seconds = seconds

    def observe(self, service_seconds: float) -> None:
        """Do nothing."""


class QuantileReserve:
    """A quantile of the recent service times, at most half of the deadline.

    The bound matters: a service that becomes slower than the deadline would otherwise raise the reserve
    above it, nothing would be claimed again, and nothing observed that could bring the reserve down.
    """

    __slots__ = ("_cap_seconds", "_new", "_quantile", "_refresh_at", "seconds", "sketch")

    # There is no reserve before so many services, and it is worked out anew after so many more each.
    LEAST: Final = 20
    EVERY: Final = 100

    def __init__(
        self, quantile: float, deadline_seconds: float, sketch: QuantileSketch | None = None
    ) -> None:
        """Start with no reserve, or with what is known.

        Args:
            quantile: Share of the tasks that shall find time enough, such as 0.9.
            deadline_seconds: Age at which a task is stale.
            sketch: Service times that are known already.
        """
        self.seconds = 0.0
        self.sketch = sketch or QuantileSketch()
        self._quantile = quantile
        self._cap_seconds = deadline_seconds / 2
        self._new: list[float] = []
        self._refresh_at = self.LEAST
        if self.sketch.total >= self.LEAST:
            self.refresh()

    def observe(self, service_seconds: float) -> None:
        """Take note of how long a task took."""
        self._new.append(service_seconds)
        if len(self._new) >= self._refresh_at:
            self.refresh()

    def refresh(self) -> None:
        """Work out the reserve anew."""
        self.sketch.add(self._new)
        self._new.clear()
        self._refresh_at = self.EVERY
        self.seconds = min(self._cap_seconds, self.sketch.quantile(self._quantile) or 0.0)


# A reserve that was in force in so many separate times is remembered for each of them.
MOST_SPANS: Final = 50


class ReserveSpans:
    """The times in which claims left tasks waiting because of the reserve.

    A task that goes stale leaves no trace of its own: nothing is written for it. It was shed by the
    reserve if a claim passed it over in its last moments, and by its age alone if none did.
    """

    def __init__(self, spans: Iterable[Sequence[float]] = ()) -> None:
        """Take spans as `extended` returned them: first claim, last claim, largest reserve; in seconds."""
        self._spans = [tuple(span) for span in spans]

    def extended(self, now: float, reserve_seconds: float) -> list[tuple[float, ...]]:
        """Return the spans after one more claim, the oldest ones dropped beyond `MOST_SPANS`."""
        spans = list(self._spans)
        if spans and now - spans[-1][1] <= reserve_seconds:
            first, last, largest = spans.pop()
            spans.append((first, max(now, last), max(largest, reserve_seconds)))
        else:
            spans.append((now, now, reserve_seconds))
        return spans[-MOST_SPANS:]

    def reason(self, deadline: float) -> ShedReason:
        """Return why a task that waited until its deadline (seconds) was shed."""
        for first, last, reserve_seconds in self._spans:
            if first < deadline and last >= deadline - reserve_seconds:
                return ShedReason.RESERVE
        return ShedReason.EXPIRED


# --- CoDel, for FIFO


class Codel:
    """Sheds what waited long while the whole queue is slow, by the rule of Facebook's folly.

    While the shortest wait of an interval is above the target, the queue is overloaded, and what waited
    for more than twice the target is shed. That is `folly/executors/Codel.cpp`, explained in "Fail at
    Scale" (ACM Queue 13(8), 2015). RFC 8289 speeds up its drops with the square root of their number
    instead: made for senders that slow down, and too slow for those that do not.

    Only for FIFO: the newest task always looks fresh, so that under LIFO the shortest wait says that
    there is no overload, whatever waits below.

    Attributes:
        overloaded: Whether the last whole interval was slow.
    """

    __slots__ = ("_interval_ends", "_interval_seconds", "_shortest", "_target_seconds", "overloaded")

    def __init__(self, target_seconds: float, interval_seconds: float, order: Order) -> None:
        """Start not overloaded.

        Args:
            target_seconds: Shortest wait that is still good, such as a twentieth of the deadline.
            interval_seconds: How long the shortest wait is looked for, twice the wake-up latency or more.
            order: The order of the queue that it is for.

        Raises:
            ValueError: If the order is not FIFO, or a time is not positive.
        """
        if order is not Order.FIFO:
            msg = f"codel: works only with order=fifo, got order={order.value}: newest first, the task"
            raise ValueError(msg + " that is served always looks fresh, and CoDel would see no overload")
        for name, seconds in (("target_seconds", target_seconds), ("interval_seconds", interval_seconds)):
            if not 0 < seconds < math.inf:
                msg = f"codel.{name}: must be greater than 0, got {seconds}"
                raise ValueError(msg)
        self.overloaded = False
        self._target_seconds = target_seconds
        self._interval_seconds = interval_seconds
        self._interval_ends = -math.inf
        self._shortest = 0.0

    @property
    def longest_wait_seconds(self) -> float:
        """The wait above which tasks are shed now; a store can make it part of its key condition."""
        return 2 * self._target_seconds if self.overloaded else math.inf

    def sheds(self, now: float, waited_seconds: float) -> bool:
        """Return whether the task at the head of the line is to be shed.

        The first of an interval is never shed: one task that arrives now and then is no queue.

        Args:
            now: Current time in seconds.
            waited_seconds: How long it has waited; oldest first.
        """
        if now >= self._interval_ends:
            self.overloaded = self._shortest > self._target_seconds
            self._interval_ends = now + self._interval_seconds
            self._shortest = waited_seconds
            return False
        self._shortest = min(self._shortest, waited_seconds)
        return waited_seconds > self.longest_wait_seconds


# --- a bounded backlog


class WhenFull(StrEnum):
    """What gives way when the backlog is full."""

    DROP_OLDEST = "drop-oldest"
    REFUSE_NEWEST = "refuse-newest"


class Victim(StrEnum):
    """Which task is shed: the oldest of the lowest level, the same within one group, or the newcomer."""

    OLDEST = "oldest"
    OLDEST_OF_GROUP = "oldest-of-group"
    NEWCOMER = "newcomer"


@dataclass(frozen=True, slots=True)
class Eviction:
    """A task that has to go.

    Attributes:
        reason: What it is counted as.
        victim: Which one.
        group: Of which group, for OLDEST_OF_GROUP.
    """

    reason: ShedReason
    victim: Victim
    group: str | None = None


@dataclass(frozen=True, slots=True)
class BacklogLimit:
    """A bound on how many tasks wait.

    Attributes:
        max_waiting: How many live tasks may wait, 1 or more.
        when_full: What gives way.
        group_share: Above which share of the backlog a group is noisy: when the backlog is full, the
            noisiest group gives way first, its oldest task before others; None: groups do not matter.
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
        """Return which task has to go, None if none has.

        Args:
            waiting: How many live tasks wait, the newcomer included.
            by_group: How many of each group; only looked at if `group_share` is set.
        """
        if waiting <= self.max_waiting:
            return None
        if self.group_share is not None and by_group:
            noisiest = max(by_group, key=by_group.__getitem__)
            if by_group[noisiest] > self.group_share * self.max_waiting:
                return Eviction(ShedReason.GROUP, Victim.OLDEST_OF_GROUP, noisiest)
        drops = self.when_full is WhenFull.DROP_OLDEST
        return Eviction(ShedReason.OVERFLOW, Victim.OLDEST if drops else Victim.NEWCOMER)
