"""Wake the threads and coroutines of this process that wait for tasks, when something changes for them."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, cast
from weakref import WeakSet, WeakValueDictionary

from typing_extensions import override

from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import sqlalchemy as sa

    from freshq.model.task import Task


# Shortest time between two looks for tasks to claim, if a look costs little.
FIRST_LOOK_SECONDS: Final = 0.05
# Entries of ended waits that may be left before they are swept.
SWEPT_ENDS: Final = 1000


class Signal:
    """Counts changes, and wakes waiters for the next one. Thread-safe.

    Read `count` before a look at the store: then a change during the look ends the wait that follows.

    Attributes:
        count: A number that differs after each change.
        waiters: How many wait now.
        left_at: When one of them last stopped waiting, by the monotonic clock.
        on_wait: Called when a wait begins.
    """

    def __init__(self) -> None:
        self.count = self.waiters = 0
        self.left_at = -math.inf
        self.on_wait: Callable[[], object] = lambda: None
        self._condition = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []

    def notify(self) -> None:
        """Note a committed change."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()
            callbacks = [*self._callbacks]
        for callback in callbacks:
            callback()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the count differs from `seen`, at most `seconds`."""
        with self.waiting(), self._condition:
            self._condition.wait_for(lambda: self.count != seen, seconds)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a waiter during the block. Its watcher may notify it once when the block begins."""
        with self._condition:
            self.waiters += 1
        try:
            self.on_wait()
            yield
        finally:
            with self._condition:
                self.waiters -= 1
                self.left_at = time.monotonic()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call a function, which must not raise or block, at each change during the block."""
        with self._condition:
            self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._condition:
                self._callbacks.remove(callback)

    def forget_threads(self) -> None:
        """Forget the threads of the parent, in a forked child, where they would never release the lock."""
        self._condition = threading.Condition()
        self._callbacks = []
        self.waiters = 0


class EndSignal(Signal):
    """The signal of a caller who waits for tasks to end."""

    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self._ends = ends
        self._told: list[str] = []

    @override
    @contextmanager
    def waiting(self) -> Iterator[None]:
        with self._ends.waiting(), super().waiting():
            yield

    def tell(self, task_id: str) -> None:
        """Note that a task has ended."""
        with self._condition:
            self._told.append(task_id)
        self.notify()

    def take(self) -> list[str]:
        """Return the tasks that ended since the last call."""
        with self._condition:
            told, self._told = self._told, []
        return told


class Ends(Signal):
    """Wakes every caller that waits for tasks of a queue to end; a change may be the end of any of them."""

    def __init__(self) -> None:
        super().__init__()
        self._by_task: dict[str, WeakSet[EndSignal]] = {}
        self._sweep_at = SWEPT_ENDS

    def of(self, task_ids: Iterable[str]) -> EndSignal:
        """Return a new signal for the ends of these tasks, which lasts while the caller keeps it."""
        signal = EndSignal(self)
        with self._condition:
            if len(self._by_task) > self._sweep_at:
                self._by_task = {task_id: signals for task_id, signals in self._by_task.items() if signals}
                self._sweep_at = 2 * len(self._by_task) + SWEPT_ENDS
            for task_id in task_ids:
                self._by_task.setdefault(task_id, WeakSet()).add(signal)
        return signal

    def tell(self, task_ids: Iterable[str]) -> None:
        """Tell waiters that these tasks have ended."""
        with self._condition:
            told = [(signal, each) for each in task_ids for signal in self._by_task.pop(each, ())]
        for signal, task_id in told:
            signal.tell(task_id)

    @override
    def notify(self) -> None:
        super().notify()
        with self._condition:
            awaited = {signal for signals in self._by_task.values() for signal in signals}
        for signal in awaited:
            signal.notify()

    @override
    def forget_threads(self) -> None:
        super().forget_threads()
        self._by_task = {}


class Topic(NamedTuple):
    """An event to wait for: a task in a line of a queue, or the end of a task."""

    queue: str
    what: Literal["line", "end"]


class Watcher(Protocol):
    """Notifies signals of other processes' changes.

    Attributes:
        is_connected: True while other processes' changes are being received.
    """

    is_connected: bool

    def close(self) -> None:
        """End its thread and its connection, once nobody waits; the next wait starts it again."""

    def forget_threads(self) -> None:
        """As `Signal.forget_threads`."""


class Signals:
    """The signals of the queues of one table, for all stores of this process.

    Attributes:
        by_topic: The signals so far.
        watcher: Notifies them of changes by other processes; None: nobody does.
    """

    def __init__(self) -> None:
        self.by_topic: dict[Topic, Signal] = {}
        self.watcher: Watcher | None = None
        _ALL.add(self)

    def line(self, queue: str) -> Signal:
        """Return the signal of a queue's lines."""
        return self.by_topic.setdefault(Topic(queue, "line"), Signal())

    def ends(self, queue: str) -> Ends:
        """Return the signal of the ends of a queue's tasks."""
        return cast("Ends", self.by_topic.setdefault(Topic(queue, "end"), Ends()))

    def notify(self, topic: Topic) -> None:
        """Wake waiters, if there are any."""
        if (signal := self.by_topic.get(topic)) is not None:
            signal.notify()

    def forget_threads(self) -> None:
        """As `Signal.forget_threads`."""
        for signal in self.by_topic.values():
            signal.forget_threads()
        if self.watcher is not None:
            self.watcher.forget_threads()


class Notifier:
    """Wakes the waiters in this process for the tasks of one store's table.

    Attributes:
        poll_seconds: Longest time between two looks if not all changes wake.
        first_look_seconds: Shortest time between them.
    """

    def __init__(
        self,
        place: object = None,
        poll_seconds: float = math.inf,
        first_look_seconds: float = FIRST_LOOK_SECONDS,
    ) -> None:
        """Share the signals of all stores of a place; None: no other store has these tasks."""
        self.poll_seconds = poll_seconds
        self.first_look_seconds = first_look_seconds
        self._is_alone = place is None
        self._signals = Signals()
        if place is not None:
            with _PLACES_LOCK:
                self._signals = _BY_PLACE.setdefault(place, self._signals)

    @property
    def is_connected(self) -> bool:
        """Whether all changes wake, including those by other processes."""
        watcher = self._signals.watcher
        return self._is_alone if watcher is None else watcher.is_connected

    def line(self, queue: str) -> Signal:
        """Return the signal for tasks to claim: a task entered a line, or will later."""
        return self._signals.line(queue)

    def ends(self, queue: str, task_ids: Iterable[str]) -> EndSignal:
        """Return a new signal for the ends of these tasks, which lasts while the caller keeps it."""
        return self._signals.ends(queue).of(task_ids)

    def put(self, queue: str) -> None:
        """Wake waiters for tasks of a queue."""
        if (line := self._signals.by_topic.get(Topic(queue, "line"))) is not None:
            line.notify()

    def put_in(self, queue: str, connection: sa.Connection) -> None:
        """Wake waiters when a transaction of a SQL database commits, if the database supports it."""

    def ended(self, queue: str, task_ids: Sequence[str]) -> None:
        """Wake waiters for these tasks, which have ended."""
        if (queue, "end") in self._signals.by_topic:  # equal to its Topic, and quicker to make
            self._signals.ends(queue).tell(task_ids)

    def changed(self, queue: str, tasks: Iterable[Task | None]) -> None:
        """Wake waiters for these new versions of tasks; None stands for a task that did not change."""
        entered, ended = False, []
        for task in tasks:
            if task is not None and task.status is TaskStatus.PENDING:
                entered = True
            elif task is not None and task.status is not TaskStatus.TAKEN:
                ended.append(task.task_id)
        if entered:
            self.put(queue)
        if ended:
            self.ended(queue, ended)

    def close(self) -> None:
        """Stop listening for other processes."""
        if self._signals.watcher is not None:
            self._signals.watcher.close()


_ALL: Final[WeakSet[Signals]] = WeakSet()
_BY_PLACE: Final[WeakValueDictionary[object, Signals]] = WeakValueDictionary()
_PLACES_LOCK = threading.Lock()


def _forget_threads() -> None:
    global _PLACES_LOCK  # noqa: PLW0603 - a thread of the parent may hold it
    _PLACES_LOCK = threading.Lock()
    for signals in _ALL:
        signals.forget_threads()


os.register_at_fork(after_in_child=_forget_threads)
