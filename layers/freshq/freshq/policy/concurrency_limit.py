"""A limit on the tasks in work at a time, over all workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshq.policy.token_bucket import ROUNDING

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Signals:
    """What one worker saw of the downstream in a window.

    Attributes:
        succeeded: Calls that succeeded.
        pushed_back: Calls that were rejected as busy, timed out or failed.
        peak_in_flight: Most tasks in work at a time, over all workers, counted by leases.
    """

    succeeded: int = 0
    pushed_back: int = 0
    peak_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class LimitState:
    """The limit as the workers share it, in one small record.

    Attributes:
        limit: Most tasks in work at a time, over all workers; rounded down.
        moved: Number of the window in which it last moved, up or down.
        lowered: Number of the window in which it was last lowered.
    """

    limit: float
    moved: int = -1
    lowered: int = -1

    @property
    def slots(self) -> int:
        """Most tasks that may be in work at a time."""
        return math.floor(self.limit + ROUNDING)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """A limit on the tasks in work at a time, so that the downstream is not overloaded.

    Fixed if `lowest` and `highest` are the same. Otherwise additive increase, multiplicative decrease
    (Chiu and Jain, Computer Networks and ISDN Systems 17, 1989: the only linear rule that converges to a
    fair share): one more after a window without push-back, times 0.7 after one with (CUBIC's factor,
    RFC 9438). The limit does not grow after a window that used less than half of it (as in Netflix's
    concurrency-limits).

    Only explicit signals count. On Lambda, latency shows cold starts more than load.

    Attributes:
        lowest: Lower bound of the limit, 1 or more.
        highest: Upper bound.
        window_seconds: Time between changes; longer than a call to the downstream takes.
        increase: Tasks added after a good window.
        decrease: Factor after a bad one.
    """

    lowest: int
    highest: int
    window_seconds: float = 10.0
    increase: float = 1.0
    decrease: float = 0.7

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 1 <= self.lowest <= self.highest:
            msg = f"lowest, highest: need 1 <= lowest <= highest, got {self.lowest}, {self.highest}"
            raise ValueError(msg)
        if not self.window_seconds > 0:
            msg = f"window_seconds: must be greater than 0, got {self.window_seconds}"
            raise ValueError(msg)
        if not (self.increase > 0 and 0 < self.decrease < 1):
            msg = f"increase, decrease: need increase > 0 and 0 < decrease < 1, got {self.increase}, "
            raise ValueError(msg + f"{self.decrease}")

    @classmethod
    def fixed(cls, limit: int) -> Self:
        """Return a limit that never moves."""
        return cls(limit, limit)

    def initial(self) -> LimitState:
        """Return where to start if the store has no record: at the lowest, as for a cold downstream."""
        return LimitState(float(self.lowest))

    def window(self, now: float) -> int:
        """Return the number of the window that `now` (seconds since the epoch) is in."""
        return math.floor(now / self.window_seconds)

    def moved(self, state: LimitState, window: int, seen: Signals) -> LimitState | None:
        """Return the limit after a window; None if there is nothing to write.

        The write is conditional, so that the limit moves once per window whoever is first: for a lower
        limit on the stored `lowered` being less than the window, otherwise on `moved`. So a worker that
        saw no push-back cannot hide what another saw.

        Args:
            state: The limit before.
            window: Number of the window that has ended.
            seen: What this worker saw in it.
        """
        if seen.pushed_back:
            if state.lowered >= window:
                return None
            limit = max(float(self.lowest), state.limit * self.decrease)
            return None if limit == state.limit else LimitState(limit, window, window)
        half_used = seen.peak_in_flight * 2 >= state.slots
        if state.moved >= window or not seen.succeeded or not half_used:
            return None
        limit = min(float(self.highest), state.limit + self.increase)
        return None if limit == state.limit else LimitState(limit, window, state.lowered)
