"""The progress of a run: what its function reports, and whether it should continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.errors import quoted

if TYPE_CHECKING:
    from freshq.errors import LeaseLost

# Longer strings are truncated: progress must always fit beside the largest payload.
MAX_STEP_CHARS: Final = 200
# Stores keep the fraction in whole millionths, so that it is the same in all of them.
FRACTION_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        fraction: The part of its work that is done, from 0 to 1, to the millionth.
        step: What it does now; None if it does not say.
    """

    fraction: float
    step: str | None = None


def checked_progress(fraction: object, step: object = None) -> Progress:
    """Return what a run reports; a step of more than `MAX_STEP_CHARS` characters is truncated.

    Raises:
        ValueError: If the fraction is not a number from 0 to 1, or the step is not a string.
    """
    # A bool is an int, but says nothing about a part.
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        msg = f"progress: must be a number from 0 to 1, got {quoted(fraction)}; divide percent by 100"
        raise ValueError(msg)
    if step is not None and not isinstance(step, str):
        msg = f"step: must be a string or None, got {type(step).__name__}"
        raise ValueError(msg)
    return Progress(round(float(fraction), FRACTION_DIGITS), None if step is None else _storable(step))


def _storable(step: str) -> str:
    """Return a step as every store accepts it."""
    text = step.replace("\0", "\\0").encode(errors="replace").decode()
    return text if len(text) <= MAX_STEP_CHARS else f"{text[: MAX_STEP_CHARS - 1]}…"


class RunHandle:
    """State shared by the function that runs a task and its worker. Both may use it at any time.

    Attributes:
        reported: The last report; None if there is none.
        why_cancelled: Why the run should stop; None while it should go on.
        lost: Why its claim no longer holds the task; None while it does, as far as is known.
    """

    __slots__ = ("lost", "reported", "why_cancelled")

    def __init__(self) -> None:
        self.reported: Progress | None = None
        self.why_cancelled: str | None = None
        self.lost: LeaseLost | None = None

    def report(self, progress: Progress) -> None:
        """Note the progress of the run.

        Raises:
            LeaseLost: If it is known that the claim no longer holds the task.
        """
        if self.lost is not None:
            raise self.lost
        self.reported = progress
