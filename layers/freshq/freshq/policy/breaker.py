"""Slow a worker down whose runs all fail in a row: they would spend the attempts of every task."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final

from freshq.policy.retry import Backoff, equal_jitter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

# Runs that fail in a row until the worker slows down: one poisonous task fails five times by default.
OPEN_AFTER: Final = 10
# Pauses between probes. A worker notices that its downstream is back at most the cap later.
PROBE_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=300.0)


class BreakerState(StrEnum):
    """The state of a breaker: runs start freely, none may start, or one run probes whether runs succeed."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A change of a breaker that others should know.

    Attributes:
        state: OPEN after failures, CLOSED after a success.
        failures: Runs that have failed in a row.
        pause_seconds: Time until the next probe; 0 if it is closed.
        opened: Whether it was closed before.
    """

    state: BreakerState
    failures: int
    pause_seconds: float = 0.0
    opened: bool = False


class Breaker:
    """A circuit breaker (Nygard, "Release It!", 2007) whose probes back off.

    It opens after `OPEN_AFTER` failures in a row. Then one run may start after each pause; a success closes
    it, and a failure makes the next pause twice as long.
    """

    def __init__(self, uniform: Callable[[], float]) -> None:
        """Begin closed.

        Args:
            uniform: Returns a random number from [0, 1).
        """
        self._uniform = uniform
        self._failures = self._pauses = 0
        self._pause_seconds = 0.0
        self._probe_at = inf
        self._probe: Hashable | None = None

    @property
    def state(self) -> BreakerState:
        """Its state."""
        if not self._pauses:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._probe is None else BreakerState.HALF_OPEN

    def room(self, now: float) -> float:
        """Return how many runs may start: no limit, one, or none.

        Args:
            now: Time in seconds, by any clock that does not go back.
        """
        return inf if not self._pauses else float(now >= self._probe_at)

    def probe(self, run: Hashable, now: float) -> None:
        """Note the run that starts while `room` is one. A probe that hangs does not prevent the next one."""
        if self._pauses:
            self._probe, self._probe_at = run, now + self._pause_seconds

    def allows(self, run: Hashable) -> bool:
        """Return whether a claimed run may start: while the breaker is open, only the probe may."""
        return not self._pauses or run == self._probe

    def ended(self, run: Hashable, now: float, *, succeeded: bool | None) -> BreakerChange | None:
        """Note the end of a run; return what changed.

        Args:
            run: The run.
            now: As for `room`.
            succeeded: None if the end does not count for other runs, as for a rejected task.
        """
        is_probe = self._probe is not None and run == self._probe
        if is_probe:
            self._probe = None
        if succeeded is None:
            self._probe_at = now if is_probe else self._probe_at
            return None
        if succeeded:
            return self._closed()
        self._failures += 1
        opens = not self._pauses and self._failures >= OPEN_AFTER
        return self._opened(now, opened=opens) if opens or is_probe else None

    def _closed(self) -> BreakerChange | None:
        change = BreakerChange(BreakerState.CLOSED, self._failures) if self._pauses else None
        self._failures = self._pauses = 0
        self._probe, self._probe_at = None, inf
        return change

    def _opened(self, now: float, *, opened: bool) -> BreakerChange:
        self._pauses += 1
        self._pause_seconds = _pause_seconds(self._pauses, self._uniform())
        self._probe_at = now + self._pause_seconds
        return BreakerChange(BreakerState.OPEN, self._failures, self._pause_seconds, opened)


def _pause_seconds(pauses: int, uniform: float) -> float:
    return PROBE_BACKOFF.delay_seconds(pauses, equal_jitter(uniform))
