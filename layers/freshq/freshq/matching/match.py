"""The answer to a caller: a resource held under a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshq.matching.resource import Resource, ResourceStatus

if TYPE_CHECKING:
    from freshq.matching.callers import Caller
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
        caller_id: The caller who waited for it; None for one who did not wait.
    """

    resource_id: str
    token: str
    attributes: Attributes
    criteria: Ask
    rank: int
    since: float
    lease_until: float
    caller_id: str | None = None

    def held(self) -> Resource:
        """Return the version of the resource that this match holds."""
        return Resource(
            self.resource_id,
            self.attributes,
            ResourceStatus.MATCHED,
            self.token,
            self.since,
            self.lease_until,
            self.caller_id,
        )


def held_match(resource: Resource, caller: Caller | None = None) -> Match:
    """Return the match that holds a MATCHED resource.

    Args:
        resource: The resource.
        caller: Its caller, who tells the ask and its rank; None if they are not known.
    """
    return Match(
        resource_id=resource.resource_id,
        token=resource.token,
        attributes=resource.attributes,
        criteria={} if caller is None else caller.criteria or {},
        rank=0 if caller is None else caller.rank,
        since=resource.since or 0.0,
        lease_until=resource.lease_until or 0.0,
        caller_id=resource.caller_id,
    )
