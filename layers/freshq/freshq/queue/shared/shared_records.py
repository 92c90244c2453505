"""Changing a shared record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from freshq.policy.retry import until_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

# Losing this often in a row is rare, and every caller can wait for its next turn.
MAX_TRIES: Final = 8


class _RecordChangedError(Exception):
    """Another process changed the record between the read and the write."""


def change_record(
    store: Store, queue: str, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> bool:
    """Read a shared record, compute its new values, and write them unless it changed in between.

    Args:
        store: The store.
        queue: Name of the queue.
        name: Name of the record.
        change: Returns the new values, given the current ones (empty if the record does not exist), or
            None to leave the record unchanged. May be called several times.

    Returns:
        False if other processes changed the record each time; nothing was written then.

    Raises:
        StoreError: If the store did not answer.
    """

    def attempt() -> None:
        record = store.read_record(queue, name)
        values = _changed(change, {} if record is None else record.values, name)
        if values is None:
            return
        if not store.write_record(queue, name, values, None if record is None else record.version):
            raise _RecordChangedError

    try:
        until_committed(attempt, _RecordChangedError, MAX_TRIES)
    except _RecordChangedError:
        return False
    return True


def _changed(
    change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None], values: Mapping[str, Any], name: str
) -> Mapping[str, Any] | None:
    """Return what a change makes of some values; if they are damaged, what it makes of none."""
    try:
        return change(values)
    except (AttributeError, KeyError, TypeError, ValueError):
        if not values:
            raise
        logger.warning("the shared record %r was damaged and is replaced", name, exc_info=True)
        return change({})
