"""A resource that waits to be matched, such as an agent of a call centre, and its states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshq.matching.places import Attributes


class ResourceStatus(StrEnum):
    """Where a resource is.

    AVAILABLE is known, but not in line; QUEUED stands in every queue that its attributes admit it to;
    MATCHED belongs to the holder of a token until its lease ends.
    """

    AVAILABLE = "AVAILABLE"
    QUEUED = "QUEUED"
    MATCHED = "MATCHED"


@dataclass(frozen=True, slots=True)
class Resource:
    """One version of a resource.

    Attributes:
        resource_id: The caller's id.
        attributes: What it can be asked for, each name with its values in order.
        status: Where it is.
        token: Made anew by every change of status, so it tells apart two stays in the same state.
        since: Since when it waits, in seconds since the epoch; kept while it is matched, so that a
            resource whose caller vanished gets its place back.
        lease_until: Until when it is matched, in seconds since the epoch.
    """

    resource_id: str
    attributes: Attributes
    status: ResourceStatus
    token: str
    since: float | None = None
    lease_until: float | None = None

    def lapsed(self, now: float) -> bool:
        """Return whether it is matched to a caller whose lease ran out."""
        return self.status is ResourceStatus.MATCHED and (self.lease_until or 0.0) <= now


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a resource in one queue.

    Attributes:
        sort_key: Its key in the queue, of which `freshq.matching.places` knows the form.
        resource: The resource as it was when it joined, status QUEUED.
        last_name: The greatest attribute name that any resource had when this one joined.
    """

    sort_key: str
    resource: Resource
    last_name: str

    @property
    def since(self) -> float:
        """Since when it waits."""
        return self.resource.since or 0.0
