"""What can go wrong, and the exit status that says so."""

from __future__ import annotations

from typing import Final

BAD_INPUT_STATUS: Final = 2
FAILED_STATUS: Final = 3
VIOLATION_STATUS: Final = 4


class PipelineError(Exception):
    """Nothing was published, and the message says in one line why.

    Attributes:
        status: Exit status of the command.
    """

    status = FAILED_STATUS


class BadInput(PipelineError):  # noqa: N818 - it names the input, as ValueError does
    """The input cannot be used, or an option makes no sense."""

    status = BAD_INPUT_STATUS
