"""The options of a history, checked."""

from __future__ import annotations

from typing import Final

from freshq.errors import quoted
from freshq.model.checks import checked_seconds

DEFAULT_SECONDS: Final = 7 * 86_400.0


def history_seconds_for(history: object, seconds: float | None) -> float | None:
    """Return for how long to keep a history: 0 for none at all, None to leave it as it is.

    Args:
        history: Whether to keep one; None to leave it as it is.
        seconds: For how long; None for a week.

    Raises:
        ValueError: If an argument is wrong.
    """
    if history not in (True, False, None):
        msg = f"history: must be True or False (in an address, on or off), got {quoted(history)}"
        raise ValueError(msg)
    if seconds is not None and not history:
        raise ValueError("history_seconds: only with history=True")
    if not history:
        return None if history is None else 0.0
    return checked_seconds(
        "history_seconds", DEFAULT_SECONDS if seconds is None else seconds, above_zero=True
    )
