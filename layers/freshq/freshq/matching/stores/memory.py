"""Resources in this process's memory: for tests, trials and examples."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.matching.places import places_of
from freshq.matching.resource import Entry, Resource, ResourceStatus
from freshq.matching.stores.base import ChangedError, MatchStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from freshq.matching.stores.base import Span


class MemoryMatchStore(MatchStore):
    """Resources in a dictionary, and the keys of each partition in a sorted list."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._resources: dict[str, Resource] = {}
        self._keys: defaultdict[str, list[str]] = defaultdict(list)
        self._entries: dict[tuple[str, str], Entry] = {}
        self._last_name = ""

    @override
    def create_table(self) -> None:
        pass

    @override
    def add_names(self, names: Collection[str]) -> None:
        with self._lock:
            self._last_name = max(self._last_name, *names)

    @override
    def last_name(self) -> str:
        with self._lock:
            return self._last_name

    @override
    def get(self, resource_id: str) -> Resource | None:
        with self._lock:
            return self._resources.get(resource_id)

    @override
    def commit(self, before: Resource | None, after: Resource | None, last_name: str) -> None:
        resource = after or before
        if resource is None:
            return
        with self._lock:
            current = self._resources.pop(resource.resource_id, None)
            if _version(current) != _version(before):
                if current is not None:
                    self._resources[resource.resource_id] = current
                raise ChangedError
            for partition, key in _keys(before):
                keys = self._keys[partition]
                del keys[bisect_left(keys, key)]
                del self._entries[partition, key]
            if after is not None:
                self._resources[resource.resource_id] = after
                for partition, key in _keys(after):
                    insort(self._keys[partition], key)
                    self._entries[partition, key] = Entry(key, after, last_name)

    @override
    def page(self, span: Span) -> list[Entry]:
        with self._lock:
            keys = self._keys.get(span.partition, [])
            low, high = bisect_left(keys, span.low), bisect_right(keys, span.high)
            if span.start_after is not None and span.newest_first:
                high = min(high, bisect_left(keys, span.start_after))
            elif span.start_after is not None:
                low = max(low, bisect_right(keys, span.start_after))
            indexes = range(low, high)
            wanted = islice(reversed(indexes) if span.newest_first else indexes, span.limit)
            return [self._entries[span.partition, keys[index]] for index in wanted]

    @override
    def resources(self) -> Iterator[Resource]:
        with self._lock:
            found = list(self._resources.values())
        yield from found


def _version(resource: Resource | None) -> tuple[ResourceStatus, str] | None:
    return None if resource is None else (resource.status, resource.token)


def _keys(resource: Resource | None) -> list[tuple[str, str]]:
    if resource is None or resource.status is not ResourceStatus.QUEUED or resource.since is None:
        return []
    return [
        (place.partition, place.sort_key(resource.since, resource.resource_id))
        for place in places_of(resource.attributes)
    ]
