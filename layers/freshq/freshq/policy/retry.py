"""When a failed task may be tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter.

    The delay is uniform over [0, min(cap, base * 2**(attempts - 1))]: "full jitter" of the AWS
    Architecture Blog, "Exponential Backoff And Jitter" (2015), which spreads retries best of the
    variants compared there.

    Attributes:
        base_seconds: Upper bound of the first delay.
        cap_seconds: Upper bound of every delay.
    """

    base_seconds: float = 1.0
    cap_seconds: float = 300.0

    def delay_seconds(self, attempts: int, uniform: float) -> float:
        """Return the delay before the next attempt.

        Args:
            attempts: Claims so far, 1 or more.
            uniform: A random number from [0, 1).
        """
        # 2**63 is past every cap in use; the bound keeps the power within a float.
        ceiling_seconds = min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempts - 1, 63))
        return uniform * ceiling_seconds
