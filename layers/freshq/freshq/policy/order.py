"""The order in which waiting tasks are served."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

# Shares of the deadline. Above 0.4 the newest goes first: an older task would reach the head too late to
# be worth a slot. Below 0.2 the oldest goes first again. The gap is hysteresis: it prevents flapping.
LIFO_ABOVE: Final = 0.4
FIFO_BELOW: Final = 0.2
# How often an adaptive order checks the oldest task of a line. At least every second; not more often
# than this, because a check costs a query.
CHECKS_PER_DEADLINE: Final = 50
MAX_CHECK_INTERVAL_SECONDS: Final = 1.0
# Live tasks with the nearest deadlines that a look reads, to find the one that has used most of its life.
FIRST_TO_EXPIRE: Final = 100
# The resolution of a clock.
SHORTEST_LIFE_SECONDS: Final = 1e-6


class Wait(NamedTuple):
    """How long a live task has waited, and how long it could wait at most.

    Attributes:
        age_seconds: Its age.
        life_seconds: Age at which it is stale, by its own deadline or the queue's max age.
    """

    age_seconds: float
    life_seconds: float

    @property
    def used_share(self) -> float:
        """The share of its life that has passed."""
        return self.age_seconds / self.life_seconds

    @property
    def is_late(self) -> bool:
        """Whether the task is so old that, served after older tasks, it would hardly be done in time."""
        return self.age_seconds > LIFO_ABOVE * self.life_seconds


def latest_wait(
    now: float,
    oldest_created: float | None,
    max_age_seconds: float,
    first_to_expire: Iterable[tuple[float, float]] = (),
) -> Wait | None:
    """Return the wait of the live task with the largest share of its life passed; None if no task waits.

    Each task is judged by its own deadline: a queue whose tasks all have a shorter max age of their own is as
    late as a queue with that max age.

    Args:
        now: Current time in seconds.
        oldest_created: When the oldest live task was created, in seconds; None if no task waits.
        max_age_seconds: The queue's max age, the longest life of a task.
        first_to_expire: When the live tasks with the nearest deadlines were created, and their deadlines.
    """
    waits = [] if oldest_created is None else [Wait(now - oldest_created, max_age_seconds)]
    for created, deadline in first_to_expire:
        life_seconds = min(max_age_seconds, max(SHORTEST_LIFE_SECONDS, deadline - created))
        waits.append(Wait(now - created, life_seconds))
    # Among equal shares, such as those of new tasks, choose the task that goes stale first.
    return max(waits, key=lambda wait: (wait.used_share, -wait.life_seconds), default=None)


class Order(StrEnum):
    """Order of service within a priority level. Levels are always drained from high to low.

    ADAPTIVE is FIFO while work is young and LIFO while it is not; see `OrderPolicy`. VALUE serves what adds
    most to the value that is delivered in time, DEADLINE the earliest deadline that can still be met; see
    `freshq.policy.value`.

    Examples:
        >>> Queue.memory(order=Order.FIFO).admin.config.order.value
        'fifo'
    """

    LIFO = "lifo"
    FIFO = "fifo"
    ADAPTIVE = "adaptive"
    VALUE = "value"
    DEADLINE = "deadline"

    # A new order needs a case in each `match` below; mypy reports a missing one.

    @property
    def switches(self) -> bool:
        """Whether the served end of the line switches with the age of the work."""
        match self:
            case Order.ADAPTIVE:
                return True
            case Order.LIFO | Order.FIFO | Order.VALUE | Order.DEADLINE:
                return False

    @property
    def plans(self) -> bool:
        """Whether tasks of different classes wait in lines of their own, and a plan chooses among these."""
        return self in (Order.VALUE, Order.DEADLINE)

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
            case Order.LIFO | Order.VALUE:  # among tasks of one class, the newest
                return True
            case Order.FIFO | Order.DEADLINE:
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
        oldest_age_seconds: Age of the live task that caused it, the oldest by its own deadline; 0 if no task
            waited.
    """

    at: float
    newest_first: bool
    oldest_age_seconds: float


class OrderPolicy:
    """Decides which end of one line is served first.

    An adaptive order goes by the age of the oldest live task, each measured by its own deadline, and never by
    the age of what is dequeued:
    newest first, a dequeued task always looks fresh and would end the very order that made it so
    (load-shedding notes, finding 3). Facebook's "Fail at Scale" (ACM Queue 13(8), 2015) switches on
    the same evidence, a queue that has not been empty for a while.

    Attributes:
        newest_first: Which end is served now.
        check_at: When to call `observe` again, in seconds; infinite for an order that never switches.
    """

    __slots__ = (
        "_deadline_seconds",
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
        self._deadline_seconds = deadline_seconds
        self.newest_first = False if self._switches else order.newest_first
        self.check_at = -math.inf if self._switches else math.inf

    @property
    def unused(self) -> bool:
        """Whether it still has its initial state, so that it need not be kept."""
        return self.check_at == -math.inf

    def observe(
        self,
        now: float,
        oldest_created: float | None,
        first_to_expire: Iterable[tuple[float, float]] = (),
    ) -> OrderSwitch | None:
        """Record how long the live tasks have waited; return the switch, if the order switched.

        Args:
            now: Current time in seconds.
            oldest_created: When the oldest of them was created, in seconds; None if no live task waits.
            first_to_expire: When those with the nearest deadlines were created, and their deadlines.
        """
        if not self._switches:
            return None
        found = latest_wait(now, oldest_created, self._deadline_seconds, first_to_expire)
        wait = found or Wait(0.0, self._deadline_seconds)
        is_young = wait.age_seconds < FIFO_BELOW * wait.life_seconds
        switches = is_young if self.newest_first else wait.is_late
        if switches:
            self.newest_first = not self.newest_first
        empty = found is None and not self.newest_first
        interval_seconds = min(MAX_CHECK_INTERVAL_SECONDS, wait.life_seconds / CHECKS_PER_DEADLINE)
        self.check_at = -math.inf if empty else now + interval_seconds
        return OrderSwitch(now, self.newest_first, wait.age_seconds) if switches else None
