"""An id is unique within its queue: queues of one table do not see each other's tasks."""

import random
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from benchmarks.capacity import metered
from local.servers import create_without_stream
from types_boto3_dynamodb import DynamoDBClient

from freshq import PutOutcome, Queue, Settlement, TaskStatus
from freshq.errors import IllegalTransition, NotFound
from freshq.feeds import Relay
from freshq.feeds.relay import TaskCopy
from freshq.model.checks import checked_id, queue_name
from freshq.queue.core import core_of
from freshq.queue.queue import sibling
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import counts, ids, known

NAMES = ("default", "mail", "mail.v2", "Mail-2")
ODD_IDS = ("a", "mail", "a#b", "#", "mail#a", "ä ☃", "/x", "x" * 900)
Open = Callable[..., Queue]


@pytest.fixture
def queue_named(store: StoreUnderTest) -> Open:
    """Return a function that opens a queue of one table by its name, as its constructor does."""
    if store.kind == "memory":
        pytest.skip("each queue in memory has a store of its own")

    def opened(name: str, **options: Any) -> Queue:
        own = store.make_store(None).of_queue(name)
        return Queue(own, name=name, clock=store.clock, rng=random.Random(7), **options)

    return opened


def test_the_same_ids_are_other_tasks_in_another_queue(queue_named: Open) -> None:
    for name in NAMES:
        queue = queue_named(name)
        for task_id in ODD_IDS:
            assert queue.put(f"{name} {task_id}", task_id=task_id).outcome is PutOutcome.CREATED
            assert queue.put("again", task_id=task_id).outcome is PutOutcome.DUPLICATE
    for name in NAMES:
        queue = queue_named(name)
        for task_id in ODD_IDS:
            assert known(queue, task_id).payload == f"{name} {task_id}"
            assert known(queue, task_id).task_id == task_id
        assert counts(queue.stats()) == {"pending": len(ODD_IDS)}
        assert sorted(task.task_id for task in queue.list(limit=100)) == sorted(ODD_IDS)


class Named(str, Enum):  # noqa: UP042 - the text of a StrEnum is its value
    MAIL = "mail"


@pytest.mark.usefixtures("account_client")
def test_queues_and_ids_may_be_members_of_an_enum() -> None:
    """In an f-string, a member becomes its own name."""
    ours = Queue.dynamodb("Tasks", name=Named.MAIL)
    ours.create_table()
    for queue in (ours, sibling(ours, name=Named.MAIL)):
        queue.put("work", task_id=Named.MAIL)
    (claim,) = Queue.dynamodb("Tasks", name="mail").claim(2)
    assert (claim.task.queue, claim.task.task_id) == ("mail", "mail")
    assert known(ours, Named.MAIL).status is TaskStatus.TAKEN
    assert {type(checked_id(Named.MAIL)), type(queue_name({"name": Named.MAIL}))} == {str}


def test_every_verb_changes_the_task_of_its_own_queue(store: StoreUnderTest, queue_named: Open) -> None:
    ours, theirs = queue_named("mail", max_attempts=9), queue_named("default", max_attempts=9)
    names = [f"t{number}" for number in range(6)]
    for queue in (ours, theirs):
        put = queue.put_many([{"payload": queue.name, "task_id": name} for name in names])
        assert {receipt.outcome for receipt in put} == {PutOutcome.CREATED}
    claims = {claim.task.task_id: claim for claim in ours.claim(6)}
    assert sorted(claims) == names
    assert {claim.task.payload for claim in claims.values()} == {"mail"}
    ours.settle_many([Settlement.complete(claims["t0"], result=1), Settlement.fail(claims["t1"], error="no")])
    assert ours.retry(claims["t2"], delay_seconds=5).status is TaskStatus.PENDING
    assert ours.release(claims["t3"]).status is TaskStatus.PENDING
    assert ours.extend(claims["t4"], lease_seconds=600)
    assert [task.task_id for task in ours.list("FAILURE")] == ["t1"]
    assert {task.task_id for task in ours.list("TAKEN")} == {"t4", "t5"}
    assert ours.put("new", task_id="t0", on_conflict="update").outcome is PutOutcome.CREATED
    assert ours.put("other", task_id="t3", on_conflict="update").outcome is PutOutcome.UPDATED
    store.clock.advance(61)
    assert ours.admin.recover() >= 2  # the delayed task and the expired lease
    assert ours.redrive(["t1"]) == 1
    assert ours.cancel("t2").status is TaskStatus.CANCELLED
    assert ours.reprioritize("t1", priority=3).priority == 3
    assert counts(ours.stats()) == {"pending": 4, "taken": 1, "cancelled": 1}
    assert counts(theirs.stats()) == {"pending": 6}
    assert {known(theirs, name).payload for name in names} == {"default"}
    first = ours.list(limit=2)
    rest = ours.list(limit=9, cursor=first.cursor)
    assert sorted(task.task_id for task in [*first, *rest]) == names
    assert ours.purge(confirm="mail") == 6
    assert counts(theirs.stats()) == {"pending": 6}
    assert ours.get("t0") is None
    with pytest.raises(NotFound):
        ours.cancel("t0")
    assert sorted(ids(theirs.claim(9))) == names


def test_tasks_are_relayed_and_copied_between_queues_of_a_table(queue_named: Open) -> None:
    mail, archive = queue_named("mail"), queue_named("archive")
    mail.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(3)])
    assert sum(TaskCopy(mail, archive).run().copied.values()) == 3
    assert Relay(mail, queue_named("default")).move() == 3
    assert counts(mail.stats()) == {"success": 3}
    assert counts(archive.stats()) == {"pending": 3}


@pytest.mark.parametrize("task_id", ["freshq#a", "freshq:mail#a", "freshq:"])
def test_no_id_looks_like_the_key_of_another_queues_task(queue_named: Open, task_id: str) -> None:
    queue_named("mail").put("work", task_id="a")
    with pytest.raises(ValueError, match=r"^task_id: .*reserved"):
        queue_named("default").put("other", task_id=task_id)
    assert queue_named("default").get(task_id) is None


def test_the_constructor_of_a_queue_names_it_to_the_store(dynamodb_local: DynamoDBClient) -> None:
    table = "ids-by-queue"
    create_without_stream(dynamodb_local, table)
    for name in ("one", "two"):
        with Queue.dynamodb(table, dynamodb_local, name=name) as queue:
            assert queue.put(name, task_id="a").outcome is PutOutcome.CREATED
    with Queue.dynamodb(table, dynamodb_local, name="two") as queue:
        assert known(queue, "a").payload == "two"
    keys = {item["taskId"]["S"] for item in dynamodb_local.scan(TableName=table)["Items"]}
    assert {"freshq:one#a", "freshq:two#a"} <= keys


def test_a_task_costs_the_same_in_each_queue(table_store: StoreUnderTest) -> None:
    assert table_store.client is not None
    found = []
    for name in ("default", "mail"):
        own = table_store.make_store(None).of_queue(name)
        queue = Queue(own, name=name, clock=table_store.clock)
        queue.configure()
        with metered(table_store.client) as meter:
            queue.put_many([{"payload": {"n": number}, "task_id": f"t{number}"} for number in range(10)])
            queue.settle_many([Settlement.complete(claim) for claim in queue.claim(10)])
        found.append((meter.write_units, meter.read_units, meter.calls))
        core_of(queue).release()
    assert found[0] == found[1]


def test_a_record_of_an_application_is_in_one_queue_at_a_time(shipments: Shipments) -> None:
    """Its key is the application's, so the put of a second queue is refused by name."""
    shipments.queue().put(task_id="A")
    with pytest.raises(IllegalTransition, match="'default'"):
        shipments.queue(name="other").put(task_id="A")
