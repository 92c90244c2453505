"""The control record of a queue: whether it is paused, which levels and groups were ever used."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.items import CONTROL_PREFIX, new_request_token

if TYPE_CHECKING:
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.names import Item

# What another process changed is noticed after so long; a claim need not read the record each time.
MAX_STALENESS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Control:
    """State of a queue that every claim needs.

    Attributes:
        paused: Whether claims are suspended.
        levels: Priority levels that may hold tasks of no group; always has 0.
        grouped: Whether there were ever tasks of a group.
        read_at: When it was read, on the monotonic clock.
    """

    paused: bool
    levels: frozenset[int]
    grouped: bool
    read_at: float


class ControlRecords:
    """Reads and writes control records, remembering them for `MAX_STALENESS_SECONDS`. Thread-safe."""

    def __init__(self, calls: TableCalls) -> None:
        """Remember nothing yet."""
        self._calls = calls
        self._lock = threading.Lock()
        self._known: dict[str, Control] = {}

    def read(self, queue: str) -> Control:
        """Return the state of a queue, at most `MAX_STALENESS_SECONDS` old."""
        with self._lock:
            known = self._known.get(queue)
            if known is None or time.monotonic() - known.read_at > MAX_STALENESS_SECONDS:
                known = self._remember(queue, self._calls.get(CONTROL_PREFIX + queue) or {})
            return known

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""
        self._update(
            queue, {":paused": {"BOOL": paused}}, "SET #paused = :paused, #requestToken = :requestToken"
        )

    def use_level(self, queue: str, level: int) -> None:
        """Take note that a level holds tasks, before the first one is written."""
        with self._lock:
            known = self._known.get(queue)
        if level and (known is None or level not in known.levels):
            values = {":levels": {"NS": [str(level)]}}
            self._update(queue, values, "SET #requestToken = :requestToken ADD #levels :levels")

    def use_groups(self, queue: str) -> None:
        """Take note that groups have tasks, before the first one is written."""
        with self._lock:
            known = self._known.get(queue)
        if known is None or not known.grouped:
            expression = "SET #grouped = :grouped, #requestToken = :requestToken"
            self._update(queue, {":grouped": {"BOOL": True}}, expression)

    def _update(self, queue: str, values: Item, expression: str) -> None:
        arguments = {
            "Key": {"taskId": {"S": CONTROL_PREFIX + queue}},
            "UpdateExpression": expression,
            "ExpressionAttributeValues": values | {":requestToken": {"S": new_request_token()}},
        }
        item = self._calls.update(arguments) or {}
        with self._lock:
            self._remember(queue, item)

    def _remember(self, queue: str, item: Item) -> Control:
        levels = frozenset(map(int, item.get("levels", {}).get("NS", []))) | {0}
        paused = bool(item.get("paused", {}).get("BOOL", False))
        grouped = bool(item.get("grouped", {}).get("BOOL", False))
        self._known[queue] = Control(paused, levels, grouped, time.monotonic())
        return self._known[queue]
