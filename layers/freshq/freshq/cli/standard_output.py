"""Standard output whose failures are told apart from all other errors of the operating system."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

T = TypeVar("T")


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


@contextmanager
def checked_output() -> Iterator[CheckedOutput]:
    """Replace standard output within the block by one that raises OutputLost."""
    before, checked = sys.stdout, CheckedOutput(sys.stdout)
    sys.stdout = checked
    try:
        yield checked
    finally:
        sys.stdout = before
