"""Runners for workers whose tasks run in processes of their own, which import this module."""

import asyncio
import atexit
import collections
import contextvars
import ctypes
import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from opentelemetry import trace

from freshq import Backoff, Busy, Handlers, Queue, Reject, Retry, Task

FOREVER_SECONDS: Final = 600
# A batch is full before this, however slow the machine is.
FILL_SECONDS: Final = 30.0
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
copied_queue = Queue.memory(name="copied")


def count_filtering(record: logging.LogRecord) -> bool:
    """Count how often a record passes this filter, in every process that imports this module."""
    vars(record)["filtered"] = vars(record).get("filtered", 0) + 1
    return True


logging.getLogger("isolated.application").addFilter(count_filtering)


class Misfit(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unread(Retry):
    """A retry that cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}", delay_seconds=60)


class Refused(Exception):
    """The error of a client for HTTP, which cannot be made again from its arguments."""

    def __init__(self, *, status: int, seconds: str) -> None:
        super().__init__("too many requests")
        self.status, self.headers = status, {"Retry-After": seconds}


def run(task: Task) -> Any:
    """Do what the payload says: the name of a function of this module, and its arguments."""
    name, *arguments = task.payload
    return globals()[name](task, *arguments)


def where(_task: Task) -> int:
    """Return the process id."""
    return os.getpid()


def takes(task: Task, units: float) -> None:
    """Take units of the limits of the group."""
    task.set_cost(units)


def refused_by_provider(_task: Task, seconds: str) -> None:
    """Meet the limit of a provider."""
    raise Refused(status=429, seconds=seconds)


def echo(_task: Task, value: Any) -> Any:
    """Return the argument."""
    return value


def mark(path: str) -> None:
    """Make a file with the process id."""
    Path(f"{path}.new").write_text(str(os.getpid()), "utf-8")
    Path(f"{path}.new").rename(path)


def await_file(path: str) -> None:
    """Wait for a file."""
    while not Path(path).exists():
        time.sleep(0.01)


def waits(_task: Task, started: str, release: str) -> int:
    """Wait for a file."""
    mark(started)
    await_file(release)
    return os.getpid()


def hangs_in_c(task: Task, seconds: int = FOREVER_SECONDS) -> None:
    """Hold the interpreter's lock in C, after two reports; a signal ends the call early."""
    task.progress(0.1, "first")
    task.progress(0.5, "second")
    ctypes.PyDLL(None).sleep(seconds)


def hangs_in_regex(task: Task) -> None:
    """Match for years."""
    task.progress(0.1, "matching")
    re.match(r"(a+)+$", "a" * 64 + "b")


def hangs_for_ever(task: Task) -> None:
    """Hold the interpreter's lock in C, where nothing looks for signals."""
    task.progress(0.25, "consuming")
    collections.deque(itertools.repeat(None), maxlen=0)


def heeds_nothing(task: Task) -> None:
    """Go on whatever is raised here."""
    task.progress(0.1, "heedless")
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:  # noqa: BLE001, S112 - the point of it
            continue


def cleans_up(_task: Task, started: str, cleaned: str) -> None:
    """Note that its last block ran."""
    try:
        mark(started)
        time.sleep(FOREVER_SECONDS)
    finally:
        mark(cleaned)


def heeds_cancel(task: Task, started: str, heeded: str) -> None:
    """Return once it is cancelled."""
    mark(started)
    while not task.cancelled:
        time.sleep(0.01)
    mark(heeded)


def dies(_task: Task, number: int, mebibytes: int = 0) -> None:
    """Kill this process by a signal, after using memory."""
    used = b"x" * (mebibytes << 20)
    os.kill(os.getpid(), number)
    time.sleep(FOREVER_SECONDS)
    del used


def leaves(_task: Task, status: int) -> None:
    """End this process without cleaning up."""
    os._exit(status)


def exits(_task: Task) -> None:
    """End the program."""
    sys.exit(7)


def raises(_task: Task, kind: str) -> None:
    """Raise one of the exceptions of these tests."""
    if kind == "caused":
        raise Reject("rejected") from ValueError("the cause")
    raise {
        "unexpected": KeyError("lost"),
        "misfit": Misfit("one", "two"),
        "unread": Unread("one", "two"),
        "retry": Retry("later", delay_seconds=60),
        "reject": Reject("never"),
        "busy": Busy("not now"),
    }[kind]


def unpicklable(_task: Task) -> Any:
    """Return what no other process can get."""
    return lambda: None


def forks(_task: Task) -> int:
    """Return in a forked process as well."""
    return -1 if os.fork() == 0 else os.getpid()


def forks_and_dies(_task: Task, pid_file: str) -> None:
    """Leave a forked process behind, and die."""
    if os.fork() == 0:
        time.sleep(FOREVER_SECONDS)
    mark(pid_file)
    os.kill(os.getpid(), signal.SIGKILL)


def starts_program(_task: Task, pid_file: str) -> None:
    """Wait for a program that never ends."""
    program = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_SECONDS})"])
    Path(f"{pid_file}.new").write_text(str(program.pid), "utf-8")
    Path(f"{pid_file}.new").rename(pid_file)
    while True:
        try:
            program.wait()
        except BaseException:  # noqa: BLE001, S112 - it heeds nothing
            continue


def terminates(_task: Task) -> int | None:
    """End a child process by a signal that comes before it has begun; return its exit status."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_SECONDS,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


def logs_in_forks(_task: Task) -> list[int]:
    """Log long lines in child processes, started while a thread logs."""
    logger, ended = logging.getLogger("isolated.application"), threading.Event()

    def log_on() -> None:
        while not ended.is_set():
            logger.warning("short")

    threading.Thread(target=log_on, daemon=True).start()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        lengths = pool.map(log_long_line, range(12))
    ended.set()
    return lengths


def log_long_line(_number: int) -> int:
    """Log a line that is written in several parts."""
    logging.getLogger("isolated.application").warning("y" * 300_000)
    return 300_000


def leaves_to_exit(_task: Task, pid_file: str, cleaned: str) -> None:
    """Leave a child process and a file, both of which a Python process cleans up when it exits."""
    child = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(FOREVER_SECONDS,), daemon=True
    )
    child.start()
    Path(pid_file).write_text(str(child.pid), "utf-8")
    weakref.finalize(mark, mark, cleaned)


def leaves_program(_task: Task) -> list[int]:
    """Return the ids of a program that goes on, and of the template."""
    program = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_SECONDS})"])
    return [program.pid, os.getppid()]


def alarms(_task: Task, lines: int) -> int:
    """Interrupt writes of long lines of the log by a time limit of its own."""

    class OwnLimit(BaseException):
        pass

    def exceed(*_: object) -> None:
        raise OwnLimit

    before = signal.signal(signal.SIGALRM, exceed)
    exceeded = 0
    for _number in range(lines):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            while True:
                logging.getLogger("isolated.application").warning("x" * 200_000)
        except OwnLimit:
            exceeded += 1
    signal.signal(signal.SIGALRM, before)
    return exceeded


def closes_files(_task: Task) -> None:
    """Close every file, as a daemon does."""
    os.closerange(3, 256)
    time.sleep(FOREVER_SECONDS)


def logs(task: Task) -> None:
    """Write to the log, with an argument and a field that cannot be pickled."""
    logger = logging.getLogger("isolated.application")
    logger.debug("hidden")
    logger.info("log of %s", task.task_id, extra={"lock": sys.stdout, "place": "here"})
    try:
        int("shown")
    except ValueError:
        logger.exception("failed")


def prints(_task: Task) -> None:
    """Print in Python, and past it."""
    print("printed in Python")
    os.write(1, b"written past Python\n")


def context(_task: Task) -> list[Any]:
    """Return and set a context variable."""
    before = variable.get()
    variable.set("of another task")
    return [before, os.getpid()]


def looks(task: Task) -> dict[str, Any]:
    """Return what a task knows."""
    return {
        "id": task.task_id,
        "attempts": task.attempts,
        "seconds_left": task.seconds_left(),
        "cancelled": task.cancelled,
        "parent": task.as_parent["task_id"],
    }


def floods(task: Task, reports: int) -> None:
    """Report at each turn."""
    for number in range(reports):
        task.progress(number / reports, f"turn {number}")


def busy_with_pipe(task: Task, kilobytes: int) -> str:
    """Report, log and return enough that a kill may hit any message."""
    for number in range(5):
        task.progress(number / 5, f"step {number}")
        logging.getLogger("isolated.soak").warning("step %s %s", number, "x" * 1000)
    return "y" * 1024 * kilobytes


def oom_score(_task: Task) -> int:
    """Return how much the kernel prefers to kill this process when memory runs out."""
    return int(Path("/proc/self/oom_score_adj").read_text("ascii"))


def trace_and_span(_task: Task) -> list[str]:
    """Return the ids of the current span."""
    current = trace.get_current_span().get_span_context()
    return [trace.format_trace_id(current.trace_id), trace.format_span_id(current.span_id)]


def puts_into_copy(_task: Task) -> None:
    """Put into a queue that this process has only a copy of."""
    copied_queue.put("lost")


def puts(_task: Task, url: str) -> str:
    """Put a child into a database, by a connection of this process."""
    with Queue.sql(url) as queue:
        return queue.put(["echo", 1], task_id="child", parent=_task).task_id


handlers = Handlers()


@handlers.on("plain", max_attempts=3, backoff=Backoff(base_seconds=40, cap_seconds=60))
def plain(_task: Task, payload: int) -> int:
    """Double."""
    if payload < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * payload


@handlers.on("coroutine")
async def coroutine(_task: Task, payload: int) -> list[int]:
    """Double, later."""
    await asyncio.sleep(0)
    return [2 * payload, os.getpid()]


@handlers.on("waits")
async def waits_async(_task: Task, payload: list[str]) -> None:
    """Wait until it is cancelled."""
    started, cleaned = payload
    try:
        mark(started)
        await asyncio.sleep(FOREVER_SECONDS)
    finally:
        await asyncio.sleep(0.05)
        mark(cleaned)


@handlers.on("batch", batch=4, within_seconds=FILL_SECONDS)
def batch(tasks: list[Task[str]]) -> list[Any]:
    """Do what each payload says; wait until every task is cancelled for "hangs"."""
    answers: list[Any] = []
    for task in tasks:
        task.progress(0.5, task.payload)
        if task.payload == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.payload == "hangs":
            time.sleep(FOREVER_SECONDS)
        given: dict[str, Any] = {"rejects": Reject("no"), "misfit": Misfit("one", "two")}
        given["unpicklable"] = lambda: None
        answers.append(given.get(task.payload, [task.payload, len(tasks), os.getpid()]))
    return answers


@handlers.on("traced batch", batch=2, within_seconds=0.01)
def traced_batch(tasks: list[Task[int]]) -> list[list[str]]:
    """Return the ids of the current span."""
    return [trace_and_span(task) for task in tasks]


@handlers.on("async batch", batch=2, within_seconds=FILL_SECONDS)
async def async_batch(tasks: list[Task[int]]) -> list[int]:
    """Double."""
    await asyncio.sleep(0)
    return [2 * task.payload for task in tasks]


def providing() -> Iterator[str]:
    """Provide nothing; for a handler that no module has."""
    yield "nothing"


class Registering:
    """A runner that leaves something to be cleaned up where it is imported."""

    def __init__(self, cleaned: str) -> None:
        self.cleaned = cleaned

    def __setstate__(self, state: dict[str, str]) -> None:
        atexit.register(mark, state["cleaned"])

    def __call__(self, _task: Task) -> None:
        """Do nothing."""


class Callable_:  # noqa: N801 - the word is taken
    """A runner with state, and a lock if asked for."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __call__(self, _task: Task) -> Any:
        return repr(self.state)

    def method(self, _task: Task) -> Any:
        """Return the state."""
        return self.state
