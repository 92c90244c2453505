"""Postpone signals while something is created or cleaned up that they must not leave behind."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

# Signals that end a command: Ctrl-C, a supervisor or a time limit, a terminal that is closed.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals in the block, if in the main thread; other threads cannot.

    `nohup` has SIGHUP ignored, so that it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    chosen = [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None: Python did not set this handler, and cannot set it again.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


@contextmanager
def held_signals(hurry: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Postpone signals to the end of the block, whatever handlers are set in it.

    Blocking them in the main thread would not do: Python runs a handler there even if another thread received
    the signal.

    Args:
        hurry: Called at each signal, so that the block ends soon.
    """
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)
        hurry()

    try:
        with handled(hold):
            yield
    finally:
        if held:
            signal.raise_signal(held[0])
