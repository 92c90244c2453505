"""How overloaded a queue is, what a producer learns about it, and when admission control rejects tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.policy.fairness import fair_share
from freshq.policy.order import LIFO_ABOVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.policy.flow import Flow

# Bounds of the time after which a producer should retry, as multiples of the deadline.
SOONEST_RETRY: Final = 0.1
LATEST_RETRY: Final = 10.0
# How often the door measures the pressure. At least every second.
DOOR_CHECKS_PER_DEADLINE: Final = 10
MAX_CHECK_INTERVAL_SECONDS: Final = 1.0
# A check of the door has no jitter; each rejected task gets its own.
DOOR_UNIFORM: Final = 0.5


@dataclass(frozen=True, slots=True)
class Pressure:
    """How overloaded a queue is, as reported to producers.

    Attributes:
        offered_per_second: Tasks put, including rejected ones.
        served_per_second: Tasks done.
        probability_in_time: Chance that a task put now is served in time, from 0 to 1.
        overloaded: Whether more is offered than can be served.
        retry_after_seconds: When to try again, jittered; None unless overloaded.
    """

    offered_per_second: float
    served_per_second: float
    probability_in_time: float
    overloaded: bool
    retry_after_seconds: float | None


def assess(flow: Flow, oldest_age_seconds: float | None, deadline_seconds: float, uniform: float) -> Pressure:
    """Return how overloaded the queue is.

    It is overloaded while the oldest live task is older than 0.4 of the deadline, or tasks are shed
    early. Then a new task's chance is the share of the load that is served in time; else it is 1. What
    the door rejects is no evidence of overload: it would keep the door closed.

    Backlog over capacity does not estimate the wait here: newest first, a task does not wait for older
    ones. The retry spreads the excess of one deadline over the time that serving it takes.

    Args:
        flow: What went through lately.
        oldest_age_seconds: Age of the oldest live task; None if none waits.
        deadline_seconds: Age at which a task is stale.
        uniform: A random number from [0, 1), for the jitter.
    """
    old = oldest_age_seconds is not None and oldest_age_seconds > LIFO_ABOVE * deadline_seconds
    overloaded = old or flow.shed_early > 0
    chance = 1.0
    retry_after_seconds = None
    if overloaded:
        if flow.offered > 0:
            chance = min(1.0, flow.served_in_time / flow.offered)
        excess = flow.offered / flow.served - 1 if flow.served > 0 else LATEST_RETRY
        bounded = min(LATEST_RETRY, max(SOONEST_RETRY, excess))
        retry_after_seconds = deadline_seconds * bounded * (0.5 + uniform)
    return Pressure(flow.offered, flow.served, chance, overloaded, retry_after_seconds)


@dataclass(frozen=True, slots=True)
class Door:
    """Admission control by load: rejects new work beyond a multiple of capacity, before it costs a write.

    The client-side throttle of the SRE book ("Handling Overload"), on the producers' side of a queue:
    `multiple` times the served rate is admitted. Groups share it by `fair_share`, so that a flood is
    rejected before a quiet group. What a group offers beyond its share is rejected at random. The door
    rejects nothing unless the queue is overloaded. So a queue that served nothing for a while, because the
    downstream was down, is not locked for ever.

    Attributes:
        multiple: Of the served rate, 1 or more; with 2 there is always work to choose from.
    """

    multiple: float = 2.0

    def __post_init__(self) -> None:
        """Check the multiple."""
        if not 1 <= self.multiple < math.inf:
            msg = f"door: must be a multiple of the capacity of 1 or more, got {self.multiple}"
            raise ValueError(msg)

    def share_per_second(self, pressure: Pressure, flow: Flow) -> float:
        """Return how many tasks each group may put; infinite unless there is too little for all.

        Args:
            pressure: How overloaded the queue is.
            flow: What went through lately, by group.
        """
        if not pressure.overloaded:
            return math.inf
        return fair_share(flow.demands(), self.multiple * flow.served)


class DoorControl:
    """Rejects tasks at the door, by the pressure and the flow that it last observed.

    Attributes:
        check_at: When to call `observe` again, in seconds.
    """

    __slots__ = (
        "_check_interval_seconds",
        "_deadline_seconds",
        "_door",
        "_flow",
        "_retry_after_seconds",
        "_share_per_second",
        "check_at",
    )

    def __init__(self, door: Door, deadline_seconds: float) -> None:
        """Start open.

        Args:
            door: The rule.
            deadline_seconds: Age at which tasks of the queue are stale.
        """
        self._door = door
        self._deadline_seconds = deadline_seconds
        self._check_interval_seconds = min(
            MAX_CHECK_INTERVAL_SECONDS, deadline_seconds / DOOR_CHECKS_PER_DEADLINE
        )
        self._share_per_second = math.inf
        self._flow: Flow | None = None
        self._retry_after_seconds = 0.0
        self.check_at = -math.inf

    def observe(self, now: float, flow: Flow, oldest_age_seconds: float | None) -> None:
        """Set what is rejected until the next call.

        Args:
            now: Current time in seconds.
            flow: What went through lately, by group.
            oldest_age_seconds: Age of the oldest live task; None if none waits.
        """
        pressure = assess(flow, oldest_age_seconds, self._deadline_seconds, DOOR_UNIFORM)
        # In this order: another thread that sees the share sees the flow and the time, too.
        self._retry_after_seconds = pressure.retry_after_seconds or 0.0
        self._flow = flow
        self._share_per_second = self._door.share_per_second(pressure, flow)
        self.check_at = now + self._check_interval_seconds

    def rejects(self, group: str | None, uniform: Callable[[], float]) -> float | None:
        """Return after how many seconds a rejected task may be put again; None to admit it.

        Args:
            group: The group of the task.
            uniform: Draws a random number from [0, 1).
        """
        share, flow = self._share_per_second, self._flow
        if flow is None or share == math.inf:
            return None
        offered = flow.offered_by(group)
        if offered <= share or uniform() >= 1.0 - share / offered:
            return None
        return self._retry_after_seconds * (0.5 + uniform())
