"""Limits that protect what the tasks call."""

from __future__ import annotations

import math


class TokenBucket:
    """Admits at most `rate_per_second` on average, and at most `burst` at once.

    In any time T it admits no more than burst + rate * T. Pure: the caller brings the time.
    """

    def __init__(self, rate_per_second: float, burst: int, now: float) -> None:
        """Start full.

        Args:
            rate_per_second: Tokens added a second, greater than 0.
            burst: Size of the bucket in tokens, 1 or more.
            now: Current time in seconds, of any clock that does not run backwards.
        """
        self._rate_per_second = rate_per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = now

    def available(self, now: float) -> int:
        """Return how many whole tokens are there at `now` (seconds)."""
        gained = max(0.0, now - self._filled_at) * self._rate_per_second
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at = max(now, self._filled_at)
        return math.floor(self._tokens + 1e-9)  # 0.1 s * 10/s shall count as one whole token

    def take(self, count: int) -> None:
        """Spend `count` tokens that `available` has just reported."""
        self._tokens -= count

    def seconds_until_next(self) -> float:
        """Return how long until one whole token is there, as of the last `available`."""
        return max(0.0, (1.0 - self._tokens) / self._rate_per_second)
