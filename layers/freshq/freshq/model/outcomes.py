"""What a runner may raise to say how a task ended. To return is success; another exception is a retry."""

from __future__ import annotations


class Retry(Exception):  # noqa: N818 - an outcome, not an error
    """Try the task again later.

    Attributes:
        delay_seconds: Not before so many seconds; None for the queue's backoff.
    """

    def __init__(self, delay_seconds: float | None = None, error: str | None = None) -> None:
        """Say when to try again, and why this attempt failed."""
        super().__init__(error or "the runner asked for a retry")
        self.delay_seconds = delay_seconds


class Reject(Exception):  # noqa: N818 - an outcome, not an error
    """The task can never succeed: make it a dead letter at once."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        super().__init__(reason)


class Busy(Exception):  # noqa: N818 - an outcome, not an error
    """What the task needs has no capacity now: give the task back untried, and pause a little."""

    def __init__(self, reason: str = "the runner is busy") -> None:
        """Say why, if there is more to say."""
        super().__init__(reason)
