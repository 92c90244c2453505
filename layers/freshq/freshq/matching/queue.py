"""Matching: a caller gets the resource that fits and has waited longest, and no other caller gets it."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import MatchLost, ResourceNotFound, StoreError
from freshq.matching import lifecycle
from freshq.matching.criteria import parse_criteria
from freshq.matching.match import Match, held_match
from freshq.matching.matches import holder
from freshq.matching.opening import OpenedResources
from freshq.matching.places import checked_resource_id, names_in, parse_attributes, partitions_of, place_of
from freshq.matching.resource import ResourceStatus, checked_resource_status
from freshq.model.checks import checked_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.matching.callers import Caller
    from freshq.matching.resource import Resource

logger = logging.getLogger(__name__)

MAX_MATCHES: Final = 100


class MatchQueue(OpenedResources):
    """Resources that wait, and callers who each take the one that fits and is first.

    A waiting resource has an entry for each combination of values that callers can ask for. A match deletes
    all of them in one transaction. Thread-safe. A wrong argument raises ValueError before any write. A
    store that does not answer raises StoreError; it never looks like an empty queue.
    """

    # --- resources

    def register(self, resource_id: str, attributes: Mapping[str, Any]) -> Resource:
        """Register a resource: available, not yet waiting. Repeating it changes nothing.

        An available resource may be registered again with other attributes.

        Args:
            resource_id: Its id, at most 256 bytes.
            attributes: What callers can ask for: names, each with a string or a set of strings.

        Raises:
            ValueError: If an argument is wrong, or the attributes need more entries than one transaction
                can change.
            WrongResourceState: If it has other attributes and is queued or matched.
        """
        checked_resource_id(resource_id)
        parsed = parse_attributes(attributes)
        if parsed:
            self._store.add_names(parsed.keys())
        self._store.add_combinations(partitions_of(parsed))
        return self._changes.change(
            resource_id, lambda before: lifecycle.registered(resource_id, parsed, before)
        )

    def unregister(self, resource_id: str) -> None:
        """Delete an available resource; one that is not registered is no error.

        Raises:
            WrongResourceState: If it is queued or matched.
        """
        self._changes.change(checked_resource_id(resource_id), lifecycle.unregistered)

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if it is not registered."""
        return self._store.get(checked_resource_id(resource_id))

    def resources(self, status: ResourceStatus | str | None = None) -> Iterator[Resource]:
        """Yield the registered resources in any order, lazily.

        Args:
            status: Only those in this state; None for all.

        Raises:
            ValueError: If there is no such state.
        """
        wanted = None if status is None else checked_resource_status(status)
        return (found for found in self._store.resources() if wanted in (None, found.status))

    def enqueue(self, resource_id: str) -> Resource:
        """Let an available resource wait, behind all that wait already.

        If it fits a caller in the line, it is matched to the first of them at once: then its new status is
        MATCHED, and `caller_id` says to whom. A resource whose caller's lease has expired gets its old
        position back.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is queued or matched.
        """
        return self._line.enqueue(checked_resource_id(resource_id))

    def leave(self, resource_id: str) -> Resource:
        """Stop a resource from waiting; it stays registered. An available one stays as it is.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is matched, and its lease has not expired.
        """
        return self._changes.leave(checked_resource_id(resource_id))

    def depths(self, at_most: int | None = None) -> dict[str, int]:
        """Return how many resources wait for each full combination of values, by its name.

        A resource counts in every combination that it can serve: ``gender=F&language=English`` is as deep
        as there are such resources. The store counts; exact while nothing changes.

        Args:
            at_most: Where to stop counting in each combination, which bounds the reads; None counts all.

        Raises:
            ValueError: If `at_most` is below 1.
        """
        if at_most is not None:
            checked_count("at_most", at_most)
        depths = {
            combination: self._store.count(place_of(combination), names_in(combination), at_most)
            for combination in self._store.combinations()
        }
        return {combination: depth for combination, depth in depths.items() if depth}

    def waiting(self) -> int:
        """Return how many resources wait, each counted once."""
        return len(self._walk.waiting())

    # --- callers

    def match(self, criteria: Any, limit: int = 1) -> list[Match]:  # noqa: ANN401 - checked at once
        """Take the resources that fit, in the order of the queue.

        If too few are waiting, resources whose callers' leases have expired are recovered first: at most
        once in a tenth of a lease, and not before a lease can have expired.

        Args:
            criteria: Names, each with what is asked for: a string; a set of strings, any of which will do; or
                a list of strings, sets and None in order of preference, where None is any. Names left out do
                not matter. Or a list of such mappings in order of preference.
            limit: Maximum number of matches, 1 to 100.

        Returns:
            The matches, best first; empty if nothing fits.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer before the first match. Later, the matches made so far
                are returned.
        """
        ranks = parse_criteria(criteria)
        checked_count("limit", limit, at_most=MAX_MATCHES)
        found: list[Match] = []
        try:
            for match in islice(self._matches.taken(ranks), limit):
                found.append(match)  # noqa: PERF402 - kept if the store fails at the next one
        except StoreError:
            if not found:
                raise
            logger.warning("matched only %d of %d resources", len(found), limit, exc_info=True)
        return found

    def held(self, resource_id: str, token: str) -> Match:
        """Return the match that holds a resource under a token, for another process to settle it.

        What the caller asked is not stored: `criteria` is empty and `rank` 0.

        Raises:
            ResourceNotFound: If it is not registered.
            MatchLost: If no match holds it under this token.
        """
        resource = self._store.get(checked_resource_id(resource_id))
        if resource is None:
            raise ResourceNotFound(resource_id)
        if resource.status is not ResourceStatus.MATCHED or resource.token != token:
            raise MatchLost(resource_id, holder(resource))
        return held_match(resource)

    def wait(self, criteria: Any, caller_id: str) -> Match | None:  # noqa: ANN401 - checked at once
        """Return the match of a caller, who waits in line if no resource that fits is queued.

        A waiting caller is served when a resource that fits is queued, first come first served. Ask again
        with the same arguments to get the match: the caller keeps its place. Its lease begins when the
        caller is served, so ask at least once in a lease. `release` ends the match and forgets the caller.

        Args:
            criteria: As for `match`.
            caller_id: The caller's own id, at most 256 bytes.

        Returns:
            The match; None as long as the caller waits.

        Raises:
            ValueError: If an argument is wrong.
            RefusedError: If the caller waits with other criteria.
        """
        ranks = tuple(tuple(asks) for asks in parse_criteria(criteria))
        return self._line.wait(checked_resource_id(caller_id, "caller_id"), ranks)

    def abandon(self, caller_id: str) -> bool:
        """Take a waiting caller out of the line.

        Returns:
            Whether it waited.

        Raises:
            RefusedError: If it is served: release the match instead.
        """
        return self._line.abandon(checked_resource_id(caller_id, "caller_id"))

    def callers(self) -> Iterator[Caller]:
        """Yield the waiting callers in order, reading as far as its user iterates."""
        return self._line.callers()

    def release(self, match: Match) -> Resource:
        """Give a resource back: available, not yet waiting.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        after = lifecycle.available(match.held())
        self._matches.settle(match, after)
        return after

    def extend(self, match: Match, lease_seconds: float | None = None) -> Match:
        """Hold a resource for `lease_seconds` from now; None for the queue's lease. Never shortens a lease.

        Returns:
            The match with its new end and the same token.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        extended = replace(match, lease_until=max(match.lease_until, self._changes.lease_end(lease_seconds)))
        self._matches.settle(match, extended.held())
        return extended
