"""What a runner may raise to say how an attempt ended.

Returning means success. Any other exception means retry.
"""

from __future__ import annotations


class Retry(Exception):  # noqa: N818 - an outcome, not an error
    """Try the task again later.

    Attributes:
        delay_seconds: Delay before the next attempt; None for the queue's backoff.
    """

    def __init__(self, delay_seconds: float | None = None, error: str | None = None) -> None:
        """Set when to try again, and why this attempt failed."""
        super().__init__(error or "the runner asked for a retry")
        self.delay_seconds = delay_seconds


class Reject(Exception):  # noqa: N818 - an outcome, not an error
    """The task can never succeed: make it a dead letter now."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        super().__init__(reason)


class Busy(Exception):  # noqa: N818 - an outcome, not an error
    """The downstream is overloaded: release the task without counting the attempt, and pause briefly."""

    def __init__(self, reason: str = "the runner is busy") -> None:
        """Say why."""
        super().__init__(reason)
