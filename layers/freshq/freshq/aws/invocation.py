"""Invocations: the records of their events, and which one a thread belongs to.

Two may be under way in one process at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
QUEUE_VARIABLE: Final = "FRESHQ_QUEUE_NAME"


@dataclass(eq=False)
class Invocation:
    """One invocation of a function.

    Attributes:
        canary_queue: The queue that it works on in place of the stack's, if the hook of a deployment
            invoked it.
        log_keys: Fields of each of its log lines.
        kept: Objects that it makes once, such as clients; a canary gets its own connections.
    """

    canary_queue: str | None = None
    log_keys: dict[str, Any] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)


_current: Final[ContextVar[Invocation | None]] = ContextVar("freshq_invocation", default=None)
_lock: Final = threading.Lock()
_under_way: Final[list[Invocation]] = []
# Objects that belong to no invocation or are shared by all.
OF_PROCESS: Final = Invocation()


def invocation() -> Invocation:
    """Return the invocation of this thread.

    A thread without an invocation, such as a thread of the runner, belongs to the invocation under way if
    there is exactly one.
    """
    if (found := _current.get()) is not None:
        return found
    with _lock:
        return _under_way[0] if len(_under_way) == 1 else OF_PROCESS


@contextmanager
def within(of: Invocation) -> Iterator[None]:
    """Let this thread belong to an invocation during a `with` block."""
    token = _current.set(of)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def under_way(begun: Invocation) -> Iterator[None]:
    """Let an invocation last for a `with` block."""
    with _lock:
        _under_way.append(begun)
    try:
        with within(begun):
            yield
    finally:
        with _lock:
            _under_way.remove(begun)


class Connected(Generic[T]):
    """Connects a function to its queue once: all invocations share the connections, except canaries."""

    def __init__(self, connect: Callable[[], T]) -> None:
        """Decorate the function that makes the connections."""
        self._connect = connect
        self._making = threading.Lock()
        update_wrapper(cast("Any", self), connect)

    def __call__(self) -> T:
        """Return the connections.

        Raises:
            ValueError: If a setting is missing or wrong.
        """
        of = invocation()
        kept = (of if of.canary_queue is not None else OF_PROCESS).kept
        with self._making:
            if self not in kept:
                kept[self] = self._connect()
            return cast("T", kept[self])

    def cache_clear(self) -> None:
        """Make new connections when they are needed."""
        with self._making:
            OF_PROCESS.kept.pop(self, None)


def records_of(event: object) -> list[Mapping[str, Any]]:
    """Return the records of a batch.

    Args:
        event: The event of a stream or a topic, as Lambda passes it.

    Raises:
        ValueError: If it is not an object with a list of objects under Records.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
        raise ValueError("event: needs Records, a list of records, as a stream or a topic sends it")
    return records


def table_of(record: Mapping[str, Any]) -> str:
    """Return the name of the table whose stream has a record; empty if the record does not have it.

    Raises:
        ValueError: If the field with the name is not a string.
    """
    arn = text_of(record, "eventSourceARN") or ""
    return arn.partition(":table/")[2].partition("/")[0]


def part_of(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside a record; empty if it is missing or null.

    Raises:
        ValueError: If it has another type.
    """
    part = whole.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        msg = f"record: {name} must be an object, got {type(part).__name__}"
        raise ValueError(msg)
    return part


def text_of(whole: Mapping[str, Any], name: str) -> str | None:
    """Return a string inside a record; None if it is missing or null.

    Raises:
        ValueError: If it has another type.
    """
    text = whole.get(name)
    if text is not None and not isinstance(text, str):
        msg = f"record: {name} must be a string, got {type(text).__name__}"
        raise ValueError(msg)
    return text
