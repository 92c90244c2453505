"""Payloads and results as JSON: what can be written, and how it is read back as a type."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterable

# JSON readers have different recursion limits. All of them can read this depth.
MAX_JSON_DEPTH: Final = 100
_TEXTS: Final = (UUID, Decimal)
_TIMES: Final = (datetime, date, time)


def json_text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the JSON text of a value.

    Besides JSON's own values it takes pydantic models and dataclasses, as objects, and dates, times, UUID
    and Decimal, as texts, also inside others.

    Raises:
        ValueError: If it is not such a value (another type, NaN, infinity or a lone surrogate), or is
            nested too deeply.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_json)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        msg = (
            f"not a JSON value ({error}); use dict, list, str, int, float, bool and None, pydantic models, "
            "dataclasses, dates, UUID and Decimal"
        )
        raise ValueError(msg) from error
    # Counting brackets is cheap, and nearly always enough.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and not _nested_within(
        json.loads(text), MAX_JSON_DEPTH
    ):
        msg = f"nested more than {MAX_JSON_DEPTH} levels deep; flatten it"
        raise ValueError(msg)
    return text


def json_copy(text: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return what a store gives back for a value.

    Args:
        text: Its `json_text`.
        value: The value.

    Raises:
        ValueError: If JSON would silently change it: a key of a dict that is not a text becomes one.
    """
    copy = json.loads(text)
    # Comparing is fast; only what differs is looked through.
    if copy != value and (kind := _type_of_changed_key(value)) is not None:
        msg = f"a key is of type {kind}, and JSON would make it a text; use texts as keys"
        raise ValueError(msg)
    return copy


def _as_json(value: Any) -> Any:  # noqa: ANN401 - whatever JSON does not have
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, _TEXTS):
        return str(value)
    msg = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(msg)


def _nested_within(value: Any, levels: int) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return levels > 0 and all(_nested_within(inner, levels - 1) for inner in value)


def _type_of_changed_key(value: Any) -> str | None:  # noqa: ANN401 - any value that JSON took
    """Return the type of a key that is not a text; None if there is none."""
    if isinstance(value, dict):
        wrong = [type(key).__name__ for key in value if not isinstance(key, str)]
        return wrong[0] if wrong else _first_of(value.values())
    if isinstance(value, list | tuple):
        return _first_of(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _first_of(getattr(value, field.name) for field in fields(value))
    return None


def _first_of(values: Iterable[Any]) -> str | None:
    return next((kind for kind in map(_type_of_changed_key, values) if kind is not None), None)
