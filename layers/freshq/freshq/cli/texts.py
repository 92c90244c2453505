"""Formats values as text: durations, excerpts, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from freshq.cli.errors import printable

# Units of time: seconds in each, its name, seconds in the next smaller one, and the name of that.
UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def span(seconds: float | None) -> str:
    """Return a duration in at most two units; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"-{span(-seconds)}"
    for size, unit, smaller_size, smaller in UNITS:
        if seconds >= size:
            rest = int(seconds % size // smaller_size)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - one digit or two


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 task" and "2 tasks"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def excerpt(text: str, chars: int) -> str:
    """Return the beginning of a string on one line, at most `chars` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def compact_json(value: object) -> str:
    """Return a value as JSON for people: letters of every script as they are, control characters escaped."""
    return printable(json.dumps(value, ensure_ascii=False))


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON for programs. Infinity and NaN, which JSON has not, become null."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
