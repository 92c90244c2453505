"""Criteria: exact values, any of several values, preferences in order, or anything. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any, Final

from freshq.errors import plain
from freshq.matching.places import MAX_ACTIONS, checked_name, checked_value, lookup_of

Ask = Mapping[str, str]
"""One exact question: each name has this value. Other names do not matter."""

# Each costs at least one query if the asks before it find nothing. A caller joins the line in one
# transaction, which writes the caller, its place in the line, and one item for each.
MAX_ASKS: Final = MAX_ACTIONS - 2

# Values of the same rank; None stands for any.
_Level = tuple[str | None, ...]


def parse_criteria(criteria: Any) -> list[list[Ask]]:  # noqa: ANN401 - whatever a caller gave
    """Return the asks by rank, best first.

    A value is a string; a set of strings, any of which will do; or a list of strings, sets and None in order
    of preference, where None is any value or none. Names left out do not matter. If several names have lists,
    the first name has the greatest weight. A list of such mappings is a list of preferences, too.

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


def _levels(criteria: Any) -> dict[str, list[_Level]]:  # noqa: ANN401 - whatever a caller gave
    if not isinstance(criteria, Mapping):
        msg = f"criteria: must be a mapping from names to values, got {type(criteria).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - a wrong argument is a ValueError throughout
    return {checked_name("criteria", name): _preferences(name, given) for name, given in criteria.items()}


def _preferences(name: str, given: Any) -> list[_Level]:  # noqa: ANN401 - whatever a caller gave
    where = f"criteria.{plain(name)}"
    preferences: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if not preferences:
        msg = f"{where}: an empty list allows no value; leave the name out to allow any"
        raise ValueError(msg)
    return [_level(where, preference) for preference in preferences]


def _level(where: str, given: Any) -> _Level:  # noqa: ANN401 - whatever a caller gave
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
