"""Errors, the exit status of each, and how the command prints them."""

from __future__ import annotations

import sys
from typing import Final

from freshq.cli.errors import printable

BAD_INPUT_STATUS: Final = 2
FAILED_STATUS: Final = 3
VIOLATION_STATUS: Final = 4
# A replay of the recorded policy is far from the recording; everything is written.
DIFFERENCE_STATUS: Final = 5
# Everything is published, but what follows failed.
UNFINISHED_STATUS: Final = 6
# A command that Ctrl-C ended, as a shell reports it.
INTERRUPTED_STATUS: Final = 130

# Installs what the command needs.
EXTRA: Final = "pipeline"
# Starts every line that the command prints to standard error.
PREFIX: Final = "freshq-pipeline: "


class PipelineError(Exception):
    """The command failed; the message says why in one line. Nothing was published, unless a class says so.

    Attributes:
        status: Exit status of the command.
    """

    status = FAILED_STATUS


class BadInput(PipelineError):
    """The events or an option cannot be used."""

    status = BAD_INPUT_STATUS


class Unfinished(PipelineError):
    """The tables are published, but what follows failed; the next run makes up for it."""

    status = UNFINISHED_STATUS


class NotRegistered(Unfinished):
    """The tables are published, but a catalog does not have them."""


class Overtaken(PipelineError):
    """Another run was published after this one had begun, so this one published nothing."""

    def __init__(self, out: str) -> None:
        """Name the output folder."""
        super().__init__(f"out: another run published in {out} meanwhile; run again")


class Interrupted(PipelineError):
    """Ctrl-C stopped the command, but not the run that it follows."""

    status = INTERRUPTED_STATUS


def complain(text: str) -> None:
    """Print a text as one line to standard error."""
    sys.stderr.write(f"{PREFIX}{printable(' '.join(text.split()))}\n")
