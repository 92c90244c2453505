"""SIGTERM and Ctrl-C, of which the first only asks to stop."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import complain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def asked_to_stop() -> Iterator[Event]:
    """Yield what is set by the first SIGTERM or Ctrl-C; the second ends the process at once."""
    asked = Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            sys.exit(128 + number)
        asked.set()
        complain("ends after the batch in progress; once more to end at once")

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
