"""Resources, entries and callers as rows, and back."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from freshq.matching.callers import Caller, CallerStatus
from freshq.matching.places import places_of
from freshq.matching.resource import Resource, ResourceStatus
from freshq.stores.sql.rows import microseconds

if TYPE_CHECKING:
    import sqlalchemy as sa


def digest(text: str) -> str:
    """Return a hash of a string that may be too long for a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def resource_row(resource: Resource) -> dict[str, Any]:
    """Return the row of a resource."""
    return {
        "resource_id": resource.resource_id,
        "attributes": json.dumps(dict(resource.attributes), ensure_ascii=False),
        "status": resource.status.value,
        "token": resource.token,
        "since_us": None if resource.since is None else microseconds(resource.since),
        "lease_until_us": None if resource.lease_until is None else microseconds(resource.lease_until),
        "caller_id": resource.caller_id,
    }


def resource_of(row: sa.Row[Any]) -> Resource:
    """Return the resource of a row."""
    return Resource(
        row.resource_id,
        {name: tuple(values) for name, values in json.loads(row.attributes).items()},
        ResourceStatus(row.status),
        row.token,
        None if row.since_us is None else row.since_us / 1e6,
        None if row.lease_until_us is None else row.lease_until_us / 1e6,
        row.caller_id,
    )


def entry_rows(resource: Resource | None, last_name: str = "") -> list[dict[str, Any]]:
    """Return the rows of the entries of a version of a resource; none unless it is queued."""
    if resource is None or resource.status is not ResourceStatus.QUEUED or resource.since is None:
        return []
    return [
        {
            "place": digest(place.partition),
            "sort_key": place.sort_key(resource.since, resource.resource_id),
            "resource_id": resource.resource_id,
            "last_name": last_name,
            "names": len(resource.attributes),
        }
        for place in places_of(resource.attributes)
    ]


def asks_rows(caller: Caller | None) -> list[dict[str, Any]]:
    """Return the rows of the questions of a version of a caller; none unless the caller waits."""
    if caller is None or caller.status is not CallerStatus.WAITING:
        return []
    return [{"place": digest(question), "line_key": caller.sort_key} for question in caller.questions]


def caller_row(caller: Caller) -> dict[str, Any]:
    """Return the row of a caller."""
    return {
        "caller_id": caller.caller_id,
        "status": caller.status.value,
        "token": caller.token,
        "since_us": microseconds(caller.since),
        "criteria": json.dumps(caller.ranks, ensure_ascii=False),
        "line_key": caller.sort_key if caller.status is CallerStatus.WAITING else None,
        "resource_id": caller.resource_id,
        "preference": caller.rank,
        "met": None if caller.criteria is None else json.dumps(caller.criteria, ensure_ascii=False),
    }


def caller_of_row(row: sa.Row[Any]) -> Caller:
    """Return the caller of a row."""
    return Caller(
        row.caller_id,
        CallerStatus(row.status),
        row.token,
        tuple(tuple(asks) for asks in json.loads(row.criteria)),
        row.since_us / 1e6,
        row.resource_id,
        row.preference,
        None if row.met is None else json.loads(row.met),
    )
