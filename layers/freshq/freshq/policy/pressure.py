"""How hard a queue is pressed, what a producer is told about it, and when the door closes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from freshq.policy.order import LIFO_ABOVE

if TYPE_CHECKING:
    from collections.abc import Mapping

# A producer is told to come back after this share of the deadline at the soonest, and this multiple of
# it at the latest.
SOONEST_RETRY: Final = 0.1
LATEST_RETRY: Final = 10.0
# The flow is measured over the last deadline, but no longer ago than a producer would wait for news.
LONGEST_WINDOW_SECONDS: Final = 60.0
# The least time that a rate is taken over, when counting has just begun.
SHORTEST_WINDOW_SECONDS: Final = 1.0


def flow_window_seconds(deadline_seconds: float) -> float:
    """Return over how long the flow of a queue is measured."""
    return min(deadline_seconds, LONGEST_WINDOW_SECONDS)


class WindowCounter:
    """Counts events over a sliding window of time with two numbers.

    The last whole window counts for the part of it that the sliding window still covers, as if its
    events were spread evenly. The two numbers are also what a store can keep for many producers.
    """

    __slots__ = ("_before", "_count", "_since", "_started", "window_seconds")

    def __init__(self, window_seconds: float, now: float) -> None:
        """Start with nothing.

        Args:
            window_seconds: Length of the window, greater than 0.
            now: Current time in seconds.
        """
        if not window_seconds > 0:
            msg = f"window_seconds: must be greater than 0, got {window_seconds}"
            raise ValueError(msg)
        self.window_seconds = window_seconds
        self._started = self._since = now
        self._count = self._before = 0.0

    def add(self, now: float, count: float = 1.0) -> None:
        """Count events at `now` (seconds)."""
        if now >= self._since + self.window_seconds:
            self._roll(now)
        self._count += count

    def total(self, now: float) -> float:
        """Return how many events the window that ends at `now` has."""
        if now >= self._since + self.window_seconds:
            self._roll(now)
        into = max(0.0, (now - self._since) / self.window_seconds)
        return self._count + self._before * (1.0 - into)

    def rate(self, now: float) -> float:
        """Return events a second; at the beginning over the time that there was."""
        observed_seconds = min(self.window_seconds, now - self._started)
        return self.total(now) / observed_seconds if observed_seconds > 0 else 0.0

    def _roll(self, now: float) -> None:
        windows = math.floor((now - self._since) / self.window_seconds)
        self._before = self._count if windows == 1 else 0.0
        self._count = 0.0
        self._since += windows * self.window_seconds


@dataclass(frozen=True, slots=True)
class Flow:
    """What went through a queue lately, a second.

    Attributes:
        offered: Tasks that were to be put, the refused ones included.
        served: Tasks that were done, in time or not.
        served_in_time: Tasks that were done in time.
        turned_away: Tasks shed for another reason than their age or the door: overflow, group, codel.
    """

    offered: float
    served: float
    served_in_time: float
    turned_away: float = 0.0


def flow_between(
    window_seconds: float, into_seconds: float, current: Mapping[str, float], before: Mapping[str, float]
) -> Flow:
    """Return the flow over the window that ends now, from counts by whole windows.

    The window before counts for the part that is still covered, as in `WindowCounter`. If it counted
    nothing, counting began in the current one, and the rates are over what has passed of that.

    Args:
        window_seconds: Length of a window.
        into_seconds: How much of the current one has passed.
        current: Counts of the current window, by the names of the fields of `Flow`.
        before: Counts of the window before.
    """
    covered = 1.0 - into_seconds / window_seconds
    observed_seconds = window_seconds
    if not any(before.values()):
        observed_seconds = min(window_seconds, max(into_seconds, SHORTEST_WINDOW_SECONDS))
    rates = {
        field.name: (current.get(field.name, 0) + covered * before.get(field.name, 0)) / observed_seconds
        for field in fields(Flow)
    }
    return Flow(**rates)


@dataclass(frozen=True, slots=True)
class Pressure:
    """The answer to a producer.

    Attributes:
        offered_per_second: Tasks that were to be put.
        served_per_second: Tasks that were done.
        probability_in_time: Chance of a task that is put now to be served in time, from 0 to 1.
        overloaded: Whether more is offered than can be served.
        retry_after_seconds: When to try again, different for everyone; None unless overloaded.
    """

    offered_per_second: float
    served_per_second: float
    probability_in_time: float
    overloaded: bool
    retry_after_seconds: float | None


def assess(flow: Flow, oldest_age_seconds: float | None, deadline_seconds: float, uniform: float) -> Pressure:
    """Return how hard the queue is pressed.

    It is overloaded while the oldest live task is older than 0.4 of the deadline, or tasks are turned
    away. Then a new task's chance is the share of the load that is served in time; else it is 1. What
    the door refuses is no evidence of overload: it would keep the door closed by itself.

    Backlog over capacity is no estimate of the wait here: newest first, a task does not wait for what
    came before it. The retry spreads the excess of one deadline over the time that its service takes.

    Args:
        flow: What went through lately.
        oldest_age_seconds: Age of the oldest live task; None if none waits.
        deadline_seconds: Age at which a task is stale.
        uniform: A random number from [0, 1), for the jitter.
    """
    old = oldest_age_seconds is not None and oldest_age_seconds > LIFO_ABOVE * deadline_seconds
    overloaded = old or flow.turned_away > 0
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
    """Refuses new work beyond a multiple of capacity, before it costs a write.

    The client-side throttle of the SRE book ("Handling Overload"), on the producers' side of a queue:
    of the load offered, `multiple` times what is served is let in, the rest is refused at random, as
    every task's chance is the same. It refuses nothing unless the queue is overloaded, so that a queue
    that served nothing for a while, because the downstream was down, is not locked for ever.

    Attributes:
        multiple: Of the served rate, 1 or more; with 2 there is always work to choose from.
    """

    multiple: float = 2.0

    def __post_init__(self) -> None:
        """Check the multiple."""
        if not 1 <= self.multiple < math.inf:
            msg = f"door: must be a multiple of the capacity of 1 or more, got {self.multiple}"
            raise ValueError(msg)

    def refusal_probability(self, pressure: Pressure) -> float:
        """Return which share of the new work to refuse: max(0, 1 - multiple * served / offered)."""
        if not pressure.overloaded or pressure.offered_per_second <= 0:
            return 0.0
        return max(0.0, 1.0 - self.multiple * pressure.served_per_second / pressure.offered_per_second)
