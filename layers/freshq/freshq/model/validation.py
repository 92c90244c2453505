"""Validate JSON values and structured arguments; name the first wrong field in one line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pydantic import BaseModel

from freshq.errors import MAX_QUOTED_CHARS, plain, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationError

# JSON readers have different recursion limits; all of them can read this depth.
MAX_JSON_DEPTH: Final = 100
# A DynamoDB item has at most 400 KB (service quota). The rest is reserved for attribute names, freshq's own
# attributes, and the error or result.
MAX_PAYLOAD_BYTES: Final = 400 * 1024 - 8 * 1024
MAX_RESULT_AND_PAYLOAD_BYTES: Final = 400 * 1024 - 6 * 1024
MAX_RESULT_BESIDE_ANY_PAYLOAD_BYTES: Final = MAX_RESULT_AND_PAYLOAD_BYTES - MAX_PAYLOAD_BYTES
# Fields of freshq's own dataclasses that would let a reader settle a task or a match.
_TOKENS: Final = frozenset({"token", "lease_token"})
_TEXTS: Final = (UUID, Decimal)
_TIMES: Final = (datetime, date, time)
_KNOWN: Final = (str, int, float, bool, type(None), BaseModel, *_TEXTS, *_TIMES)


def json_text(value: Any) -> str:
    """Return the JSON text of a value.

    Pydantic models and dataclasses become objects; dates, times, UUID and Decimal become strings, also when
    nested.

    Raises:
        ValueError: If it is not such a value (another type, NaN, infinity or a lone surrogate), or is
            nested too deeply.
    """
    try:
        text = _ENCODER.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        where = _place_of_problem(value)
        at = f", at {where}" if where else ""
        if isinstance(error, ValueError) and str(error).startswith("Out of range float"):
            msg = f"not a JSON value (NaN and infinity are none{at}); use None"
            raise ValueError(msg) from error
        msg = (
            f"not a JSON value ({error}{at}); use dict, list, str, int, float, bool and None, "
            "pydantic models, dataclasses, dates, UUID and Decimal"
        )
        raise ValueError(msg) from error
    # Counting brackets is cheap, and nearly always enough.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and not _nested_within(
        json.loads(text), MAX_JSON_DEPTH
    ):
        msg = f"nested more than {MAX_JSON_DEPTH} levels deep; flatten it"
        raise ValueError(msg)
    return text


def json_copy(text: str, value: Any) -> Any:
    """Return a value as stores return it.

    Args:
        text: Its `json_text`.
        value: The value.

    Raises:
        ValueError: If JSON would silently change it: a key of a dict that is not a string becomes one.
    """
    copy, _end = _DECODER.raw_decode(text)
    # Comparing is fast; only differing values are searched.
    if copy != value and (found := next(_changed_keys(value, ""), None)) is not None:
        where, type_name = found
        at = f" at {where}" if where else ""
        msg = f"a key{at} is of type {type_name}, and JSON would make it a string; use strings as keys"
        raise ValueError(msg)
    return copy


def parsed_json(text: str) -> Any:
    """Parse JSON that a caller wrote.

    Raises:
        ValueError: If it is not JSON, is nested too deeply, or names a value of an object twice: one of the
            two would be lost.
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, count = Counter([name for name, _value in pairs]).most_common(1)[0]
        msg = f"{quoted(name)} is given {count} times in one object"
        raise ValueError(msg)
    return found


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if _has_token(value):
        msg = f"a {type(value).__name__} contains a token, which must stay secret"
        raise TypeError(msg)
    if _is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, _TEXTS):
        return str(value)
    msg = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(msg)


# Made once: `json.dumps` makes one for each call with options.
_ENCODER: Final = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_json
)

_DECODER: Final = json.JSONDecoder()


def _nested_within(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return levels > 0 and all(_nested_within(inner, levels - 1) for inner in value)


def _place_of_problem(value: Any) -> str:
    """Return the path of a value that JSON cannot express, such as ``legs[0].price``."""
    return next(_unknown(value, "", MAX_JSON_DEPTH), "")


def _unknown(value: Any, path: str, levels: int) -> Iterator[str]:
    """Yield the paths of the innermost values that JSON does not have, down to `levels` below this one.

    A search down to the recursion limit would let the finalizers of unrelated garbage fail there.
    """
    if (isinstance(value, float) and not isfinite(value)) or _has_token(value):
        yield path
    elif isinstance(value, dict | list | tuple) or _is_dataclass(value):
        for inner, place in _inside(value, path) if levels else ():
            yield from _unknown(inner, place, levels - 1)
    elif not isinstance(value, _KNOWN):
        yield path


def _changed_keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield place and type of each key that is not a string; pydantic models serialize their own keys."""
    if isinstance(value, dict):
        yield from ((path, type(key).__name__) for key in value if not isinstance(key, str))
    for inner, place in _inside(value, path):
        yield from _changed_keys(inner, place)


def _inside(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the values inside a value, with their paths."""
    if isinstance(value, dict):
        yield from ((inner, _joined(path, key)) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((inner, f"{path}[{place}]") for place, inner in enumerate(value))
    elif _is_dataclass(value):
        names = (field.name for field in fields(value))
        yield from ((getattr(value, name), _joined(path, name)) for name in names)


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else f"{name}"


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _has_token(value: Any) -> bool:
    """Return whether a value is freshq's own, such as a Task or a Match, and contains a token."""
    return (
        _is_dataclass(value)
        and type(value).__module__.startswith("freshq.")
        and any(field.name in _TOKENS for field in fields(value))
    )


def result_and_text(result: Any, payload: Any) -> tuple[Any, str | None]:
    """Return a copy of a result and its JSON text; it must fit into one item with the payload of its task.

    Args:
        result: Any JSON value; None for no result.
        payload: The payload of the task.

    Raises:
        ValueError: If it is not JSON, or too large.
    """
    if result is None:
        return None, None
    try:
        text = json_text(result)
        copy = json_copy(text, result)
        size_bytes = len(text.encode())
        if size_bytes > MAX_RESULT_BESIDE_ANY_PAYLOAD_BYTES:
            size_bytes += len(json_text(payload).encode())
    except ValueError as error:
        msg = f"result: {error}"
        raise ValueError(msg) from error
    if size_bytes > MAX_RESULT_AND_PAYLOAD_BYTES:
        msg = f"result: {size_bytes} bytes with the payload, at most {MAX_RESULT_AND_PAYLOAD_BYTES} fit"
        raise ValueError(msg + "; store it elsewhere and return a reference")
    return copy, text


class Problem(NamedTuple):
    """The first problem of a validation, without the value: it may be part of a payload.

    Attributes:
        error_type: Pydantic's type of the error, such as "extra_forbidden".
        path: The names and places that lead to the wrong value; empty for the whole input.
        message: Pydantic's message.
        context: Pydantic's values in the message, by name.
    """

    error_type: str
    path: tuple[int | str, ...]
    message: str
    context: dict[str, Any]

    @property
    def field(self) -> str:
        """The path with dots; empty for the whole input."""
        return ".".join(map(str, self.path))

    @property
    def is_unknown_field(self) -> bool:
        """Whether the input has a field that the model does not."""
        return self.error_type == "extra_forbidden"

    @property
    def reason(self) -> str:
        """The message in the form that follows a colon."""
        message = self.message.removeprefix("Value error, ")
        return message[0].lower() + message[1:]


def problem_of(error: ValidationError) -> Problem:
    """Return the first problem of a validation."""
    found = error.errors(include_url=False, include_input=False)[0]
    return Problem(found["type"], found["loc"], found["msg"], found.get("ctx", {}))


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem of a validation as ``field: problem, got value``.

    Args:
        error: The error from pydantic.
        model: The model whose fields are named if one is unknown.
    """
    problem = problem_of(error)
    field = plain(problem.field) or "input"
    if problem.is_unknown_field:
        return f"{field}: unknown field; use one of {', '.join(model.model_fields)}"
    if problem.error_type == "value_error" and (not problem.path or problem.reason.startswith(f"{field}: ")):
        return problem.reason  # from a check that names the fields itself
    shown = field not in ("payload", "input") and problem.error_type != "value_error"
    given = repr(error.errors(include_url=False)[0]["input"]) if shown else ""
    return f"{field}: {problem.reason}" + (f", got {given}" if 0 < len(given) <= MAX_QUOTED_CHARS else "")
