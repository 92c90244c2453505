"""The errors of the pipeline, their exit statuses, and how the command prints them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from freshq.cli.errors import printable

BAD_INPUT_STATUS: Final = 2
FAILED_STATUS: Final = 3
VIOLATION_STATUS: Final = 4
# Everything is written, but a replay of the recorded policy differs too much from the recording.
DIFFERENCE_STATUS: Final = 5
# Everything is published, but a later step failed.
UNFINISHED_STATUS: Final = 6
# A shell's status of a command that Ctrl-C ended.
INTERRUPTED_STATUS: Final = 130

# The extra that installs the packages of the command.
EXTRA: Final = "pipeline"
# Prefix of every line that the command prints to standard error.
PREFIX: Final = "freshq-pipeline: "


class PipelineError(Exception):
    """The command failed, for the reason in the message. Nothing was published, unless a subclass says so.

    Attributes:
        status: Exit status of the command.
    """

    status = FAILED_STATUS


class BadInput(PipelineError):
    """The events or an option cannot be used."""

    status = BAD_INPUT_STATUS


class Unfinished(PipelineError):
    """The tables are published, but a later step failed; the next run repeats it."""

    status = UNFINISHED_STATUS


class NotRegistered(Unfinished):
    """The tables are published, but are missing in a catalog."""


class Overtaken(PipelineError):
    """Another run was published after this one started, so this one published nothing."""

    def __init__(self, out: str) -> None:
        """Name the output folder."""
        super().__init__(f"out: another run published in {out} meanwhile; run again")


class Interrupted(PipelineError):
    """Ctrl-C ended the command, but not the run that it follows."""

    status = INTERRUPTED_STATUS


def reason(error: Exception) -> str:
    """Return what an error says; for a file that is missing because the working directory is, its name."""
    if isinstance(error, FileNotFoundError) and (deleted := _deleted_directory()) is not None:
        return f"the working directory {deleted} was deleted; change to another one, or give absolute paths"
    return str(error)


def _deleted_directory() -> str | None:
    """Return the name of the working directory if it was deleted."""
    try:
        Path.cwd()
    except FileNotFoundError:
        link = Path("/proc/self/cwd")
        known = str(link.readlink()) if link.is_symlink() else os.environ.get("PWD", "")
        return known.removesuffix(" (deleted)")
    return None


def complain(text: str) -> None:
    """Print a text to standard error as one line."""
    sys.stderr.write(f"{PREFIX}{printable(' '.join(text.split()))}\n")
