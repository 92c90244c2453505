"""What threads share, and what must not survive into a forked child, where only one thread lives on."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")


class Forkable(Protocol):
    """An object that a forked child must not use as its parent left it."""

    def forget_parent(self) -> None:
        """Drop, in a forked child, the state that belongs to the parent."""


# A lock of `threading`, or a `Forkable`.
_LOCKS: Final[WeakSet[Any]] = WeakSet()
_OBJECTS: Final[WeakSet[Forkable]] = WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child, where a thread of the parent would never release it."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def new_rlock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def forget_in_child(forkable: Forkable) -> None:
    """Have a forked child call `forget_parent` of this object, for as long as it lives."""
    _OBJECTS.add(forkable)


def drained(noted: deque[T]) -> Iterator[T]:
    """Yield the elements of a deque, from which each is taken; other threads may take some of them."""
    with suppress(IndexError):
        while True:
            yield noted.popleft()


def fulfil(future: Future[T], call: Callable[[], T]) -> None:
    """Give a future the result of a call, or its error."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the future is read
        future.set_exception(error)
    else:
        future.set_result(result)


def _in_child() -> None:
    for lock in [*_LOCKS]:
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library does with its own
    for forkable in [*_OBJECTS]:
        forkable.forget_parent()


os.register_at_fork(after_in_child=_in_child)
