"""Handle SIGTERM and Ctrl-C: end a command with the signal's status, or ask a stream to stop."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from freshq_pipeline.errors import complain
from freshq_pipeline.spark.gateway import kill_java
from freshq_pipeline.spark.interrupts import handled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block on the first signal, with the status of the signal.

    A signal may interrupt a call to Java, so cleaning up with further calls may raise anything. The status
    remains the signal's. A second signal kills Java, which may delay that, and cuts nothing off.
    """
    ended_by: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ended_by.append(number)
        if len(ended_by) == 1:
            sys.exit(128 + number)
        kill_java()

    with handled(end):
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
            if not callable(at_once):
                sys.exit(128 + number)
            at_once(number, frame)
            return
        asked.set()
        complain("ends after the batch in progress; once more to end at once")

    with handled(ask):
        yield asked
