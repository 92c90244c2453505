"""Report failures of commands, and of standard output: one line each, and an exit status."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar

from typing_extensions import override

from freshq import errors
from freshq.errors import FreshqError, LostRace, RefusedError, StoreError, WaitTimeout, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

T = TypeVar("T")
# The signals that end a process, and that its terminal sends when it is closed, which Windows lacks.
ENDING: Final = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else ()))


class ExitStatus(IntEnum):
    """Exit statuses of every command."""

    DONE = 0
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
    """Print one line to standard error, if that is possible; the exit status says the rest."""
    if sys.stderr is None:  # closed; `print` would write to standard output
        return
    with suppress(OSError):
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


def occupy_closed_streams() -> None:
    """Put the null device in the place of closed standard streams, so that no database gets their numbers.

    A program that the runner starts would print into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own stream


class Terminated(BaseException):
    """A signal ended the command."""


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Have signals that end a process unwind the block first: it restores the terminal and removes drafts.

    A signal that is ignored, as below `nohup`, or that something else handles, stays so.
    """
    ended: list[int] = []

    def unwind(number: int, _frame: object) -> None:
        ended.append(number)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        for number in ended:  # whatever the block raised meanwhile: a closed terminal cannot be restored
            signal.raise_signal(number)
            sys.exit(128 + number)  # the first process of a container survives its own signals


class OutputLost(OSError):
    """Standard output failed: the answer, or a part of it, was not printed."""


class CheckedOutput(io.TextIOBase):
    """Passes everything on to standard output; raises OutputLost if that fails.

    It has no `buffer`, so that nobody writes around it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Wrap a stream; None: standard output was closed before the process started."""
        self._stream = stream

    @override
    def write(self, text: str) -> int:
        """Write a text, and return the number of its characters."""
        if self._stream is None and not text:
            return 0
        return self._checked(lambda stream: stream.write(text))

    @override
    def flush(self) -> None:
        """Write what is buffered."""
        if self._stream is not None:
            self._checked(lambda stream: stream.flush())

    def _checked(self, use: Callable[[TextIO], T]) -> T:
        if self._stream is None:
            raise OutputLost(errno.EBADF, "standard output is closed")
        try:
            return use(self._stream)
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error

    @override
    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream is not None and self._stream.isatty()

    @override
    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    @override
    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._checked(lambda stream: stream.fileno())

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override]  # the class in C has a property, too
        """The encoding of the stream."""
        return "utf-8" if self._stream is None else self._stream.encoding

    @property
    @override
    def errors(self) -> str | None:  # type: ignore[override]  # the class in C has a property, too
        """What happens to characters that the encoding lacks."""
        return "backslashreplace" if self._stream is None else self._stream.errors

    def drop(self) -> None:
        """Drop unprinted output, so that the exit of the process does not try to print it again."""
        if self._stream is not None:
            with open(os.devnull, "w") as nothing:  # noqa: PTH123 - the null device has no path on every system
                os.dup2(nothing.fileno(), self._stream.fileno())


class LastingOutput(CheckedOutput):
    """Standard output of a process whose tasks still need it when the reader is gone."""

    @override
    def write(self, text: str) -> int:
        """Write a text, if there is still a reader; return the number of its characters."""
        with self._outlived():
            super().write(text)
        return len(text)

    @override
    def flush(self) -> None:
        """Write the buffered text, if there is still a reader."""
        with self._outlived():
            super().flush()

    @contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except OutputLost:
            self.drop()


@contextmanager
def checked_output() -> Iterator[CheckedOutput]:
    """Replace standard output within the block by one that raises OutputLost."""
    before, checked = sys.stdout, CheckedOutput(sys.stdout)
    sys.stdout = checked
    try:
        yield checked
    finally:
        sys.stdout = before
