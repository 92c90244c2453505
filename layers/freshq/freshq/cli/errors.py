"""Report failures of commands: one line without control characters, and an exit status."""

from __future__ import annotations

import logging
import sys
from enum import IntEnum

from typing_extensions import override

from freshq import errors
from freshq.errors import FreshqError, LostRace, RefusedError, StoreError, WaitTimeout, printable


class ExitStatus(IntEnum):
    """Exit statuses of every command except success, which is 0."""

    REFUSED = 1
    WRONG_USE = 2
    UNREACHABLE = 3
    UNFINISHED = 4
    # EX_IOERR of sysexits.h
    NOT_PRINTED = 74


def exit_status(error: Exception) -> ExitStatus:
    """Return the exit status for an error."""
    # If other processes change a resource or caller at each try, the status is the same as for a busy store.
    if isinstance(error, StoreError) or (isinstance(error, LostRace) and error.task_id is None):
        return ExitStatus.UNREACHABLE
    if isinstance(error, WaitTimeout):
        return ExitStatus.UNFINISHED
    return ExitStatus.REFUSED if isinstance(error, RefusedError) else ExitStatus.WRONG_USE


def code_of(error: FreshqError) -> str:
    """Return the name of an error for `freshq explain`: the name of its class, or of a public base."""
    return next(base.__name__ for base in type(error).__mro__ if base.__name__ in dir(errors))


def print_error(problem: object) -> None:
    """Print one line to standard error."""
    if sys.stderr is None:  # closed; `print` would write to standard output
        return
    print(f"freshq: {printable(' '.join(str(problem).split()))}", file=sys.stderr)


class OneLineLog(logging.Handler):
    """Prints the library's warnings, one line each."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Print the message without a stack trace."""
        print_error(record.getMessage())


def raise_last(errors: list[RefusedError]) -> None:
    """Print all errors but the last, and raise that one."""
    for error in errors[:-1]:
        print_error(error)
    if errors:
        raise errors[-1]
