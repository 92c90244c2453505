"""Find the best resource for a caller."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost
from freshq.matching.lifecycle import MAX_COMMIT_TRIES
from freshq.matching.places import (
    BEFORE_GROUP,
    GREATEST_KEY,
    LEAST_KEY,
    PAST_GROUP,
    Place,
    group_of,
    lookup_of,
)
from freshq.matching.resource import Resource, ResourceStatus, later_end, parsed_data
from freshq.matching.stores.base import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from freshq.matching.lifecycle import Changes
    from freshq.matching.places import Attributes, Lookup
    from freshq.matching.resource import Ask, Caller, Entry
    from freshq.matching.stores.base import MatchStore

# An entry has about 300 bytes: ten cost as much as one, a strongly consistent read of up to 4 KB.
PAGE_ENTRIES: Final = 10
WAITING_PAGE_ENTRIES: Final = 1000


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
        lease_until: When the lease expires, in seconds since the epoch; None: held until it is settled.
        caller_id: The caller who waited for it; None for a caller who did not wait.
        data_json: Its `data` as JSON text.
    """

    resource_id: str
    token: str
    attributes: Attributes
    criteria: Ask
    rank: int
    since: float
    lease_until: float | None
    caller_id: str | None = None
    data_json: str | None = None

    @property
    def data(self) -> Any:
        """The application's data of the resource, any JSON value."""
        return parsed_data(self.data_json)

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
            self.data_json,
        )


def held_match(resource: Resource, caller: Caller | None = None) -> Match:
    """Return the match that holds a MATCHED resource.

    Args:
        resource: The resource.
        caller: Its caller, for the ask and its rank; None if they are unknown.
    """
    return Match(
        resource_id=resource.resource_id,
        token=resource.token,
        attributes=resource.attributes,
        criteria={} if caller is None else caller.criteria or {},
        rank=0 if caller is None else caller.rank,
        since=resource.since or 0.0,
        lease_until=resource.lease_until,
        caller_id=resource.caller_id,
        data_json=resource.data_json,
    )


class Walk:
    """Reads the partitions of a store lazily, a page at a time.

    Attributes:
        newest_first: Whether the latest resources are first.
    """

    def __init__(self, store: MatchStore, *, newest_first: bool, page_entries: int = PAGE_ENTRIES) -> None:
        """Use a store.

        Args:
            store: The store of the entries.
            newest_first: Whether the latest resources are first.
            page_entries: Number of entries to read at a time.
        """
        self._store = store
        self.newest_first = newest_first
        self._page_entries = page_entries

    def waiting(self) -> dict[str, Resource]:
        """Return all waiting resources by id: each has an entry in the partition without pairs."""
        found: dict[str, Resource] = {}
        start_after = None
        while True:
            span = Span("", LEAST_KEY, GREATEST_KEY, self.newest_first, WAITING_PAGE_ENTRIES, start_after)
            page = self._store.page(span)
            found.update((entry.resource.resource_id, entry.resource) for entry in page)
            if len(page) < WAITING_PAGE_ENTRIES:
                return found
            start_after = page[-1].sort_key

    def whole(self, entry: Entry) -> Resource | None:
        """Return the resource of an entry with its data; None if it has changed since."""
        if not entry.lacks_data:
            return entry.resource
        stored = self._store.get(entry.resource.resource_id)
        return stored if stored is not None and stored.token == entry.resource.token else None

    def fitting(self, asks: Sequence[Ask]) -> Iterator[tuple[Entry, Ask]]:
        """Yield the entries that answer any of the asks, in order, each with the ask.

        A resource that answers several asks is yielded for each.
        """
        streams = [((entry, ask) for entry in self._answers(lookup_of(ask))) for ask in asks]
        return merge(*streams, key=lambda found: self._position(found[0]))

    def _position(self, entry: Entry) -> tuple[float, str]:
        """Return the position of an entry in the order; no two resources have the same."""
        return (-entry.since if self.newest_first else entry.since, entry.resource.resource_id)

    def _merged(self, *streams: Iterator[Entry]) -> Iterator[Entry]:
        return merge(*streams, key=self._position)

    def _answers(self, lookup: Lookup) -> Iterator[Entry]:
        """Yield the entries that answer one ask, from the one or two partitions that may have them.

        The far partition is for resources with a greater attribute name than the names asked for. An entry
        has the greatest name at the time when it was queued. If it is not greater than the names asked for,
        all entries of the far partition were queued later, and oldest first they need not be read yet.
        """
        near = iter(()) if lookup.near is None else self._group(lookup.near)
        if self.newest_first:
            yield from self._merged(near, self._all_groups(lookup.far))
            return
        for entry in near:
            if entry.last_name > lookup.last_name:
                near = chain([entry], near)
                break
            yield entry
        yield from self._merged(near, self._all_groups(lookup.far))

    def _group(self, place: Place, start_after: str | None = None) -> Iterator[Entry]:
        """Yield one group of a partition."""
        while True:
            low, high = place.bounds
            page = self._page(place.partition, low, high, start_after)
            yield from page
            if len(page) < self._page_entries:
                return
            start_after = page[-1].sort_key

    def _all_groups(self, partition: str) -> Iterator[Entry]:
        """Yield a whole partition, its groups merged.

        Reads the head of each group and skips from there to the next, since there is no list of the groups.
        A partition of less than a page takes one query.
        """
        streams: list[Iterator[Entry]] = []
        low, high = LEAST_KEY, GREATEST_KEY
        while True:
            page = self._page(partition, low, high)
            groups = [list(entries) for _, entries in groupby(page, lambda entry: group_of(entry.sort_key))]
            if len(page) < self._page_entries:
                return self._merged(*streams, *map(iter, groups))
            streams += map(iter, groups[:-1])
            last = groups[-1][-1].sort_key
            group = group_of(last)
            streams.append(chain(groups[-1], self._group(Place(partition, group), last)))
            if self.newest_first:
                high = group + BEFORE_GROUP
            else:
                low = group + PAST_GROUP

    def _page(self, partition: str, low: str, high: str, start_after: str | None = None) -> list[Entry]:
        span = Span(partition, low, high, self.newest_first, self._page_entries, start_after)
        return self._store.page(span)


def taken(
    walk: Walk, ranks: Sequence[Sequence[Ask]], take: Callable[[Entry, Ask, int], Match | None]
) -> Iterator[Match]:
    """Yield matches until no candidate is left.

    After one lost race, the next candidate is tried. If several callers lose again and again to each other,
    each skips a random number of candidates, fewer than its losses, and tries them at the end. With at most
    one competitor at a time, a caller takes resources strictly in order.

    Args:
        walk: Finds the candidates.
        ranks: The asks by rank, best first.
        take: Matches an entry for an ask of a rank; returns None if another caller was faster.
    """
    tried: set[str] = set()
    losses = skip = 0
    for rank, asks in enumerate(ranks):
        passed_over: list[tuple[Entry, Ask]] = []
        for entry, ask in chain(walk.fitting(asks), passed_over):
            if entry.resource.token in tried:
                continue
            if skip:
                skip -= 1
                passed_over.append((entry, ask))
                continue
            tried.add(entry.resource.token)
            match = take(entry, ask, rank)
            if match is not None:
                yield match
                continue
            losses += 1
            skip = int(random.random() * losses)  # noqa: S311 - spreads callers, keeps no secret


class Matches:
    """The matches of the resources of a store."""

    def __init__(self, walk: Walk, changes: Changes, recover: Callable[[], int]) -> None:
        """Use a store.

        Args:
            walk: Finds queued resources.
            changes: Changes them.
            recover: Recovers resources with expired leases; returns how many.
        """
        self._walk = walk
        self._changes = changes
        self._recover = recover

    def taken(self, ranks: Sequence[Sequence[Ask]]) -> Iterator[Match]:
        """Yield matches, best first, until no fitting resource is left or can be recovered."""
        yield from taken(self._walk, ranks, self._take)
        if self._changes.may_recover() and self._recover():
            yield from taken(self._walk, ranks, self._take)

    def _take(self, entry: Entry, ask: Ask, rank: int) -> Match | None:
        """Match one resource; return None if another caller was faster."""
        resource = self._walk.whole(entry)
        if resource is None:
            return None
        after = self._changes.matched(resource, resource.since)
        if not self._changes.committed(resource, after):
            return None
        return replace(held_match(after), criteria=ask, rank=rank)

    def settle(self, match: Match, after: Resource) -> None:
        """Replace a match by the next version of its resource.

        Raises:
            LeaseLost: If the match no longer holds it.
        """
        before = match.held()
        for _ in range(MAX_COMMIT_TRIES):
            if self._changes.committed(before, after):
                return
            stored = self._changes.stored(match.resource_id)
            if stored is None or stored.token != match.token or stored.lease_until == before.lease_until:
                break
            longest = later_end(stored.lease_until, after.lease_until)
            if after.token == match.token and stored.lease_until == longest:
                return  # extended for longer in between
            before = stored  # extended in between
        raise self.lost(match)

    def lost(self, match: Match) -> LeaseLost:
        """Return the error of a match that no longer holds its resource."""
        return match_lost(match.resource_id, self._changes.stored(match.resource_id))


def match_lost(resource_id: str, resource: Resource | None) -> LeaseLost:
    """Return the error of a match that no longer holds a resource, whose present version is given."""
    if resource is None:
        return LeaseLost.of_resource(resource_id, "it is no longer registered")
    now = f"{resource.status} now"
    if resource.status is ResourceStatus.MATCHED:
        now = "matched to another caller now"
    return LeaseLost.of_resource(resource_id, f"it is {now}", resource.status)
