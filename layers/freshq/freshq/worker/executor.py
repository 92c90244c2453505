"""Threads and the event loop that run tasks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from typing_extensions import override

from freshq.model.answers import Busy, RunnerExit, raised_in_run
from freshq.model.forks import drained
from freshq.policy.limits import MAX_WAIT_SECONDS, Prefetch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from freshq.worker.run import BatchRun, TaskRun
    from freshq.worker.settle import PendingSettlement

    Work = Callable[[], None]
    # One call of a function: it takes one slot.
    Call: TypeAlias = TaskRun | BatchRun

# Makes a coroutine.
Coroutines: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
# Longest time for which finished runs are batched while claimed tasks wait for a thread or have just begun.
GATHER_SECONDS: Final = 0.002
# Maximum number of runs to settle in one call.
MAX_TOGETHER: Final = 500
# Other settlements wait for a call under way at most this long.
SLOW_CALL_SECONDS: Final = 0.25
MAX_CALLS: Final = 4


class NotStarted(Busy, RuntimeError):
    """The system had no thread or file for an event loop: the task is released, and tried again soon."""


class OwnLoop:
    """An event loop in its own thread, started by its first coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the running loop.

        Raises:
            OSError, RuntimeError: If the system has no file or thread left for it; the next call tries again.
        """
        with self._lock:
            if self._loop is None:
                self._loop = _started_loop()
            return self._loop


def _started_loop() -> asyncio.AbstractEventLoop:
    import asyncio  # noqa: PLC0415 - slow to load; functions do not use it

    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # of a task that a coroutine started: the others go on
                continue
            return

    try:
        threading.Thread(target=run, name="freshq-handlers", daemon=True).start()
    except RuntimeError:
        loop.close()
        raise
    return loop


class StartedCoroutine(Future[Any]):
    """The future of a coroutine on the loop of another thread; to cancel it cancels the coroutine."""

    def __init__(self, make: Coroutines) -> None:
        """Make the coroutine, which is to run in a copy of the current context."""
        super().__init__()
        self._coroutine = make()
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None

    @override
    def cancel(self) -> bool:
        cancelled = super().cancel()
        task = self._task
        if cancelled and task is not None:
            with suppress(RuntimeError):  # the loop is closed, and runs the coroutine no more
                task.get_loop().call_soon_threadsafe(task.cancel)
        return cancelled

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the coroutine, in the thread of its loop."""
        try:
            self._task = task = self._context.run(loop.create_task, self._coroutine)
        except Exception as error:  # noqa: BLE001 - the application's task factory may raise anything
            self.fail(error)
            return
        if self.cancelled():
            task.cancel()
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        error = task.exception()
        if error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Note that it cannot be started."""
        self._coroutine.close()
        if self.set_running_or_notify_cancel():
            self.set_exception(NotStarted(f"its coroutine could not be started: {error}"))


class LoopStarts:
    """Starts coroutines on the loop of another thread: each time it wakes the loop, all that are there.

    To wake the loop for each of them takes as long as to run a short one.
    """

    def __init__(self) -> None:
        self._new: deque[StartedCoroutine] = deque()
        self._is_called = False

    def start(self, coroutine: StartedCoroutine, loop: asyncio.AbstractEventLoop) -> None:
        """Start a coroutine, from any thread."""
        self._new.append(coroutine)
        if self._is_called:  # the call is still to come, and takes it
            return
        self._is_called = True
        try:
            loop.call_soon_threadsafe(self._start_new, loop)
        except RuntimeError as closed:
            self._is_called = False
            for each in drained(self._new):
                each.fail(closed)

    def _start_new(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_called = False  # before it looks
        while self._new:
            self._new.popleft().begin(loop)


_STARTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopStarts]] = WeakKeyDictionary()


def started_on(get_loop: Callable[[], asyncio.AbstractEventLoop], make: Coroutines) -> Future[Any]:
    """Start a coroutine on a loop that runs in another thread; return the future of its result.

    If it cannot be started, the future has a `NotStarted`.
    """
    coroutine = StartedCoroutine(make)
    try:
        loop = get_loop()
    except (OSError, RuntimeError) as error:  # no file or thread is left for the loop
        coroutine.fail(error)
        return coroutine
    starts = _STARTS.get(loop)
    if starts is None:
        starts = _STARTS.setdefault(loop, LoopStarts())
    starts.start(coroutine, loop)
    return coroutine


def result_of(coroutine: Future[Any]) -> Any:
    """Return the result of a coroutine of `started_on`, or raise its exception.

    An exception that would have ended the event loop arrives inside a `RunnerExit`. Raise it as it was, so
    that the `SystemExit` of a coroutine counts as the one of a function.
    """
    try:
        return coroutine.result()
    except RunnerExit as carrier:
        raise raised_in_run(carrier) from None


class Executor:
    """Threads that run claimed tasks and settle ended runs.

    While one call settles runs, further ended runs gather for the next call (group commit). A run that ends
    alone is settled immediately, by its own thread. Ended runs wait for each other only during a burst, for
    at most `GATHER_SECONDS`.

    A thread with work wakes another thread if there is more, and looks for more itself before it sleeps. So
    one thread does a burst of short runs without a switch for each, and a thread that blocks leaves the rest
    to others. The slots that a burst frees are reported together, so that one claim fills them. The threads
    do not keep the process alive.

    There may be more claimed tasks than slots: the others wait until `free` frees one, and the claimer takes
    them back with `take_waiting` if that takes too long.
    """

    def __init__(
        self,
        run: Callable[[Call], None],
        settle: Callable[[list[PendingSettlement]], None],
        on_freed: Callable[[], None],
        slots: int | None = None,
        is_coroutine: Callable[[Call], bool] = lambda _run: False,
    ) -> None:
        """Start no thread yet.

        Args:
            run: Runs a task, or the tasks of a batch, or ends one whose coroutine has ended; raises nothing.
            settle: Settles runs of different tasks; raises nothing.
            on_freed: Called when runs ended and no claimed task waits for this thread, or they have
                gathered; raises nothing.
            slots: Maximum number of runs at a time; None if every claimed task has a slot.
            is_coroutine: Returns whether `run` only starts a coroutine, so that one thread can do many.
        """
        self._run = run
        self._settle = settle
        self._on_freed = on_freed
        self._is_coroutine = is_coroutine
        self._lock = threading.Lock()
        self._claimed: deque[Call] = deque()
        # Calls whose coroutines have ended. One thread at a time encodes their results.
        self._returned: deque[Call] = deque()
        self._pending: deque[PendingSettlement] = deque()
        self._gathering_since = 0.0
        # When each settling call under way began.
        self._calls: list[float] = []
        # Each sleeping thread waits for its lock to be released.
        self._sleeping: list[threading.Lock] = []
        self._is_waking = self._is_closed = self._has_freed = self._is_gathering = self._is_ending = False
        # Threads that run a task, and runs that have not freed their slots.
        self._running = self._occupied = 0
        # Threads that live.
        self._threads = 0
        self._slots = inf if slots is None else slots
        self._prefetch = Prefetch(slots or 0)
        self._last_began = 0.0

    def start(self, runs: Iterable[Call]) -> None:
        """Queue claimed tasks to run. Call `wake` afterwards."""
        now = time.monotonic()
        with self._lock:
            for run in runs:
                run.began = now
                self._claimed.append(run)

    def free(self, runs: Iterable[Call]) -> None:
        """Free the slots of the runs that have one. Call `wake` afterwards, from other threads."""
        now = time.monotonic()
        with self._lock:
            for run in runs:
                if run.has_slot:
                    run.has_slot = False
                    self._occupied -= 1
                    self._prefetch.ended(now - run.began)

    def prefetched(self) -> int:
        """Return the number of tasks that may be claimed beyond the free slots."""
        return self._prefetch.limit(time.monotonic()) if self._slots < inf else 0

    def patience_seconds(self) -> float:
        """Return the time after which `take_waiting` has tasks to return; infinite if none waits."""
        with self._lock:
            ends = [call.began + MAX_WAIT_SECONDS * call.patience for call in self._waiting()]
        return max(0.0, min(ends, default=inf) - time.monotonic())

    def wait_again(self) -> None:
        """Restart the waits of tasks: the process was suspended, so the runs were not slow."""
        now = time.monotonic()
        with self._lock:
            for run in self._waiting():
                run.began = now

    def take_waiting(self, *, at_once: bool) -> list[Call]:
        """Remove claimed tasks that wait for a slot, and return them.

        Args:
            at_once: Whether to take all of them, or only tasks that have waited too long.
        """
        with self._lock:
            now = inf if at_once else time.monotonic()
            waiting = self._waiting()
            late = [run for run in waiting if run.began + MAX_WAIT_SECONDS * run.patience <= now]
            for run in late:
                self._claimed.remove(run)
            if late and not at_once:
                self._prefetch.waited_too_long()
        return late

    def _waiting(self) -> Iterator[Call]:
        """Yield the claimed tasks that have no slot, in the order in which they will run."""
        free = self._slots - self._occupied
        return iter(()) if free >= len(self._claimed) else islice(self._claimed, max(0, int(free)), None)

    def end(self, call: Call) -> None:
        """Queue a call whose coroutine has ended; a thread encodes its result and settles it."""
        self._returned.append(call)
        if self._is_ending:  # that thread looks again after it has changed this
            return
        with suppress(RuntimeError):  # the system lacks threads for now: a later `wake` retries
            self.wake()

    def settle(self, *pending: PendingSettlement) -> None:
        """Queue runs to settle. The executor's threads look for them themselves; others call `wake`."""
        with self._lock:
            if not self._pending:
                self._gathering_since = time.monotonic()
            self._pending.extend(pending)
            self._has_freed = True

    def wake(self) -> None:
        """Wake or start a thread if there is work.

        Raises:
            RuntimeError: If that takes a new thread, and the system has no thread left.
        """
        with self._lock:
            if self._is_waking or not self._has_work():
                return
            self._is_waking = True
            sleeper = self._sleeping.pop() if self._sleeping else None
            self._threads += sleeper is None
        if sleeper is not None:
            sleeper.release()
            return
        try:
            threading.Thread(target=self._work, name="freshq-run", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._is_waking = False
                self._threads -= 1
            raise

    @property
    def has_threads(self) -> bool:
        """Whether at least one thread will do the work that waits."""
        return self._threads > 0

    def close(self) -> None:
        """End the idle threads; busy threads end after their work."""
        with self._lock:
            self._is_closed = True
            sleepers, self._sleeping = self._sleeping, []
        for sleeper in sleepers:
            sleeper.release()

    def _work(self) -> None:
        """Do work until the executor is closed."""
        wakened = threading.Lock()
        wakened.acquire()
        is_awake = has_run = False
        while True:
            with self._lock:
                if not is_awake:
                    is_awake, self._is_waking = True, False
                self._running -= has_run
                work, has_run, blocks = self._next_work()
                self._running += has_run
                if work is None:
                    if self._is_closed:
                        self._threads -= 1
                        return
                    self._sleeping.append(wakened)
                leaves_more = work is not None and blocks and self._has_work()
            if work is None:
                wakened.acquire()
                is_awake = False
                continue
            if leaves_more:
                self._wake_another()
            work()
            del work  # it has the payload

    def _wake_another(self) -> None:
        try:
            self.wake()
        except RuntimeError:  # the next `wake` of the loop raises it, if work is left then
            return

    def _has_work(self) -> bool:
        may_wait = not self._is_gathering and (self._has_freed or self._may_settle())
        return may_wait or self._may_run() or self._may_end()

    def _may_run(self) -> bool:
        """Return whether a claimed task has a slot."""
        return bool(self._claimed) and self._occupied < self._slots

    def _may_end(self) -> bool:
        """Return whether coroutines have ended, and no thread is busy with that."""
        return bool(self._returned) and not self._is_ending

    def _may_settle(self) -> bool:
        """Return whether there are runs to settle, and no call under way worth waiting for."""
        if not self._pending or len(self._calls) >= MAX_CALLS:
            return False
        return not self._calls or time.monotonic() - self._calls[-1] >= SLOW_CALL_SECONDS

    def _next_work(self) -> tuple[Work | None, bool, bool]:
        """Return the next work, whether it runs a task, and whether it may take long."""
        now, may_run, may_end = time.monotonic(), self._may_run(), self._may_end()
        if settlement := self._next_settlement(now, is_alone=not (may_run or may_end)):
            return settlement, False, True
        if may_end:
            self._is_ending = True
            return partial(self._end_returned, now + GATHER_SECONDS), False, False
        if may_run:
            run = self._begun(now)
            return partial(self._run, run), True, not self._is_coroutine(run)
        if self._has_freed and not self._is_gathering:
            self._has_freed = False
            return self._on_freed, False, True
        return None, False, False

    def _next_settlement(self, now: float, *, is_alone: bool) -> Work | None:
        """Return the call that settles, or the wait for more to settle; None if other work is first."""
        if not self._may_settle():
            return None
        gathers_seconds = GATHER_SECONDS - (now - self._gathering_since)
        if gathers_seconds <= 0 or (is_alone and not self._goes_on(now)):
            return self._settlement(now)
        if not is_alone or self._is_gathering:
            return None
        self._is_gathering = True
        return partial(self._gather, gathers_seconds)

    def _begun(self, now: float) -> Call:
        """Return the next claimed task, in a slot."""
        run = self._claimed.popleft()
        run.began = self._last_began = now
        run.has_slot = True
        self._occupied += 1
        self._prefetch.began(now)
        return run

    def _end_returned(self, until: float) -> None:
        """Encode the results of ended coroutines until `until`; they are settled together."""
        while self._returned and time.monotonic() < until:
            self._run(self._returned.popleft())
        self._is_ending = False

    def _goes_on(self, now: float) -> bool:
        """Return whether a burst of short runs seems to continue: its next run has just begun."""
        return self._running > 0 and now - self._last_began < GATHER_SECONDS

    def _gather(self, seconds: float) -> None:
        """Wait for the last runs of a burst."""
        time.sleep(seconds)
        with self._lock:
            self._is_gathering = False

    def _settlement(self, began: float) -> Work:
        together = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_TOGETHER))]
        self._calls.append(began)
        self._has_freed = False
        return partial(self._settle_together, together, began)

    def _settle_together(self, pending: list[PendingSettlement], began: float) -> None:
        self._on_freed()
        try:
            self._settle(pending)
        finally:
            with self._lock:
                self._calls.remove(began)
