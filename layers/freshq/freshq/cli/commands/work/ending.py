"""How `freshq work` is told to end, and the exit statuses that say how it ended."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import Enum, IntEnum
from queue import Empty, SimpleQueue
from typing import Final, NoReturn

import typer

from freshq.cli.errors import ExitStatus
from freshq.worker.runs import in_thread

# A process that is to end at once and has not ended after this time leaves what it is waiting for.
STOP_SECONDS: Final = 10.0


class Stage(IntEnum):
    """How far the end has come: each stage includes those before it."""

    WORKING = 0
    DRAINING = 1
    STOPPING = 2


class Order(Enum):
    """What a process is told. A signal asks for the next stage, whichever that is."""

    SIGNAL = "signal"
    DRAIN = "drain"
    STOP = "stop"
    LOOK = "look"


class WorkStatus(IntEnum):
    """Exit statuses of `freshq work`, besides those of every command."""

    DRAINED = 0
    UNREACHABLE = ExitStatus.UNREACHABLE
    UNFINISHED = 4


class Orders:
    """The orders that a process gets, from signals, its standard input and its own threads."""

    def __init__(self) -> None:
        """Start at work."""
        self.stage = Stage.WORKING
        self._orders: SimpleQueue[Order] = SimpleQueue()

    def give(self, order: Order) -> None:
        """Give an order; safe in a signal handler and in any thread."""
        self._orders.put(order)

    def take(self, timeout_seconds: float) -> Stage:
        """Wait for an order, and return the stage after it."""
        try:
            order = self._orders.get(timeout=timeout_seconds)
        except Empty:
            return self.stage
        if order is Order.SIGNAL:
            self.stage = Stage(min(self.stage + 1, Stage.STOPPING))
        elif order is Order.DRAIN:
            self.stage = max(self.stage, Stage.DRAINING)
        elif order is Order.STOP:
            self.stage = Stage.STOPPING
        return self.stage

    def follow_signals(self) -> None:
        """Take SIGTERM and SIGINT as orders from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.give(Order.SIGNAL))

    def follow(self, descriptor: int) -> None:
        """Take each line of a pipe as an order; its end, which means that the parent died, as DRAIN."""

        def read() -> None:
            # Without a buffer: its lock, held by a daemon thread, would break the end of the process.
            with open(descriptor, "rb", buffering=0, closefd=False) as pipe:
                for line in pipe:
                    self.give(Order(line.decode().strip()))
            self.give(Order.DRAIN)

        in_thread("freshq-orders", read)


def end_process(status: int, orders: Orders) -> NoReturn:
    """Exit; at once if that was asked for, whatever threads of the application still do.

    Raises:
        Exit: Unless it was to be at once.
    """
    if orders.stage is Stage.STOPPING:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # whoever read it is gone
                stream.flush()
        os._exit(status)
    raise typer.Exit(status)
