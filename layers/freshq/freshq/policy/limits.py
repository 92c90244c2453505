"""Limits of a worker: starts per second, tasks at a time, tasks prefetched, retries per success."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from freshq.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

ROUNDING: Final = 1e-9  # 0.1 s * 10/s must count as one whole token
# Rates above this would be mistakes.
LARGEST_RATE: Final = 1e15
# A worker prefetches as many tasks as its slots start within this time, up to this number.
PREFETCH_SECONDS: Final = 0.005
MAX_PREFETCHED: Final = 24
# A prefetched task that has waited this long for a slot is given back.
MAX_WAIT_SECONDS: Final = 0.01
# Weight of the last run in the mean time of a run.
LAST_RUN_WEIGHT: Final = 1 / 8
# A push-back multiplies a shared rate by this (CUBIC's factor, RFC 9438), down to the lowest part of it, and
# at most once in a time: requests under way when the first was refused say nothing new.
DECREASE: Final = 0.7
LOWEST_PART: Final = 0.05
LOWERED_EVERY_SECONDS: Final = 1.0
# Part of a rate that each second without push-back gives back.
PART_PER_SECOND: Final = 0.01


def is_positive(value: object) -> bool:
    """Return whether a value is a number above 0 and at most `LARGEST_RATE`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST_RATE


def spent(tokens: float, costs: Sequence[float]) -> tuple[float, int]:
    """Spend the costs of tasks while a whole token is left; return the tokens left, and of how many tasks."""
    for taken, cost in enumerate(costs):
        if tokens < 1 - ROUNDING:
            return tokens, taken
        tokens -= cost
    return tokens, len(costs)


class TokenBucket:
    """Admits at most `rate_per_second` units on average, one per task by default, and bursts of `burst`.

    A task starts while a whole unit is left, and takes its cost; what it takes beyond that is a debt. In any
    time T the tasks take at most burst + rate * T, and the cost of one more task.
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
        self._part = 1.0

    def available(self, now: float, part: float = 1.0) -> int:
        """Return the number of whole tokens at `now` (seconds), by a part of the rate since the last call."""
        self._part = part
        gained = max(0.0, now - self._filled_at) * self._rate_per_second * part
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at = max(now, self._filled_at)
        return max(0, math.floor(self._tokens + ROUNDING))

    def take(self, *costs: float) -> int:
        """Spend the costs of tasks after `available`, while a whole token is left; return of how many."""
        self._tokens, taken = spent(self._tokens, costs)
        return taken

    def correct(self, units: float) -> None:
        """Spend units in addition; a negative number returns some, up to the burst."""
        self._tokens = min(float(self._burst), self._tokens - units)

    def seconds_until_next(self) -> float:
        """Return the time until the next whole token, as of the last `available`."""
        return max(0.0, (1.0 - self._tokens) / (self._rate_per_second * self._part))


class Prefetch:
    """Decides how many tasks a worker claims beyond its free slots, so that a store call serves more tasks.

    These tasks wait for about `PREFETCH_SECONDS`. The mean time of a run is an exponential moving average.
    """

    def __init__(self, slots: int) -> None:
        """Prefetch nothing until a run has ended.

        Args:
            slots: Slots of the worker.
        """
        self._slots = slots
        self._run_seconds = math.inf
        self._began = -math.inf

    def began(self, now: float) -> None:
        """Note that a run begins at `now` (seconds, of any clock that does not run backwards)."""
        self._began = now

    def ended(self, run_seconds: float) -> None:
        """Note that a run has freed its slot after `run_seconds`."""
        if self._run_seconds == math.inf:
            self._run_seconds = run_seconds
        self._run_seconds += LAST_RUN_WEIGHT * (run_seconds - self._run_seconds)

    def waited_too_long(self) -> None:
        """Start again with one task, because some were given back: runs take longer than estimated."""
        self._run_seconds = max(self._run_seconds, PREFETCH_SECONDS * self._slots)

    def limit(self, now: float) -> int:
        """Return the maximum number of prefetched tasks at `now`; 0 while no run begins."""
        if now - self._began >= MAX_WAIT_SECONDS:
            return 0
        within = PREFETCH_SECONDS * self._slots
        if within >= MAX_PREFETCHED * self._run_seconds:
            return MAX_PREFETCHED
        return int(within / self._run_seconds)


@dataclass(frozen=True, slots=True)
class BucketState:
    """A token bucket in stored form, written on condition that it has not changed.

    Attributes:
        tokens: Number of tokens at `filled_at`; below 0, dear tasks took them in advance.
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
        retry_after_seconds: When tokens will be available again, if there were none.
    """

    count: int
    until: float
    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """A token bucket that workers share by leasing blocks of tokens; each lease is one write.

    In any time T all workers together admit at most burst + rate * T, plus tokens leased before that have not
    expired: at most one block per worker. The block of a worker that dies is lost.

    A task that costs more than the rest of a block is charged to the bucket, by one more write, and starts
    while a whole token is left: so the tasks take in addition at most the cost of one more task.

    Attributes:
        rate_per_second: Tokens added per second, greater than 0.
        burst: Size of the bucket, 1 or more.
        block: Maximum number of tokens per lease.
        block_seconds: Length of a lease.

    Examples:
        >>> from freshq.policy import SharedBucket
        >>> bucket = SharedBucket(rate_per_second=10, burst=10, block=5)
    """

    rate_per_second: float
    burst: int
    block: int
    block_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not (is_positive(self.rate_per_second) and is_positive(self.block_seconds)):
            msg = f"rate_per_second, block_seconds: must be greater than 0 and at most {LARGEST_RATE:g}, got "
            raise ValueError(msg + f"{quoted(self.rate_per_second)}, {quoted(self.block_seconds)}")
        if not (is_positive(self.burst) and is_positive(self.block) and 1 <= self.block <= self.burst):
            msg = f"block, burst: need 1 <= block <= burst, got {quoted(self.block)}, {quoted(self.burst)}"
            raise ValueError(msg)

    def full(self, now: float) -> BucketState:
        """Return a full bucket at `now` (seconds)."""
        return BucketState(float(self.burst), now)

    def filled(self, state: BucketState, now: float, owed: float = 0.0) -> BucketState:
        """Fill the bucket up to a time, and take from it what is owed.

        Args:
            state: The bucket that was read.
            now: Current time in seconds. Workers' clocks may differ; the bucket's never runs backwards.
            owed: Number of tokens; a negative number returns some.
        """
        now = max(now, state.filled_at)
        tokens = state.tokens + (now - state.filled_at) * self.rate_per_second - owed
        return BucketState(min(float(self.burst), tokens), now)

    def lease(
        self, state: BucketState, now: float, wanted: int, owed: float = 0.0
    ) -> tuple[BucketState, TokenBlock]:
        """Return the bucket after a lease, and the leased tokens.

        Args:
            state: The bucket that was read.
            now: As for `filled`.
            wanted: Number of tokens that the worker can use now, 1 or more.
            owed: As for `filled`.
        """
        state = self.filled(state, now, owed)
        count = max(0, min(wanted, self.block, math.floor(state.tokens + ROUNDING)))
        short_seconds = max(0.0, 1.0 - state.tokens) / self.rate_per_second if count < 1 else 0.0
        left = max(0.0, state.tokens - count) if count else state.tokens
        block = TokenBlock(count, state.filled_at + self.block_seconds, short_seconds)
        return BucketState(left, state.filled_at), block


@dataclass(frozen=True, slots=True)
class Brake:
    """Slows a shared rate after push-back: additive increase, multiplicative decrease.

    Attributes:
        part: Part of the rate that was left when it was last lowered, from `LOWEST_PART` to 1.
        lowered_at: When that was, in seconds.
        until: When the provider takes requests again, in seconds: the rate does not grow before.
    """

    part: float = 1.0
    lowered_at: float = 0.0
    until: float = 0.0

    def part_at(self, now: float) -> float:
        """Return the part of the rate that applies at `now` (seconds)."""
        good_seconds = max(0.0, now - max(self.lowered_at, self.until))
        return min(1.0, self.part + PART_PER_SECOND * good_seconds)

    def lowered(self, now: float, retry_after_seconds: float) -> Self | None:
        """Return the brake after a push-back; None if there is nothing to write.

        Args:
            now: Current time in seconds.
            retry_after_seconds: When the provider takes requests again, counted from `now`.
        """
        until = now + retry_after_seconds
        if not 0 <= now - self.lowered_at < LOWERED_EVERY_SECONDS:
            part = max(LOWEST_PART, self.part_at(now) * DECREASE)
            return type(self)(part, now, max(self.until, until))
        is_later = until >= self.until + LOWERED_EVERY_SECONDS
        return replace(self, until=until) if is_later else None


@dataclass(frozen=True, slots=True)
class Signals:
    """Observations of the downstream by one worker in a window.

    Attributes:
        succeeded: Calls that succeeded.
        pushed_back: Calls that were rejected as busy, timed out or failed.
        peak_in_flight: Maximum number of running tasks, over all workers, counted by leases.
    """

    succeeded: int = 0
    pushed_back: int = 0
    peak_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class LimitState:
    """The limit shared by the workers, in one small record.

    Attributes:
        limit: Maximum number of running tasks, over all workers; rounded down.
        moved: Number of the window in which the limit last changed.
        lowered: Number of the window in which it was last lowered.
    """

    limit: float
    moved: int = -1
    lowered: int = -1

    @property
    def slots(self) -> int:
        """Maximum number of tasks that may run at a time."""
        return math.floor(self.limit + ROUNDING)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """A limit on the number of running tasks, so that the downstream is not overloaded.

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
    decrease: float = DECREASE

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
        """Return the initial limit if the store has no record: the lowest, as for a cold downstream."""
        return LimitState(float(self.lowest))

    def window(self, now: float) -> int:
        """Return the number of the window that `now` (seconds since the epoch) is in."""
        return math.floor(now / self.window_seconds)

    def moved(self, state: LimitState, window: int, seen: Signals) -> LimitState | None:
        """Return the limit after a window; None if there is nothing to write.

        The write is conditional, so that the limit moves once per window whoever is first: for a lower
        limit on the stored `lowered` being less than the window, otherwise on `moved`. So a worker that saw
        no push-back cannot hide another's.

        Args:
            state: The limit before.
            window: Number of the window that has ended.
            seen: Observations of this worker in the window.
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


class RetryBudget:
    """Retries as a fraction of first attempts, so that they cannot multiply an overload.

    Each first attempt adds a fraction, each retry takes one (Finagle's RetryBudget; the SRE book
    asks for 10 % in "Handling Overload"). With n first attempts there are at most
    `reserve + fraction * n` retries, whatever fails.

    Attributes:
        balance: Retries available now.
    """

    __slots__ = ("_cap", "_fraction", "balance")

    def __init__(self, fraction: float = 0.1, reserve: float = 10.0, cap: float = 100.0) -> None:
        """Start with the reserve.

        Args:
            fraction: Retries for each first attempt, greater than 0.
            reserve: Initial retries, so that a quiet queue may retry at all.
            cap: Maximum number of retries that can be saved: a calm day must not pay for a storm.
        """
        if not fraction > 0:
            msg = f"fraction: must be greater than 0, got {fraction}"
            raise ValueError(msg)
        if not 0 <= reserve <= cap:
            msg = f"reserve, cap: need 0 <= reserve <= cap, got {reserve}, {cap}"
            raise ValueError(msg)
        self._fraction = fraction
        self._cap = cap
        self.balance = float(reserve)

    def at(self, balance: float) -> RetryBudget:
        """Return a budget with the same rules and this balance."""
        budget = RetryBudget(self._fraction, 0.0, self._cap)
        budget.balance = min(self._cap, balance)
        return budget

    def deposit(self, first_attempts: int = 1) -> None:
        """Record first attempts."""
        self.balance = min(self._cap, self.balance + self._fraction * first_attempts)

    def spend(self) -> bool:
        """Return whether a retry may be made, and deduct it if so."""
        if self.balance < 1 - ROUNDING:
            return False
        self.balance = max(0.0, self.balance - 1)
        return True
