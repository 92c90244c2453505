"""The request of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

from freshq.model.lifecycle import ClaimMoment
from freshq.policy.codel import CLOCK_STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.stores.lines import LineOrders, LineTurns


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request for tasks to work on.

    Attributes:
        queue: Name of the queue.
        orders: Decides which end of each line is served.
        turns: Decides which group of a level is served next.
        limit: Maximum number of tasks.
        tokens: One new lease token for each of `limit` tasks.
        clock: Returns the time in seconds since the epoch, to the microsecond.
        lease_seconds: Length of the leases.
        max_age_seconds: Age at which a task of the queue is stale.
        reserve_seconds: Time that a task must have left before its deadline.
        retention_seconds: How long the store keeps a task that is over.
        longest_wait_seconds: Tasks that waited longer are passed over, stale or not; infinite: none.
    """

    queue: str
    orders: LineOrders
    turns: LineTurns
    limit: int
    tokens: Sequence[str]
    clock: Callable[[], float]
    lease_seconds: float
    max_age_seconds: float
    reserve_seconds: float
    retention_seconds: float
    longest_wait_seconds: float = inf

    @property
    def passes_over(self) -> bool:
        """Whether the claim passes over tasks that are not stale."""
        return self.longest_wait_seconds < inf

    def moment(self) -> ClaimMoment:
        """Return the times of a claim that is made now.

        A store asks for them right before each write that takes tasks: a lease counts from its write,
        however long the claim has been under way.
        """
        now = self.clock()
        lease_until = round(now + self.lease_seconds, 6)
        # A lease, and any deadline that a claimed task can have, end before this.
        useful_until = max(lease_until, now + self.max_age_seconds)
        return ClaimMoment(
            now=now,
            created_after=max(
                now - self.max_age_seconds + self.reserve_seconds,
                now - self.longest_wait_seconds - CLOCK_STEP_SECONDS,
            ),
            deadline_after=now + self.reserve_seconds,
            lease_until=lease_until,
            expires=ceil(useful_until + self.retention_seconds),
        )
