"""Wake the threads and coroutines of this process that wait for tasks, when something changes for them."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from freshq.model.task import Task


class Signal:
    """Counts changes, and wakes who waits for the next one. Thread-safe.

    Read `count` before a look at the store: then a change during the look ends the wait that follows.

    Attributes:
        count: A number that differs after each change.
    """

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []

    def notify(self) -> None:
        """Note a change, which is committed."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()
            callbacks = [*self._callbacks]
        for callback in callbacks:
            callback()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the count differs from `seen`, at most `seconds`."""
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, seconds)

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


class Wakes:
    """The signals of the queues of one table in this process."""

    def __init__(self) -> None:
        self._lines: dict[str, Signal] = {}
        _ALL.add(self)

    @staticmethod
    def of(place: object) -> Wakes:
        """Return the signals that all stores of a place share."""
        with _PLACES_LOCK:
            wakes = _BY_PLACE.get(place)
            if wakes is None:
                wakes = _BY_PLACE[place] = Wakes()
            return wakes

    def line(self, queue: str) -> Signal:
        """Return the signal for who waits for a task to claim: a task entered a line, or will later."""
        return self._lines.setdefault(queue, Signal())

    def put(self, queue: str) -> None:
        """Wake who waits for tasks of a queue."""
        if (line := self._lines.get(queue)) is not None:
            line.notify()

    def changed(self, queue: str, tasks: Iterable[Task | None]) -> None:
        """Wake who waits for these new versions of tasks; None stands for a task that did not change."""
        if any(task is not None and task.status is TaskStatus.PENDING for task in tasks):
            self.put(queue)

    def forget_threads(self) -> None:
        """As `Signal.forget_threads`."""
        for line in self._lines.values():
            line.forget_threads()


_ALL: Final[WeakSet[Wakes]] = WeakSet()
_BY_PLACE: Final[WeakValueDictionary[object, Wakes]] = WeakValueDictionary()
_PLACES_LOCK = threading.Lock()


def _forget_threads() -> None:
    global _PLACES_LOCK  # noqa: PLW0603 - a thread of the parent may hold it
    _PLACES_LOCK = threading.Lock()
    for wakes in _ALL:
        wakes.forget_threads()


os.register_at_fork(after_in_child=_forget_threads)
