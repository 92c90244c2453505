"""The changes of a resource: which verb is allowed in which state, and the next version. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.errors import ResourceNotFound, WrongResourceState
from freshq.matching.resource import Resource, ResourceStatus
from freshq.model.lifecycle import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.matching.places import Attributes


def registered(resource_id: str, attributes: Attributes, before: Resource | None) -> Resource:
    """Return a resource with these attributes, AVAILABLE; `before` itself if it has them already.

    Raises:
        WrongResourceState: If it has other attributes and is not available.
    """
    if before is not None and before.attributes == attributes:
        return before
    if before is not None and before.status is not ResourceStatus.AVAILABLE:
        advice = "its entries have its attributes; leave the queue or release it first"
        raise WrongResourceState(resource_id, "change the attributes", before.status, advice)
    return Resource(resource_id, attributes, ResourceStatus.AVAILABLE, new_token())


def unregistered(before: Resource | None) -> None:
    """Check that a resource may be deleted.

    Raises:
        WrongResourceState: If it is not available.
    """
    if before is not None and before.status is not ResourceStatus.AVAILABLE:
        advice = "leave the queue or release it first"
        raise WrongResourceState(before.resource_id, "unregister", before.status, advice)


def enqueued(resource_id: str, before: Resource | None, now: float, stamp: Callable[[], float]) -> Resource:
    """Return the QUEUED version of a resource.

    Args:
        resource_id: Its id.
        before: The version that is stored.
        now: Current time in seconds.
        stamp: Returns the time from which it waits, in seconds since the epoch.

    Raises:
        ResourceNotFound: If it is not registered.
        WrongResourceState: If it is queued, or matched and its lease has not expired.
    """
    before = _known(resource_id, before)
    if before.status is ResourceStatus.QUEUED:
        raise WrongResourceState(resource_id, "enqueue", before.status, "it keeps its position")
    if before.status is ResourceStatus.MATCHED and not before.expired(now):
        advice = "release it first, or wait until its lease expires"
        raise WrongResourceState(resource_id, "enqueue", before.status, advice)
    return queued(before, stamp)


def left(resource_id: str, before: Resource | None) -> Resource:
    """Return the AVAILABLE version of a resource; `before` itself if it is available already.

    Raises:
        ResourceNotFound: If it is not registered.
        WrongResourceState: If it is matched.
    """
    before = _known(resource_id, before)
    if before.status is ResourceStatus.AVAILABLE:
        return before
    if before.status is ResourceStatus.MATCHED:
        raise WrongResourceState(resource_id, "leave", before.status, "release it first")
    return available(before)


def queued(before: Resource, stamp: Callable[[], float]) -> Resource:
    """Return the QUEUED version: at its old position if its caller disappeared, else at the end."""
    since = stamp() if before.since is None else before.since
    return Resource(before.resource_id, before.attributes, ResourceStatus.QUEUED, new_token(), since=since)


def matched(before: Resource, since: float | None, lease_until: float, caller_id: str) -> Resource:
    """Return the MATCHED version of a resource, held for a caller of the line.

    Args:
        before: The version that is stored.
        since: When it started to wait, or would have, in seconds since the epoch.
        lease_until: When the match expires.
        caller_id: Id of the caller.
    """
    return Resource(
        before.resource_id,
        before.attributes,
        ResourceStatus.MATCHED,
        new_token(),
        since,
        lease_until,
        caller_id,
    )


def available(before: Resource) -> Resource:
    """Return the AVAILABLE version of a resource."""
    return Resource(before.resource_id, before.attributes, ResourceStatus.AVAILABLE, new_token())


def _known(resource_id: str, resource: Resource | None) -> Resource:
    if resource is None:
        raise ResourceNotFound(resource_id)
    return resource
