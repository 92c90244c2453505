"""Handle SIGTERM and Ctrl-C: end a command with the signal's status, or ask a stream to stop."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block on SIGTERM or Ctrl-C, with the status of the signal.

    A signal may interrupt a call to Java, so cleaning up with further calls may raise anything. The status
    remains the signal's.
    """
    ended_by: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ended_by.append(number)
        sys.exit(128 + number)

    with _handled(end):
        try:
            yield
        except BaseException:
            if not ended_by:
                raise
            sys.exit(128 + ended_by[0])


@contextmanager
def asked_to_stop() -> Iterator[Event]:
    """Yield an event that the first SIGTERM or Ctrl-C sets; the second ends the process immediately."""
    asked = Event()
    at_once = signal.getsignal(signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            if callable(at_once):
                at_once(number, frame)
            sys.exit(128 + number)
        asked.set()
        complain("ends after the batch in progress; once more to end at once")

    with _handled(ask):
        yield asked


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle both signals in the block, if in the main thread; other threads cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
