"""A queue of an application's own records: operations, outcomes, and unchanged data."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any, ClassVar, cast

import pytest
from benchmarks.capacity import metered
from local.faults import client_at, meanwhile, refused, replies_lost
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, LeaseLost, NotFound, PutOutcome, Queue, StoreError, TaskStatus
from freshq.errors import (
    IllegalTransition,
    LostRace,
    TableMissing,
    Throttled,
    Unreachable,
)
from freshq.policy.order import Order
from freshq.queue.core import core_of
from freshq.stores.dynamodb import line_records
from freshq.stores.dynamodb import table as table_changes
from freshq.stores.dynamodb.attached.attach import Attachment, plan_attachment
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS
from freshq.stores.dynamodb.table import TableChanges, enable_stream
from tests.contract.test_concurrency import at_once
from tests.support.attached import ID, Shipments
from tests.support.readings import counts, ids, known


@pytest.fixture
def queue(shipments: Shipments) -> AttachedQueue:
    return shipments.queue()


def in_work(queue: AttachedQueue, task_id: str = "A") -> Any:
    queue.put(task_id=task_id)
    (claim,) = queue.claim()
    return claim


def dead(queue: AttachedQueue, task_id: str = "A") -> None:
    queue.fail(in_work(queue, task_id), error="invalid data")


# How to bring record A into each state.
STATES: dict[TaskStatus, Callable[[AttachedQueue], object]] = {
    TaskStatus.READY: lambda _queue: None,
    TaskStatus.UNDER_CONSTRUCTION: lambda queue: queue.records.hold("A"),
    TaskStatus.PENDING: lambda queue: queue.put(task_id="A"),
    TaskStatus.TAKEN: in_work,
    TaskStatus.SUCCESS: lambda queue: queue.complete(in_work(queue)),
    TaskStatus.FAILURE: dead,
    TaskStatus.CANCELLED: lambda queue: (queue.put(task_id="A"), queue.cancel("A")),
}
VERBS: dict[str, Callable[[AttachedQueue], object]] = {
    "put": lambda queue: queue.put(None, task_id="A"),
    "hold": lambda queue: queue.records.hold("A"),
    "make ready": lambda queue: queue.records.ready("A"),
    "cancel": lambda queue: queue.cancel("A"),
    "redrive as new": lambda queue: queue.redrive(["A"], as_new=True),
    "reprioritize": lambda queue: queue.reprioritize("A", priority=3),
    "redrive": lambda queue: queue.redrive(["A"]),
}
OUTSIDE = {TaskStatus.READY, TaskStatus.UNDER_CONSTRUCTION, TaskStatus.SUCCESS, TaskStatus.CANCELLED}
ALLOWED = {
    "put": {TaskStatus.READY, TaskStatus.CANCELLED},
    "hold": OUTSIDE,
    "make ready": OUTSIDE,
    "cancel": {TaskStatus.PENDING},
    "redrive as new": {TaskStatus.PENDING, TaskStatus.FAILURE},
    "reprioritize": {TaskStatus.PENDING},
    "redrive": {TaskStatus.FAILURE},
}
AFTER = {
    "put": TaskStatus.PENDING,
    "hold": TaskStatus.UNDER_CONSTRUCTION,
    "make ready": TaskStatus.READY,
    "cancel": TaskStatus.CANCELLED,
    "redrive as new": TaskStatus.PENDING,
    "reprioritize": TaskStatus.PENDING,
    "redrive": TaskStatus.PENDING,
}


class TestLife:
    def test_from_construction_to_completion(self, shipments: Shipments, queue: AttachedQueue) -> None:
        queue.records.hold("A")
        with pytest.raises(IllegalTransition):
            queue.put(task_id="A")
        queue.records.ready("A")
        assert queue.put(task_id="A").outcome is PutOutcome.CREATED
        (claim,) = queue.claim()
        assert claim.task.payload == {
            "id": "A",
            "data": {"items": [{"SKU": "Item-1", "is_packed": True}]},
            "status": "an application's own status",
            "ttl": 12345678901234567890.5,
            "price": 19.99,
            "count": 3,
            "tags": ["a", "b"],
            "sizes": [1.5, 3],
            "photo": "AP8=",
            "nothing": None,
            "taskStatus": "not freshq's",
        }
        assert queue.complete(claim, result={"sent": True}).status is TaskStatus.SUCCESS
        found = known(queue, "A")
        assert (found.status, found.result, found.version) == (TaskStatus.SUCCESS, {"sent": True}, 5)
        shipments.assert_untouched("A", "B", "C")

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("status", STATES)
    def test_a_verb_applies_or_is_refused_with_the_state_named(
        self, shipments: Shipments, queue: AttachedQueue, status: TaskStatus, verb: str
    ) -> None:
        STATES[status](queue)
        before = shipments.record("A")
        if status in ALLOWED[verb]:
            VERBS[verb](queue)
            assert known(queue, "A").status is AFTER[verb]
            rises = 0 if status is AFTER[verb] and verb in ("hold", "make ready") else 1
            assert shipments.version("A") == int(before.get("freshq_version", {"N": "0"})["N"]) + rises
        else:
            with pytest.raises(IllegalTransition):
                VERBS[verb](queue)
            assert shipments.record("A") == before
        shipments.assert_untouched("A", "B", "C")
        assert "freshq_ttl" not in shipments.own("A")

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_record_that_is_not_there_is_not_found_and_not_made(
        self, shipments: Shipments, queue: AttachedQueue, verb: str
    ) -> None:
        shipments.client.delete_item(TableName=shipments.table, Key={"id": {"S": "A"}})
        with pytest.raises(NotFound):
            VERBS[verb](queue)
        assert queue.get("A") is None
        assert "A" not in [item["id"]["S"] for item in shipments.items()]

    def test_put_tells_already_queued_from_in_work(self, queue: AttachedQueue) -> None:
        queue.put(task_id="A")
        with pytest.raises(IllegalTransition) as waiting:
            queue.put(task_id="A")
        assert (waiting.value.task_id, waiting.value.status) == ("A", TaskStatus.PENDING)
        queue.claim()
        with pytest.raises(IllegalTransition):
            queue.put(task_id="A")

    def test_a_record_is_in_one_queue_at_a_time(self, shipments: Shipments, queue: AttachedQueue) -> None:
        queue.put(task_id="A")
        other = shipments.queue(name="other")
        with pytest.raises(IllegalTransition):
            other.put(task_id="A")
        with pytest.raises(NotFound):
            other.cancel("A")
        queue.cancel("A")
        other.put(task_id="A")
        assert ids(other.claim()) == ["A"]

    def test_the_version_rises_by_one_with_every_change(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        seen = [shipments.version("A")]

        def note(task: Any = None) -> None:
            seen.append(shipments.version("A"))
            if task is not None:
                assert task.version == seen[-1]

        note(queue.records.hold("A"))
        note(queue.records.ready("A"))
        queue.put(task_id="A")
        note()
        queue.redrive(["A"], as_new=True)
        note(queue.get("A"))
        note(queue.reprioritize("A", priority=5))
        (claim,) = queue.claim()
        note(claim.task)
        claim = queue.extend(claim, lease_seconds=90)
        note(claim.task)
        note(queue.release(claim))
        note(queue.retry(queue.claim()[0], delay_seconds=0))
        seen[-1] -= 1  # that was a claim and a retry
        note(queue.fail(queue.claim()[0]))
        seen[-1] -= 2
        assert seen == list(range(len(seen)))


@pytest.mark.parametrize("on_conflict", ["ignore", "update"])
def test_a_record_is_never_put_over(shipments: Shipments, queue: AttachedQueue, on_conflict: Any) -> None:
    queue.put(task_id="A")
    before = shipments.items()
    with pytest.raises(ValueError, match=r"on_conflict: "):
        queue.put(None, task_id="A", on_conflict=on_conflict)
    with pytest.raises(ValueError, match=r"on_conflict: "):
        queue.put_many([{"task_id": "B"}], on_conflict=on_conflict)
    with pytest.raises(NotImplementedError):
        core_of(queue).store.put_over(list(queue.list()), on_conflict)
    assert shipments.items() == before


def test_a_record_may_be_put_for_later(shipments: Shipments, queue: AttachedQueue) -> None:
    queue.put(None, task_id="A", at=shipments.clock.now + 20)
    queue.put_many([{"task_id": "B", "delay_seconds": 10}, {"task_id": "C"}])
    for expected in "CBA":
        assert ids(queue.claim(limit=3)) == [expected]
        shipments.clock.advance(10)
    shipments.assert_untouched("A", "B", "C")


def test_a_delayed_record_enters_the_line_when_it_is_due(shipments: Shipments, queue: AttachedQueue) -> None:
    due = shipments.clock.now + 20
    queue.put(None, task_id="A", at=due, max_age_seconds=10)
    queue.put(task_id="B", delay_seconds=15)
    shipments.clock.advance(18)
    queue.put(task_id="C")
    shipments.clock.advance(11)
    queue.admin.recover()
    claims = queue.claim(limit=3)
    assert ids(claims) == ["B", "C", "A"]
    assert (claims[2].task.first_due, claims[2].task.created, claims[2].task.deadline) == (due, due, due + 10)
    queue.complete(claims[2])
    assert known(queue, "A").first_due == due
    queue.records.ready("A")
    queue.put(task_id="A")
    assert (known(queue, "A").first_due, known(queue, "A").created) == (None, known(queue, "A").put_at)
    queue.cancel("A")
    queue.records.ready("A")
    assert known(queue, "A").put_at is None
    shipments.assert_untouched("A", "B", "C")


class TestOrder:
    def test_first_in_first_out_within_a_priority(self, queue: AttachedQueue) -> None:
        queue.put(task_id="A")
        queue.put(task_id="B")
        queue.put(task_id="C", priority=5)
        assert ids(queue.claim(limit=3)) == ["C", "A", "B"]

    def test_a_look_shows_the_records_in_the_order_of_claims(self, queue: AttachedQueue) -> None:
        for task_id, priority in (("A", 0), ("B", 0), ("C", 5)):
            queue.put(task_id=task_id, priority=priority)
        shown = [each.task for each in queue.peek()]
        assert shown[0].payload["price"] == pytest.approx(19.99)
        assert ids(queue.claim(limit=3)) == [task.task_id for task in shown]
        assert shown[0].task_id == "C"

    def test_touch_sends_to_the_back_and_reprioritize_moves(self, queue: AttachedQueue) -> None:
        for task_id in "ABC":
            queue.put(task_id=task_id)
        queue.redrive(["A"], as_new=True)
        assert ids(queue.claim(limit=1)) == ["B"]
        queue.reprioritize("A", priority=9)
        assert ids(queue.claim(limit=2)) == ["A", "C"]

    def test_the_order_it_was_attached_with_unless_the_queue_has_its_own(
        self, client: DynamoDBClient
    ) -> None:
        shipments = Shipments(client)
        shipments.create()
        shipments.attach(order=Order.LIFO, shards=2)
        shipments.add("A", "B", "C")
        queue = shipments.queue()
        for task_id in "ABC":
            queue.put(task_id=task_id)
        assert ids(queue.claim()) == ["C"]
        assert ids(shipments.queue(order="fifo", shards=2).claim()) == ["A"]
        with pytest.raises(ValueError, match=r"shards: "):
            shipments.queue(shards=3)

    def test_no_record_is_stale_by_age_unless_it_was_asked_for(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        queue.put(task_id="A")
        queue.put(task_id="B", max_age_seconds=60)
        shipments.clock.advance(10 * 365 * 86_400)
        assert ids(queue.claim(limit=5)) == ["A"]
        assert known(queue, "B").status is TaskStatus.SHED
        queue.put(task_id="B")  # a shed record may be put again
        assert ids(queue.claim()) == ["B"]


class TestLeases:
    def test_a_crashed_consumer_s_record_comes_back_until_it_is_a_dead_letter(
        self, shipments: Shipments
    ) -> None:
        shipments.queue().put(task_id="A")
        for attempt in (1, 2, 3):
            (claim,) = shipments.queue(max_attempts=3, override=True).claim(lease_seconds=30)
            assert claim.task.attempts == attempt
            shipments.clock.advance(30)
        queue = shipments.queue(max_attempts=3, override=True)
        assert queue.claim() == []
        assert [task.task_id for task in queue.list("FAILURE")] == ["A"]
        assert "lease expired in attempt 3 of 3" in (known(queue, "A").error or "")

    def test_a_consumer_with_an_expired_lease_changes_nothing(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        stale = in_work(queue)
        shipments.clock.advance(60)
        (fresh,) = shipments.queue().claim()
        before = shipments.record("A")
        for verb in (queue.complete, queue.fail, queue.retry, queue.release):
            with pytest.raises(LeaseLost):
                verb(stale)
        assert shipments.record("A") == before
        queue.complete(fresh)

    def test_a_lease_of_its_own_length_can_be_renewed(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        queue.put(task_id="A")
        (claim,) = queue.claim(lease_seconds=10)
        claim = queue.extend(claim, lease_seconds=100)
        shipments.clock.advance(99)
        assert shipments.queue().claim() == []
        queue.complete(claim)

    def test_claims_of_one_that_share_a_lease_record_all_come_back(self, shipments: Shipments) -> None:
        names = [f"R{number:02}" for number in range(9)]
        shipments.add(*names)
        consumer = shipments.queue()
        for name in names:
            consumer.put(task_id=name)
        for _ in names:
            assert len(consumer.claim(lease_seconds=60)) == 1
            shipments.clock.advance(5)
        shipments.clock.advance(60)
        other = shipments.queue()
        assert other.admin.recover() == 9
        assert counts(other.stats()) == {"pending": 9}
        shipments.clock.advance(LATE_CLAIM_SECONDS + 120)
        other.admin.recover()
        shipments.clock.advance(LATE_CLAIM_SECONDS + 120)
        other.admin.recover()
        own = [item["id"]["S"] for item in shipments.items() if item["id"]["S"].startswith("freshq#lease")]
        assert own == []


class TestDeadLetters:
    def test_inspect_redrive_and_purge(self, shipments: Shipments, queue: AttachedQueue) -> None:
        for task_id in "ABC":
            dead(queue, task_id)
            shipments.clock.advance(1)
        first = queue.list("FAILURE", limit=2)
        assert [task.task_id for task in first] == ["C", "B"]
        assert [task.task_id for task in queue.list("FAILURE", cursor=first.cursor)] == ["A"]
        assert first[0].error == "invalid data"
        assert queue.redrive(limit=1) == 1
        assert ids(queue.claim()) == ["C"]
        assert queue.purge(status="FAILURE", task_ids=["B"], confirm=queue.name) == 1
        assert queue.purge(status="FAILURE", confirm=queue.name) == 1
        assert [known(queue, task_id).status for task_id in "AB"] == [TaskStatus.READY] * 2
        assert queue.list("FAILURE").tasks == ()
        shipments.assert_untouched("A", "B", "C")

    def test_consume(self, shipments: Shipments, queue: AttachedQueue) -> None:
        for task_id in "ABC":
            dead(queue, task_id)
        first, second = queue.records.claim_dead(limit=2)
        assert len(queue.records.claim_dead(limit=5)) == 1
        queue.complete(first)
        queue.release(second)
        assert ids(queue.claim()) == [second.task.task_id]
        shipments.clock.advance(60)
        other = shipments.queue(max_attempts=1, override=True)
        other.admin.recover()
        assert len(other.list("FAILURE")) == 2  # nobody settled them
        shipments.assert_untouched("A", "B", "C")

    def test_to_look_for_dead_letters_reads_no_other_record(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        shipments.add(*(f"R{number}" for number in range(40)))
        dead(queue)
        with metered(shipments.client) as meter:
            assert len(queue.list("FAILURE")) == 1
        assert set(meter.calls) == {"Query", "BatchGetItem"}


class TestApplicationData:
    def test_leaving_the_queue_leaves_the_record(self, shipments: Shipments, queue: AttachedQueue) -> None:
        for task_id in "ABC":
            queue.put(task_id=task_id)
        queue.complete(queue.claim()[0])
        queue.claim()
        assert queue.purge(confirm="default") == 3
        for task_id in "ABC":
            assert set(shipments.own(task_id)) == {"freshq_version", "freshq_requestToken"}
            assert known(queue, task_id).status is TaskStatus.READY
        assert queue.claim() == []
        shipments.assert_untouched("A", "B", "C")

    def test_what_the_application_changes_meanwhile_stays(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        claim = in_work(queue)
        shipments.client.update_item(
            TableName=shipments.table,
            Key={"id": {"S": "A"}},
            UpdateExpression="SET price = :price",
            ExpressionAttributeValues={":price": {"N": "25"}},
        )
        queue.retry(claim, delay_seconds=0)
        assert queue.claim()[0].task.payload["price"] == 25

    def test_a_record_that_lost_freshq_s_attributes_is_in_nobody_s_way(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        """The application deletes a waiting record, and overwrites a held one."""
        claim = in_work(queue)
        queue.put(task_id="B")
        queue.put(task_id="C")
        shipments.add("A")
        shipments.client.delete_item(TableName=shipments.table, Key={"id": {"S": "B"}})
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        assert ids(queue.claim(limit=5)) == ["C"]
        shipments.clock.advance(60)
        assert queue.admin.recover() == 1
        shipments.assert_untouched("A", "C")

    def test_the_payload_and_the_id_are_the_record_s(self, queue: AttachedQueue) -> None:
        with pytest.raises(ValueError, match=r"payload: "):
            queue.put({"other": "data"}, task_id="A")
        with pytest.raises(ValueError, match=r"task_id: "):
            queue.put(None)
        with pytest.raises(ValueError, match="reserved"):
            queue.put(task_id="freshq#attach")
        assert queue.get("freshq#attach") is None

    def test_an_id_is_taken_as_it_is(self, queue: AttachedQueue) -> None:
        with pytest.raises(NotFound):
            queue.put(task_id=" A ")


class TestFaults:
    def test_a_put_whose_reply_is_lost_says_created(self, shipments: Shipments, queue: AttachedQueue) -> None:
        with replies_lost(shipments.client, "UpdateItem"):
            assert queue.put(task_id="A").outcome is PutOutcome.CREATED
        assert shipments.version("A") == 1

    def test_a_write_that_meets_a_transaction_of_the_application_is_sent_again(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        code = "TransactionConflictException"
        with refused(shipments.client, "UpdateItem", code=code, times=3):
            queue.put(task_id="A")
        with refused(shipments.client, "UpdateItem", code=code, times=2):
            (claim,) = queue.claim()
        with refused(shipments.client, "UpdateItem", code=code, times=1):
            queue.complete(claim)
        with (
            refused(shipments.client, "UpdateItem", code=code, times=99),
            pytest.raises(Throttled, match="TransactionConflictException"),
        ):
            queue.put(task_id="B")

    def test_a_claim_whose_reply_is_lost_holds_what_it_took(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        queue.put(task_id="A")
        with replies_lost(shipments.client, "UpdateItem"):
            (claim,) = queue.claim()
        queue.complete(claim)
        assert shipments.version("A") == 3

    def test_empty_throttled_and_unreachable_are_distinct(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        assert queue.claim() == []
        with refused(shipments.client, "Query", code="ThrottlingException"), pytest.raises(Throttled):
            queue.claim()
        with refused(shipments.client, "UpdateItem", code="ServiceUnavailable"), pytest.raises(Unreachable):
            queue.put(task_id="A")

    def test_a_change_that_is_always_too_late_says_so(
        self, shipments: Shipments, queue: AttachedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.put(task_id="A")
        other = shipments.queue()
        read = core_of(queue).store.get

        def changed_after_the_read(task_id: str) -> Any:
            task = read(task_id)
            other.redrive([task_id], as_new=True)
            return task

        monkeypatch.setattr(core_of(queue).store, "get", changed_after_the_read)
        with pytest.raises(LostRace):
            queue.reprioritize("A", priority=3)

    def test_of_two_changes_of_what_was_read_one_wins(
        self, shipments: Shipments, queue: AttachedQueue
    ) -> None:
        with (
            meanwhile(shipments.client, "UpdateItem", lambda: rival(shipments).put(task_id="A")),
            pytest.raises(IllegalTransition),
        ):
            queue.records.hold("A")
        assert known(queue, "A").status is TaskStatus.PENDING


def rival(shipments: Shipments) -> AttachedQueue:
    """Return a queue of another process, whose calls no fault hits."""
    return shipments.queue()


class TestCost:
    @pytest.fixture
    def shipments(self, dynamodb_local: DynamoDBClient) -> Shipments:
        table = Shipments(dynamodb_local)
        table.create_attached()
        table.add(*(f"R{number:03}" for number in range(100)))
        return table

    def test_a_whole_life_at_claims_of_one(
        self, shipments: Shipments, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(line_records, "MAX_STALENESS_SECONDS", 3600.0)  # so that it is read once
        with metered(shipments.client) as meter:
            consumer = shipments.queue()
            for number in range(100):
                consumer.put(task_id=f"R{number:03}")
            while claims := consumer.claim():
                shipments.clock.advance(0.1)
                consumer.complete(claims[0])
            consumer.close()
            shipments.clock.advance(60)
            shipments.queue().admin.recover()
        assert counts(shipments.queue().stats()) == {"success": 100}
        assert meter.write_units / 100 == pytest.approx(5.3, abs=0.1)
        assert meter.calls.total() / 100 == pytest.approx(4.4, abs=0.15)
        assert meter.write_units <= 600
        assert meter.calls.total() <= 500

    def test_a_claim_reads_one_page_and_no_record(self, shipments: Shipments) -> None:
        consumer = shipments.queue()
        for number in range(50):
            consumer.put(task_id=f"R{number:03}")
        consumer.claim()
        with metered(shipments.client) as meter:
            assert len(consumer.claim()) == 1
        assert meter.calls == {"Query": 1, "UpdateItem": 1}  # named ahead by the claim before
        assert meter.read_units == 0.5

    def test_eight_consumers_make_progress_together(self, shipments: Shipments) -> None:
        for number in range(60):
            shipments.queue().put(task_id=f"R{number:03}")

        def consume() -> list[str]:
            client = client_at(shipments.client.meta.endpoint_url)
            own = Queue.dynamodb(shipments.table, client, attach=True, key="id", clock=shipments.clock)
            done: list[str] = []
            while claims := own.claim():
                done.append(own.complete(claims[0]).task_id)
            return done

        done = at_once(*[consume] * 8)
        assert Counter(chain(*done)) == {f"R{number:03}": 1 for number in range(60)}
        assert sum(map(bool, done)) > 4


class TestAttaching:
    def test_it_may_be_repeated_and_keeps_the_records(self, shipments: Shipments) -> None:
        shipments.queue().put(task_id="A")
        shipments.attach()
        shipments.queue().create_table()
        assert ids(shipments.queue().claim()) == ["A"]
        assert plan_attachment(shipments.client, Attachment(shipments.table, ID)).missing == ()

    def test_it_may_run_twice_at_once(self, dynamodb_local: DynamoDBClient) -> None:
        table = Shipments(dynamodb_local)
        table.create()
        at_once(*[table.attach] * 2)
        assert plan_attachment(dynamodb_local, Attachment(table.table, ID)).missing == ()
        table.add("A")
        table.queue().put(task_id="A")
        assert ids(table.queue().claim()) == ["A"]

    @pytest.mark.parametrize("code", ["InternalFailure", "ServiceUnavailable", "ThrottlingException"])
    def test_to_wait_bears_descriptions_that_fail(self, shipments: Shipments, code: str) -> None:
        seen: list[tuple[str, str]] = []
        changes = TableChanges(
            shipments.client, shipments.table, poll_seconds=0, on_status=lambda *status: seen.append(status)
        )
        with refused(shipments.client, "DescribeTable", code=code, times=2):
            assert changes.wait()["TableStatus"] == "ACTIVE"
        assert seen[:3] == [(shipments.table, "UNKNOWN")] * 2 + [(shipments.table, "ACTIVE")]

    def test_to_wait_for_descriptions_ends(
        self, shipments: Shipments, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At the deadline if nobody answers, at once if the caller is refused or the table is gone."""
        monkeypatch.setattr(table_changes, "WAIT_SECONDS", -1.0)
        changes = TableChanges(shipments.client, shipments.table, poll_seconds=0)
        with (
            refused(shipments.client, "DescribeTable", code="InternalFailure"),
            pytest.raises(StoreError, match=r"not ready .*UNKNOWN"),
        ):
            changes.wait()
        with refused(shipments.client, code="AccessDeniedException"), pytest.raises(Unreachable):
            changes.wait()
        with pytest.raises(TableMissing):
            TableChanges(shipments.client, f"no-{shipments.table}").wait()

    def test_the_stream_is_enabled_once(self, dynamodb_local: DynamoDBClient) -> None:
        table = Shipments(dynamodb_local)
        table.create_attached()
        arn = enable_stream(dynamodb_local, table.table, poll_seconds=0.01)
        described = dynamodb_local.describe_table(TableName=table.table)["Table"]
        assert described["LatestStreamArn"] == arn
        assert described["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
        assert enable_stream(dynamodb_local, table.table) == arn

    def test_an_index_without_the_deadlines_is_not_freshqs(self, client: DynamoDBClient) -> None:
        shipments = Shipments(client)
        with pytest.raises(ValueError, match="freshq-status-created-index' that is not freshq's"):
            shipments.create_attached({"Projection": {"ProjectionType": "KEYS_ONLY"}})
        with pytest.raises(TableMissing):  # it was not attached
            shipments.queue()

    def test_a_table_that_is_not_attached(self, client: DynamoDBClient) -> None:
        table = Shipments(client)
        with pytest.raises(TableMissing):
            table.queue()
        table.create()
        with pytest.raises(TableMissing, match="attach"):
            table.queue()
        with pytest.raises(ValueError, match="key"):
            Queue.dynamodb(table.table, client, attach=True, key="other")
        with pytest.raises(ValueError, match=r"key: "):
            Queue.dynamodb(table.table, client, key="id")  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        ("keys", "problem"),
        [
            ([("id", "S", "HASH"), ("at", "N", "RANGE")], r"id \(S\), at \(N\), got id"),
            ([("id", "N", "HASH")], r"the key id \(N\), got id \(S\)"),
            ([("number", "S", "HASH")], r"the key number \(S\), got id"),
        ],
    )
    def test_a_table_that_cannot_be_attached_is_refused(
        self, client: DynamoDBClient, keys: list[tuple[str, str, str]], problem: str
    ) -> None:
        table = Shipments(client)
        table.create(*keys)
        with pytest.raises(ValueError, match=problem):
            table.attach()
        description = client.describe_table(TableName=table.table)["Table"]
        assert not description.get("GlobalSecondaryIndexes")

    def test_other_shards_are_refused(self, shipments: Shipments) -> None:
        with pytest.raises(ValueError, match="shards"):
            shipments.attach(shards=4)

    def test_the_plan_of_a_provisioned_table(self, client: DynamoDBClient) -> None:
        table = Shipments(client)
        throughput = {"ReadCapacityUnits": 7, "WriteCapacityUnits": 9}
        table.create(BillingMode="PROVISIONED", ProvisionedThroughput=throughput)
        proposed = plan_attachment(client, Attachment(table.table, ID))
        assert proposed.provisioned_units == (7, 9)
        assert len(proposed.missing) == 2
        assert proposed.life_write_units == 5.25
        table.attach()
        indexes = client.describe_table(TableName=table.table)["Table"]["GlobalSecondaryIndexes"]
        assert [index["ProvisionedThroughput"]["WriteCapacityUnits"] for index in indexes] == [9, 9]


class TestAnotherQueue:
    """A table whose records are in another queue, as the priority queue on DynamoDB has them."""

    INDEXES: ClassVar[list[dict[str, Any]]] = [
        {
            "IndexName": f"{name}-last_updated_timestamp-index",
            "KeySchema": [
                {"AttributeName": name, "KeyType": "HASH"},
                {"AttributeName": "last_updated_timestamp", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        for name in ("queued", "DLQ")
    ]

    def table(self, client: DynamoDBClient, *, indexed: bool = True) -> Shipments:
        shipments = Shipments(client)
        if not indexed:
            shipments.create()
            return shipments
        attributes = {"id": "S", "queued": "N", "DLQ": "N", "last_updated_timestamp": "S"}
        client.create_table(
            TableName=shipments.table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": cast("Any", kind)}
                for name, kind in attributes.items()
            ],
            GlobalSecondaryIndexes=cast("Any", self.INDEXES),
        )
        return shipments

    @pytest.mark.parametrize("name", ["queued", "DLQ"])
    def test_it_is_not_attached_while_a_record_is_in_it(self, client: DynamoDBClient, name: str) -> None:
        shipments = self.table(client)
        shipments.add("A", "B")
        shipments.change("B", **{name: {"N": "1"}, "last_updated_timestamp": {"S": "2026"}})
        before = client.describe_table(TableName=shipments.table)["Table"]["GlobalSecondaryIndexes"]
        for act in (shipments.attach, lambda: plan_attachment(client, Attachment(shipments.table, ID))):
            with pytest.raises(ValueError, match=f"old_queue: record 'B' .* has {name} = 1.*nothing was"):
                act()
        after = client.describe_table(TableName=shipments.table)["Table"]["GlobalSecondaryIndexes"]
        assert {index["IndexName"] for index in after} == {index["IndexName"] for index in before}
        shipments.change("B", **{name: None})
        shipments.attach()
        shipments.change("B", **{name: {"N": "1"}})
        shipments.attach()  # it is attached

    @pytest.mark.parametrize("value", [{"N": "1"}, {"S": "1"}, {"BOOL": True}])
    def test_other_attributes_are_named(self, client: DynamoDBClient, value: dict[str, Any]) -> None:
        shipments = self.table(client, indexed=False)
        shipments.add("A", "B")
        shipments.change("B", waits=value, queued={"N": "1"})
        wanted = Attachment(shipments.table, ID)
        assert plan_attachment(client, wanted).missing  # no index has the attribute, and no option named it
        for named in (["waits"], ["nothing", "waits"]):
            with pytest.raises(ValueError, match=r"old_queue: record 'B' .* has waits = 1"):
                plan_attachment(client, wanted, named)
        shipments.change("B", waits={"N": "0"})
        assert plan_attachment(client, wanted, ["waits"]).missing
        with pytest.raises(ValueError, match="old_queue: must be the name of an attribute"):
            plan_attachment(client, wanted, [""])

    def test_nothing_is_checked_on_request(self, client: DynamoDBClient) -> None:
        shipments = self.table(client)
        shipments.add("A")
        shipments.change("A", queued={"N": "1"}, last_updated_timestamp={"S": "2026"})
        assert plan_attachment(client, Attachment(shipments.table, ID), []).missing
