"""Reads the queues of resources in the order in which they are to be matched."""

from __future__ import annotations

from heapq import merge
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from freshq.matching.places import (
    BEFORE_GROUP,
    END_OF_GROUP,
    GREATEST_KEY,
    LEAST_KEY,
    PAST_GROUP,
    Place,
    group_of,
    lookup_of,
)
from freshq.matching.stores.base import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.matching.criteria import Ask
    from freshq.matching.places import Lookup
    from freshq.matching.resource import Entry
    from freshq.matching.stores.base import MatchStore

# Of about 300 bytes each, ten are read for the price of one: a strong read of up to 4 KB.
PAGE_ENTRIES: Final = 10


class Lines:
    """The queues of a store, each read a page at a time and only as far as the caller goes on asking."""

    def __init__(self, store: MatchStore, *, newest_first: bool, page_entries: int = PAGE_ENTRIES) -> None:
        """Use a store.

        Args:
            store: Home of the queues.
            newest_first: Whether those who waited least come first.
            page_entries: How many entries to read at a time.
        """
        self._store = store
        self._newest_first = newest_first
        self._page_entries = page_entries

    def fitting(self, asks: Sequence[Ask]) -> Iterator[tuple[Entry, Ask]]:
        """Yield the entries that answer any of the questions, in order, with the question.

        A resource that answers several is yielded for each.
        """
        streams = [((entry, ask) for entry in self._answers(lookup_of(ask))) for ask in asks]
        return merge(*streams, key=lambda found: self._rank(found[0]))

    def _rank(self, entry: Entry) -> tuple[float, str]:
        """Return the place of an entry in the order, which ties for no two resources."""
        return (-entry.since if self._newest_first else entry.since, entry.resource.resource_id)

    def _merged(self, *streams: Iterator[Entry]) -> Iterator[Entry]:
        return merge(*streams, key=self._rank)

    def _answers(self, lookup: Lookup) -> Iterator[Entry]:
        """Yield what fits one question, from the one or two queues where it may stand.

        The far queue is for resources that have a greater attribute name than those asked for. An entry
        knows the greatest name there was when it joined. If that is not greater than those asked for,
        whoever stands in the far queue joined later, and oldest first the far queue need not be read yet.
        """
        near = iter(()) if lookup.near is None else self._group(lookup.near)
        if self._newest_first:
            yield from self._merged(near, self._everyone(lookup.far))
            return
        for entry in near:
            if entry.last_name > lookup.last_name:
                near = chain([entry], near)
                break
            yield entry
        yield from self._merged(near, self._everyone(lookup.far))

    def _group(self, place: Place, start_after: str | None = None) -> Iterator[Entry]:
        """Yield one group of a queue."""
        while True:
            low, high = place.group + END_OF_GROUP, place.group + PAST_GROUP
            page = self._page(place.partition, low, high, start_after)
            yield from page
            if len(page) < self._page_entries:
                return
            start_after = page[-1].sort_key

    def _everyone(self, partition: str) -> Iterator[Entry]:
        """Yield all of a queue, its groups merged.

        Reads the head of each group, and jumps from there to the next group: no list of the groups is
        kept anywhere. A queue of less than a page takes one query.
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
            if self._newest_first:
                high = group + BEFORE_GROUP
            else:
                low = group + PAST_GROUP

    def _page(self, partition: str, low: str, high: str, start_after: str | None = None) -> list[Entry]:
        span = Span(partition, low, high, self._newest_first, self._page_entries, start_after)
        return self._store.page(span)
