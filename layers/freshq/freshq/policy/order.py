"""In which order waiting tasks are served."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Shares of the deadline. Newest first above 0.4: what is older would reach the head too late to be worth
# a slot. Oldest first again below 0.2: half of it, so that the order does not flap on the boundary.
LIFO_ABOVE: Final = 0.4
FIFO_BELOW: Final = 0.2


class Order(StrEnum):
    """Order of service within a priority level; levels are always drained from high to low.

    PRIORITY is LIFO by another name: it says that the levels are what matters. ADAPTIVE is FIFO while
    work is young and LIFO while it is not; `OrderPolicy` tells which.
    """

    LIFO = "lifo"
    FIFO = "fifo"
    PRIORITY = "priority"
    ADAPTIVE = "adaptive"

    @property
    def newest_first(self) -> bool:
        """Whether the newest waiting task is served before older ones.

        Raises:
            ValueError: For ADAPTIVE: it depends on the age of the oldest live task.
        """
        if self is Order.ADAPTIVE:
            raise ValueError("order: adaptive is newest first only at times; ask OrderPolicy.newest_first")
        return self is not Order.FIFO


@dataclass(frozen=True, slots=True)
class OrderSwitch:
    """An adaptive order turned round.

    Attributes:
        at: When, in seconds.
        newest_first: What it is from then on.
        oldest_age_seconds: Age of the oldest live task that made it turn; 0 if there was none.
    """

    at: float
    newest_first: bool
    oldest_age_seconds: float


class OrderPolicy:
    """Tells which end of the line is served, for one line of tasks: a level, or a group within it.

    An adaptive order looks at the age of the oldest live task, never at the age of what is dequeued:
    newest first, that one always looks fresh, and would call off the very order that made it so
    (load-shedding notes, finding 3). Facebook's "Fail at Scale" (ACM Queue 13(8), 2015) switches on
    the same evidence, a queue that has not been empty for a while.

    Attributes:
        newest_first: Which end is served now.
        adaptive: Whether `observe` needs to be called at all; looking at the oldest task costs a query.
    """

    __slots__ = ("_fifo_below_seconds", "_lifo_above_seconds", "adaptive", "newest_first")

    def __init__(
        self,
        order: Order,
        deadline_seconds: float,
        lifo_above: float = LIFO_ABOVE,
        fifo_below: float = FIFO_BELOW,
    ) -> None:
        """Start with the order; an adaptive one starts oldest first.

        Args:
            order: What was chosen.
            deadline_seconds: Age at which a task is stale, greater than 0.
            lifo_above: Share of the deadline above which an adaptive order serves the newest first.
            fifo_below: Share of the deadline below which it serves the oldest first again.

        Raises:
            ValueError: If the deadline or the shares make no sense.
        """
        if not deadline_seconds > 0:
            msg = f"deadline_seconds: must be greater than 0, got {deadline_seconds}"
            raise ValueError(msg)
        if not 0 < fifo_below < lifo_above < 1:
            msg = "fifo_below, lifo_above: need 0 < fifo_below < lifo_above < 1, got "
            raise ValueError(msg + f"{fifo_below}, {lifo_above}")
        self.adaptive = order is Order.ADAPTIVE
        self.newest_first = False if self.adaptive else order.newest_first
        self._lifo_above_seconds = lifo_above * deadline_seconds
        self._fifo_below_seconds = fifo_below * deadline_seconds

    def observe(self, now: float, oldest_age_seconds: float | None) -> OrderSwitch | None:
        """Take note of the oldest live task; return the switch if the order turned round.

        Args:
            now: Current time in seconds.
            oldest_age_seconds: Its age; None if no live task waits.
        """
        if not self.adaptive:
            return None
        age_seconds = oldest_age_seconds or 0.0
        if self.newest_first:
            turned = age_seconds < self._fifo_below_seconds
        else:
            turned = age_seconds > self._lifo_above_seconds
        if not turned:
            return None
        self.newest_first = not self.newest_first
        return OrderSwitch(now, self.newest_first, age_seconds)
