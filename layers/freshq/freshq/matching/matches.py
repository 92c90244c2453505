"""Takes queued resources for callers that do not wait, and settles matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.errors import MatchLost
from freshq.matching.match import Match
from freshq.matching.resource import ResourceStatus
from freshq.matching.walk import taken
from freshq.model.lifecycle import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.matching.changes import Changes
    from freshq.matching.criteria import Ask
    from freshq.matching.resource import Entry, Resource
    from freshq.matching.walk import Walk


class Matches:
    """The matches of the resources of a store."""

    def __init__(self, walk: Walk, changes: Changes, recover: Callable[[], int]) -> None:
        """Use a store.

        Args:
            walk: Finds queued resources.
            changes: Changes them.
            recover: Returns resources whose leases have expired to the queue; returns how many.
        """
        self._walk = walk
        self._changes = changes
        self._recover = recover

    def taken(self, ranks: Sequence[Sequence[Ask]]) -> Iterator[Match]:
        """Yield matches, best first, until no resource is left that fits, or can be recovered."""
        yield from taken(self._walk, ranks, self._take)
        if self._changes.may_recover() and self._recover():
            yield from taken(self._walk, ranks, self._take)

    def _take(self, entry: Entry, ask: Ask, rank: int) -> Match | None:
        """Match one resource; None if another caller was first."""
        match = Match(
            resource_id=entry.resource.resource_id,
            token=new_token(),
            attributes=entry.resource.attributes,
            criteria=ask,
            rank=rank,
            since=entry.since,
            lease_until=self._changes.lease_end(),
        )
        return match if self._changes.committed(entry.resource, match.held()) else None

    def settle(self, match: Match, after: Resource) -> None:
        """Replace a match by the next version of its resource.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        if not self._changes.committed(match.held(), after):
            raise MatchLost(match.resource_id, holder(self._changes.stored(match.resource_id)))


def holder(resource: Resource | None) -> str:
    """Return why a match no longer holds a resource."""
    if resource is None:
        return "it is no longer registered"
    if resource.status is ResourceStatus.MATCHED:
        return "it is matched to another caller now"
    return f"it is {resource.status} now"
