"""Keep the pause flag, records and counts that the processes of a queue share."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.model.lifecycle import new_token
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.base import SharedRecord
from freshq.stores.dynamodb.calls import ConditionFailed, InvalidUpdate
from freshq.stores.dynamodb.items import CONTROL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Item

logger = logging.getLogger(__name__)
# Another process's change is noticed within this time, so that not every claim reads the record.
MAX_STALENESS_SECONDS: Final = 1.0
RECORD_PREFIX: Final = f"{RESERVED_ID_PREFIX}record#"
COUNTS_PREFIX: Final = f"{RESERVED_ID_PREFIX}counts#"
# Prefix of the attributes that hold counts.
COUNT: Final = "count_"
# The version of a record that has none.
DAMAGED: Final = ""


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


class SharedRecords:
    """Reads and writes the shared records of a table."""

    def __init__(self, calls: TableCalls) -> None:
        self._calls = calls

    def read(self, queue: str, name: str) -> SharedRecord | None:
        """Return a record, strongly consistent; None if there is none.

        A damaged one is empty, and the next write replaces it.
        """
        item = self._calls.get(f"{RECORD_PREFIX}{queue}#{name}")
        return None if item is None else SharedRecord(_values_of(item), _version_of(item))

    def write(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a record if it still has this version; return whether it was written."""
        record = {
            "taskId": {"S": f"{RECORD_PREFIX}{queue}#{name}"},
            "values": {"S": json.dumps(values)},
            "requestToken": {"S": new_token()},
        }
        unchanged: Item = {"ConditionExpression": "attribute_not_exists(#taskId)"}
        if version == DAMAGED:
            unchanged = {
                "ConditionExpression": "NOT attribute_type(#requestToken, :string)",
                "ExpressionAttributeValues": {":string": {"S": "S"}},
            }
        elif version is not None:
            unchanged = {
                "ConditionExpression": "#requestToken = :seen",
                "ExpressionAttributeValues": {":seen": {"S": version}},
            }
        try:
            self._calls.put(record, unchanged)
        except ConditionFailed:
            return False
        return True

    def add(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a record of counts; a damaged one is replaced."""
        record_id = f"{COUNTS_PREFIX}{queue}#{name}"
        values: Item = {f":{key}": {"N": str(value)} for key, value in counts.items()}
        values[":requestToken"] = {"S": new_token()}
        expression = "SET #requestToken = :requestToken"
        if expires is not None:
            expression += ", #ttl = :ttl"
            values[":ttl"] = {"N": str(expires)}
        arguments = {
            "Key": {"taskId": {"S": record_id}},
            "UpdateExpression": expression + " ADD " + ", ".join(f"#{COUNT}{key} :{key}" for key in counts),
            "ExpressionAttributeValues": values,
        }
        try:
            self._calls.update(arguments)
        except InvalidUpdate:
            logger.warning("%s was damaged and is replaced", record_id)
            self._calls.delete(record_id)
            self._calls.update(arguments)

    def counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""
        item = self._calls.get(f"{COUNTS_PREFIX}{queue}#{name}") or {}
        return {
            key.removeprefix(COUNT): int(value["N"])
            for key, value in item.items()
            if key.startswith(COUNT) and value.get("N", "").lstrip("-").isdecimal()
        }


def _values_of(item: Item) -> dict[str, Any]:
    """Return the values in the item of a record; none if it is damaged."""
    try:
        values = json.loads(item["values"]["S"])
    except (KeyError, TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        logger.warning("%s is damaged: it counts as empty", item["taskId"]["S"])
        return {}
    return values


def _version_of(item: Item) -> str:
    """Return the version of a record; `DAMAGED` if it has none."""
    return str(item.get("requestToken", {}).get("S", DAMAGED))
