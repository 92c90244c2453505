"""The errors of the pipeline, their exit statuses, and how the command prints them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BAD_INPUT_STATUS: Final = 2
FAILED_STATUS: Final = 3
VIOLATION_STATUS: Final = 4
# Everything is written, but a replay of the recorded policy differs too much from the recording.
DIFFERENCE_STATUS: Final = 5
# Everything is published, but a later step failed.
UNFINISHED_STATUS: Final = 6
# Everything is published, but the report or the summary failed.
REPORT_STATUS: Final = 7
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
    """The tables are published, but a later step failed; the next run repeats it.

    Attributes:
        summary: Summary of the published run; None if unknown.
    """

    status = UNFINISHED_STATUS
    summary: dict[str, Any] | None = None


class NotRegistered(Unfinished):
    """The tables are published, but are missing in a catalog."""


class ReportFailed(Unfinished):
    """The tables are published, but the report or the summary failed."""

    status = REPORT_STATUS


class Overtaken(PipelineError):
    """Another run was published after this one started, so this one published nothing."""

    def __init__(self, out: str) -> None:
        """Name the output folder."""
        super().__init__(f"out: another run published in {out} meanwhile; run again")


class Interrupted(PipelineError):
    """Ctrl-C ended the command, but not the run that it follows."""

    status = INTERRUPTED_STATUS


def check_installed(*packages: str) -> None:
    """Check that packages are installed, without loading them.

    Raises:
        ModuleNotFoundError: If one is not.
    """
    for package in packages:
        if find_spec(package) is None:
            msg = f"No module named {package!r}"
            raise ModuleNotFoundError(msg, name=package)


def reason(error: Exception) -> str:
    """Return the text of an error; if a relative path fails because the working directory is gone, say so."""
    if isinstance(error, FileNotFoundError) and (deleted := _deleted_directory()) is not None:
        return f"the working directory {deleted} was deleted; change to another one, or give absolute paths"
    return str(error)


def cause(error: BaseException) -> str:
    """Return what any error says, with the name of its class unless its message is meant for users."""
    if isinstance(error, (OSError, PipelineError)) and (said := reason(error)):
        return said
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def unfinished(out: str, error: Exception, summary: dict[str, Any] | None) -> Unfinished:
    """Return the error of a command that failed after it published tables.

    Args:
        out: The output folder.
        error: The failure; an `Unfinished` is returned itself.
        summary: Summary of the published run; None if unknown.
    """
    if isinstance(error, Unfinished):
        found = error
    else:
        msg = f"the tables in {out} are published, but what follows failed: {cause(error)}; run again"
        found = Unfinished(msg)
    found.summary = found.summary or summary
    return found


@contextmanager
def once_published(out: str, summaries: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Make any error in the block an `Unfinished`, if a run is published by then.

    Args:
        out: The output folder.
        summaries: Summaries of the published runs, to which the block may append.
    """
    try:
        yield
    except Exception as error:
        if not summaries:
            raise
        raise unfinished(out, error, summaries[-1]) from error


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
    if sys.stderr is None:  # closed before the process started
        return
    with suppress(OSError):  # nothing is left to say so but the exit status
        sys.stderr.write(f"{PREFIX}{printable(' '.join(text.split()))}\n")
