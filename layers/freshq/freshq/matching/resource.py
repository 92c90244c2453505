"""A resource that waits to be matched, such as an agent of a call center, and its states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from freshq.errors import quoted

if TYPE_CHECKING:
    from freshq.matching.places import Attributes


class ResourceStatus(StrEnum):
    """The state of a resource.

    AVAILABLE: registered, not waiting. QUEUED: waiting, with an entry at each of its places.
    MATCHED: held by a caller until the lease expires.
    """

    AVAILABLE = "AVAILABLE"
    QUEUED = "QUEUED"
    MATCHED = "MATCHED"


def checked_resource_status(status: ResourceStatus | str) -> ResourceStatus:
    """Return the state that a string names.

    Raises:
        ValueError: If there is no such state.
    """
    try:
        return ResourceStatus(status)
    except ValueError:
        msg = f"status: must be one of {', '.join(ResourceStatus)}, got {quoted(status)}"
        raise ValueError(msg) from None


@dataclass(frozen=True, slots=True)
class Resource:
    """One version of a resource.

    Attributes:
        resource_id: The caller's id.
        attributes: What callers can ask for, each name with its values in order.
        status: Its state.
        token: New with every change of status, so that two periods in the same state differ.
        since: When it started to wait, in seconds since the epoch. A match keeps it, so that a resource
            whose caller disappeared gets its position back.
        lease_until: When the match expires, in seconds since the epoch.
        caller_id: The caller of the line that it is matched to; None for one that did not wait.
    """

    resource_id: str
    attributes: Attributes
    status: ResourceStatus
    token: str
    since: float | None = None
    lease_until: float | None = None
    caller_id: str | None = None

    def expired(self, now: float) -> bool:
        """Return whether it is matched to a caller whose lease has expired."""
        return self.status is ResourceStatus.MATCHED and (self.lease_until or 0.0) <= now


@dataclass(frozen=True, slots=True)
class Entry:
    """An item that represents a waiting resource at one place.

    Attributes:
        sort_key: Its key within the partition, see `freshq.matching.places.Place.sort_key`.
        resource: The resource as it was when it was queued.
        last_name: The greatest attribute name of any resource at that time.
    """

    sort_key: str
    resource: Resource
    last_name: str

    @property
    def since(self) -> float:
        """When the resource started to wait."""
        return self.resource.since or 0.0
