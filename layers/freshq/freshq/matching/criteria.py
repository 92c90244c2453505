"""What a caller asks for: exact values, any of several, preferences in order, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any, Final

from freshq.matching.places import checked_name, checked_value, lookup_of

Ask = Mapping[str, str]
"""One exact question: every name has this value. What is not named does not matter."""

# Each is a query at least, if what comes before it finds no one.
MAX_ASKS: Final = 100

# A level of preference: the values that are equally welcome; None stands for any.
_Level = tuple[str | None, ...]


def parse_criteria(criteria: Any) -> list[list[Ask]]:  # noqa: ANN401 - whatever a caller gave
    """Return the questions to ask, best first; those of one rank are equally welcome.

    A value is a text; a set of texts, any of which will do; or a list of texts, sets and None, in order
    of preference, where None is any value or none. A name that is left out does not matter. With lists
    under several names, the first name weighs most. Instead of one mapping there may be a list of
    mappings, again in order of preference.

    Raises:
        ValueError: If the criteria are none of this, or make more than `MAX_ASKS` questions.
    """
    alternatives = criteria if isinstance(criteria, list | tuple) else [criteria]
    if not alternatives:
        raise ValueError("criteria: an empty list asks for nothing; {} asks for any resource")
    ranks: list[list[Ask]] = []
    asked = 0
    for alternative in alternatives:
        levels = _levels(alternative)
        asked += _asks(levels)
        if asked > MAX_ASKS:
            msg = f"criteria: make {asked} questions or more, {MAX_ASKS} are allowed; prefer less finely"
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
    where = f"criteria.{name}"
    preferences: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if not preferences:
        msg = f"{where}: an empty list allows no value; leave the name out if any will do"
        raise ValueError(msg)
    return [_level(where, preference) for preference in preferences]


def _level(where: str, given: Any) -> _Level:  # noqa: ANN401 - whatever a caller gave
    if given is None:
        return (None,)
    if not isinstance(given, AbstractSet):
        return (checked_value(where, given),)
    if not given:
        msg = f"{where}: an empty set allows no value; leave the name out if any will do"
        raise ValueError(msg)
    return tuple(sorted(checked_value(where, value) for value in given))


def _asks(levels: Mapping[str, list[_Level]]) -> int:
    """Return how many questions they make, without making them."""
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
