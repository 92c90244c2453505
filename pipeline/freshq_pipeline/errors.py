"""Errors, the exit status of each, and how the command prints them."""

from __future__ import annotations

import sys
from typing import Final

BAD_INPUT_STATUS: Final = 2
FAILED_STATUS: Final = 3
VIOLATION_STATUS: Final = 4
# A command that Ctrl-C ended, as a shell reports it.
INTERRUPTED_STATUS: Final = 130

# Starts every line that the command prints to standard error.
PREFIX: Final = "freshq-pipeline: "


class PipelineError(Exception):
    """Nothing was published; the message says why in one line.

    Attributes:
        status: Exit status of the command.
    """

    status = FAILED_STATUS


class BadInput(PipelineError):  # noqa: N818 - it names the input, as ValueError does
    """The events or an option cannot be used."""

    status = BAD_INPUT_STATUS


class Interrupted(PipelineError):  # noqa: N818 - as KeyboardInterrupt
    """Ctrl-C stopped the command, but not what it was following."""

    status = INTERRUPTED_STATUS


def complain(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(f"{PREFIX}{text}\n")


def missing_package(error: ModuleNotFoundError) -> PipelineError:
    """Return the error for a package that is not installed.

    Raises:
        ModuleNotFoundError: `error` itself, if the module is part of freshq: that is a defect.
    """
    name = (error.name or "").partition(".")[0]
    if name in ("", "freshq", "freshq_pipeline"):
        raise error
    return PipelineError(f"the package {name} is missing; install it: pip install 'freshq[pipeline]'")
