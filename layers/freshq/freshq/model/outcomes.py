"""Exceptions that a runner may raise to say how an attempt ended.

Returning means success. Any other exception means retry.
"""

from __future__ import annotations

from freshq.model.checks import checked_seconds


class Retry(Exception):  # noqa: N818 - an outcome, not an error
    """Try the task again later.

    Attributes:
        delay_seconds: Delay before the next attempt; None for the queue's backoff.
    """

    def __init__(self, reason: str | None = None, *, delay_seconds: float | None = None) -> None:
        """Say why this attempt failed, and when to try again.

        Args:
            reason: Why it failed; the task keeps it as its error.
            delay_seconds: Delay before the next attempt; None for the queue's backoff.

        Raises:
            TypeError: If the reason is not a string, such as a delay that was not passed by name.
            ValueError: If the delay is not a number of seconds, 0 or more.
        """
        given: object = reason
        if given is not None and not isinstance(given, str):
            msg = f"reason: must be a string, got {type(given).__name__}; pass a delay as delay_seconds=..."
            raise TypeError(msg)
        if delay_seconds is not None:
            delay_seconds = checked_seconds("delay_seconds", delay_seconds)
        super().__init__(reason or "the runner asked for a retry")
        self.delay_seconds = delay_seconds


class Reject(Exception):  # noqa: N818 - an outcome, not an error
    """The task can never succeed: make it a dead letter now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Busy(Exception):  # noqa: N818 - an outcome, not an error
    """The downstream is overloaded: release the task without counting the attempt, and pause briefly."""

    def __init__(self, reason: str = "the runner is busy") -> None:
        super().__init__(reason)


class RunnerExit(Exception):  # noqa: N818 - names what the runner did
    """The runner raised what would end a process, such as SystemExit. Here it ends only the attempt."""


def error_text(error: BaseException) -> str:
    """Return the text of an exception as every store accepts it; a substitute if it has none."""
    try:
        return str(error).replace("\0", "\\0")  # PostgreSQL has no NUL
    except BaseException:  # noqa: BLE001 - the user's `__str__`
        return "its text cannot be read"
