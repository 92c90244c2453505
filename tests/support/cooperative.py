"""Time, threads and randomness of a schedule: a waiting actor hands over to the others."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self
from unittest import mock

from freshq.queue.stopping import Wake
from freshq.stores import notifier
from freshq.stores.sql.watching import TableWatcher
from tests.support.one_thread_patch import Confined, patched_here

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.support.interleaving import Interleaving

_POOL: Final = "freshq.stores.dynamodb.batches.ThreadPoolExecutor"
_THREADED: Final = (
    "freshq.stores.dynamodb.leases",
    *(f"freshq.worker.{name}" for name in ("background", "executor", "loop", "run")),
)
_WAITS: Final = tuple(f"freshq.worker.{name}.wait" for name in ("background", "settle", "worker"))


class _Inline:
    """A pool without threads: its caller does the work, in order."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def submit(self, work: Callable[[], Any]) -> None:
        pass


class _Semaphore:
    """A lock, or a semaphore, for which a thread waits while others run."""

    def __init__(self, run: Interleaving, value: int = 1) -> None:
        self._run, self._left = run, value

    def acquire(self, timeout: float | None = None) -> bool:
        wait_for(self._run, timeout, lambda: self._left > 0)
        is_free = self._left > 0
        self._left -= is_free
        return is_free

    def release(self) -> None:
        self._left += 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class _Event:
    """An event for which a thread waits while others run."""

    def __init__(self, run: Interleaving) -> None:
        self._run, self._made = run, False

    def set(self) -> None:
        self._made = True

    def is_set(self) -> bool:
        return self._made

    def wait(self, timeout: float | None = None) -> bool:
        wait_for(self._run, timeout, self.is_set)
        return self._made


class _Thread:
    """A thread that is an actor."""

    def __init__(self, run: Interleaving, target: Callable[[], object], **_named: object) -> None:
        self.start = partial(run.start, target)


def wait_for(run: Interleaving, seconds: float | None, is_called: Callable[[], bool]) -> None:
    """Let others run until a condition is true, or a time has passed; None: without a limit."""
    until = run.now_seconds + (inf if seconds is None else seconds)
    while not is_called() and run.now_seconds < until:
        run.pause(until, is_called)


def _waits(run: Interleaving) -> Iterator[Any]:
    """Yield the replacements of what waits for other threads."""

    def wait_for_change(signal: notifier.Signal, seen: int, seconds: float) -> None:
        wait_for(run, seconds, lambda: signal.count != seen)

    def wait_for_call(wake: Wake, seconds: float | None) -> None:
        calls = wake._calls
        wait_for(run, seconds, lambda: not calls.empty())
        while not calls.empty():
            calls.get_nowait()

    def wait_for_ends(calls: Iterable[Future[Any]], seconds: float | None = None) -> Any:
        some = list(calls)
        wait_for(run, seconds, lambda: all(call.done() for call in some))
        return SimpleNamespace(done={call for call in some if call.done()})

    yield patched_here(notifier.Signal, "wait", wait_for_change)
    # Its thread would run at its own pace. After the schedule, the virtual time of the last wait would seem
    # to lie ahead, and the thread would never end.
    yield patched_here(TableWatcher, "await_changes", lambda *_waits: None)
    yield patched_here(Wake, "wait", wait_for_call)
    yield from (_patched(each, wait_for_ends) for each in _WAITS)
    lock = partial(_Semaphore, run)
    threads = Confined(
        threading, Lock=lock, Semaphore=lock, Event=partial(_Event, run), Thread=partial(_Thread, run)
    )
    yield from (mock.patch(f"{module}.threading", threads) for module in _THREADED)
    yield _patched(_POOL, _Inline)


def _patched(name: str, replacement: Callable[..., Any]) -> Any:
    """Return a patch of a name such as `package.module.function` that only this thread sees."""
    module, _, function = name.rpartition(".")
    return patched_here(import_module(module), function, replacement)


@contextmanager
def playing(run: Interleaving) -> Iterator[None]:
    """Replace time, threads and randomness in this thread by the schedule's, for the block.

    Threads that other tests left in this process, such as py4j's, keep the real ones.
    """

    def sleep(seconds: float) -> None:
        run.pause(run.now_seconds + seconds)

    state = random.getstate()
    random.seed(run.seed)
    patches: list[Any] = [
        *(patched_here(time, name, run.now) for name in ("monotonic", "time")),
        patched_here(time, "sleep", sleep),
        _patched("freshq.matching.stores.dynamodb.sleep", sleep),
        _patched("freshq.stores.clocks.steady_seconds", run.now),
        _patched("freshq.stores.dynamodb.queries.steady_seconds", run.now),
        patched_here(os, "urandom", run.random_bytes),
        patched_here(random, "_urandom", run.random_bytes),
        *_waits(run),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        random.setstate(state)
