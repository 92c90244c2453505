"""Token buckets: a rate limit of one process, and one that workers share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

ROUNDING: Final = 1e-9  # 0.1 s * 10/s shall count as one whole token


class TokenBucket:
    """Admits at most `rate_per_second` on average, and at most `burst` at once.

    In any time T it admits at most burst + rate * T.
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
        """Return the number of whole tokens at `now` (seconds)."""
        gained = max(0.0, now - self._filled_at) * self._rate_per_second
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at = max(now, self._filled_at)
        return math.floor(self._tokens + ROUNDING)

    def take(self, count: int) -> None:
        """Spend `count` tokens that `available` has just reported."""
        self._tokens -= count

    def seconds_until_next(self) -> float:
        """Return the time until the next whole token, as of the last `available`."""
        return max(0.0, (1.0 - self._tokens) / self._rate_per_second)


@dataclass(frozen=True, slots=True)
class BucketState:
    """A token bucket as a store keeps it, written on condition that it did not change.

    Attributes:
        tokens: Number of tokens at `filled_at`.
        filled_at: In seconds.
    """

    tokens: float
    filled_at: float


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens leased by one worker.

    Attributes:
        count: Number of tokens; 0 if there were none.
        until: When they expire, in seconds: a worker that paused cannot spend old tokens in a burst.
        retry_after_seconds: When there will be tokens again, if there were none.
    """

    count: int
    until: float
    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """A token bucket that workers share by leasing blocks of tokens; each lease is one write.

    In any time T all workers together admit at most burst + rate * T, plus what was leased before and
    has not expired: at most one block per worker. The block of a worker that dies is lost.

    Attributes:
        rate_per_second: Tokens added per second, greater than 0.
        burst: Size of the bucket, 1 or more.
        block: Most tokens per lease.
        block_seconds: Length of a lease.
    """

    rate_per_second: float
    burst: int
    block: int
    block_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not (self.rate_per_second > 0 and self.block_seconds > 0):
            msg = "rate_per_second, block_seconds: must be greater than 0, got "
            raise ValueError(msg + f"{self.rate_per_second}, {self.block_seconds}")
        if not 1 <= self.block <= self.burst:
            msg = f"block, burst: need 1 <= block <= burst, got {self.block}, {self.burst}"
            raise ValueError(msg)

    def full(self, now: float) -> BucketState:
        """Return a full bucket at `now` (seconds)."""
        return BucketState(float(self.burst), now)

    def lease(self, state: BucketState, now: float, wanted: int) -> tuple[BucketState, TokenBlock]:
        """Return the bucket after a lease, and what was leased.

        Args:
            state: The bucket as it was read.
            now: Current time in seconds. Workers' clocks may differ; the bucket's never runs backwards.
            wanted: Number of tokens that the worker can use now, 1 or more.
        """
        now = max(now, state.filled_at)
        tokens = min(float(self.burst), state.tokens + (now - state.filled_at) * self.rate_per_second)
        count = min(wanted, self.block, math.floor(tokens + ROUNDING))
        short_seconds = max(0.0, 1.0 - tokens) / self.rate_per_second if count < 1 else 0.0
        left = max(0.0, tokens - count)
        return BucketState(left, now), TokenBlock(count, now + self.block_seconds, short_seconds)
