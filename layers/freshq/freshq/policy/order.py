"""The order in which waiting tasks are served."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Shares of the deadline. Above 0.4 the newest goes first: an older task would reach the head too late to
# be worth a slot. Below 0.2 the oldest goes first again. The gap is hysteresis: it prevents flapping.
LIFO_ABOVE: Final = 0.4
FIFO_BELOW: Final = 0.2
# How often an adaptive order checks the oldest task of a line. At least every second; not more often
# than this, because a check costs a query.
CHECKS_PER_DEADLINE: Final = 50
MAX_CHECK_INTERVAL_SECONDS: Final = 1.0


class Order(StrEnum):
    """Order of service within a priority level. Levels are always drained from high to low.

    PRIORITY is LIFO under another name, for queues where only the levels matter. ADAPTIVE is FIFO
    while work is young and LIFO while it is not; see `OrderPolicy`.

    Examples:
        >>> Queue.memory(order=Order.FIFO).admin.config.order.value
        'fifo'
    """

    LIFO = "lifo"
    FIFO = "fifo"
    PRIORITY = "priority"
    ADAPTIVE = "adaptive"

    # A new order needs a case in each `match` below; mypy reports a missing one.

    @property
    def switches(self) -> bool:
        """Whether the end that is served changes with the age of the work."""
        match self:
            case Order.ADAPTIVE:
                return True
            case Order.LIFO | Order.FIFO | Order.PRIORITY:
                return False

    @property
    def oldest_first(self) -> bool:
        """Whether the oldest waiting task is always served before newer ones."""
        return not self.switches and not self.newest_first

    @property
    def newest_first(self) -> bool:
        """Whether the newest waiting task is always served before older ones.

        Raises:
            ValueError: If the order switches: it depends on the age of the oldest live task.
        """
        match self:
            case Order.LIFO | Order.PRIORITY:
                return True
            case Order.FIFO:
                return False
            case Order.ADAPTIVE:
                msg = f"order: {self.value} is newest first only at times; ask OrderPolicy.newest_first"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class OrderSwitch:
    """A switch of an adaptive order.

    Attributes:
        at: When, in seconds.
        newest_first: The order from then on.
        oldest_age_seconds: Age of the oldest live task that caused it; 0 if no task waited.
    """

    at: float
    newest_first: bool
    oldest_age_seconds: float


class OrderPolicy:
    """Decides which end of one line is served first.

    An adaptive order goes by the age of the oldest live task, never by the age of what is dequeued:
    newest first, a dequeued task always looks fresh and would end the very order that made it so
    (load-shedding notes, finding 3). Facebook's "Fail at Scale" (ACM Queue 13(8), 2015) switches on
    the same evidence, a queue that has not been empty for a while.

    Attributes:
        newest_first: Which end is served now.
        check_at: When to call `observe` again, in seconds; infinite for an order that never switches.
    """

    __slots__ = (
        "_check_interval_seconds",
        "_fifo_below_seconds",
        "_lifo_above_seconds",
        "_switches",
        "check_at",
        "newest_first",
    )

    def __init__(
        self,
        order: Order,
        deadline_seconds: float,
    ) -> None:
        """Start with the order; an adaptive one starts oldest first.

        Args:
            order: Order of the queue.
            deadline_seconds: Age at which a task is stale, greater than 0.

        Raises:
            ValueError: If the deadline is not positive.
        """
        if not deadline_seconds > 0:
            msg = f"deadline_seconds: must be greater than 0, got {deadline_seconds}"
            raise ValueError(msg)
        self._switches = order.switches
        self._lifo_above_seconds = LIFO_ABOVE * deadline_seconds
        self._fifo_below_seconds = FIFO_BELOW * deadline_seconds
        self._check_interval_seconds = min(MAX_CHECK_INTERVAL_SECONDS, deadline_seconds / CHECKS_PER_DEADLINE)
        self.newest_first = False if self._switches else order.newest_first
        self.check_at = -math.inf if self._switches else math.inf

    @property
    def unused(self) -> bool:
        """Whether it still has its initial state, so that it need not be kept."""
        return self.check_at == -math.inf

    def observe(self, now: float, oldest_created: float | None) -> OrderSwitch | None:
        """Record the age of the oldest live task; return the switch, if the order switched.

        Args:
            now: Current time in seconds.
            oldest_created: When that task was created, in seconds; None if no live task waits.
        """
        if not self._switches:
            return None
        age_seconds = 0.0 if oldest_created is None else now - oldest_created
        if self.newest_first:
            switches = age_seconds < self._fifo_below_seconds
        else:
            switches = age_seconds > self._lifo_above_seconds
        if switches:
            self.newest_first = not self.newest_first
        empty = oldest_created is None and not self.newest_first
        self.check_at = -math.inf if empty else now + self._check_interval_seconds
        return OrderSwitch(now, self.newest_first, age_seconds) if switches else None
