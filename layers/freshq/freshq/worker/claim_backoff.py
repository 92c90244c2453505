"""Backs off between claims while the store does not answer or the runner is busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from freshq.policy.retry import Backoff, equal_jitter

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=10.0)
CLAIM_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=5.0)


class ClaimBackoff:
    """Backs off after failed claims, and after runs for which the downstream was busy.

    Attributes:
        failed_claims: Failed claims in a row.
    """

    def __init__(self, uniform: Callable[[], float]) -> None:
        """Begin without a wait.

        Args:
            uniform: Returns a random number from [0, 1).
        """
        self.failed_claims = 0
        self._busy_runs = 0
        self._failing_since = 0.0
        self._uniform = uniform
        self._until = 0.0

    @property
    def active(self) -> bool:
        """Whether it is too early to claim."""
        return time.monotonic() < self._until

    @property
    def outage_seconds(self) -> float:
        """Time since the first of the failed claims; 0 if the last claim did not fail."""
        return time.monotonic() - self._failing_since if self.failed_claims else 0.0

    def claim_failed(self) -> None:
        """Back off because the store did not answer."""
        if not self.failed_claims:
            self._failing_since = time.monotonic()
        self.failed_claims += 1
        self._begin(CLAIM_BACKOFF, self.failed_claims)

    def claim_answered(self) -> None:
        """Forget the failed claims."""
        self.failed_claims = 0

    def run_was_busy(self) -> None:
        """Back off because the downstream has no capacity."""
        self._busy_runs += 1
        self._begin(BUSY_BACKOFF, self._busy_runs)

    def run_succeeded(self) -> None:
        """Forget the busy runs."""
        self._busy_runs = 0

    def _begin(self, backoff: Backoff, times: int) -> None:
        self._until = time.monotonic() + backoff.delay_seconds(times, equal_jitter(self._uniform()))
