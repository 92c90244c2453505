"""Attributes and criteria as words of a command line: ``language=Spanish,English gender=F``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from freshq.cli.commands.arguments import parsed
from freshq.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

ANY: Final = "*"
OTHER: Final = ","
EQUAL: Final = "/"

AttributePairs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE,...]...", help="What callers can ask for: language=English,Spanish."),
]
AttributesJson = Annotated[
    str | None,
    typer.Option("--attributes", metavar="JSON", help="Attributes as JSON, for values that contain a comma."),
]
CriteriaPairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE,...]...",
        help="What the caller asks, best first: language=Spanish,English. A / stands between values that are "
        "equally good, and * is any value. A name left out does not matter.",
    ),
]
CriteriaJson = Annotated[
    str | None,
    typer.Option(
        "--criteria",
        metavar="JSON",
        help="Criteria as JSON: a list is in order of preference, a list in it has equally good values, and "
        "null is any value.",
    ),
]


def attributes_of(pairs: Sequence[str] | None, text: str | None) -> dict[str, Any]:
    """Return the attributes that a command line gives, for `MatchQueue.register`.

    Raises:
        ValueError: If they are in the wrong form.
    """
    if text is None:
        return {name: set(values.split(OTHER)) for name, values in _split("attributes", pairs).items()}
    _only_one("attributes", pairs)
    value = parsed("attributes", text)
    if not isinstance(value, dict):
        msg = f"attributes: must be a JSON object of names and values, got {quoted(text)}"
        raise ValueError(msg)  # noqa: TRY004 - a wrong argument is a ValueError throughout
    return value


def criteria_of(pairs: Sequence[str] | None, text: str | None) -> Any:  # noqa: ANN401 - the queue checks it
    """Return the criteria that a command line gives, for `MatchQueue.match`.

    Raises:
        ValueError: If they are in the wrong form.
    """
    if text is None:
        split = _split("criteria", pairs)
        return {name: [_level(level) for level in levels.split(OTHER)] for name, levels in split.items()}
    _only_one("criteria", pairs)
    value = parsed("criteria", text)
    if isinstance(value, list):
        return [_with_sets(alternative) for alternative in value]
    return _with_sets(value)


def _split(argument: str, pairs: Sequence[str] | None) -> dict[str, str]:
    split: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, values = pair.partition("=")
        if not (name and equals and values):
            msg = f"{argument}: must look like NAME=VALUE,VALUE, got {quoted(pair)}"
            raise ValueError(msg)
        if name in split:
            msg = f"{argument}: {quoted(name)} at most once; put its values into one list, A,B"
            raise ValueError(msg)
        split[name] = values
    return split


def _level(text: str) -> str | set[str] | None:
    if text == ANY:
        return None
    return set(text.split(EQUAL)) if EQUAL in text else text


def _with_sets(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return criteria from JSON, which has no sets."""
    if not isinstance(value, dict):
        return value
    return {
        name: [_set(level) for level in levels] if isinstance(levels, list) else levels
        for name, levels in value.items()
    }


def _set(level: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(level, list) and all(isinstance(value, str) for value in level):
        return set(level)
    return level


def _only_one(argument: str, pairs: Sequence[str] | None) -> None:
    if pairs:
        msg = f"{argument}: give either NAME=VALUE or --{argument}"
        raise ValueError(msg)
