"""The answer to a caller: a resource held under a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshq.matching.resource import Resource, ResourceStatus

if TYPE_CHECKING:
    from freshq.matching.criteria import Ask
    from freshq.matching.places import Attributes


@dataclass(frozen=True, slots=True)
class Match:
    """A resource held for a caller.

    Attributes:
        resource_id: Id of the resource.
        token: Proves who holds it.
        attributes: The attributes of the resource, each name with its values.
        criteria: The ask that the resource answers.
        rank: Rank of that ask among the caller's preferences; 0 is the first.
        since: When the resource started to wait, in seconds since the epoch.
        lease_until: When the lease expires, in seconds since the epoch.
    """

    resource_id: str
    token: str
    attributes: Attributes
    criteria: Ask
    rank: int
    since: float
    lease_until: float

    def held(self) -> Resource:
        """Return the version of the resource that this match holds."""
        return Resource(
            self.resource_id,
            self.attributes,
            ResourceStatus.MATCHED,
            self.token,
            self.since,
            self.lease_until,
        )
