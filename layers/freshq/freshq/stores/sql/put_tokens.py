"""The puts that a row remembers, so that a put whose reply was lost recognizes its own write.

The version of a row cannot tell: a claim changes it, and a repeated update would make the task run again.
"""

from __future__ import annotations

from typing import Final

from freshq.model.answers import PutOutcome

# A row remembers this many puts, each by a letter and a token of 32 digits: they fit `TOKEN_BYTES`.
REMEMBERED: Final = 3
ENTRY_CHARS: Final = 33
LETTERS: Final = {PutOutcome.CREATED: "c", PutOutcome.UPDATED: "u"}
OUTCOMES: Final = {letter: outcome for outcome, letter in LETTERS.items()}


def remember(token: str, outcome: PutOutcome, earlier: str = "") -> str:
    """Return the puts that a row remembers, the last one first.

    Args:
        token: Names the put.
        outcome: What it did: CREATED or UPDATED.
        earlier: The puts that the row remembered before.
    """
    return (LETTERS[outcome] + token + earlier)[: REMEMBERED * ENTRY_CHARS]


def outcome_of(token: str, remembered: str) -> PutOutcome | None:
    """Return what a put did to a row, CREATED or UPDATED; None if the row does not remember it."""
    for start in range(0, len(remembered), ENTRY_CHARS):
        entry = remembered[start : start + ENTRY_CHARS]
        if entry[1:] == token:
            return OUTCOMES[entry[0]]
    return None
