"""Resources in this process's memory: for tests, trials and examples."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.matching.places import places_of
from freshq.matching.resource import CallerStatus, Entry, ResourceStatus, caller_id_of
from freshq.matching.stores.base import Changed, MatchStore, StoredValues
from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

    from freshq.matching.places import Place
    from freshq.matching.resource import Caller, Resource
    from freshq.matching.stores.base import Change, Span


class MemoryMatchStore(MatchStore):
    """Resources in a dictionary, and the keys of each partition in a sorted list."""

    def __repr__(self) -> str:
        return "memory://"

    def __init__(self) -> None:
        self._lock = new_lock()
        self._begin()

    def _begin(self) -> None:
        self._resources: dict[str, Resource] = {}
        self._keys: defaultdict[str, list[str]] = defaultdict(list)
        self._entries: dict[tuple[str, str], Entry] = {}
        self._options: StoredValues | None = None
        self._last_name = ""
        self._combinations: set[str] = set()
        self._callers: dict[str, Caller] = {}
        self._line: list[str] = []
        # By question, the keys in the line of the callers who ask it.
        self._asking: defaultdict[str, list[str]] = defaultdict(list)

    @override
    def create_table(self) -> None:
        pass

    @override
    def delete_table(self) -> None:
        with self._lock:
            self._begin()

    @override
    def read_options(self) -> StoredValues | None:
        return self._options

    @override
    def write_options(self, values: Mapping[str, Any], version: str | None) -> bool:
        with self._lock:
            if (None if self._options is None else self._options.version) != version:
                return False
            self._options = StoredValues(dict(values), new_token())
            return True

    @override
    def add_names(self, names: Collection[str]) -> None:
        with self._lock:
            self._last_name = max(self._last_name, *names)

    @override
    def add_combinations(self, combinations: Collection[str]) -> None:
        with self._lock:
            self._combinations.update(combinations)

    @override
    def combinations(self) -> Iterator[str]:
        with self._lock:
            found = sorted(self._combinations)
        yield from found

    @override
    def count(self, place: Place, names: int, at_most: int | None) -> int:
        with self._lock:
            keys = self._keys.get(place.partition, [])
            low, high = (bisect_left(keys, bound) for bound in place.bounds)
            entries = (self._entries[place.partition, keys[index]] for index in range(low, high))
            found = (entry for entry in entries if len(entry.resource.attributes) == names)
            return sum(1 for _ in islice(found, at_most))

    @override
    def last_name(self) -> str:
        with self._lock:
            return self._last_name

    @override
    def get(self, resource_id: str) -> Resource | None:
        with self._lock:
            return self._resources.get(resource_id)

    @override
    def commit(self, change: Change) -> None:
        with self._lock:
            self._check(change)
            if (resource := change.after or change.before) is not None:
                self._replace(resource.resource_id, change)
            if (before := change.caller_before) is not None:
                del self._callers[before.caller_id]
                for keys in self._lines(before):
                    del keys[bisect_left(keys, before.sort_key)]
            if (after := change.caller_after) is not None:
                self._callers[after.caller_id] = after
                for keys in self._lines(after):
                    insort(keys, after.sort_key)

    def _lines(self, caller: Caller) -> list[list[str]]:
        """Return the sorted lists that have the key of a caller."""
        if caller.status is not CallerStatus.WAITING:
            return []
        return [self._line, *(self._asking[question] for question in caller.questions)]

    def _check(self, change: Change) -> None:
        resource, caller = change.after or change.before, change.caller_after or change.caller_before
        stored = None if resource is None else self._resources.get(resource.resource_id)
        waiting = None if caller is None else self._callers.get(caller.caller_id)
        if (_version(stored), _version(waiting)) != (_version(change.before), _version(change.caller_before)):
            raise Changed

    def _replace(self, resource_id: str, change: Change) -> None:
        self._resources.pop(resource_id, None)
        for partition, key in _keys(change.before):
            keys = self._keys[partition]
            del keys[bisect_left(keys, key)]
            del self._entries[partition, key]
        if change.after is not None:
            self._resources[resource_id] = change.after
            for partition, key in _keys(change.after):
                insort(self._keys[partition], key)
                self._entries[partition, key] = Entry(key, change.after, change.last_name)

    @override
    def caller(self, caller_id: str) -> Caller | None:
        with self._lock:
            return self._callers.get(caller_id)

    @override
    def waiting_callers(self, limit: int, start_after: str | None) -> list[Caller]:
        with self._lock:
            first = 0 if start_after is None else bisect_right(self._line, start_after)
            keys = self._line[first : first + limit]
            return [self._callers[caller_id_of(key)] for key in keys]

    @override
    def line_keys(self, question: str, limit: int, start_after: str | None) -> list[str]:
        with self._lock:
            keys = self._asking.get(question, [])
            first = 0 if start_after is None else bisect_right(keys, start_after)
            return keys[first : first + limit]

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


def _version(stored: Resource | Caller | None) -> tuple[str, str, float | None] | None:
    return None if stored is None else (stored.status, stored.token, getattr(stored, "lease_until", None))


def _keys(resource: Resource | None) -> list[tuple[str, str]]:
    if resource is None or resource.status is not ResourceStatus.QUEUED or resource.since is None:
        return []
    return [
        (place.partition, place.sort_key(resource.since, resource.resource_id))
        for place in places_of(resource.attributes)
    ]
