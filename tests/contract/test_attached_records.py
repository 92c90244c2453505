"""The records of an attached table: written, merged, read, listed and deleted beside the queue."""

from decimal import Decimal
from typing import Any

import pytest

from freshq import AttachedQueue, LeaseLost, NotFound, TaskStatus
from freshq.errors import IllegalTransition
from freshq.queue.core import core_of
from tests.support.attached import DATA, Shipments
from tests.support.readings import ids


@pytest.fixture
def queue(shipments: Shipments) -> AttachedQueue:
    return shipments.queue()


def listed(queue: AttachedQueue, status: str, limit: int = 2) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = queue.list(status, limit=limit, cursor=cursor)
        found += [task.task_id for task in page]
        cursor = page.cursor
        if cursor is None:
            return sorted(found)


class TestPut:
    def test_a_new_record_can_be_queued(self, queue: AttachedQueue) -> None:
        record = {"id": "N", "price": 19.99, "tags": ["a"], "size": {"cm": 3}, "none": None, "ok": True}
        assert queue.records.put(record) == "N"
        assert queue.records.get("N") == record
        queue.put(task_id="N")
        (claim,) = queue.claim()
        assert claim.task.payload == record

    def test_it_replaces_the_application_s_attributes_and_keeps_the_queue_s(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        queue.put(task_id="A", priority=4)
        own = shipments.own("A")
        queue.records.put({"id": "A", "status": "fixed"})
        assert shipments.own("A") == own
        assert queue.records.get("A") == {"id": "A", "status": "fixed"}
        assert ids(queue.claim()) == ["A"]

    def test_what_is_written_back_as_it_was_read_stays_as_it_is_stored(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        record = queue.records.get("A")
        assert record is not None
        queue.records.put(record)
        queue.records.upsert(record)
        shipments.assert_untouched("A")
        queue.records.put(record | {"price": 20})
        assert shipments.record("A")["price"] == {"N": "20"}
        queue.records.put(record)
        shipments.assert_untouched("A")

    def test_upsert_leaves_the_other_attributes(self, shipments: Shipments, queue: AttachedQueue) -> None:
        assert queue.records.upsert({"id": "A", "price": 5, "new": "yes"}) == "A"
        stored = shipments.record("A")
        assert (stored["price"], stored["new"]) == ({"N": "5"}, {"S": "yes"})
        assert stored.keys() == {"id", "new", *DATA}
        queue.records.upsert({"id": "only a key"})
        assert queue.records.get("only a key") == {"id": "only a key"}

    def test_sets_bytes_and_decimals_are_stored_as_such(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        queue.records.put({"id": "N", "s": {1.5, 2}, "b": b"\0", "n": Decimal("0.12345678901234567890")})
        stored = shipments.record("N")
        assert sorted(stored["s"]["NS"]) == ["1.5", "2"]
        assert (stored["b"]["B"], stored["n"]["N"][:14]) == (b"\0", "0.123456789012")

    @pytest.mark.parametrize(
        ("record", "said"),
        [
            ({"price": 1}, r"record: must have the table's key id \(S\)"),
            ({"id": 7}, r"record: must have the table's key id \(S\)"),
            ({"id": "freshq#x"}, "reserved"),
            ({"id": "A", "freshq_taskStatus": "READY"}, "record: cannot have the attribute 'freshq_task"),
            ({"id": "A", "": 1}, "record: cannot have the attribute ''"),
            ({"id": "A", "x": float("inf")}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": 10**126}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": [set()]}, "record: 'x' has a value that DynamoDB cannot store .*set is empty"),
            ({"id": "A", "x": {1, "a"}}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": "\ud800"}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": {"\ud800": 1}}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "\ud800": 1}, "record: .* has a value that DynamoDB cannot store"),
            ({"id": "A", "x": {1: 1}}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": object()}, "record: 'x' has a value that DynamoDB cannot store"),
            ({"id": "A", "x": 10**40 + 1}, "record: 'x' has a value that DynamoDB cannot store"),
        ],
    )
    def test_what_is_no_record_is_refused_before_anything_is_written(
        self, shipments: Shipments, queue: AttachedQueue, record: dict[Any, Any], said: str
    ) -> None:
        before = shipments.record("A")
        for write in (queue.records.put, queue.records.upsert):
            with pytest.raises(ValueError, match=said):
                write(record)
        assert shipments.record("A") == before


class TestRead:
    def test_an_absent_record_is_none(self, queue: AttachedQueue) -> None:
        assert queue.records.get("Z") is None
        with pytest.raises(NotFound):
            core_of(queue).found("Z")

    def test_records_are_listed_by_their_state(self, shipments: Shipments, queue: AttachedQueue) -> None:
        shipments.add("D", "E", "F")
        queue.records.hold("A")
        queue.put(task_id="B")
        for record_id in ("C", "D"):
            queue.put(task_id=record_id)
        queue.claim()
        queue.cancel("C", dead=True)
        queue.cancel("D")
        assert listed(queue, "READY") == ["E", "F"]
        assert listed(queue, "UNDER_CONSTRUCTION") == ["A"]
        assert listed(queue, "TAKEN") == ["B"]
        assert listed(queue, "FAILURE") == ["C"]
        assert listed(queue, "CANCELLED") == ["D"]
        queue.records.ready("D")
        queue.purge(status="FAILURE", confirm=queue.name)
        assert listed(queue, "READY") == ["C", "D", "E", "F"]
        assert listed(queue, "READY", limit=100) == ["C", "D", "E", "F"]


class TestDelete:
    def test_a_record_in_no_queue_is_deleted(self, shipments: Shipments, queue: AttachedQueue) -> None:
        queue.records.delete("A")
        queue.put(task_id="B", max_age_seconds=5)
        shipments.clock.advance(6)
        queue.records.delete("B")  # it is stale
        queue.cancel(queue.put(task_id="C").task_id, dead=True)
        queue.records.delete("C")
        assert [queue.records.get(record_id) for record_id in "ABC"] == [None] * 3
        with pytest.raises(NotFound):
            queue.records.delete("A")

    def test_one_in_a_queue_is_deleted_by_force_only(self, queue: AttachedQueue) -> None:
        queue.put(task_id="A")
        queue.put(task_id="B")
        (claim,) = queue.claim()
        for record_id in "AB":
            with pytest.raises(IllegalTransition):
                queue.records.delete(record_id)
            queue.records.delete(record_id, force=True)
            assert queue.records.get(record_id) is None
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        assert queue.claim() == []
        assert queue.list(TaskStatus.TAKEN).tasks == ()


def test_enqueue_takes_a_time(shipments: Shipments, queue: AttachedQueue) -> None:
    queue.put(task_id="A", at=shipments.clock.now + 20)
    assert queue.claim() == []
    shipments.clock.advance(20)
    assert ids(queue.claim()) == ["A"]
