"""Run tasks in processes of their own, which can be killed: the worker's side."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from multiprocessing.connection import Connection, Pipe
from multiprocessing.spawn import get_executable, get_preparation_data
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import override

from freshq.model.answers import ChildTraceback, Retry, error_text
from freshq.model.forks import forget_in_child
from freshq.model.task import RunHandle, Task, handle_of
from freshq.worker.executor import NotStarted
from freshq.worker.report import RUNNING
from freshq.worker.run import in_thread
from freshq.worker.runner import DelegatingRunner
from freshq.worker.slot_process import (
    FORK,
    REQUEST,
    SIGNAL,
    End,
    LogLine,
    Order,
    Raised,
    Report,
    Setup,
    Start,
    framed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from typing import Self

    from freshq.worker.options import WorkerConfig

# Between two looks at the processes: how late a run is stopped, and how late it sees that it was cancelled.
LOOK_SECONDS: Final = 0.1
# Maximum wait for the end of a process that was killed, and of one that was only asked to end.
END_SECONDS: Final = 5.0
LEAVE_SECONDS: Final = 1.0
# Processes that a task is given to, if they end before they begin to run it.
STARTS: Final = 10
MEBIBYTE: Final = 1024 * 1024
ADVICE: Final = (
    "with isolate it must be a function of a module, or Handlers in a module, that can be imported"
)
# sys.path comes first, because this package may be anywhere on it.
PROGRAM: Final = "import sys; sys.path[:] = {}\nfrom freshq.worker.slot_process import *; template({})"
# In a pickled object of the main module. In a process of multiprocessing that is named "__mp_main__".
OF_MAIN: Final = b"_main__"
# What imports need of `get_preparation_data`; the last two are for the main module.
IMPORTS: Final = ("sys_path", "sys_argv", "orig_dir", "dir", "init_main_from_name", "init_main_from_path")


class RunEnded(Retry):
    """The process of a run ended before the run, or was killed: the attempt failed."""


class RunTimeout(RunEnded):
    """A run took longer than `max_run_seconds`, so its process was ended."""


class _Exit(NamedTuple):
    """How a process ended: its status is negative for a signal, and an error number without a process id."""

    process_id: int = 0
    status: int = 0
    peak_bytes: int = 0

    @property
    def problem(self) -> str | None:
        """Why it was never started; None if it was."""
        return os.strerror(self.status) if self.status and not self.process_id else None

    def text(self, *, is_meant: bool) -> str:
        """Return how it ended, for the error of a run; `is_meant` if the worker ended it."""
        if not self.process_id:
            return "its process ended together with the process that imports the runner"
        how = f"exited with status {self.status}"
        if self.status < 0:
            names = {each.value: each.name for each in signal.Signals}
            how = f"was killed by {names.get(-self.status, f'signal {-self.status}')}"
        may_lack_memory = self.status == -signal.SIGKILL and not is_meant
        why = " (the system does that when memory runs out)" if may_lack_memory else ""
        return f"its process {how}; peak memory {self.peak_bytes / MEBIBYTE:,.0f} MiB{why}"


def pickled_runner(runner: Callable[..., Any]) -> bytes:
    """Return a runner in the form in which other processes get it.

    Raises:
        ValueError: If they cannot import it.
    """
    try:
        data = pickle.dumps(runner)
    except Exception as error:
        msg = f"runner: cannot be used by another process ({error_text(error)}); {ADVICE}"
        raise ValueError(msg) from error
    main = sys.modules["__main__"]
    if b"__main__" in data and getattr(main, "__file__", None) is None and main.__spec__ is None:
        msg = f"runner: is defined in an interactive session, which other processes cannot import; {ADVICE}"
        raise ValueError(msg)
    return data


def _setup(runner: bytes) -> Setup:
    """Return what the template needs.

    Raises:
        ValueError: If this process is the template, which has just begun to import the runner.
    """
    try:
        data: Any = get_preparation_data("freshq-template")
    except RuntimeError as error:
        msg = "isolate: this module runs the worker when it is imported; do so in if __name__ == '__main__'"
        raise ValueError(msg) from error
    main = {name: data[name] for name in IMPORTS[: None if OF_MAIN in runner else -2] if name in data}
    manager = logging.root.manager
    loggers = {name: getattr(each, "level", 0) for name, each in list(manager.loggerDict.items())}
    levels = {"": logging.root.level, **{name: level for name, level in loggers.items() if level}}
    return Setup(runner, main, levels, manager.disable, sys.stdout is sys.stderr)


class _Template:
    """The process that has imported the runner, and forks."""

    def __init__(self, setup: Setup) -> None:
        """Start it, and wait until it has imported the runner.

        Raises:
            OSError: If the system has no process or file for it.
            ValueError: If it cannot import the runner.
        """
        self._sending = threading.Lock()
        self._control, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as spawn.py
        program = PROGRAM.format(repr(sys.path), theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this program
                [get_executable(), *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C on the terminal is for the worker, which lets runs end
            )
        try:
            with Connection(os.dup(self._control.fileno())) as messages:
                messages.send(setup)
                problem = messages.recv()
        except (EOFError, OSError):
            problem = "that process ended"
        if problem is not None:
            self.close()
            msg = f"runner: another process cannot import it ({problem}); {ADVICE}"
            raise ValueError(msg)

    def fork(self, number: int, files: list[int]) -> None:
        """Have it fork a slot process, which gets the files.

        Raises:
            OSError: If it has ended.
        """
        with self._sending:
            socket.send_fds(self._control, [REQUEST.pack(FORK, number, 0)], files)

    def signal(self, number: int, signal_number: int) -> None:
        """Have it signal a slot process and what that has started, unless it has ended."""
        with self._sending, suppress(OSError):
            self._control.sendall(REQUEST.pack(SIGNAL, number, signal_number))

    def close(self) -> None:
        """End it, and wait for its end."""
        self.forget()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Close its socket."""
        self._control.close()


class _Run:
    """A run of a task or a batch, as the threads that run and watch it share it."""

    def __init__(self, number: int, handles: list[RunHandle], max_run_seconds: float | None) -> None:
        self.number, self.handles = number, handles
        self.stops_at = self.limit_at = inf if max_run_seconds is None else time.monotonic() + max_run_seconds
        self.kill_at = inf
        self.told = 0
        self.ends = self.overran = False

    @property
    def cancelled(self) -> int:
        """The number of its tasks that should stop."""
        return sum(each.why_cancelled is not None for each in self.handles)

    @property
    def why(self) -> str | None:
        """Why it should stop; None while one of its tasks should go on."""
        return self.handles[0].why_cancelled if self.cancelled == len(self.handles) else None

    def cancel(self, why: str) -> None:
        """Cancel those of its tasks that are not cancelled."""
        for each in self.handles:
            each.why_cancelled = each.why_cancelled or why

    def order(self) -> Order:
        """Return what its process should know."""
        return Order(self.number, [(each.why_cancelled, each.lost) for each in self.handles], self.ends)


class _Slot:
    """A slot process, as the worker sees it. Its lock guards its run."""

    def __init__(self, template: _Template, number: int) -> None:
        """Start it.

        Raises:
            OSError: If the template has ended, or the system has no file left.
        """
        self.lock, self._reading = threading.Lock(), threading.Lock()
        self.run: _Run | None = None
        self.runs = 0
        self.leaves_by = inf
        self._template, self._number = template, number
        self._exit: _Exit | None = None
        self._files: list[Connection] = []
        theirs: list[Connection] = []
        try:
            for duplex in (True, False, False):
                reader, writer = Pipe(duplex)
                self._files.append(writer if len(theirs) == 1 else reader)
                theirs.append(reader if len(theirs) == 1 else writer)
            template.fork(number, [each.fileno() for each in theirs])
        except OSError:
            self.forget()
            raise
        finally:
            for each in theirs:
                each.close()
        self._tasks, self._orders, self._end = self._files
        os.set_blocking(self._orders.fileno(), False)
        # The rest of the orders: the process reads none while C keeps its interpreter busy.
        self._unsent = b""

    @contextmanager
    def running(self, run: _Run, start: Start) -> Iterator[None]:
        """Send it the task of a run, which is its run until the end of the block.

        Raises:
            OSError: If it has ended.
        """
        with self.lock:
            self.run = run
        try:
            self._tasks.send_bytes(pickle.dumps(start))
            yield
        finally:
            with self.lock:  # nobody may look at it while its files are closed
                self.run = None

    def receive(self) -> object:
        """Return its next message.

        Raises:
            EOFError, OSError: If it has ended.
        """
        return pickle.loads(self._tasks.recv_bytes())  # noqa: S301 - of a process of this worker

    def look(self, now: float, max_run_seconds: float | None, kill_grace_seconds: float) -> None:
        """Stop its run if it took too long, or was cancelled and does not heed that; then kill it."""
        run = self.run
        if run is None:
            return
        self._send_orders()
        if self.has_ended():
            self._shut()
        elif now >= run.kill_at:
            self.signal(signal.SIGKILL)
        elif now >= run.stops_at:
            run.ends, run.overran = True, now >= run.limit_at
            run.stops_at, run.kill_at = inf, now + kill_grace_seconds
            if run.overran:
                run.cancel(f"it took longer than {max_run_seconds:g} s")
            self._order(run.order())
            self.signal(signal.SIGTERM)
        elif run.told < run.cancelled:
            if run.why is not None:
                run.stops_at = min(run.stops_at, now + kill_grace_seconds)
            if not self._unsent:
                run.told = run.cancelled
                self._order(run.order())

    def _order(self, order: Order) -> None:
        self._unsent += framed(order)
        self._send_orders()

    def _send_orders(self) -> None:
        with suppress(OSError):  # the pipe is full, or the process has ended
            while self._unsent:
                self._unsent = self._unsent[os.write(self._orders.fileno(), self._unsent) :]

    def kill(self, why: str) -> None:
        """Kill it, although its run has not ended."""
        with self.lock:
            if self.run is not None:
                self.run.ends = True
                self.run.cancel(why)
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Signal it, and what its runs have started."""
        self._template.signal(self._number, number)

    def _shut(self) -> None:
        """End the reads of its messages, although what it has started may hold its end of the socket."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._tasks.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Ask it to end, as it has no run."""
        self.leaves_by = time.monotonic() + LEAVE_SECONDS
        self._shut()
        self._orders.close()

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended, after at most a time."""
        with self._reading:
            if self._exit is None and self._end.poll(seconds):
                try:
                    self._exit = _Exit(*self._end.recv())
                except (EOFError, OSError):  # the template was killed, and its forks with it
                    self._exit = _Exit()
            return self._exit is not None

    def end(self) -> _Exit:
        """Return how it ended, and close its files; kill it if it has only closed its end of the socket."""
        if not self.has_ended(LEAVE_SECONDS):
            self.signal(signal.SIGKILL)
        if not self.has_ended(END_SECONDS):
            self._exit = _Exit()
        self.forget()
        return self._exit or _Exit()

    def forget(self) -> None:
        """Close its files."""
        for each in self._files:
            each.close()


class IsolatedRunner(DelegatingRunner):
    """A runner that calls another one in slot processes, one run at a time in each.

    A context manager: the processes live in its block.
    """

    def __init__(self, runner: Callable[..., Any], config: WorkerConfig, now: Callable[[], float]) -> None:
        """Start no process yet.

        Args:
            runner: The runner.
            config: The options of the worker.
            now: The clock of the queue.

        Raises:
            ValueError: If other processes cannot import the runner.
        """
        super().__init__(runner)
        self._config, self._now = config, now
        self._pickled = pickled_runner(runner)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._template: _Template | None = None
        # Every process that has not ended, and those that wait for a task.
        self._slots: set[_Slot] = set()
        self._idle: list[_Slot] = []
        self._stopped = threading.Event()
        self._watch: Future[None] | None = None
        forget_in_child(self)

    def __enter__(self) -> Self:
        """Import the runner in another process.

        Raises:
            OSError: If the system has no process or file for it.
            ValueError: If the runner cannot be imported there.
        """
        self._setup = _setup(self._pickled)
        self._template = _Template(self._setup)
        self._stopped.clear()
        self._watch = in_thread("freshq-slots", self._look_until_stopped)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._watch is not None:
            self._watch.result()
        with self._lock:
            idle, self._idle = self._idle, []
            slots, template, self._template = list(self._slots), self._template, None
        for slot in idle:
            slot.leave()
        for slot in slots:
            if slot.leaves_by == inf:  # its task was given back, or is reported as unfinished
                slot.kill("the worker has ended")
        until = time.monotonic() + LEAVE_SECONDS
        for slot in slots:
            slot.has_ended(max(0.0, until - time.monotonic()))
            if slot.leaves_by < inf:
                self._discard(slot)
        if template is not None:
            template.close()

    def forget_parent(self) -> None:
        """Close the copies of the files of the processes, which would outlive the worker."""
        for slot in self._slots:
            slot.forget()
        if self._template is not None:
            self._template.forget()

    @override
    def __call__(self, task: Task) -> Any:
        """Run a task in a slot process.

        Raises:
            NotStarted: If the system has no process or file left.
            RunTimeout: If it took longer than `max_run_seconds`.
            RunEnded: If its process ended before it, or was killed.
            Exception: The runner's.
        """
        (answer,) = self._run([task], is_batch=False)
        if isinstance(answer, Raised):
            raise _exception_of(answer)
        return _result(answer)

    @override
    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        """Run a batch in a slot process, as a task."""
        answers = self._run(list(tasks), is_batch=True)
        return [_exception_of(each) if isinstance(each, Raised) else _result(each) for each in answers]

    def _run(self, tasks: list[Task], *, is_batch: bool) -> list[bytes | Raised]:
        """Run a task or a batch; return the answer for each task."""
        handles = [handle_of(task) or RunHandle() for task in tasks]
        for task in tasks:
            self.note_rules(task)
        scope = RUNNING.get()
        block = None if scope is None else scope.elsewhere()
        for _ in range(STARTS):
            slot = self._borrowed()
            run = _Run(slot.runs, handles, self._config.max_run_seconds)
            start = Start(slot.runs, tasks, is_batch, self._now(), time.monotonic(), block)
            if (end := self._run_in(slot, run, start)) is not None:
                self._return(slot, end, run)
                return self._answers(run, end)
        msg = f"{STARTS} processes ended before they began to run it"
        raise NotStarted(msg)

    def _answers(self, run: _Run, end: End) -> list[bytes | Raised]:
        """Return the answers of a run that has ended, or raise what it raised."""
        for handle, last, units in zip(run.handles, end.last, end.units, strict=True):
            handle.reported, handle.units = last or handle.reported, units
        if end.was_told and run.ends:
            raise self._ended(run, "it was stopped", end.raised)
        if end.raised is not None:
            raise _exception_of(end.raised)
        return end.answers

    def _run_in(self, slot: _Slot, run: _Run, start: Start) -> End | None:
        """Run tasks in a process; return None if that had just ended, so that the run did not begin.

        Raises:
            NotStarted: If the system had no process left for it.
            RunEnded: If it ended before the run.
        """
        began = False
        try:
            with slot.running(run, start):
                began = True
                return _end_of(slot, run)
        except (EOFError, OSError) as error:
            # A socket is reset if its other end was closed with unread data: the task.
            began = began and not isinstance(error, ConnectionResetError)
        except BaseException:  # its messages cannot be read
            slot.signal(signal.SIGKILL)
            self._discard(slot)
            raise
        exits = self._discard(slot)
        if exits.problem is not None:
            msg = f"no process could be started: {exits.problem}"
            raise NotStarted(msg)
        if not began:
            return None
        raise self._ended(run, exits.text(is_meant=run.ends), None)

    def _ended(self, run: _Run, how: str, raised: Raised | None) -> RunEnded:
        """Return the error of a run whose process was ended, or has ended."""
        last = run.handles[0].reported
        for handle in run.handles:
            handle.overran = run.overran
        if last is not None and len(run.handles) == 1:
            how += f"; its last report was {last.fraction:.0%}{', ' if last.step else ''}{last.step or ''}"
        error = RunEnded(f"the run was cancelled: {run.why}; {how}" if run.ends else how)
        if run.overran:
            error = RunTimeout(f"it took longer than {self._config.max_run_seconds:g} s; {how}")
        error.__cause__ = None if raised is None else ChildTraceback(raised.traceback or "")
        return error

    def _borrowed(self) -> _Slot:
        """Return a process without a run; start one if there is none.

        Raises:
            NotStarted: If the system has no process or file left.
        """
        with self._lock:
            slot = self._idle.pop() if self._idle else self._started()
        slot.runs += 1
        return slot

    def _started(self) -> _Slot:
        if self._template is None:
            raise NotStarted("the worker has ended")
        try:
            try:
                slot = _Slot(self._template, next(self._numbers))
            except (BrokenPipeError, ConnectionResetError):  # the template was killed
                self._template.close()
                self._template = _Template(self._setup)
                slot = _Slot(self._template, next(self._numbers))
        except (OSError, ValueError) as error:
            msg = f"no process could be started: {error}"
            raise NotStarted(msg) from error
        self._slots.add(slot)
        return slot

    def _return(self, slot: _Slot, end: End, run: _Run) -> None:
        """Keep a process for other tasks, or replace it."""
        most_runs, most_mb = self._config.recycle_runs or inf, self._config.recycle_mb or inf
        leaves = slot.runs >= most_runs or end.peak_bytes >= most_mb * MEBIBYTE or run.ends
        with self._lock:
            if leaves or self._template is None:
                slot.leave()
            else:
                self._idle.append(slot)

    def _discard(self, slot: _Slot) -> _Exit:
        """Return how a process ended that has ended, or has been asked to; forget it."""
        exits = slot.end()
        with self._lock:
            self._slots.discard(slot)
        return exits

    def _look_until_stopped(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                slots = list(self._slots)
            for slot in slots:
                with slot.lock:
                    slot.look(now, self._config.max_run_seconds, self._config.kill_grace_seconds)
                if slot.leaves_by < inf and (now >= slot.leaves_by or slot.has_ended()):
                    self._discard(slot)


def _end_of(slot: _Slot, run: _Run) -> End:
    """Return how a run ended, once it has; pass on what it tells before."""
    while True:
        message = slot.receive()
        if isinstance(message, End):
            return message
        if isinstance(message, Report) and message.number == run.number:
            run.handles[message.place].reported = message.progress
        elif isinstance(message, LogLine):
            message.handle()


def _result(pickled: bytes) -> Any:
    return pickle.loads(pickled)  # noqa: S301 - of a process of this worker


def _exception_of(raised: Raised) -> BaseException:
    """Return the exception of a runner, or one that looks and counts like it."""
    error: Any = type(raised.name, (raised.category,), {})(raised.text)
    if raised.delay_seconds is not None:
        error.delay_seconds = raised.delay_seconds
    with suppress(Exception):  # its module may do something else here
        error = pickle.loads(raised.pickled or b"")  # noqa: S301 - of a process of this worker
    error.__cause__ = None if raised.traceback is None else ChildTraceback(raised.traceback)
    return error  # type: ignore[no-any-return]
