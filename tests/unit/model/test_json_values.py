"""Values that payloads and results may have besides JSON's own."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from freshq.model.validation import MAX_JSON_DEPTH, _place_of_problem, json_copy, json_text, parsed_json


@dataclass
class Point:
    x: int
    inside: Any = None


@dataclass
class Named:
    name: str
    points: list[Point] = field(default_factory=list)


class Price(BaseModel):
    amount: Decimal
    on: date


class Labels(BaseModel):
    names: set[str]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1, Point(2)), '{"x":1,"inside":{"x":2,"inside":null}}'),
        (Named("ü", [Point(1)]), '{"name":"ü","points":[{"x":1,"inside":null}]}'),
        (Price(amount=Decimal("1.50"), on=date(2026, 1, 2)), '{"amount":"1.50","on":"2026-01-02"}'),
        ([Labels(names={"a"})], '[{"names":["a"]}]'),
        ({"at": [datetime(2026, 1, 2, 3, tzinfo=UTC)]}, '{"at":["2026-01-02T03:00:00+00:00"]}'),
        ([date(2026, 1, 2), time(3, 4)], '["2026-01-02","03:04:00"]'),
        ([UUID(int=7), Decimal("1.50")], '["00000000-0000-0000-0000-000000000007","1.50"]'),
        ((1, 2), "[1,2]"),
    ],
)
def test_a_value_has_one_text_and_its_copy_is_json(value: Any, text: str) -> None:
    assert json_text(value) == text
    assert json_copy(text, value) == json.loads(text)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1}, "Object of type set is not JSON serializable"),
        (b"a", "Object of type bytes is not JSON serializable"),
        (Point, "Object of type type is not JSON serializable"),
        ([object()], "Object of type object is not JSON serializable, at [0]"),
        ({"a": [Point(1, {2})]}, "Object of type set is not JSON serializable, at a[0].inside"),
    ],
)
def test_another_type_is_named_with_its_place(value: Any, problem: str) -> None:
    message = (
        f"not a JSON value ({problem}); use dict, list, str, int, "
        "float, bool and None, pydantic models, dataclasses, dates, UUID and Decimal"
    )
    with pytest.raises(ValueError, match=r"^not a JSON value") as refused:
        json_text(value)
    assert str(refused.value) == message


def test_a_number_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r", at a\[1\]\); use None"):
        json_text({"a": [1.0, float("nan")]})


@pytest.mark.parametrize("value", ["\ud800", {"a": ["\ud800"]}])
def test_a_lone_surrogate_is_refused_without_a_place(value: Any) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        json_text(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular reference"):
        json_text(value)


class Watched(list[Any]):
    """A mapping that counts reads of its contents."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        Watched.looks += 1
        return super().__iter__()


def test_the_search_in_a_too_deep_value_stays_away_from_the_recursion_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finalizer that the garbage collector runs there fails, and pytest reports an unrelated test."""
    monkeypatch.setattr(Watched, "looks", 0)
    value: Any = 0
    for _ in range(5000):
        value = Watched([value])
    assert _place_of_problem(value) == ""
    assert Watched.looks == MAX_JSON_DEPTH


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1: "a"}, " is of type int"),
        ({"a": 1, None: 2, 3: 4}, " is of type NoneType"),
        ([[{"a": {True: 1}}]], " at [0][0].a is of type bool"),
        (({2.5: 1},), " at [0] is of type float"),
        (Point(1, {1: 2}), " at inside is of type int"),
        (Named("a", [Point(1), Point(2, [{3: 4}])]), " at points[1].inside[0] is of type int"),
    ],
)
def test_a_key_that_is_no_text_is_refused_with_its_type_and_place(value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=r"^a key") as refused:
        json_copy(json_text(value), value)
    assert str(refused.value) == (f"a key{kind}, and JSON would make it a string; use strings as keys")


def test_depth_counts_what_is_inside_dataclasses_too() -> None:
    deep: Any = None
    for _ in range(MAX_JSON_DEPTH):
        deep = Point(1, deep)
    assert json_text(deep).count("{") == MAX_JSON_DEPTH
    with pytest.raises(ValueError, match="100 levels"):
        json_text(Point(1, deep))


@pytest.mark.parametrize(("value", "where"), [(math.nan, ""), ({"a": [1, math.inf]}, ", at a[1]")])
def test_numbers_that_json_lacks_are_named_with_a_remedy(value: object, where: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"(NaN and infinity are none{where}); use None")):
        json_text(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "'a' is given 2 times in one object"),
        ('[{"b": {"a": 1, "a": 1}}]', "'a' is given 2 times in one object"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting property name"),
        ("1" * 5000, "Exceeds the limit"),
    ],
)
def test_json_that_a_reader_would_change_or_not_understand_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parsed_json(text)


def test_other_json_is_parsed() -> None:
    assert parsed_json('[{"a": {"a": 1}}, {"a": null}]') == [{"a": {"a": 1}}, {"a": None}]
