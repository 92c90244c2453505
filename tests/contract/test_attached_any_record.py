"""The queue delivers every record that DynamoDB accepts from an application, and none blocks others."""

import base64
import decimal
import itertools
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from freshq import AttachedQueue
from freshq.errors import FreshqError
from freshq.stores.dynamodb.attached.store import QUEUED_ATTRIBUTES
from freshq.stores.dynamodb.items import INDEX_KEYS
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.schema import CREATED_ATTRIBUTE
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import ids, known

# Numbers as DynamoDB has them: 38 digits, and sizes from 1E-130 to below 1E+126.
EXACT: Final = decimal.Context(prec=200, Emin=-1000, Emax=1000)
NUMBERS = st.builds(
    lambda digits, exponent: str(Decimal(digits).scaleb(exponent, EXACT)),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.integers(-92, 88),
)
EXTREMES = [
    *("1E+38", "1E+40", "1E+125", "9" * 38 + "E+88", "-1E+125", "1E-130", "-1E-130", "1E-128", "0", "-0"),
    *("9" * 38, "1" + "0" * 38, "1" + "0" * 125, "0." + "0" * 129 + "1", "1.00", "5E-1", "123.4500E+3"),
]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.one_of(
    st.builds(lambda value: {"N": value}, NUMBERS | st.sampled_from(EXTREMES)),
    st.builds(lambda value: {"S": value}, TEXTS),
    st.builds(lambda value: {"B": value}, st.binary(max_size=20)),
    st.builds(lambda value: {"BOOL": value}, st.booleans()),
    st.just({"NULL": True}),
)
SETS = st.one_of(
    st.builds(lambda values: {"NS": values}, st.lists(NUMBERS, min_size=1, max_size=4, unique_by=Decimal)),
    st.builds(lambda values: {"SS": values}, st.lists(TEXTS, min_size=1, max_size=4, unique=True)),
    st.builds(lambda values: {"BS": values}, st.lists(st.binary(max_size=9), min_size=1, unique=True)),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | SETS,
    lambda inner: (
        st.builds(lambda values: {"L": values}, st.lists(inner, max_size=4))
        | st.builds(lambda values: {"M": values}, st.dictionaries(NAMES, inner, max_size=4))
    ),
    max_leaves=12,
)
RECORDS = st.dictionaries(NAMES.filter(lambda name: not name.startswith("freshq_")), VALUES, max_size=5)
# Attributes of freshq's own whose type DynamoDB does not enforce.
KEYS = {*INDEX_KEYS, CREATED_ATTRIBUTE}
OWN_NAMES = st.sampled_from(sorted({*QUEUED_ATTRIBUTES, "version", "requestToken", "payload"} - KEYS))
NUMBER = itertools.count()
FUZZ = settings(
    max_examples=min(60, settings().max_examples), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def as_json(value: dict[str, Any]) -> Any:
    """Return the JSON value that the page promises for an attribute."""
    ((kind, content),) = value.items()
    if kind == "N":
        exact = Decimal(content)
        with decimal.localcontext(EXACT):
            return int(exact) if exact % 1 == 0 else float(content)
    if kind in ("S", "BOOL", "NULL"):
        return None if kind == "NULL" else content
    if kind == "B":
        return base64.b64encode(content).decode()
    if kind == "M":
        return {name: as_json(inner) for name, inner in content.items()}
    return list(map(as_json, content)) if kind == "L" else sorted(as_json({kind[0]: one}) for one in content)


@pytest.fixture
def narrow_context() -> Iterator[None]:
    """Have a decimal context that the application has narrowed, and that traps everything."""
    with decimal.localcontext() as context:
        context.prec, context.Emax, context.Emin = 5, 9, -9
        context.traps = dict.fromkeys(context.traps, True)
        yield


def add(shipments: Shipments, record: dict[str, Any]) -> str:
    """Write a record past freshq; return its id."""
    task_id = f"r{next(NUMBER)}"
    shipments.client.put_item(TableName=shipments.table, Item={"id": {"S": task_id}} | record)
    return task_id


class TestEveryValue:
    def test_no_number_stops_anything(self, shipments: Shipments) -> None:
        queue = shipments.queue()
        numbers = {}
        for number in EXTREMES:
            nested = {"L": [{"M": {"x": {"N": number}}}]}
            numbers[add(shipments, {"n": {"N": number}, "s": {"NS": [number]}, "l": nested})] = number
        waiting = ["A", *numbers, "B"]
        for each in waiting:
            queue.put(task_id=each)
        claims = queue.claim(limit=len(waiting))
        assert ids(claims) == waiting
        for claim in claims[1:-1]:
            task_id, payload = claim.task.task_id, claim.task.payload
            plain = as_json({"N": numbers[task_id]})
            assert payload == {"id": task_id, "n": plain, "s": [plain], "l": [{"x": plain}]}
            assert type(payload["n"]) is type(plain)
        assert queue.stats().taken == len(waiting)
        assert sorted(task.task_id for task in queue.list()) == sorted(waiting)
        shipments.clock.advance(3600)
        assert queue.admin.recover() == len(waiting)
        assert queue.purge(confirm="default") == len(waiting)

    @FUZZ
    @given(record=RECORDS)
    @example(record={"deep": {"L": [{"M": {"a": {"NS": ["1E+99", "0.5"]}}}]}, "freshq": {"S": ""}})
    @pytest.mark.usefixtures("narrow_context")
    def test_it_is_delivered(self, shipments: Shipments, record: dict[str, Any]) -> None:
        queue = shipments.queue()
        record.pop("id", None)
        task_id = add(shipments, record)
        expected = as_json({"M": {"id": {"S": task_id}} | record})
        assert queue.records.get(task_id) == expected
        queue.put(task_id=task_id)
        (claim,) = queue.claim(limit=5)
        assert claim.task.payload == expected
        queue.records.put(expected)  # equal values keep their form, and a write is no error
        assert queue.records.get(task_id) == expected
        queue.complete(claim, result=1)
        assert known(queue, task_id).payload == expected

    @pytest.mark.usefixtures("narrow_context")
    def test_deep_and_large_ones_too(self, shipments: Shipments) -> None:
        deep: Any = {"N": "1E+40"}
        for _level in range(31):
            deep = {"L": [deep]}
        large = {f"name {number}".ljust(255): {"B": bytes(1000)} for number in range(300)}
        queue = shipments.queue()
        for task_id in (add(shipments, {"deep": deep}), add(shipments, large)):
            queue.put(task_id=task_id)
            (claim,) = queue.claim()
            assert claim.task.task_id == task_id
            queue.complete(claim)


@FUZZ
@given(names=st.lists(OWN_NAMES, min_size=1, max_size=3), value=VALUES, waits=st.booleans())
def test_an_application_that_writes_freshq_s_attributes_stops_no_other_record(
    shipments: Shipments, names: list[str], value: Any, *, waits: bool
) -> None:
    queue = shipments.queue(order="fifo")
    broken = add(shipments, {})
    good = add(shipments, {})
    if waits:
        queue.put(task_id=broken)
    shipments.change(broken, **{f"freshq_{name}": value for name in names})
    with suppress(FreshqError):
        queue.put(task_id=broken)
    with suppress(FreshqError):
        queue.get(broken)
    queue.put(task_id=good)
    assert good in ids(queue.claim(limit=5))
    queue.stats()
    queue.stats(approximate=True)
    queue.peek()
    assert broken not in [task.task_id for task in queue.list("TAKEN") if task.payload is None]
    queue.list("READY", limit=1000)
    shipments.clock.advance(3600)
    queue.admin.recover()
    assert good in ids(queue.claim(limit=50))
    queue.purge(confirm="default")


@pytest.mark.usefixtures("narrow_context")
@pytest.mark.parametrize("number", ["1E+40", "-12345678901234567890123456789012345678", "1E-130", "0.5"])
def test_a_key_of_any_size(table: StoreUnderTest, number: str) -> None:
    assert table.client is not None
    key = TableKey(KeyPart("id", "N"), KeyPart("at", "N"))
    shipments = Shipments(table.client, key=key)
    shipments.create_attached()
    queue: AttachedQueue = shipments.queue()
    task_id = queue.records.id_of(Decimal(number), Decimal(number))
    shipments.add(task_id)
    queue.put(task_id=task_id)
    (claim,) = queue.claim()
    assert claim.task.task_id == task_id
    assert claim.task.payload["id"] == as_json({"N": number})
    queue.complete(claim)
    assert queue.list("SUCCESS").tasks[0].task_id == task_id
