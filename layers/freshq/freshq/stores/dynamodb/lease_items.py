"""Lease records as items: what they name, and when to look at them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.items import LEASE_PREFIX
from freshq.stores.dynamodb.values import milliseconds, seconds, seconds_or

if TYPE_CHECKING:
    from collections.abc import Collection

    from freshq.stores.dynamodb.names import Item

# The sweep deletes the record of a dead process; TTL is the last resort, a week later.
RECORD_TTL_SECONDS: Final = 7 * 86_400
# A process may stall between naming a task and taking it. DynamoDB rejects requests signed longer ago than
# this, so a record whose leases ended this long ago names nothing that can still be taken.
LATE_CLAIM_SECONDS: Final = 900.0


def is_lease_record(item: Item) -> bool:
    """Return whether an item is a lease record, perhaps a damaged one."""
    return str(item["taskId"]["S"]).startswith(LEASE_PREFIX)


def task_ids_of(record: Item) -> list[str]:
    """Return the ids that a lease record names."""
    return [*_ids_in(record, "taskIds"), *ahead_ids(record)]


def ahead_ids(record: Item) -> list[str]:
    """Return the ids of the tasks that were not about to be claimed when the record was written."""
    return _ids_in(record, "aheadIds")


def _ids_in(record: Item, name: str) -> list[str]:
    """Return the ids in an attribute of a lease record; none if it is missing or damaged."""
    return list(record.get(name, {}).get("SS", ()))


def due_attributes(due_at: float) -> Item:
    """Return the attributes of a lease record that is due then, in seconds."""
    return {"dueAt": milliseconds(due_at), "ttl": {"N": str(ceil(due_at) + RECORD_TTL_SECONDS)}}


def next_check(record: Item, lease_ends: Collection[float], now: float) -> float | None:
    """Return when to look at a lease record again, in seconds; None if it can be deleted.

    Args:
        record: The record.
        lease_ends: When the leases of the tasks end that it names and that are held; all after `now`.
        now: Current time in seconds.
    """
    held_until = seconds_or(record.get("heldUntil"), due_at(record))
    moments = [*lease_ends, held_until, held_until + LATE_CLAIM_SECONDS]
    return min((moment for moment in moments if moment > now), default=None)


def due_at(record: Item) -> float:
    """Return when to look at a lease record, in seconds."""
    return seconds(record["dueAt"])
