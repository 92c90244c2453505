"""The signals that end such a command, and the exit statuses that say how it ended."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import Enum, IntEnum
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import typer

from freshq.cli.errors import ExitStatus
from freshq.worker.runs import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

# A process that is to end at once and has not ended after this time leaves what it is waiting for.
STOP_SECONDS: Final = 10.0
# Time between two checks of the thread that works.
CHECK_SECONDS: Final = 1.0


class Stage(IntEnum):
    """How far the end has come: each stage includes those before it."""

    WORKING = 0
    DRAINING = 1
    STOPPING = 2


class ControlMessage(Enum):
    """A command to a process. A signal asks for the next stage, whichever that is; WAKE for none."""

    SIGNAL = "signal"
    DRAIN = "drain"
    STOP = "stop"
    WAKE = "wake"


class WorkStatus(IntEnum):
    """Exit statuses of commands that run until a signal ends them, besides those of every command."""

    DRAINED = 0
    UNREACHABLE = ExitStatus.UNREACHABLE
    UNFINISHED = 4


class ControlChannel:
    """The messages that a process gets, from signals, its standard input and its own threads."""

    def __init__(self) -> None:
        self.stage = Stage.WORKING
        self._messages: SimpleQueue[ControlMessage] = SimpleQueue()

    def send(self, message: ControlMessage) -> None:
        """Send a message; safe in a signal handler and in any thread."""
        self._messages.put(message)

    def receive(self, timeout_seconds: float) -> Stage:
        """Wait for a message, and return the stage after it."""
        try:
            message = self._messages.get(timeout=timeout_seconds)
        except Empty:
            return self.stage
        if message is ControlMessage.SIGNAL:
            self.stage = Stage(min(self.stage + 1, Stage.STOPPING))
        elif message is ControlMessage.DRAIN:
            self.stage = max(self.stage, Stage.DRAINING)
        elif message is ControlMessage.STOP:
            self.stage = Stage.STOPPING
        return self.stage

    def follow_signals(self) -> None:
        """Take SIGTERM and SIGINT as messages from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.send(ControlMessage.SIGNAL))

    def follow(self, descriptor: int) -> None:
        """Take each line of a pipe as a message; its end, which means that the parent died, as DRAIN."""

        def read() -> None:
            # Without a buffer: its lock, held by a daemon thread, would break the end of the process.
            with open(descriptor, "rb", buffering=0, closefd=False) as pipe:
                for line in pipe:
                    self.send(ControlMessage(line.decode().strip()))
            self.send(ControlMessage.DRAIN)

        in_thread("freshq-control", read)


def run_until_told(
    name: str, work: Callable[[Event], T], control: ControlChannel, on_drain: Callable[[], None]
) -> Future[T]:
    """Call a function in a thread until it returns, or the process must end at once.

    Args:
        name: Name of the thread.
        work: The function; it returns soon after the event that it gets is set.
        control: Says when to end. DRAINING sets the event.
        on_drain: Called when it is set.

    Returns:
        What the function returned or raised; not done if the process is to end at once.
    """
    stop = Event()
    ended = in_thread(name, partial(work, stop))
    ended.add_done_callback(lambda _ended: control.send(ControlMessage.WAKE))
    while not ended.done():
        stage = control.receive(CHECK_SECONDS)
        if stage is Stage.STOPPING:
            break
        if stage is Stage.DRAINING and not stop.is_set():
            stop.set()
            on_drain()
    return ended


def end_process(status: int, control: ControlChannel) -> NoReturn:
    """Exit; at once if that was asked for, whatever threads of the application still do.

    Raises:
        Exit: Unless it was to be at once.
    """
    if control.stage is Stage.STOPPING:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # whoever read it is gone
                stream.flush()
        os._exit(status)
    raise typer.Exit(status)
