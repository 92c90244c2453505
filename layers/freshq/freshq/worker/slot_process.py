"""The processes of isolated slots: a template that imports the runner, and its forks, which run tasks."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import logging
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import process, spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from typing_extensions import override

from freshq.model.answers import Busy, Reject, Retry, busy_of, error_text, traceback_text
from freshq.model.task import Progress, RunHandle, Task, give_handle, keep_clock
from freshq.worker.executor import OwnLoop, result_of
from freshq.worker.runner import CoroutineRunner, RunContexts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from freshq.errors import LeaseLost

# A request to the template: fork, or signal; the number of the slot process; the signal.
REQUEST: Final = struct.Struct("!BqB")
FORK: Final = 0
SIGNAL: Final = 1
# Reports sent within the window; further ones are left out, so that a loop may report at each turn.
REPORTS: Final = 20
REPORT_SECONDS: Final = 0.02
# The system tells peak memory in kibibytes, macOS in bytes.
RSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024
MAX_TRACEBACK_CHARS: Final = 50_000
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
# Larger messages may be written in parts if a signal comes.
WHOLE_BYTES: Final = 16_384
MAX_SHORT_BYTES: Final = 0x7FFFFFFF
# Signals for which an application may have a handler that raises an exception, such as its own time limit.
TIMERS: Final = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2)
# How long the slot processes have to end by themselves once the worker has ended, and then exit functions.
LEAVE_SECONDS: Final = 0.5
EXIT_SECONDS: Final = 5
# Counts as much as a tenth of the memory, in thousandths.
OOM_SCORE: Final = 100
# Returns the block that makes a run of the worker current in another process.
RunBlock: TypeAlias = Callable[[], AbstractContextManager[object]]


class Setup(NamedTuple):
    """The pickled runner, and what makes the template like the worker's process.

    `main` is for `multiprocessing.spawn.prepare`. `levels` are by name of the logger, "" for the root.
    """

    runner: bytes
    main: dict[str, Any]
    levels: dict[str, int]
    disabled_level: int
    prints_to_stderr: bool


class Start(NamedTuple):
    """A task or a batch to run, and the queue's time at a moment of the monotonic clock, which all share."""

    number: int
    tasks: list[Task]
    is_batch: bool
    now: float
    since: float
    block: RunBlock | None


def framed(message: object) -> bytes:
    """Return a message as `Connection.recv_bytes` reads it, so that one call can write it."""
    data = pickle.dumps(message)
    is_short = len(data) <= MAX_SHORT_BYTES
    return (struct.pack("!i", len(data)) if is_short else struct.pack("!iQ", -1, len(data))) + data


class Order(NamedTuple):
    """Tells a run why each task should stop, and its lost lease; with `ends`, its process ends as well."""

    number: int
    states: list[tuple[str | None, LeaseLost | None]]
    ends: bool


class Report(NamedTuple):
    """Progress of the task at a place of a batch, in a run."""

    number: int
    place: int
    progress: Progress


class Raised(NamedTuple):
    """An exception of a runner: pickled if it can be read again, and in a form for every class.

    `traceback` is that of its cause if it was raised on purpose.
    """

    pickled: bytes | None
    category: type[Exception]
    name: str
    text: str
    delay_seconds: float | None
    traceback: str | None

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Return the form of an exception; of a push-back by HTTP that of `Busy`, which can be read."""
        error = busy_of(error, time.time()) or error
        category = next((each for each in (Busy, Reject, Retry) if isinstance(error, each)), Exception)
        shown = error if category is Exception else error.__cause__
        traceback = ((shown and traceback_text(shown)) or "")[-MAX_TRACEBACK_CHARS:] or None
        delay_seconds = getattr(error, "delay_seconds", None)
        try:
            pickled = pickle.dumps(error)
            can_be_read = type(pickle.loads(pickled)) is type(error)  # noqa: S301 - made here
        except BaseException:  # noqa: BLE001 - the application's class
            can_be_read = False
        return cls(
            pickled if can_be_read else None,
            category,
            type(error).__name__,
            error_text(error),
            delay_seconds,
            traceback,
        )


class End(NamedTuple):
    """The end of a run: for each task its pickled result or its exception; none if the run itself raised one.

    `was_told` says whether it had been told to stop before; `units` are what each task took, if it said so.
    """

    answers: list[bytes | Raised]
    raised: Raised | None
    was_told: bool
    last: list[Progress | None]
    units: list[float | None]
    peak_bytes: int


class LogLine(NamedTuple):
    """A log record.

    Attributes:
        values: The values of `logging.makeLogRecord`.
        filters: The types or functions of the filters that its logger has in the process of the run.
    """

    values: dict[str, Any]
    filters: list[str]

    def handle(self) -> None:
        """Have the loggers of this process handle the record, without the filters that it has passed."""
        record = logging.makeLogRecord(self.values)
        logger = logging.getLogger(record.name)
        passed, left = self.filters.copy(), logging.Filterer()
        for each in logger.filters:
            if _filter_name(each) in passed:
                passed.remove(_filter_name(each))
            else:
                left.addFilter(each)
        if logger.isEnabledFor(record.levelno) and (kept := left.filter(record)):
            logger.callHandlers(kept if isinstance(kept, logging.LogRecord) else record)


class ToldToEnd(BaseException):
    """The run took too long, or did not heed that it was cancelled: its process ends after it."""


class Forwarding(logging.Handler):
    """Sends log records to the worker, whose loggers handle them."""

    def __init__(self, send: Callable[[object], None], setup: Setup) -> None:
        """Take the place of the handlers that the application's modules have set up in this process."""
        super().__init__()
        self._send = send
        logging.disable(setup.disabled_level)
        for logger in (logging.root, *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger):
                logger.setLevel(logging.NOTSET)
                logger.handlers.clear()
                logger.propagate = True
        for name, level in setup.levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.root.addHandler(self)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, with its message and traceback as text."""
        try:
            values = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
            if record.exc_info:
                values["exc_text"] = logging.Formatter().formatException(record.exc_info)
            try:
                pickle.dumps(values)
            except Exception:  # noqa: BLE001 - an extra field of the application
                values = {name: _plain(value) for name, value in values.items()}
            with suppress(OSError):  # the worker has ended
                self._send(LogLine(values, [*map(_filter_name, logging.getLogger(record.name).filters)]))
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)


def _filter_name(given: object) -> str:
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}.{named.__qualname__}"


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else repr(value)


class _Handle(RunHandle):
    """Sends the reports of a run to the worker."""

    __slots__ = ("_left", "_send", "_until")

    def __init__(self, send: Callable[[Progress], None]) -> None:
        super().__init__()
        self._send = send
        self._until, self._left = 0.0, 0

    @override
    def report(self, progress: Progress) -> None:
        super().report(progress)
        now = time.monotonic()
        if now >= self._until:
            self._until, self._left = now + REPORT_SECONDS, REPORTS
        self._left -= 1
        if self._left >= 0:
            self._send(progress)


class _Messages:
    """Writes messages to the worker, one at a time: threads, and forks of the functions of tasks, log."""

    def __init__(self, tasks: Connection) -> None:
        """Write to a connection."""
        self._tasks = tasks
        # Garbage may be collected while it is held, by a method that logs.
        self._lock = threading.RLock()
        # Locked by one of the processes; None while there is one.
        self._file: int | None = None
        release = self._lock.release  # no other thread may hold it in a fork, where that does not exist
        os.register_at_fork(before=self._share, after_in_parent=release, after_in_child=release)

    def _share(self) -> None:
        self._lock.acquire()
        if self._file is None:
            with TemporaryFile() if sys.platform == "darwin" else nullcontext() as file:
                self._file = os.memfd_create("freshq") if file is None else os.dup(file.fileno())

    def write(self, data: bytes) -> None:
        """Write a whole message.

        Raises:
            OSError: If the worker has ended.
        """
        with self._lock:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._tasks.fileno(), rest) :]
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)


class SlotProcess:
    """Runs the tasks of one slot, one after the other, in the main thread of its process."""

    def __init__(
        self, runner: Callable[..., Any], setup: Setup, tasks: Connection, orders: Connection
    ) -> None:
        """Prepare this process.

        Args:
            runner: The runner.
            setup: How the worker's process is set up.
            tasks: Brings tasks and takes answers.
            orders: Brings orders during runs; its end means that the worker has ended.
        """
        self._runner, self._contexts, self._loop = runner, RunContexts(), OwnLoop()
        self._tasks, self._orders = tasks, orders
        self._own_id = os.getpid()
        self._messages, self._ordering = _Messages(tasks), threading.Lock()
        self._number = 0
        # Of the tasks that run; empty between runs.
        self._handles: list[_Handle] = []
        self._coroutine: Future[Any] | None = None
        # The handler of SIGTERM may raise in the function of the task, but not while that writes to the pipe.
        self._may_raise = self._writes = False
        self._ends = self._is_signalled = False
        _catch_in_this_process({signal.SIGTERM: lambda *_: self._on_signal(), signal.SIGINT: lambda *_: None})
        Forwarding(self._send, setup)
        for store in getattr(sys.modules.get("freshq.stores.memory"), "STORES", ()):
            store.is_copy = True

    def serve(self) -> None:
        """Run tasks until the worker ends the process."""
        threading.Thread(target=self._follow, name="freshq-orders", daemon=True).start()
        while not self._ends:
            try:
                data = self._tasks.recv_bytes()
            except (EOFError, OSError):
                return
            self._run(pickle.loads(data))  # noqa: S301 - of the worker
            _flush()

    def _run(self, start: Start) -> None:
        """Run a task or a batch, and tell the worker how that ended."""
        handles = self._begin(start)
        answers, raised = self._outcome(start)
        if os.getpid() != self._own_id:
            os._exit(1)  # the function has forked, and this is not the process that answers
        with self._ordering:
            self._handles, self._coroutine = [], None
            was_told = _are_cancelled(handles) or self._is_signalled
        last, units = [each.reported for each in handles], [each.units for each in handles]
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_BYTES
        with suppress(OSError):  # the worker has ended
            self._send(End(answers, raised, was_told, last, units, peak_bytes))

    def _begin(self, start: Start) -> list[_Handle]:
        """Return the handles of tasks, to which the orders of the worker apply from now on."""
        now, since = start.now, start.since
        handles = [_Handle(partial(self._report, start.number, place)) for place in range(len(start.tasks))]
        for task, handle in zip(start.tasks, handles, strict=True):
            give_handle(task, handle)
            keep_clock(task, lambda: now + time.monotonic() - since)
        with self._ordering:
            self._number, self._handles, self._is_signalled = start.number, handles, False
        return handles

    def _outcome(self, start: Start) -> tuple[list[bytes | Raised], Raised | None]:
        """Run tasks; return the answer for each, or what the run raised."""
        try:
            try:
                return [_portable(each) for each in self._contexts.run(self._call, start)], None
            finally:
                self._may_raise = False
        except BaseException as error:  # noqa: BLE001 - raised in the worker
            self._may_raise = False
            return [], Raised.of(error)

    def _call(self, start: Start) -> Sequence[Any]:
        """Return the result of a task, or of each task of a batch its result or a `Raised`."""
        runner: Any = self._runner
        with (start.block or nullcontext)():
            if isinstance(runner, CoroutineRunner) and runner.has_coroutine(start.tasks[0]):
                result = self._result_of_coroutine(start, runner)
            else:
                self._may_raise = True
                self._raise_if_told()
                result = runner.run_batch(start.tasks) if start.is_batch else runner(start.tasks[0])
                self._may_raise = False
        if not start.is_batch:
            return [result]
        return [Raised.of(each) if isinstance(each, BaseException) else each for each in result]

    def _result_of_coroutine(self, start: Start, runner: CoroutineRunner) -> Any:
        loop = self._loop.get()
        coroutine = (
            runner.start_batch(start.tasks, loop) if start.is_batch else runner.start(start.tasks[0], loop)
        )
        assert coroutine is not None  # noqa: S101  # nosec B101 - the task has one
        with self._ordering:
            self._coroutine = coroutine
            if _are_cancelled(self._handles):
                coroutine.cancel()
        try:
            return result_of(coroutine)
        finally:
            if coroutine.cancelled():
                _await_all(loop)

    def _send(self, message: object) -> None:
        """Send a message to the worker, from any thread."""
        data = framed(message)
        is_main = threading.current_thread() is threading.main_thread()
        try:
            self._writes = self._writes or is_main
            with _timers_held(is_main and len(data) > WHOLE_BYTES):
                self._messages.write(data)
        finally:
            if is_main:
                self._writes = False
                self._raise_if_told()

    def _report(self, number: int, place: int, progress: Progress) -> None:
        if self._handles and number == self._number:  # not a thread of an earlier run
            self._send(Report(number, place, progress))

    def _on_signal(self) -> None:
        """Follow SIGTERM if the worker has sent it: a service manager may signal every process.

        The signal may come before the order does.
        """
        self._is_signalled = True
        if not self._writes:
            self._raise_if_told()

    def _raise_if_told(self) -> None:
        if self._ends and self._may_raise:
            self._may_raise = False
            raise ToldToEnd("it was told to end")

    def _follow(self) -> None:
        """Follow the orders of the worker, in a thread of its own; end with the worker."""
        signal.pthread_sigmask(signal.SIG_BLOCK, TIMERS)  # for the main thread, which can hold them back
        while True:
            try:
                order: Order = self._orders.recv()
            except (EOFError, OSError):
                if self._handles:
                    os.killpg(self._own_id, signal.SIGKILL)
                return
            with self._ordering:
                if self._handles and order.number == self._number:
                    self._obey(order)

    def _obey(self, order: Order) -> None:
        for handle, (why, lost) in zip(self._handles, order.states, strict=True):
            handle.why_cancelled, handle.lost = why, lost
        self._ends = order.ends
        main = threading.main_thread().ident
        if self._coroutine is not None and _are_cancelled(self._handles):
            self._coroutine.cancel()
        elif order.ends and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)


def _catch_in_this_process(handlers: dict[signal.Signals, Callable[..., None]]) -> None:
    """Handle signals here. They end the programs and the forks that the functions of tasks start."""
    masks: list[Any] = []

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def forget() -> None:
        for number, handler in handlers.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        release()

    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.register_at_fork(  # a signal that came before `forget` would be lost
        before=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, handlers)),
        after_in_parent=release,
        after_in_child=forget,
    )


@contextmanager
def _timers_held(are_held: bool) -> Iterator[None]:  # noqa: FBT001 - read where it is called
    """Hold back the application's signals in the block, which their exceptions must not leave halfway."""
    if not are_held:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, TIMERS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _are_cancelled(handles: Sequence[RunHandle]) -> bool:
    return all(each.why_cancelled is not None for each in handles)


def _portable(result: object) -> bytes | Raised:
    """Return an answer in the form in which it is sent to the worker, or why it cannot be."""
    try:
        return result if isinstance(result, Raised) else pickle.dumps(result)
    except BaseException as error:  # noqa: BLE001 - the methods of the user's value
        problem = f"result: cannot be sent to the worker: {type(error).__name__}: {error_text(error)}"
        return Raised.of(Reject(problem))


def _await_all(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the coroutines of a loop in another thread have ended: they clean up after a cancel."""
    import asyncio  # noqa: PLC0415 - slow to load; plain functions do not use it

    async def rest() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    asyncio.run_coroutine_threadsafe(rest(), loop).result()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()


class Template:
    """The process whose forks are the slot processes; it tells the worker how each of them ended."""

    def __init__(self, control: socket.socket, setup: Setup, runner: Callable[..., Any]) -> None:
        """Begin without slot processes; `control` brings requests until the worker ends."""
        self._control, self._setup, self._runner = control, setup, runner
        # By number: the process id, and where to tell its end.
        self._forks: dict[int, tuple[int, Connection]] = {}
        self._woken, self._wakes = socket.socketpair()
        for each in (self._woken, self._wakes):
            each.setblocking(False)  # noqa: FBT003 - of the standard library

    def serve(self) -> None:
        """Fork and signal until the worker ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        for each in (self._control, self._woken):
            poll.register(each, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _event in poll.poll()}
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
            if self._control.fileno() in ready:
                request, files, _flags, _address = socket.recv_fds(self._control, REQUEST.size, 3)
                if len(request) < REQUEST.size:
                    self._end_forks()
                    return
                self._follow(request, files)

    def _follow(self, request: bytes, files: Sequence[int]) -> None:
        action, number, signal_number = REQUEST.unpack(request)
        if action == FORK:
            tasks, orders, end = (Connection(each) for each in files)
            with tasks, orders:
                self._fork(number, tasks, orders, end)
        elif number in self._forks:
            _signal_group(self._forks[number][0], signal_number)

    def _fork(self, number: int, tasks: Connection, orders: Connection, end: Connection) -> None:
        template_id = os.getpid()
        _flush()  # or the fork would print it again
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of threads that the application's modules started
                process_id = os.fork()
        except OSError as error:
            _tell(end, 0, error.errno or 0, 0)
            return
        self._forks[number] = (process_id, end)
        if process_id == 0:
            self._become_slot(template_id, tasks, orders)
        with suppress(OSError):  # the fork does the same, or has ended
            os.setpgid(process_id, process_id)

    def _become_slot(self, template_id: int, tasks: Connection, orders: Connection) -> None:
        """Serve as a slot process, and end."""
        status = 1
        try:
            os.setpgid(0, 0)
            if sys.platform == "linux":  # end with the template even while C keeps the interpreter busy
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                _offer_to_kernel()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self._control, self._woken, self._wakes):
                each.close()
            for _process_id, end in self._forks.values():
                end.close()
            _forget_template()
            if os.getppid() == template_id:
                SlotProcess(self._runner, self._setup, tasks, orders).serve()
            atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does at its end
            status = 0
        except ToldToEnd:
            status = 0
        except BaseException:  # noqa: BLE001 - the process ends here
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(status)

    def _reap(self) -> None:
        """Tell the ends of the slot processes that have ended; forget programs that they left behind."""
        with suppress(ChildProcessError):  # there is none
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                process_id, status, usage = ended
                number = next((key for key, fork in self._forks.items() if fork[0] == process_id), None)
                if number is None:
                    continue
                if status:  # what its runs have started would go on unobserved
                    _signal_group(process_id, signal.SIGKILL)
                exit_status = os.waitstatus_to_exitcode(status)
                _tell(self._forks.pop(number)[1], process_id, exit_status, usage.ru_maxrss * RSS_BYTES)

    def _end_forks(self) -> None:
        """Let the slot processes end as the worker has ended; kill the others, and what they have started."""
        until = time.monotonic() + LEAVE_SECONDS
        while self._forks and time.monotonic() < until:
            select.select([self._woken], [], [], 0.01)
            self._reap()
        for process_id, _end in self._forks.values():
            _signal_group(process_id, signal.SIGKILL)


def _forget_template() -> None:
    """Leave to the template what it has to clean up, such as its temporary folders and child processes.

    As in the forks of multiprocessing. What the runs of this process leave is cleaned up at its end.
    """
    atexit._clear()  # noqa: SLF001 - has no public name, as the following
    finalize: Any = weakref.finalize
    finalize._registry.clear()  # noqa: SLF001
    finalize._registered_with_atexit = False  # noqa: SLF001
    process._children.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    util._finalizer_registry.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    util._run_after_forkers()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit.register(util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001


def _offer_to_kernel() -> None:
    """Have the kernel kill this process, not the worker, when memory runs out."""
    with suppress(OSError, ValueError):
        file = Path("/proc/self/oom_score_adj")
        file.write_text(str(max(OOM_SCORE, int(file.read_text("ascii")))), "ascii")


def _signal_group(process_id: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, number)


def _tell(end: Connection, *exits: int) -> None:
    with end, suppress(OSError):  # the worker does not wait for it any more
        end.send(exits)


@contextmanager
def _ending_with(worker: socket.socket) -> Iterator[None]:
    """End this process if the worker ends during the block, which may import for long."""
    done, ends = socket.socketpair()
    poll = select.poll()
    for each in (worker, done):
        poll.register(each, select.POLLIN)

    def watch() -> None:
        if done.fileno() not in dict(poll.poll()):
            os._exit(1)

    watcher = threading.Thread(target=watch, name="freshq-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ends.close()
        watcher.join()  # no thread may live when this process forks
        done.close()


def template(descriptor: int) -> None:
    """Be the template of a worker: read the setup from a socket, import the runner, and serve."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker ends it, once its runs have ended
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started it may have blocked some
    if sys.platform == "linux":  # the worker may be the init process of a container
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with socket.socket(fileno=descriptor) as control, Connection(os.dup(descriptor)) as messages:
        try:
            setup: Setup = messages.recv()
            if setup.prints_to_stderr:
                os.dup2(2, 1)
            own: Any = process.current_process()
            own._inheriting = True  # noqa: SLF001 - refuses a worker in an unguarded main module, as spawn.py
            with _ending_with(control):
                spawn.prepare(setup.main)
                runner = pickle.loads(setup.runner)  # noqa: S301 - the worker's own
            own._inheriting = False  # noqa: SLF001 - as above
        except EOFError:
            return
        except BaseException as error:  # noqa: BLE001 - told to the worker
            messages.send(f"{type(error).__name__}: {error_text(error)}")
            return
        messages.send(None)
        messages.close()
        Template(control, setup, runner).serve()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EXIT_SECONDS)  # nobody may be left to kill it
    atexit._run_exitfuncs()  # noqa: SLF001 - of the application's modules
    os._exit(0)
