"""Why tasks are shed: the reasons, the test whether a task is too late to be claimed, and CoDel."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from freshq.policy.order import Order

# How often a claim takes tasks: once, and again if CoDel shed some of them.
MAX_TAKES: Final = 2
# Tasks behind those that it took that a claim sheds by CoDel: enough for claims of one task to keep up with a
# hundred times the capacity.
MAX_SHED_BEHIND: Final = 100
# Bounds on creation times are exclusive. Moving a bound one clock step earlier still allows a wait of exactly
# the limit.
CLOCK_STEP_SECONDS: Final = 1e-6
# An overloaded line sheds tasks that waited longer than this many targets, as folly does.
SHED_AFTER_TARGETS: Final = 2


class ShedReason(StrEnum):
    """Why a task was shed. Every shed task has one reason, and is counted under that reason.

    EXPIRED: its deadline passed while it waited. RESERVE: a claim skipped it because less time was left
    than a task takes. OVERFLOW: the backlog was full. GROUP: the backlog was full, and its group held
    more than its share. CODEL: it had waited more than twice CoDel's target. ADMISSION: admission control
    rejected it. DEADLINE: it was put by a run whose own deadline leaves it too little time.

    Examples:
        >>> from freshq.policy import ShedReason
        >>> ShedReason.EXPIRED.value
        'expired'
    """

    EXPIRED = "expired"
    RESERVE = "reserve"
    OVERFLOW = "overflow"
    GROUP = "group"
    CODEL = "codel"
    ADMISSION = "admission"
    DEADLINE = "deadline"


def too_late(now: float, deadline: float, reserve_seconds: float) -> ShedReason | None:
    """Return why a task must not be claimed; None if enough time is left.

    Args:
        now: Current time in seconds.
        deadline: When the task is stale, in seconds.
        reserve_seconds: Its expected duration.
    """
    if deadline <= now:
        return ShedReason.EXPIRED
    return ShedReason.RESERVE if deadline <= now + reserve_seconds else None


class Codel:
    """Sheds tasks that waited too long during an overload, by the rule of Facebook's folly.

    While the shortest wait of an interval is above the target, the queue is overloaded, and tasks that
    waited more than twice the target are shed. That is `folly/executors/Codel.cpp`, explained in "Fail
    at Scale" (ACM Queue 13(8), 2015). RFC 8289 instead speeds up its drops with the square root of their
    number; that suits senders that slow down, and is too slow for senders that do not.

    Only for FIFO: the newest task always looks fresh. Under LIFO the shortest wait never shows overload,
    whatever waits below.

    Attributes:
        overloaded: Whether the last whole interval was slow.
    """

    __slots__ = ("_interval_ends", "_interval_seconds", "_shortest", "_target_seconds", "overloaded")

    def __init__(self, target_seconds: float, interval_seconds: float, order: Order) -> None:
        """Start not overloaded.

        Args:
            target_seconds: Shortest wait that is still acceptable, such as a twentieth of the deadline.
            interval_seconds: Over which the shortest wait is taken; twice the wake-up latency or more.
            order: Order of the queue.

        Raises:
            ValueError: If the order is not FIFO, or a time is not positive.
        """
        if not order.oldest_first:
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
        """The wait above which tasks are shed now."""
        return SHED_AFTER_TARGETS * self._target_seconds if self.overloaded else math.inf

    def sheds(self, now: float, waited_seconds: float) -> bool:
        """Return whether to shed the task at the head of the line.

        The first task of an interval is never shed: a single task is not a queue.

        Args:
            now: Current time in seconds.
            waited_seconds: How long the task has waited so far.
        """
        if now >= self._interval_ends:
            self.overloaded = self._shortest > self._target_seconds
            self._interval_ends = now + self._interval_seconds
            self._shortest = waited_seconds
            return False
        self._shortest = min(self._shortest, waited_seconds)
        return waited_seconds > self.longest_wait_seconds

    def sheds_behind(self, now: float, waited_seconds: float) -> bool:
        """Return whether to shed a task that waits behind one that was shed; changes nothing.

        `sheds` would say the same of each task once it is at the head, until the interval ends: a task that
        waited so long leaves the shortest wait of the interval above the target.

        Args:
            now: Current time in seconds.
            waited_seconds: How long the task has waited.
        """
        return now < self._interval_ends and waited_seconds > self.longest_wait_seconds
