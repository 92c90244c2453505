"""Tables with every form of key: the ids of their records, and freshq's own items beside them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pytest
from benchmarks.capacity import metered
from local.faults import client_at
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, NotFound, Queue, TaskStatus
from freshq.errors import IllegalTransition
from freshq.queue.core import core_of
from freshq.stores.dynamodb.attached.attach import described_key
from freshq.stores.dynamodb.key import KeyPart, TableKey, own_number
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS
from tests.support.attached import DATA, Shipments
from tests.support.readings import counts, ids
from tests.support.refusals import refused


@dataclass(frozen=True)
class Case:
    """A form of key, and three records with their ids."""

    key: TableKey
    records: dict[str, dict[str, Any]]


def pair(hash_kind: str, range_kind: str) -> TableKey:
    return TableKey(KeyPart("customer", hash_kind), KeyPart("order", range_kind))


CASES: Final = {
    "number": Case(
        TableKey(KeyPart("number", "N")),
        {
            "42": {"number": {"N": "42.0"}},
            "-1.5": {"number": {"N": "-1.50"}},
            "1" + "0" * 30: {"number": {"N": "1E+30"}},
        },
    ),
    "binary": Case(
        TableKey(KeyPart("digest", "B")),
        {
            "AP8=": {"digest": {"B": b"\x00\xff"}},
            "//8/": {"digest": {"B": b"\xff\xff\x3f"}},
            "ZnJlc2hx": {"digest": {"B": b"freshq"}},
        },
    ),
    "text and text": Case(
        pair("S", "S"),
        {
            "c1/o1": {"customer": {"S": "c1"}, "order": {"S": "o1"}},
            "c1/o%2F1": {"customer": {"S": "c1"}, "order": {"S": "o/1"}},
            "c%2Fo 1%25/1é": {"customer": {"S": "c/o 1%"}, "order": {"S": "1é"}},
        },
    ),
    "text and number": Case(
        pair("S", "N"),
        {
            "a/7": {"customer": {"S": "a"}, "order": {"N": "7"}},
            "a/8": {"customer": {"S": "a"}, "order": {"N": "8"}},
            "a%2Fb/-7.25": {"customer": {"S": "a/b"}, "order": {"N": "-7.25"}},
        },
    ),
    "number and text": Case(
        pair("N", "S"),
        {
            "7/a": {"customer": {"N": "7"}, "order": {"S": "a"}},
            "7/freshq#": {"customer": {"N": "7"}, "order": {"S": "freshq#"}},
            "-7/%2F": {"customer": {"N": "-7"}, "order": {"S": "/"}},
        },
    ),
    "number and number": Case(
        pair("N", "N"),
        {
            "0/0": {"customer": {"N": "0"}, "order": {"N": "0"}},
            "0/1": {"customer": {"N": "0"}, "order": {"N": "1"}},
            "1/0": {"customer": {"N": "1"}, "order": {"N": "0"}},
        },
    ),
    "binary and binary": Case(
        pair("B", "B"),
        {
            "AP8=/AQ==": {"customer": {"B": b"\x00\xff"}, "order": {"B": b"\x01"}},
            "AP8=/%2F%2F8%2F": {"customer": {"B": b"\x00\xff"}, "order": {"B": b"\xff\xff\x3f"}},
            "AQ==/AP8=": {"customer": {"B": b"\x01"}, "order": {"B": b"\x00\xff"}},
        },
    ),
}


@dataclass
class Attached:
    """An attached table with the records of a case."""

    table: Shipments
    case: Case

    @property
    def names(self) -> list[str]:
        return list(self.case.records)

    def assert_untouched(self) -> None:
        """Check that the records are unchanged, and that every other item is freshq's own."""
        items = self.table.items()
        records = [item for item in items if "photo" in item]
        assert len(records) == len(self.case.records)
        for record in records:
            left = {name: value for name, value in record.items() if not name.startswith("freshq_")}
            assert left["photo"] == DATA["photo"]
            assert set(left) == {*DATA, *next(iter(self.case.records.values()))}
        parts = {part.name for part in (self.case.key.hash, self.case.key.range) if part}
        for item in items:
            if "photo" not in item:
                assert {name for name in item if not name.startswith("freshq_")} == parts


@pytest.fixture(params=CASES)
def attached(request: pytest.FixtureRequest, client: DynamoDBClient) -> Attached:
    """Return an attached table for each form of key."""
    case = CASES[request.param]
    table = Shipments(client, key=case.key)
    table.create_attached()
    for key in case.records.values():
        client.put_item(TableName=table.table, Item=key | DATA)
    return Attached(table, case)


def test_a_whole_life(attached: Attached) -> None:
    names, queue = attached.names, attached.table.queue()
    for name in names:
        assert queue.put(task_id=name).task_id == name
    assert [each.task.task_id for each in queue.peek()] == names
    first, second, third = queue.claim(limit=3)
    assert ids([first, second, third]) == names
    queue.complete(first, result="shipped")
    queue.fail(second, error="no stock")
    queue.retry(queue.extend(third, lease_seconds=90), delay_seconds=0)
    assert [task.task_id for task in queue.list("FAILURE")] == [names[1]]
    assert ids(queue.claim()) == [names[2]]
    assert counts(queue.stats()) == {"success": 1, "failure": 1, "taken": 1}
    assert queue.redrive([names[1]]) == 1
    queue.cancel(names[1])
    assert {task.task_id: task.status for task in queue.list()} == {
        names[0]: TaskStatus.SUCCESS,
        names[1]: TaskStatus.CANCELLED,
        names[2]: TaskStatus.TAKEN,
    }
    assert queue.purge(confirm="default") == 3
    attached.assert_untouched()


def test_the_payload_has_the_key(attached: Attached) -> None:
    name = attached.names[0]
    queue = attached.table.queue()
    queue.put(task_id=name)
    (claim,) = queue.claim()
    assert set(attached.case.records[name]) <= set(claim.task.payload)
    assert claim.task.task_id == name


def test_leases_of_a_dead_process_expire(attached: Attached) -> None:
    """The sweep finds the lease record by an index, and the tasks that it names by their ids."""
    names = attached.names
    producer = attached.table.queue()
    for name in names:
        producer.put(task_id=name)
    assert len(attached.table.queue().claim(limit=2)) == 2
    other = attached.table.queue()
    approximate = other.stats(approximate=True)
    assert (approximate.pending, approximate.taken, approximate.delayed) == (1, 2, 0)
    attached.table.clock.advance(60)
    assert other.admin.recover() == 2
    assert ids(other.claim(limit=3)) == names
    other.close()
    for _ in range(3):
        attached.table.clock.advance(LATE_CLAIM_SECONDS + 120)
        attached.table.queue(max_attempts=1, override=True).admin.recover()
    own_keys = {part.name for part in (attached.case.key.hash, attached.case.key.range) if part}
    items = attached.table.items()
    assert not [item for item in items if "freshq_taskIds" in item], "a lease record was left over"
    assert all(own_keys <= set(item) for item in items)
    attached.assert_untouched()


def test_groups_delays_pause_and_pages(attached: Attached) -> None:
    """Line records, the control record, the due index and the cursor of a list."""
    names, queue = attached.names, attached.table.queue()
    queue.put_many([{"task_id": name, "group": f"g{name}", "priority": 3} for name in names])
    queue.pause()
    assert attached.table.queue().claim() == []
    queue.resume()
    attached.table.clock.advance(2)
    other = attached.table.queue()
    claims = other.claim(limit=3)
    assert sorted(ids(claims)) == sorted(names)
    for claim in claims:
        other.retry(claim, delay_seconds=30)
    assert other.claim() == []
    attached.table.clock.advance(31)
    assert sorted(ids(attached.table.queue().claim(limit=3))) == sorted(names)
    page = queue.list(limit=2)
    rest = queue.list(limit=2, cursor=page.cursor)
    assert sorted(task.task_id for task in (*page, *rest)) == sorted(names)
    attached.assert_untouched()


def test_dead_letters_by_pages(attached: Attached) -> None:
    names, queue = attached.names, attached.table.queue()
    for name in names:
        queue.put(task_id=name)
    for claim in queue.claim(limit=3):
        queue.fail(claim, error="no stock")
    page = queue.list("FAILURE", limit=2)
    rest = queue.list("FAILURE", limit=2, cursor=page.cursor)
    assert sorted(task.task_id for task in (*page, *rest)) == sorted(names)
    (claim,) = queue.records.claim_dead()
    queue.release(claim)
    assert queue.redrive() == 2
    assert sorted(ids(queue.claim(limit=3))) == sorted(names)


def test_a_record_that_is_not_there_is_not_made(attached: Attached) -> None:
    queue = attached.table.queue()
    name, key = next(iter(attached.case.records.items()))
    attached.table.client.delete_item(TableName=attached.table.table, Key=key)
    assert queue.get(name) is None
    for verb in (
        lambda name: queue.put(task_id=name),
        queue.records.hold,
        queue.cancel,
        lambda name: queue.redrive([name]),
    ):
        with pytest.raises(NotFound):
            verb(name)
    assert queue.get(name) is None


def test_own_items_name_their_ids(attached: Attached) -> None:
    """Whatever the key: the table opens again, and its shared records and counts are there."""
    store = core_of(attached.table.queue()).store
    assert store.write_record("default", "limit", {"a": 1}, None)
    assert not store.write_record("default", "limit", {"a": 2}, None)
    store.add_counts("default", "flow", {"offered": 2}, None)
    store.add_counts("default", "flow", {"offered": 3}, None)
    found = core_of(attached.table.queue()).store
    record = found.read_record("default", "limit")
    assert record is not None
    assert record.values == {"a": 1}
    assert found.read_counts("default", "flow") == {"offered": 5}
    assert found.read_record("other", "limit") is None


class TestIds:
    NUMBER = TableKey(KeyPart("id", "N"))
    PAIR = pair("S", "N")

    @pytest.mark.parametrize(
        ("key", "given", "kept"),
        [
            (NUMBER, "1.0", "1"),
            (NUMBER, "+1e3", "1000"),
            (NUMBER, "-0", "0"),
            (NUMBER, "000.500", "0.5"),
            (NUMBER, "9" * 38 + "E88", "9" * 38 + "0" * 88),
            (NUMBER, "1E-130", "0." + "0" * 129 + "1"),
            (PAIR, "%61%2fb/07", "a%2Fb/7"),
            (pair("S", "S"), "100%25/é", "100%25/é"),
        ],
    )
    def test_each_key_has_one(self, key: TableKey, given: str, kept: str) -> None:
        assert key.checked_id(given) == kept
        assert key.checked_id(kept) == kept
        assert key.attributes(given) == key.attributes(kept)

    @pytest.mark.parametrize(
        ("key", "given", "problem"),
        [
            (NUMBER, "A", r"must be the key 'id' as a number \(id is not a number\), got 'A'"),
            (NUMBER, "1_0", "not a number"),
            (NUMBER, "nan", "not a number"),
            (NUMBER, "٣", "not a number"),
            (NUMBER, "1" * 39, "more digits"),
            (NUMBER, "1" * 100_000, "more digits"),
            (NUMBER, "1" * 100_000 + "x", "not a number"),
            (NUMBER, "1e126", "another size"),
            (NUMBER, "1e-131", "another size"),
            (NUMBER, "-1e125", "reserved"),
            (NUMBER, own_number("freshq#attach"), "reserved"),
            (TableKey(KeyPart("id", "B")), "AP8", "not base64"),
            (TableKey(KeyPart("id", "B")), "ZnJlc2hxIw==", "reserved"),
            (PAIR, "a", r"must be CUSTOMER/ORDER, text and a number, .* \(it has 0 '/', not one\), got 'a'"),
            (PAIR, "a/b/1", "2 '/', not one"),
            (PAIR, "/1", "customer is empty"),
            (PAIR, "a/", "order is empty"),
            (PAIR, "50%/1", "not followed by two"),
            (PAIR, "%FF/1", "can't decode"),
            (PAIR, "%66reshq#x/1", "reserved"),
            (pair("S", "S"), "a/" + "%C3%A9" * 600, "1202 bytes, at most 1024"),
        ],
    )
    def test_others_are_refused(self, key: TableKey, given: str, problem: str) -> None:
        with pytest.raises(ValueError, match=f"^task_id: .*{problem}"):
            key.checked_id(given)

    def test_no_two_items_of_freshq_have_the_same_number(self) -> None:
        numbers = {Decimal(own_number(f"freshq#line#default#{group}")) for group in range(20_000)}
        assert len(numbers) == 20_000
        assert max(numbers) <= -(Decimal(10) ** 125)
        assert min(numbers) > -(Decimal(10) ** 126)

    def test_from_the_values_of_a_key(self, client: DynamoDBClient) -> None:
        table = Shipments(client, key=pair("N", "B"))
        table.create_attached()
        queue = table.queue()
        assert queue.records.id_of(Decimal("1E+3"), b"\xff\xff\x3f") == "1000/%2F%2F8%2F"
        for key, problem in (
            (("7", b"a"), "customer: must be an int or a Decimal, got str"),
            ((True, b"a"), "customer: must be an int or a Decimal, got bool"),
            ((7, "a"), "order: must be bytes, got str"),
            ((7,), "range_key: required, .* 'order'"),
            ((Decimal("nan"), b"a"), "customer is not a number"),
        ):
            with pytest.raises(ValueError, match=problem):
                queue.records.id_of(*key)
        with refused("range_key"):
            TableKey.named("id").record_id("a", 1)

    def test_a_wrong_one_is_named_before_anything_is_written(self, client: DynamoDBClient) -> None:
        table = Shipments(client, key=TableKey(KeyPart("id", "N")))
        table.create_attached()
        table.add("1", "2")
        queue = table.queue()
        with refused("tasks[1].task_id"):
            queue.put_many([{"task_id": "1"}, {"task_id": "two"}])
        assert table.own("1") == {}
        for verb in (queue.get, queue.records.hold, queue.cancel):
            with refused("task_id"):
                verb("two")
        with refused("cursor"):
            queue.list(cursor="two")
        receipts = queue.put_many([{"task_id": "1.0"}, {"task_id": "2"}])
        assert [receipt.task_id for receipt in receipts] == ["1", "2"]
        with pytest.raises(IllegalTransition):
            queue.put_many([{"task_id": "1e0"}])
        assert ids(queue.claim(limit=5)) == ["1", "2"]

    def test_a_damaged_one_in_a_lease_record_is_left_out(self, client: DynamoDBClient) -> None:
        table = Shipments(client, key=TableKey(KeyPart("id", "N")))
        table.create_attached()
        table.add("1")
        queue = table.queue()
        queue.put(task_id="1")
        queue.claim()
        (record,) = [item for item in table.items() if "freshq_taskIds" in item]
        record["freshq_taskIds"] = {"SS": ["1", "not a number"]}
        client.put_item(TableName=table.table, Item=record)
        table.clock.advance(60)
        assert table.queue().admin.recover() == 1


@pytest.mark.parametrize("case", ["number and number", "text and number"])
def test_attaching_finds_the_types(client: DynamoDBClient, case: str) -> None:
    """Twice, with records in it, one of which may not be one of freshq's own."""
    table = Shipments(client, key=CASES[case].key)
    table.create()
    for key in CASES[case].records.values():
        client.put_item(TableName=table.table, Item=key | DATA)
    assert described_key(client, table.table, "customer") == table.key
    table.attach()
    table.attach()
    name = next(iter(CASES[case].records))
    table.queue().put(task_id=name)
    assert ids(table.queue().claim()) == [name]


@pytest.mark.usefixtures("read_once")
def test_capacity_stays(dynamodb_local: DynamoDBClient) -> None:
    """Put 2, and a life of at most 5.5 write units at claims of ten, whatever the key."""
    table = Shipments(dynamodb_local, key=pair("N", "S"))
    table.create_attached()
    names = [f"{number}/order" for number in range(50)]
    table.add(*names)
    client = client_at(dynamodb_local.meta.endpoint_url)
    queue = Queue.dynamodb(table.table, client, attach=True, key="customer", clock=table.clock)
    assert isinstance(queue, AttachedQueue)
    queue.put(task_id=names[0])
    with metered(client) as meter:
        for name in names[1:]:
            queue.put(task_id=name)
    assert meter.write_units / 49 == pytest.approx(2.0)
    with metered(client) as meter:
        while claims := queue.claim(limit=10):
            for claim in claims:
                queue.complete(claim)
        queue.close()
    assert meter.write_units / 50 + 2 <= 5.5
