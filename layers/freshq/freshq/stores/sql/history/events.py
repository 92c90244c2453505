"""Rows of a history as landed events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.model.landed import SCHEMA_VERSION, holder
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Row

# Fields that copy a column, and those that are a time in a column of microseconds.
TEXTS: Final = {"status": "status", "group": "task_group", "kind": "kind", "shed_reason": "shed_reason"}
TIMES: Final = ("updated", "created", "put", "deadline", "lease_until", "not_before")
REMOVE: Final = "REMOVE"


def landed_events(history_id: str, queue: str, row: Row[Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a row: two if one write claimed a task and ended the claim.

    Args:
        history_id: Names the history. With it, events have an id that no other event has.
        queue: Name of the queue.
        row: All columns of a row of the history.
    """
    event = _event(queue, row)
    name = f"{history_id}-{row.event_id}"
    if row.claimed_us is not None:
        claim = {"event_id": f"{name}-claim", "sequence": str(2 * row.event_id), "change": "MODIFY"}
        claim |= {"status": TaskStatus.TAKEN.value, "updated_ms": row.claimed_us / 1000}
        claim |= {"attempts": row.claimed_attempts}
        ended = ("lease", "worker", "not_before_ms", "shed_reason")
        yield {field: value for field, value in (event | claim).items() if field not in ended}
    yield event | {"event_id": name, "sequence": str(2 * row.event_id + 1)}


def _event(queue: str, row: Row[Any]) -> dict[str, Any]:
    """Return an event without its id and number, and without the fields that the task does not have."""
    event: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "change": row.change_kind,
        "stream_ms": row.at_us / 1000,
        "ttl_removal": bool(row.ttl_removal),
        "task_id": row.task_id,
        "queue": queue,
        "priority": row.priority,
        "attempts": row.attempts,
        "expires_s": row.expires,
    }
    columns = row._mapping  # noqa: SLF001 - SQLAlchemy's name for the row as a mapping
    event |= {field: columns[column] for field, column in TEXTS.items()}
    for name in TIMES:
        time_us = columns[f"{name}_us"]
        event[f"{name}_ms"] = None if time_us is None else time_us / 1000
    if row.change_kind == REMOVE:
        del event["updated_ms"]  # the time of the removal is `stream_ms`
    event |= holder(row.lease_token)
    return {field: value for field, value in event.items() if value is not None}
