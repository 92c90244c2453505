"""The places where a resource has entries and where a caller looks for them. Pure.

A partition is a set of ``name=value`` pairs, possibly empty. A group is one such pair. For a resource, take
the attribute with the greatest name: each of its values is a group. Each choice of values of the other
attributes, any of which may be left out, is a partition. The resource has an entry in every such group of
every such partition. For example,

    {"gender": "F", "language": {"English", "Spanish"}}

is in the partitions ``gender=F`` and ``""``, in the groups ``language=English`` and ``language=Spanish``:
four entries; an entry per possible ask would make six. A caller who names the greatest attribute reads one
group; other callers read the head of each group.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final
from urllib.parse import quote

from freshq.errors import plain, quoted
from freshq.model.lifecycle import MICROSECONDS

Attributes = Mapping[str, tuple[str, ...]]

# Service quota of a DynamoDB transaction.
MAX_ACTIONS: Final = 100
# A match also writes the resource, its caller, and the caller's entry in the line.
MAX_ENTRIES: Final = MAX_ACTIONS - 3
# A DynamoDB hash key has at most 2,048 bytes; the rest is for the store's prefix.
MAX_PARTITION_BYTES: Final = 2000
# Quoting at most triples their length. A group, the time and an id must fit into a range key of 1,024 bytes.
MAX_NAME_BYTES: Final = 50
MAX_VALUE_BYTES: Final = 100
MAX_RESOURCE_ID_BYTES: Final = 256

# Quoted text contains neither of the first two characters, and sorts after both.
END_OF_GROUP: Final = "#"
PAST_GROUP: Final = "$"
BEFORE_GROUP: Final = '"'
# All range keys are between these.
LEAST_KEY: Final = "#"
GREATEST_KEY: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of an entry.

    Attributes:
        partition: The partition.
        group: The part of the partition within which entries are ordered by time.
    """

    partition: str
    group: str

    @property
    def bounds(self) -> tuple[str, str]:
        """The least and the greatest key of the group."""
        return self.group + END_OF_GROUP, self.group + PAST_GROUP

    def sort_key(self, since: float, resource_id: str) -> str:
        """Return the key within the partition: group, time, then id, so that keys are unique."""
        return f"{self.group}{END_OF_GROUP}{round(since * MICROSECONDS):016d}{END_OF_GROUP}{resource_id}"


@dataclass(frozen=True, slots=True)
class Lookup:
    """The positions of the entries that answer one ask.

    Attributes:
        near: The group of the resources without an attribute name greater than the names asked for; None
            for an ask without names.
        far: The partition of the other resources.
        last_name: The greatest attribute name asked for; empty if there is none.
    """

    near: Place | None
    far: str
    last_name: str


def group_of(sort_key: str) -> str:
    """Return the group of a key."""
    return sort_key.partition(END_OF_GROUP)[0]


def checked_name(where: str, name: Any) -> str:
    """Return the name of an attribute.

    Raises:
        ValueError: If it is not a string, is empty or too long.
    """
    return _checked_text(where, "a name", name, MAX_NAME_BYTES)


def checked_value(where: str, value: Any) -> str:
    """Return one value of an attribute.

    Raises:
        ValueError: If it is not a string, is empty or too long.
    """
    return _checked_text(where, "a value", value, MAX_VALUE_BYTES)


def checked_resource_id(resource_id: Any, argument: str = "resource_id") -> str:
    """Return the id of a resource or a caller.

    Raises:
        ValueError: If it is not a string, is empty or too long; names the argument.
    """
    return _checked_text(argument, "an id", resource_id, MAX_RESOURCE_ID_BYTES)


def _checked_text(where: str, what: str, text: Any, limit_bytes: int) -> str:
    try:
        usable = isinstance(text, str) and 0 < len(text.encode()) <= limit_bytes
    except UnicodeEncodeError:
        usable = False
    if not usable:
        msg = f"{where}: {what} must be a string of 1 to {limit_bytes} bytes, got {quoted(text)}"
        raise ValueError(msg)
    return str(text)


def parse_attributes(attributes: Any) -> Attributes:
    """Return the attributes of a resource in their normal form.

    Args:
        attributes: A mapping from names to a string, or to a set, list or tuple of strings.

    Raises:
        ValueError: If a name or value is wrong, or the resource would have more entries than one
            transaction can delete.
    """
    if not isinstance(attributes, Mapping):
        msg = f"attributes: must be a mapping from names to values, got {type(attributes).__name__}"
        raise ValueError(msg)
    parsed = {checked_name("attributes", name): _values(name, given) for name, given in attributes.items()}
    ordered = dict(sorted(parsed.items()))
    _check_actions(ordered)
    longest = {name: max(values, key=_quoted_bytes) for name, values in ordered.items()}
    partition_of("attributes", longest)
    return ordered


def _values(name: str, given: Any) -> tuple[str, ...]:
    where = f"attributes.{plain(name)}"
    values = given if isinstance(given, AbstractSet | list | tuple) else [given]
    if not values:
        msg = f"{where}: no value; leave the name out instead"
        raise ValueError(msg)
    return tuple(sorted({checked_value(where, value) for value in values}))


def _check_actions(attributes: Attributes) -> None:
    entries = entries_of(attributes)
    if entries > MAX_ENTRIES:
        counted = ", ".join(f"{len(values)} of {plain(name)}" for name, values in attributes.items())
        msg = (
            f"attributes: {counted:.300} make {entries} entries, and one transaction can change "
            f"{MAX_ENTRIES}; register fewer values"
        )
        raise ValueError(msg)


def entries_of(attributes: Attributes) -> int:
    """Return the number of places, and so of entries, of a resource."""
    if not attributes:
        return 1
    *others, last = attributes.values()
    return prod(len(values) + 1 for values in others) * len(last)


def _quoted_bytes(text: str) -> int:
    return len(quote(text, safe=""))


def _pair(name: str, value: str) -> str:
    return f"{quote(name, safe='')}={quote(value, safe='')}"


def partition_of(argument: str, pairs: Mapping[str, str]) -> str:
    """Return the partition of a set of pairs.

    Raises:
        ValueError: If they are too long in total; the message names `argument`.
    """
    partition = "&".join(_pair(name, pairs[name]) for name in sorted(pairs))
    if len(partition) > MAX_PARTITION_BYTES:
        msg = f"{argument}: names and values make a key of {len(partition)} bytes, more than the "
        raise ValueError(msg + f"{MAX_PARTITION_BYTES} allowed; shorten them")
    return partition


def places_of(attributes: Attributes) -> list[Place]:
    """Return the places at which a resource with these attributes has an entry while it waits."""
    if not attributes:
        return [Place("", "")]
    *others, last = attributes
    choices = product(*((None, *attributes[name]) for name in others))
    partitions = [
        partition_of("attributes", {n: v for n, v in zip(others, choice, strict=True) if v is not None})
        for choice in choices
    ]
    return [Place(partition, _pair(last, value)) for partition in partitions for value in attributes[last]]


def question_of(ask: Mapping[str, str]) -> str:
    """Return an ask as a string: the partition of its pairs."""
    return partition_of("criteria", ask)


def questions_of(attributes: Attributes) -> list[str]:
    """Return every question that a resource with these attributes answers: any choice of its values."""
    choices = product(*((None, *values) for values in attributes.values()))
    return [
        question_of({n: v for n, v in zip(attributes, choice, strict=True) if v is not None})
        for choice in choices
    ]


def lookup_of(ask: Mapping[str, str]) -> Lookup:
    """Return where to look for resources with at least these values."""
    far = partition_of("criteria", ask)
    if not ask:
        return Lookup(None, far, "")
    last = max(ask)
    rest = {name: value for name, value in ask.items() if name != last}
    return Lookup(Place(partition_of("criteria", rest), _pair(last, ask[last])), far, last)


def partitions_of(attributes: Attributes) -> list[str]:
    """Return the partition of every full combination of values that a resource can serve."""
    names = list(attributes)
    return [
        partition_of("attributes", dict(zip(names, values, strict=True)))
        for values in product(*attributes.values())
    ]


def place_of(combination: str) -> Place:
    """Return the place at which every resource that serves a full combination of values has one entry."""
    partition, _, group = combination.rpartition("&")
    return Place(partition, group)


def names_in(combination: str) -> int:
    """Return the number of attribute names of a full combination of values."""
    return combination.count("&") + 1 if combination else 0


def fits(ask: Mapping[str, str], attributes: Attributes) -> bool:
    """Return whether a resource with these attributes answers an ask."""
    return all(value in attributes.get(name, ()) for name, value in ask.items())
