"""Turn the changes of resources and callers into landed events."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from freshq.matching.places import question_of
from freshq.matching.resource import CallerStatus, ResourceStatus
from freshq.model.codec import SCHEMA_VERSION, WORKER_SEPARATOR, holder
from freshq.model.lifecycle import MICROSECONDS
from freshq.model.new_task import MAX_GROUP_BYTES
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.matching.places import Attributes
    from freshq.matching.resource import Caller, Resource

    Event = dict[str, Any]

CALLERS: Final = "-callers"
INSERT: Final = "INSERT"
MODIFY: Final = "MODIFY"
DIGEST_CHARS: Final = 16


def queues_of(table: str) -> tuple[str, str]:
    """Return the names of the queues of resources and of callers of a table in the pipeline."""
    return table, f"{table}{CALLERS}"


def resource_events(before: Resource | None, after: Resource | None, at: float) -> Iterator[Event]:
    """Yield the landed events of a new version of a resource, without ids, numbers and queue.

    An available resource has no events.

    Args:
        before: The version before; None if there was none.
        after: The next version; None if it was deleted.
        at: The time of the change, in seconds since the epoch.
    """
    was_us, is_us = _stay_us(before), _stay_us(after)
    if before is not None and was_us is not None and was_us != is_us:
        yield _end_of(before, was_us, at)
    if after is not None and is_us is not None:
        yield from _goes_on(before if was_us == is_us else None, after, is_us, at)


def _goes_on(before: Resource | None, after: Resource, since_us: int, at: float) -> Iterator[Event]:
    """Yield the events of a stay that continues.

    Args:
        before: The version before; None if the stay begins.
        after: The next version.
        since_us: When the stay began, in microseconds.
        at: The time of the change.
    """
    event = _of_resource(after, since_us)
    if before is None:
        yield event | _change(INSERT, TaskStatus.PENDING, since_us)
    elif before.status is ResourceStatus.MATCHED and before.token != after.token:
        # Released, or the lease expired. A caller in line may get the resource immediately.
        yield event | _change(MODIFY, TaskStatus.PENDING, _us(at), since_us)
    if after.status is ResourceStatus.MATCHED:
        event |= holder(after.token) | _change(MODIFY, TaskStatus.TAKEN, _us(at), since_us)
        # Back without an attempt before the lease ends: that is a release to the pipeline.
        if after.lease_until is not None:
            event["lease_until_ms"] = round(after.lease_until * 1000, 3)
        yield event | {"attempts": 1}


def _end_of(stayed: Resource, since_us: int, at: float) -> Event:
    """Return the event that ends a stay, given the version before the change."""
    end = TaskStatus.SUCCESS if stayed.status is ResourceStatus.MATCHED else TaskStatus.CANCELLED
    return _of_resource(stayed, since_us) | _change(MODIFY, end, _us(at), since_us)


def caller_events(before: Caller | None, after: Caller | None, at: float) -> Iterator[Event]:
    """Yield the landed events of a new version of a caller, without ids, numbers and queue.

    A served caller has no further events.

    Args:
        before: The version before; None if there was none.
        after: The next version; None if it was deleted.
        at: The time of the change, in seconds since the epoch.
    """
    caller = after or before
    if caller is None or (before is not None and before.status is CallerStatus.SERVED):
        return
    since_us = _us(caller.since)
    asked = question_of(caller.ranks[0][0]) if caller.ranks and caller.ranks[0] else ""
    event = _event(caller.caller_id, since_us, asked)
    if before is None:
        yield event | _change(INSERT, TaskStatus.PENDING, since_us)
    if after is None:
        yield event | _change(MODIFY, TaskStatus.CANCELLED, _us(at), since_us)
    elif after.status is CallerStatus.SERVED:
        by = holder(f"{after.resource_id}{WORKER_SEPARATOR}{after.token.rpartition(WORKER_SEPARATOR)[2]}")
        yield event | by | _change(MODIFY, TaskStatus.TAKEN, _us(at), since_us)
        yield event | _change(MODIFY, TaskStatus.SUCCESS, _us(at), since_us)


def numbered(events: Iterator[Event], event_id: str, sequence: str) -> Iterator[Event]:
    """Yield the events of one change, each with its own id and sequence number.

    Args:
        events: The events, in the order in which they must be read.
        event_id: Id of the change.
        sequence: Number of the change: digits.
    """
    for place, event in enumerate(events):
        yield event | {"event_id": f"{event_id}-{place}", "sequence": f"{sequence}{place}"}


def _stay_us(resource: Resource | None) -> int | None:
    """Return when the wait of a queued or matched resource began; None if it is available."""
    if resource is None or resource.status is ResourceStatus.AVAILABLE or resource.since is None:
        return None
    return _us(resource.since)


def _of_resource(resource: Resource, since_us: int) -> Event:
    return _event(resource.resource_id, since_us, _text_of(resource.attributes))


def _event(name: str, since_us: int, group: str) -> Event:
    """Return the fields that all events of a task share."""
    since_ms = since_us / 1000
    event: Event = {
        "schema_version": SCHEMA_VERSION,
        "task_id": f"{name}#{since_us}",
        "created_ms": since_ms,
        "put_ms": since_ms,
    }
    return event | {"group": _bounded(group)} if group else event


def _change(change: str, status: TaskStatus, at_us: int, since_us: int = 0) -> Event:
    """Return the fields of a change, never dated before the task, because clocks may differ."""
    at_ms = max(at_us, since_us) / 1000
    return {"change": change, "status": status.value, "updated_ms": at_ms, "stream_ms": at_ms}


def _text_of(attributes: Attributes) -> str:
    """Return attributes as a string, such as gender=F&language=English,Spanish."""
    pairs = ((name, ",".join(quote(one, safe="") for one in values)) for name, values in attributes.items())
    return "&".join(f"{quote(name, safe='')}={values}" for name, values in sorted(pairs))


def _bounded(text: str) -> str:
    """Return a string as the name of a group; a digest replaces the end of a string that is too long."""
    if len(text) <= MAX_GROUP_BYTES:
        return text
    return text[: MAX_GROUP_BYTES - DIGEST_CHARS] + hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
