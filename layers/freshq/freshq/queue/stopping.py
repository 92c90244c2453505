"""How a `run` ends: `stop` asks for it, or its `until` is reached. Worker, Scheduler and Relay end alike."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    # A condition, or a time in seconds since the epoch by the queue's clock; None: until `stop`.
    Until: TypeAlias = Callable[[], bool] | float | None

# Time between two checks of a condition while a run waits.
CHECK_SECONDS: Final = 0.5


class Wake:
    """Ends a wait. A signal handler may call `set` at any moment.

    `threading.Event.set` takes a lock: a handler that interrupts the thread holding it would deadlock.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the current wait, or the next one."""
        self._calls.put(None)

    def wait(self, seconds: float | None) -> None:
        """Wait for `set`, at most `seconds` (None: indefinitely); forget all calls so far."""
        with suppress(Empty):
            self._calls.get(timeout=seconds)
            while True:
                self._calls.get_nowait()


@dataclass(slots=True)
class StopRequest:
    """A request to stop, from any thread or signal handler. It is final.

    Attributes:
        made: Whether somebody asked the run to stop.
        wake: Ends a wait of the run, so that it notices immediately.
    """

    made: bool = False
    wake: Wake = field(default_factory=Wake)

    def make(self) -> None:
        """Ask the run to stop."""
        self.made = True
        self.wake.set()

    def condition(self, until: Until, now: Callable[[], float]) -> Callable[[], bool]:
        """Return a function that tells whether a run should end.

        Args:
            until: The argument of `run`.
            now: Returns the time by the queue's clock.

        Raises:
            ValueError: If `until` is neither a condition nor a time: a NaN would never come.
        """
        if until is None:
            return lambda: self.made
        if callable(until):
            return lambda: self.made or until()
        if not isinstance(until, int | float) or isinstance(until, bool) or math.isnan(until):
            msg = f"until: must be a function or a time in seconds since the epoch, got {quoted(until)}"
            raise ValueError(msg)
        return lambda: self.made or now() >= until

    def wait(self, seconds: float, ends: Callable[[], bool]) -> bool:
        """Wait until the run should end, at most `seconds`; return whether it should."""
        until = time.monotonic() + seconds
        while not (is_over := ends()) and (left_seconds := until - time.monotonic()) > 0:
            self.wake.wait(min(left_seconds, CHECK_SECONDS))
        return is_over
