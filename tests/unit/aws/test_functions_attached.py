"""The handlers on an application's table: the same functions, with AttachTable and AttachKey."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, TaskStatus
from freshq.aws.landing import landed_event
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.passes import WorkerPasses
from tests.support.attached import Shipments
from tests.support.functions import Context
from tests.support.readings import counts
from tests.support.refusals import refused
from tests.unit.aws.test_landing import change_of
from tests.unit.conftest import Application

KEY = TableKey(KeyPart("customer"), KeyPart("number", "N"))
NAMES = ("c1/1", "c1/2", "c2/1")

nothing_to_measure = pytest.mark.filterwarnings("ignore:No application metrics to publish")


@pytest.fixture
def orders(account_client: DynamoDBClient) -> Shipments:
    """Return an attached table with a range key and three records; the functions do not use it yet."""
    table = Shipments(account_client, key=KEY)
    table.create_attached()
    table.add(*NAMES)
    return table


@pytest.fixture
def attached(application: Application, orders: Shipments) -> Iterator[Any]:
    """Return an application whose functions work on the attached table."""
    application.set("FRESHQ_TABLE", orders.table)
    application.set("FRESHQ_ATTACH_KEY", "customer")
    queue = orders.queue(clock=application.queue.admin.now)
    configured = replace(application, queue=queue)
    configured.configure(idle_exit_seconds=0.1, log_sample_ratio=1)
    yield configured
    queue.close()


def change(orders: Shipments, name: str, before: dict[str, Any], event: str = "MODIFY") -> dict[str, Any]:
    """Return a stream event with the change of a record from its old version."""
    record = change_of(KEY.attributes(name), before, orders.record(name))
    return {"Records": [record | {"eventName": event, "eventSource": "aws:dynamodb"}]}


def test_from_a_put_to_the_end(attached: Any, orders: Shipments) -> None:
    before = orders.record("c1/1")
    put = attached.invoke("create_tasks", {"tasks": [{"task_id": name} for name in NAMES]})
    assert (put["created"], put["task_ids"]) == (3, list(NAMES))
    assert attached.invoke("trigger", change(orders, "c1/1", before))["rang"]
    assert len(attached.rings(attached.process_tasks_topic_arn)) == 1
    done = attached.invoke("process_tasks", {"Records": []})
    assert done["claimed"] - done["given_back"] == 3
    assert counts(attached.queue.stats()) == {"success": 3}
    swept = attached.invoke("sweep", {})
    assert (swept["rang"], swept["recovered"]) == (False, 0)
    orders.assert_untouched(*NAMES)


class TestCreateTasks:
    def test_a_repeated_invocation_counts_what_it_put_before(self, attached: Any) -> None:
        attached.queue.put(task_id="c1/1")
        put = attached.invoke("create_tasks", {"tasks": [{"task_id": "c1/1"}, {"task_id": "c1/2"}]})
        assert (put["created"], put["duplicates"], put["refused"]) == (1, 1, 0)

    def test_what_is_no_record_is_refused_and_named(self, attached: Any) -> None:
        tasks = [{"task_id": "c9/9"}, {"task_id": "c1"}, {"payload": 1}, {"task_id": "c1/1"}]
        put = attached.invoke("create_tasks", {"tasks": tasks})
        assert (put["created"], put["refused"]) == (1, 3)
        errors = {error["index"]: error["error"] for error in put["errors"]}
        assert "record 'c9/9': the attached table has none" in errors[0]
        assert "CUSTOMER/NUMBER" in errors[1]
        assert "payload: must be None" in errors[2]
        alone = attached.invoke("create_tasks", {"tasks": [{"task_id": "c9/9"}]})
        assert (alone["created"], alone["refused"]) == (0, 1)

    @nothing_to_measure
    def test_a_load_of_invented_tasks_is_refused(self, attached: Any) -> None:
        with refused("payload"):
            attached.invoke("create_tasks", {"count": 3})


class TestTrigger:
    def test_it_rings_for_a_put_and_for_nothing_else(self, attached: Any, orders: Shipments) -> None:
        queue: AttachedQueue = attached.queue
        before = orders.record("c1/1")
        orders.change("c1/1", price={"N": "1"})
        assert not attached.invoke("trigger", change(orders, "c1/1", before))["rang"]
        # Of the application's own.
        orders.change("c1/1", taskStatus={"S": "PENDING"}, pendingShard={"S": "x"})
        assert not attached.invoke("trigger", change(orders, "c1/1", {}, "INSERT"))["rang"]
        queue.put(task_id="c1/1")
        queued = orders.record("c1/1")
        assert attached.invoke("trigger", change(orders, "c1/1", before))["rang"]
        queue.redrive(["c1/1"], as_new=True)
        assert not attached.invoke("trigger", change(orders, "c1/1", queued))["rang"]
        queue.cancel("c1/1")
        cancelled = orders.record("c1/1")
        queue.put(task_id="c1/1", delay_seconds=60)
        assert not attached.invoke("trigger", change(orders, "c1/1", cancelled))["rang"]
        queue.cancel("c1/1")
        queue.put(task_id="c1/1")
        assert attached.invoke("trigger", change(orders, "c1/1", cancelled))["rang"]

    def test_not_while_a_pass_has_the_slot_in_the_same_table(self, attached: Any, orders: Shipments) -> None:
        before = orders.record("c1/1")
        attached.queue.put(task_id="c1/1")
        names = orders.names
        passes = WorkerPasses(orders.table, "default", orders.client, names=names)
        with passes.slot("somebody") as entered:
            assert entered
            assert not attached.invoke("trigger", change(orders, "c1/1", before))["rang"]
            assert attached.invoke("process_tasks", {"Records": []})["skipped"]
        assert attached.invoke("process_tasks", {"Records": []})["claimed"] == 1


def test_the_sweep_brings_back_what_a_dead_worker_held(attached: Any, orders: Shipments) -> None:
    attached.queue.put(task_id="c1/2")
    attached.queue.claim()
    # An hour passes.
    earlier = {"N": str(round((attached.queue.admin.now() - 3600) * 1000))}
    orders.change("c1/2", freshq_leaseUntil=earlier)
    items = orders.client.scan(TableName=orders.table)["Items"]
    (record,) = [item for item in items if "freshq_taskIds" in item]
    late = record | {"freshq_dueAt": earlier, "freshq_heldUntil": earlier}
    orders.client.put_item(TableName=orders.table, Item=late)
    swept = attached.invoke("sweep", {})
    assert (swept["recovered"], swept["rang"]) == (1, True)
    assert attached.queue.get("c1/2").status is TaskStatus.PENDING


@pytest.mark.usefixtures("delivery_stream")
def test_the_archive_has_the_changes_of_records(attached: Any, orders: Shipments) -> None:
    images = [orders.record("c1/1")]
    attached.queue.put(task_id="c1/1")
    images.append(orders.record("c1/1"))
    orders.change("c2/1", price={"N": "1"})
    record = change_of(KEY.attributes("c1/1"), *images)
    other = change_of(KEY.attributes("c2/1"), orders.record("c2/1"), orders.record("c2/1"))
    for number, each in enumerate((record, other)):
        each["dynamodb"]["SequenceNumber"] = str(number)
    answer = attached.invoke("archive", {"Records": [record, other]}, Context())
    assert answer == {"batchItemFailures": []}
    (key,) = [entry["Key"] for entry in boto3.client("s3").list_objects_v2(Bucket="archive")["Contents"]]
    body = boto3.client("s3").get_object(Bucket="archive", Key=key)["Body"].read()
    text = (gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body).decode()
    assert [json.loads(line) for line in text.splitlines()] == [landed_event(record, "customer")]
    assert json.loads(text.splitlines()[0])["task_id"] == "c1/1"


@nothing_to_measure
@pytest.mark.parametrize(
    ("key", "name", "problem"),
    [
        (TableKey(KeyPart("id", "N")), "id", "FRESHQ_ATTACH_KEY: 'id' is of type N"),
        (TableKey(KeyPart("id")), "other", "key: the hash key of table .* is 'id', got 'other'"),
    ],
)
def test_a_key_that_the_functions_cannot_use_is_named(
    attached: Any, monkeypatch: pytest.MonkeyPatch, orders: Shipments, key: TableKey, name: str, problem: str
) -> None:
    table = Shipments(orders.client, key=key)
    table.create_attached()
    monkeypatch.setenv("FRESHQ_TABLE", table.table)
    monkeypatch.setenv("FRESHQ_ATTACH_KEY", name)
    for function in ("sweep", "process_tasks", "create_tasks"):
        with pytest.raises(ValueError, match=problem):
            attached.invoke(function, {"Records": []} if function != "create_tasks" else {"tasks": []})
