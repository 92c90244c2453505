"""The control record of a queue: whether it is paused, and which levels and groups were ever used."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.model.lifecycle import new_token
from freshq.stores.dynamodb.calls import InvalidUpdate
from freshq.stores.dynamodb.items import CONTROL_PREFIX

if TYPE_CHECKING:
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

# Another process's change is noticed within this time, so that not every claim reads the record.
MAX_STALENESS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Control:
    """The state of a queue that every claim needs.

    Attributes:
        paused: Whether claims are suspended.
        levels: Priority levels that may hold tasks of no group; always has 0.
        grouped: Whether a task of a group was ever put.
        as_of: Monotonic time at which the read began.
    """

    paused: bool
    levels: frozenset[int]
    grouped: bool
    as_of: float


class ControlRecords:
    """Reads and writes control records, and caches them for `MAX_STALENESS_SECONDS`. Thread-safe."""

    def __init__(self, calls: TableCalls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._cache: dict[str, Control] = {}

    def read(self, queue: str) -> Control:
        """Return the state of a queue, at most `MAX_STALENESS_SECONDS` old."""
        now = time.monotonic()
        cached = self._cached(queue)
        if cached is not None and now - cached.as_of <= MAX_STALENESS_SECONDS:
            return cached
        return self._remember(queue, self._calls.get(CONTROL_PREFIX + queue) or {}, now)

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""
        self._update(
            queue, {":paused": {"BOOL": paused}}, "SET #paused = :paused, #requestToken = :requestToken"
        )

    def use_level(self, queue: str, level: int) -> None:
        """Record that a level holds tasks, before the first one is written."""
        cached = self._cached(queue)
        if level and (cached is None or level not in cached.levels):
            values = {":levels": {"NS": [str(level)]}}
            try:
                self._update(queue, values, "SET #requestToken = :requestToken ADD #levels :levels")
            except InvalidUpdate:
                logger.warning("queue %r: its levels were damaged and are replaced", queue)
                levels = {level, *(() if cached is None else cached.levels)}
                values = {":levels": {"NS": [str(level) for level in levels]}}
                self._update(queue, values, "SET #requestToken = :requestToken, #levels = :levels")

    def use_groups(self, queue: str) -> None:
        """Record that groups have tasks, before the first one is written."""
        cached = self._cached(queue)
        if cached is None or not cached.grouped:
            expression = "SET #grouped = :grouped, #requestToken = :requestToken"
            self._update(queue, {":grouped": {"BOOL": True}}, expression)

    def _update(self, queue: str, values: Item, expression: str) -> None:
        now = time.monotonic()
        arguments = {
            "Key": {"taskId": {"S": CONTROL_PREFIX + queue}},
            "UpdateExpression": expression,
            "ExpressionAttributeValues": values | {":requestToken": {"S": new_token()}},
        }
        self._remember(queue, self._calls.update(arguments) or {}, now)

    def _cached(self, queue: str) -> Control | None:
        with self._lock:
            return self._cache.get(queue)

    def _remember(self, queue: str, item: Item, as_of: float) -> Control:
        """Cache a record unless a later call was answered first; return the one that is cached."""
        # A level that is not a whole number is damage: the others are still served.
        levels = frozenset(
            int(level) for level in item.get("levels", {}).get("NS", []) if level.isdigit()
        ) | {0}
        paused = bool(item.get("paused", {}).get("BOOL", False))
        grouped = bool(item.get("grouped", {}).get("BOOL", False))
        read = Control(paused, levels, grouped, as_of)
        with self._lock:
            cached = self._cache.get(queue)
            if cached is None or cached.as_of <= as_of:
                self._cache[queue] = read
            return self._cache[queue]
