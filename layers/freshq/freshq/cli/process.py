"""Control, report and live display of long-running commands."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, IntEnum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeVar, cast

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from freshq.cli.errors import ENDING, LastingOutput, OneLineLog, exit_status
from freshq.errors import FreshqError, StoreError, printable
from freshq.worker.report import FIELDS, Outcome, TaskLogFilter
from freshq.worker.report import logger as runs_logger
from freshq.worker.run import in_thread
from freshq.worker.settle import OUTAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from io import TextIOBase

    from rich.console import RenderableType

    from freshq.cli.output import Output

T = TypeVar("T")
# A process that must stop waits this long for its work, then exits without it.
STOP_SECONDS: Final = 10.0
# Time between two checks of the thread that works.
CHECK_SECONDS: Final = 1.0
# The field of a status with the outcomes of a worker.
OUTCOMES: Final = "outcomes"
# Window of the rate.
RATE_SECONDS: Final = 10.0
REDRAW_SECONDS: Final = 0.25
COLUMNS: Final = ("process", "state", "running", "done", "failed", "retried", "other", "store")
LEVEL_STYLES: Final = {"INFO": "dim", "ERROR": "red"}
SHOWN: Final = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)


class Stage(IntEnum):
    """Stages of the end of a process: each includes the earlier ones."""

    WORKING = 0
    DRAINING = 1
    STOPPING = 2


class ControlMessage(Enum):
    """A command to a process. SIGNAL asks for the next stage, WAKE for none."""

    SIGNAL = "signal"
    DRAIN = "drain"
    STOP = "stop"
    WAKE = "wake"


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
        """Turn SIGTERM, SIGINT and a closed terminal, unless it is ignored, into messages from now on."""
        for number in (signal.SIGINT, *ENDING):
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: self.send(ControlMessage.SIGNAL))

    def follow(self, descriptor: int) -> None:
        """Turn each line of a pipe into a message, and its end, when the parent has died, into DRAIN."""

        def read() -> None:
            # Without a buffer: a daemon thread that holds a buffer's lock breaks the exit.
            with open(descriptor, "rb", buffering=0, closefd=False) as pipe:
                for line in pipe:
                    self.send(ControlMessage(line.decode().strip()))
            self.send(ControlMessage.DRAIN)

        in_thread("freshq-control", read)


def run_until_told(
    name: str, work: Callable[[], T], control: ControlChannel, on_drain: Callable[[], None]
) -> Future[T]:
    """Run a function in a thread until it returns, or until the process must end immediately.

    Args:
        name: Name of the thread.
        work: The function. It returns soon after `on_drain` was called.
        control: Ends the work.
        on_drain: Called at DRAINING, once; stops the work.

    Returns:
        The result or error of the function; not done if the process must end immediately.
    """
    drains = False
    ended = in_thread(name, work)
    ended.add_done_callback(lambda _ended: control.send(ControlMessage.WAKE))
    while not ended.done():
        stage = control.receive(CHECK_SECONDS)
        if stage is Stage.STOPPING:
            break
        if stage is Stage.DRAINING and not drains:
            drains = True
            on_drain()
    return ended


def end_process(status: int, control: ControlChannel) -> NoReturn:
    """Exit; after a second signal immediately, even if threads of the application still run.

    Raises:
        Exit: Unless the process ends immediately.
    """
    if control.stage is Stage.STOPPING:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the reader is gone
                stream.flush()
        os._exit(status)
    raise typer.Exit(status)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The last reported status of a process.

    Attributes:
        process: Its number, from 1 on.
        pid: Its process id.
        values: Its worker's status, by name.
        heard_at: Time of the report, in seconds of the monotonic clock.
    """

    process: int
    pid: int
    values: dict[str, Any]
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def turned_seconds(self) -> float:
        """Time since the last known round of its loop."""
        return float(self.values["turned_seconds"]) + time.monotonic() - self.heard_at

    @property
    def takes_tasks(self) -> bool:
        """Whether it claims tasks and its store answered the last call."""
        return self.values["state"] == "working" and bool(self.values["store_answers"])

    def as_json(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        turned = round(self.turned_seconds, 3)
        return {"process": self.process, "pid": self.pid, **self.values, "turned_seconds": turned}


class Reporter:
    """Receives events and statuses, and shows nothing. Several threads call it."""

    def event(self, event: str, **values: object) -> None:
        """Receive an event, such as the start of draining."""

    def status(self, processes: Sequence[ProcessStatus]) -> None:
        """Receive the state of the processes, several times a second."""

    def close(self) -> None:
        """Show nothing more."""


class JsonLines(Reporter):
    """Prints each event as a line of JSON, and the status at intervals."""

    def __init__(self, stream: TextIOBase, status_seconds: float) -> None:
        """Print to a stream.

        Args:
            stream: Where to print.
            status_seconds: Time between two lines with the status.
        """
        self._stream = stream
        self._status_seconds = status_seconds
        self._next_status = 0.0
        self._lock = threading.Lock()

    @override
    def event(self, event: str, **values: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **values}, default=str)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    @override
    def status(self, processes: Sequence[ProcessStatus]) -> None:
        if time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + self._status_seconds
        self.event("status", processes=[each.as_json() for each in processes])


class ReportingHandler(logging.Handler):
    """Turns each log record into an event, with its task and its traceback."""

    def __init__(self, reporter: Reporter, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self.addFilter(TaskLogFilter())
        self._reporter = reporter

    @override
    def emit(self, record: logging.LogRecord) -> None:
        values = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        of_task = {name: getattr(record, name, None) for name in FIELDS}
        values |= {name: value for name, value in of_task.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._reporter.event("log", **values)


def report_log(reporter: Reporter, *, verbose: bool = False) -> None:
    """Turn the log into events, unless the application has set up logging itself.

    Args:
        reporter: Receives the events.
        verbose: Whether to report the end of every run, not only of failed runs.
    """
    if verbose:
        runs_logger.setLevel(logging.INFO)
    ours, root = logging.getLogger("freshq"), logging.getLogger()
    ours.handlers[:] = [handler for handler in ours.handlers if not isinstance(handler, OneLineLog)]
    if not root.handlers:
        root.addHandler(ReportingHandler(reporter, logging.INFO if verbose else logging.WARNING))


class EventLines(Reporter):
    """Prints events for people, one per line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def event(self, event: str, **values: object) -> None:
        text = Text()
        text.append(time.strftime("%H:%M:%S "), style="dim")
        if event == "log":
            level = str(values["level"])
            text.append(f"{level} ", style=LEVEL_STYLES.get(level, "yellow"))
            text.append(printable(str(values["message"])))
            for line in str(values.get("traceback", "")).splitlines():
                text.append(f"\n{printable(line)}", style="dim")
        else:
            text.append(event.replace("_", " "), style="bold")
            text.append(_shown(values))
        self._console.print(text)


class Display(EventLines):
    """Shows the processes in a table, and prints events above it."""

    def __init__(self, console: Console, title: str) -> None:
        """Start the display.

        Args:
            console: The terminal.
            title: The heading.
        """
        super().__init__(console)
        self._title = printable(title)
        self._done: deque[tuple[float, int]] = deque()
        self._next_draw = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    @override
    def status(self, processes: Sequence[ProcessStatus]) -> None:
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_SECONDS
        done = sum(each.values[OUTCOMES][Outcome.SUCCEEDED] for each in processes)
        self._done.append((now, done))
        while self._done[0][0] < now - RATE_SECONDS:
            self._done.popleft()
        self._live.update(self._frame(processes), refresh=True)

    @override
    def close(self) -> None:
        self._live.stop()

    def _frame(self, processes: Sequence[ProcessStatus]) -> RenderableType:
        (since, before), (now, done) = self._done[0], self._done[-1]
        rate = f"{(done - before) / (now - since):,.1f}/s" if now > since else "-"
        head = Text(f"{self._title}  done {rate}", style="bold", no_wrap=True, overflow="ellipsis")
        table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
        for each in processes:
            table.add_row(*_row(each))
        keys = "Ctrl-C: finish the running tasks; again: give them back and stop"
        return Group(head, table, Text(keys, style="dim"))


def reporter_of(
    output: Output, status_seconds: float = 0, title: str | None = None, *, as_text: bool = False
) -> Reporter:
    """Return the reporter for an output: lines of JSON, or for people lines, or with a title a display.

    Args:
        output: The output.
        status_seconds: Time between two lines of JSON with the status.
        title: The heading of the display; None for no display.
        as_text: Whether lines are for people even without a terminal.

    Raises:
        ValueError: If both JSON and text are asked for.
    """
    console = output.console
    if output.as_json and as_text:
        raise ValueError("--text: not with --json")
    if not as_text and (output.as_json or not console.is_terminal):
        return JsonLines(LastingOutput(sys.stdout), status_seconds)
    console.file = cast("TextIO", LastingOutput(sys.stdout))
    if title is None or console.is_dumb_terminal or not console.is_terminal:
        return EventLines(console)
    return Display(console, title)


@contextmanager
def reporting(reporter: Reporter, *, supervised: bool = False, verbose: bool = False) -> Iterator[None]:
    """Report the log and a fatal error. Output of the application goes to standard error.

    Args:
        reporter: Receives both.
        supervised: Whether a supervisor prints the error.
        verbose: Whether to report every run.
    """
    report_log(reporter, verbose=verbose)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (FreshqError, ValueError) as error:
        status = exit_status(error)
        lasting = {"lasting": not isinstance(error, OUTAGES)} if isinstance(error, StoreError) else {}
        reporter.event("ended", error=str(error), **lasting, exit_status=int(status))
        if supervised:
            raise typer.Exit(status) from error
        raise
    finally:
        reporter.close()


def _row(status: ProcessStatus) -> list[str]:
    values = status.values
    outcomes = Counter[str](values[OUTCOMES])
    shown = [f"{outcomes[each]:,}" for each in SHOWN]
    other = f"{outcomes.total() - sum(outcomes[each] for each in SHOWN):,}"
    store = "answers" if values["store_answers"] else "no answer"
    state = "slowed" if values.get("slowed") and values["state"] == "working" else values["state"]
    return [f"{status.process} ({status.pid})", state, str(values["running"]), *shown, other, store]


def _shown(values: dict[str, Any]) -> str:
    """Return the informative values of an event, for people."""
    outcomes = {name: number for name, number in values.get(OUTCOMES, {}).items() if number}
    said = {name: value for name, value in values.items() if name != OUTCOMES and _says_something(value)}
    return "".join(f"  {name.replace('_', ' ')} {_text(value)}" for name, value in (said | outcomes).items())


def _says_something(value: object) -> bool:
    return value is not False and value not in (None, [], {}, "")


def _text(value: object) -> str:
    if isinstance(value, dict):
        value = [f"{name or 'none'} {number}" for name, number in value.items()]
    return printable(", ".join(map(str, value)) if isinstance(value, list) else str(value))


@contextmanager
def progress_bars() -> Iterator[Callable[[str, str], None]]:
    """Yield a function of a name and its status, which shows one bar for each name on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bars = {}

        def on_status(name: str, status: str) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=None, status=status)
            done = status == "ACTIVE"
            progress.update(bars[name], status=status, total=1 if done else None, completed=int(done))

        yield on_status
