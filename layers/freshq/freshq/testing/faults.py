"""A store that fails when a test says so."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from freshq.errors import Unreachable
from freshq.queue.queue import Queue
from freshq.queue.shared.options import RECORD
from freshq.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from freshq.model.options import QueueOptions
    from freshq.stores.base import Store

# Methods without a call to the database.
_LOCAL: Final = frozenset({"clock", "close", "take_quarantined"})


class FaultyStore:
    """Wraps a store, and fails calls before or after they reach it.

    A call that fails raises `Unreachable`, as when the network is gone.
    """

    def __init__(self, store: Store | None = None) -> None:
        """Wrap a store; None for a new one in memory."""
        self._store: Any = MemoryStore() if store is None else store
        self._is_down = False
        self._calls_to_fail = 0
        self._replies_to_lose = 0

    def queue(self, **options: Unpack[QueueOptions]) -> Queue:
        """Return a queue on this store, with the options of `Queue.memory`."""
        return Queue(cast("Store", self), **options)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Fail every call in the block."""
        self._is_down = True
        try:
            yield
        finally:
            self._is_down = False

    def fail_next(self, calls: int = 1) -> None:
        """Fail the next calls without carrying them out."""
        self._calls_to_fail = calls

    def lose_replies(self, calls: int = 1) -> None:
        """Carry out the next calls but fail them, as if their replies were lost."""
        self._replies_to_lose = calls

    def __getattr__(self, name: str) -> Any:
        """Return the store's attribute; methods get the faults."""
        attribute = getattr(self._store, name)
        if name in _LOCAL or name.startswith("_") or not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            # A verb reads the stored options now and then: that is not the call that a test counts.
            if name == "read_record" and RECORD in args and not self._is_down:
                return attribute(*args, **kwargs)
            if self._is_down or self._take("_calls_to_fail"):
                raise Unreachable("the test made the store fail")
            answer = attribute(*args, **kwargs)
            if self._take("_replies_to_lose"):
                raise Unreachable("the test lost the store's reply")
            return answer

        return call

    def _take(self, counter: str) -> bool:
        left: int = getattr(self, counter)
        setattr(self, counter, max(0, left - 1))
        return left > 0
