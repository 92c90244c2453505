"""Resources, their attributes, and the callers who ask for one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import plain, quoted
from freshq.matching.places import (
    END_OF_GROUP,
    MAX_ACTIONS,
    checked_name,
    checked_value,
    fits,
    lookup_of,
    question_of,
)
from freshq.model.lifecycle import MICROSECONDS
from freshq.model.validation import MAX_PAYLOAD_BYTES, json_copy, json_text

if TYPE_CHECKING:
    from freshq.matching.places import Attributes

# One exact question: each name has this value; other names do not matter.
Ask = Mapping[str, str]
# Each ask costs at least one query if the asks before it find nothing. A caller joins the line in one
# transaction, which writes the caller, its place in the line, and one item for each ask.
MAX_ASKS: Final = MAX_ACTIONS - 2
# Values of the same rank; None stands for any.
_Level = tuple[str | None, ...]


def parse_criteria(criteria: Any) -> list[list[Ask]]:
    """Return the asks by rank, best first.

    A value is a string, or a set of strings, any of which will do. It may also be a list of these in order of
    preference, in which None accepts every resource. Names left out do not matter. If several names have
    lists, the first name has the greatest weight. A list of such mappings is also a list of preferences.

    Raises:
        ValueError: If the criteria have another form, or make more than `MAX_ASKS` asks.
    """
    alternatives = criteria if isinstance(criteria, list | tuple) else [criteria]
    if not alternatives:
        raise ValueError("criteria: an empty list asks for nothing; use {} for any resource")
    ranks: list[list[Ask]] = []
    asked = 0
    for alternative in alternatives:
        levels = _levels(alternative)
        asked += _asks(levels)
        if asked > MAX_ASKS:
            msg = f"criteria: make {asked} asks or more, {MAX_ASKS} are allowed; use fewer preferences"
            raise ValueError(msg)
        ranks += _ranks(levels)
    for rank in ranks:
        for ask in rank:
            lookup_of(ask)
    return ranks


def _levels(criteria: Any) -> dict[str, list[_Level]]:
    if not isinstance(criteria, Mapping):
        msg = f"criteria: must be a mapping from names to values, got {type(criteria).__name__}"
        raise ValueError(msg)
    return {checked_name("criteria", name): _preferences(name, given) for name, given in criteria.items()}


def _preferences(name: str, given: Any) -> list[_Level]:
    where = f"criteria.{plain(name)}"
    preferences: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if not preferences:
        msg = f"{where}: an empty list allows no value; leave the name out to allow any"
        raise ValueError(msg)
    return [_level(where, preference) for preference in preferences]


def _level(where: str, given: Any) -> _Level:
    if given is None:
        return (None,)
    if not isinstance(given, AbstractSet):
        return (checked_value(where, given),)
    if not given:
        msg = f"{where}: an empty set allows no value; leave the name out to allow any"
        raise ValueError(msg)
    return tuple(sorted(checked_value(where, value) for value in given))


def _asks(levels: Mapping[str, list[_Level]]) -> int:
    """Return the number of asks without making them."""
    asks = 1
    for preferences in levels.values():
        asks *= sum(map(len, preferences))
    return asks


def _ranks(levels: Mapping[str, list[_Level]]) -> list[list[Ask]]:
    return [
        [
            {name: value for name, value in zip(levels, values, strict=True) if value is not None}
            for values in product(*choice)
        ]
        for choice in product(*levels.values())
    ]


class ResourceStatus(StrEnum):
    """The state of a resource.

    AVAILABLE: registered, not waiting. QUEUED: waiting, with an entry at each of its places.
    MATCHED: held by a caller until the lease expires.
    """

    AVAILABLE = "AVAILABLE"
    QUEUED = "QUEUED"
    MATCHED = "MATCHED"


def parse_data(data: Any, attributes: Attributes) -> str | None:
    """Return the data of a resource as JSON text with sorted keys; None for none.

    Args:
        data: Any JSON value.
        attributes: The attributes, which share an item with it.

    Raises:
        ValueError: If it is not JSON, or too large.
    """
    if data is None:
        return None
    try:
        text = json.dumps(json_copy(json_text(data), data), ensure_ascii=False, sort_keys=True)
    except ValueError as error:
        msg = f"data: {error}"
        raise ValueError(msg) from error
    size_bytes = len(text.encode()) + len(json_text(attributes).encode())
    if size_bytes > MAX_PAYLOAD_BYTES:
        size = f"{size_bytes} bytes of JSON with the attributes, at most {MAX_PAYLOAD_BYTES} are allowed"
        msg = f"data: {size}; store it elsewhere, and register a reference to it"
        raise ValueError(msg)
    return text


def parsed_data(text: str | None) -> Any:
    """Return the value of a text from `parse_data`."""
    return None if text is None else json.loads(text)


def later_end(first: float | None, second: float | None) -> float | None:
    """Return the later of two ends of a lease; None is a lease without an end."""
    return None if first is None or second is None else max(first, second)


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
        attributes: The values that callers can ask for, by name, in order.
        status: Its state.
        token: New with every change of status, so that two periods in the same state differ.
        since: When it started to wait, in seconds since the epoch. A match keeps it, so that a resource whose
            caller disappeared returns to its position.
        lease_until: When the match expires, in seconds since the epoch; None if it does not expire.
        caller_id: The caller in line that it is matched to; None for a caller who did not wait.
        data_json: Its `data` as JSON text.
    """

    resource_id: str
    attributes: Attributes
    status: ResourceStatus
    token: str
    since: float | None = None
    lease_until: float | None = None
    caller_id: str | None = None
    data_json: str | None = None

    @property
    def data(self) -> Any:
        """The application's data of the resource, any JSON value."""
        return parsed_data(self.data_json)

    def expired(self, now: float) -> bool:
        """Return whether it is matched to a caller whose lease has expired."""
        matched = self.status is ResourceStatus.MATCHED
        return matched and self.lease_until is not None and self.lease_until <= now


@dataclass(frozen=True, slots=True)
class Entry:
    """An item that represents a waiting resource at one place.

    Attributes:
        sort_key: Its key within the partition, see `freshq.matching.places.Place.sort_key`.
        resource: The resource at the time it was queued.
        last_name: The greatest attribute name of any resource at that time.
        lacks_data: Whether `resource` has data that the entry does not have.
    """

    sort_key: str
    resource: Resource
    last_name: str
    lacks_data: bool = False

    @property
    def since(self) -> float:
        """When the resource started to wait."""
        return self.resource.since or 0.0


class CallerStatus(StrEnum):
    """The state of a caller.

    WAITING: in line, with an entry in it. SERVED: a resource is matched to the caller.
    """

    WAITING = "WAITING"
    SERVED = "SERVED"


@dataclass(frozen=True, slots=True)
class Caller:
    """One version of a caller.

    Attributes:
        caller_id: The caller's own id.
        status: Its state.
        token: New with every change of status; for a served caller, the token of the match.
        ranks: Its asks by rank, best first.
        since: When it arrived, in seconds since the epoch.
        resource_id: The resource that serves it.
        rank: Rank of the ask below.
        criteria: The ask that the resource answers.
    """

    caller_id: str
    status: CallerStatus
    token: str
    ranks: tuple[tuple[Ask, ...], ...] = ()
    since: float = 0.0
    resource_id: str | None = None
    rank: int = 0
    criteria: Ask | None = None

    @property
    def ranks_json(self) -> str:
        """The ranks as JSON text."""
        return json.dumps(self.ranks, ensure_ascii=False)

    @property
    def sort_key(self) -> str:
        """The key within the line: time, then id, so that keys are unique."""
        return f"{round(self.since * MICROSECONDS):016d}{END_OF_GROUP}{self.caller_id}"

    @property
    def questions(self) -> list[str]:
        """The asks as strings, without asks that contain another: an answer to the longer one suits both."""
        asks = {frozenset(ask.items()) for rank in self.ranks for ask in rank}
        least = (ask for ask in asks if not any(other < ask for other in asks))
        return sorted(question_of(dict(ask)) for ask in least)

    def preference(self, attributes: Attributes) -> tuple[Ask, int] | None:
        """Return the best ask that a resource with these attributes answers, and its rank; None if none."""
        for rank, asks in enumerate(self.ranks):
            for ask in asks:
                if fits(ask, attributes):
                    return ask, rank
        return None

    def served(self, resource: Resource, ask: Ask, rank: int) -> Caller:
        """Return the version of a caller served by a matched resource."""
        return replace(
            self,
            status=CallerStatus.SERVED,
            token=resource.token,
            resource_id=resource.resource_id,
            rank=rank,
            criteria=ask,
        )


def parsed_ranks(text: str) -> tuple[tuple[Ask, ...], ...]:
    """Return the ranks in a text of `Caller.ranks_json`."""
    return tuple(tuple(asks) for asks in json.loads(text))


def caller_id_of(sort_key: str) -> str:
    """Return the id in a key within the line."""
    return sort_key.partition(END_OF_GROUP)[2]


def caller_of(resource: Resource) -> Caller | None:
    """Return the served caller that is recorded in a resource; None if there is none."""
    if resource.caller_id is None:
        return None
    return Caller(resource.caller_id, CallerStatus.SERVED, resource.token, resource_id=resource.resource_id)
