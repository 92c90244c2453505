"""The contents of landed events, and the fields that they leave out."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, Queue
from freshq.aws.landing import landed_event, landed_events
from freshq.queue.core import core_of
from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.stores.dynamodb.key import KeyPart, TableKey
from tests.conftest import StoreUnderTest
from tests.pipeline.recording import START_SECONDS, Recording, ms, small
from tests.support.attached import Shipments
from tests.support.readings import known
from tests.support.refusals import refused


def test_an_event_has_what_the_pipeline_needs_and_no_secret() -> None:
    tape = Recording()
    tape.put(0.25, "a", group="red", priority=3)
    tape.take(1.5, "a", holder="w1:hidden")
    event = tape.landed()[1]
    assert event["change"] == "MODIFY"
    assert event["status"] == "TAKEN"
    assert event["updated_ms"] == (START_SECONDS + 1.5) * 1000
    assert event["stream_ms"] == (START_SECONDS + 1) * 1000
    assert (event["task_id"], event["group"], event["priority"], event["attempts"]) == ("a", "red", 3, 1)
    assert event["worker"] == "w1"
    assert len(event["lease"]) == 16
    assert "hidden" not in json.dumps(event)
    assert "secret" not in json.dumps(event)
    assert all(not isinstance(value, dict | list) for value in event.values())


def test_an_event_has_the_value_its_decay_and_the_cost() -> None:
    queue = Queue.memory()
    for value, decay, cost in ((0.1, "linear", 0.000001), (1e12, None, 1e9), (None, None, None)):
        task = known(queue, queue.put("work", value=value, decay=decay, cost=cost).task_id)
        change = {"Keys": {"taskId": {"S": task.task_id}}, "ApproximateCreationDateTime": 1.0}
        event = landed_event({"eventID": "1", "dynamodb": change | {"NewImage": encode(task, Keyspace(1))}})
        assert event is not None
        assert (event.get("value"), event.get("decay"), event.get("cost")) == (value, decay, cost)


@pytest.mark.parametrize("store", ["dynamodb_double"], indirect=True)
@pytest.mark.parametrize("verb", ["complete", "retry"])
def test_the_end_of_a_task_and_its_successor_have_an_event_each(store: StoreUnderTest, verb: str) -> None:
    queue = store.queue()
    items: Any = core_of(queue).store
    queue.put("old", task_id="a", group="g")
    (claim,) = queue.claim()
    queue.put("new", task_id="a", priority=3, on_conflict="after")
    images = [items.calls.get("a")]
    store.clock.advance(2)
    getattr(queue, verb)(claim)
    images.append(items.calls.get("a"))
    queue.claim()
    images.append(items.calls.get("a"))
    events: list[Any] = []
    for number, (before, after) in enumerate(pairwise(images)):
        change = {"Keys": {"taskId": {"S": "a"}}, "OldImage": before, "NewImage": after}
        change |= {"SequenceNumber": str(number), "ApproximateCreationDateTime": 1.0}
        events += landed_events({"eventID": str(number), "dynamodb": change})
    status = {"complete": "SUCCESS", "retry": "CANCELLED"}[verb]
    found = [[event.get(name) for name in ("status", "group", "priority", "attempts")] for event in events]
    assert found == [
        [status, "g", 0, 1], ["PENDING", None, 3, 0], ["TAKEN", None, 3, 1]
    ]  # fmt: skip
    assert {event["change"] for event in events} == {"MODIFY"}
    assert len({event["event_id"] for event in events}) == 3
    assert events[0]["updated_ms"] == pytest.approx(store.clock.now * 1000, abs=1)
    assert events[0]["updated_ms"] < events[1]["updated_ms"]
    assert ("lease" in events[0], events[0].get("created_ms")) == (
        False,
        float(images[0]["taskCreated"]["N"]),
    )


def test_the_item_of_a_task_is_landed(queue_of_one: tuple[dict[str, Any], str]) -> None:
    item, task_id = queue_of_one
    change = {"Keys": {"taskId": item["taskId"]}, "NewImage": item, "ApproximateCreationDateTime": 1.0}
    event = landed_event({"eventID": "1", "eventName": "INSERT", "dynamodb": change})
    assert event is not None
    assert event["task_id"] == task_id
    assert event["change"] == "INSERT"
    assert event["expires_s"] > event["deadline_ms"] / 1000
    assert event["put_ms"] == event["created_ms"]


@pytest.fixture
def queue_of_one() -> tuple[dict[str, Any], str]:
    queue = Queue.memory()
    task_id = queue.put({"any": "work"}).task_id
    task = known(queue, task_id)
    return encode(task, Keyspace(1)), task_id


def test_records_that_are_not_about_a_task_have_no_event() -> None:
    tape = small()
    own = [
        record for record in tape.records if record["dynamodb"]["Keys"]["taskId"]["S"].startswith("freshq#")
    ]
    assert own
    assert [landed_event(record) for record in own] == [None] * len(own)
    assert len(tape.landed()) == len(tape.records) - len(own)


def test_a_record_becomes_a_task_with_its_first_put() -> None:
    image = {"taskId": {"S": "a"}, "name": {"S": "kept"}}
    task = image | {"taskStatus": {"S": "PENDING"}, "taskCreated": ms(0), "taskUpdated": ms(0)}
    change = {"Keys": {"taskId": {"S": "a"}}, "ApproximateCreationDateTime": START_SECONDS}
    events = [
        landed_event({"eventID": "1", "eventName": "MODIFY", "dynamodb": change | images})
        for images in ({"OldImage": image, "NewImage": task}, {"OldImage": task, "NewImage": image})
    ]
    assert [event and event["change"] for event in events] == ["INSERT", "REMOVE"]


@pytest.mark.parametrize(
    ("identity", "by_ttl"),
    [
        ({"type": "Service", "principalId": "dynamodb.amazonaws.com"}, True),
        ({"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}, True),
        ({"type": "Service", "principalId": "replication.dynamodb.amazonaws.com"}, False),
        (None, False),
    ],
)
def test_a_removal_by_ttl_differs_from_a_clients(identity: dict[str, str] | None, by_ttl: bool) -> None:
    tape = Recording()
    tape.put(0, "a")
    tape.remove(100, "a", by_ttl=False)
    event = landed_event(tape.records[1] | {"userIdentity": identity})
    assert event is not None
    assert event["ttl_removal"] is by_ttl
    assert "updated_ms" not in event


def test_a_time_in_the_form_of_boto3_gives_the_same_event() -> None:
    tape = Recording()
    tape.put(0.5, "a")
    record = tape.records[0]
    moment = datetime.fromtimestamp(START_SECONDS, UTC)
    other = record | {"dynamodb": record["dynamodb"] | {"ApproximateCreationDateTime": moment}}
    assert landed_event(other) == landed_event(record)


@pytest.mark.parametrize("missing", ["eventID", "ApproximateCreationDateTime", "Keys"])
def test_a_missing_field_is_named(missing: str) -> None:
    tape = Recording()
    tape.put(0, "a")
    record = tape.records[0]
    change = {name: value for name, value in record["dynamodb"].items() if name != missing}
    broken = {name: value for name, value in record.items() if name != missing} | {"dynamodb": change}
    with pytest.raises(ValueError, match=missing):
        landed_event(broken)


def test_a_malformed_number_is_named() -> None:
    tape = Recording()
    tape.put(0, "a")
    tape.records[0]["dynamodb"]["NewImage"]["deadline"] = {"N": "soon"}
    with refused("record"):
        landed_event(tape.records[0])


class TestAttached:
    """Changes of an application's records."""

    @pytest.mark.parametrize(
        ("key", "task_id", "kind"),
        [
            (TableKey.named("id"), "A", "S"),
            (TableKey(KeyPart("id", "N"), KeyPart("day")), "7/2026%2F12", "N"),
            (TableKey(KeyPart("id", "B"), KeyPart("aaa", "N")), "AP8=/1.5", "B"),
        ],
    )
    def test_a_life(self, account_client: DynamoDBClient, key: TableKey, task_id: str, kind: str) -> None:
        table = Shipments(account_client, key=key)
        table.create_attached()
        table.add(task_id)
        queue = table.queue(worker_name="w1")
        images = [table.record(task_id)]
        verbs: list[Callable[[], object]] = [
            lambda: queue.put(task_id=task_id, group="red", priority=3),
            lambda: claims.extend(queue.claim()),
            lambda: queue.complete(claims.pop(), result="done"),
            lambda: queue.records.ready(task_id),
        ]
        claims: list[Claim] = []
        for verb in verbs:
            verb()
            images.append(table.record(task_id))
        events = [
            landed_event(change_of(key.attributes(task_id), before, after), "id")
            for before, after in pairwise(images)
        ]
        assert [event and (event["change"], event["status"], event["task_id"]) for event in events] == [
            ("INSERT", "PENDING", task_id),
            ("MODIFY", "TAKEN", task_id),
            ("MODIFY", "SUCCESS", task_id),
            ("REMOVE", "SUCCESS", task_id),
        ]
        put, taken = events[0], events[1]
        assert put is not None
        assert taken is not None
        assert (put["queue"], put["group"], put["priority"]) == ("default", "red", 3)
        assert put["created_ms"] == put["put_ms"]
        assert "deadline_ms" not in put  # by default records are never stale
        assert (taken["worker"], taken["attempts"]) == ("w1", 1)
        assert "photo" not in json.dumps(events)
        assert kind in key.attributes(task_id)["id"]

    def test_its_own_task_status_makes_no_task(self) -> None:
        image = {"id": {"S": "A"}, "taskStatus": {"S": "PENDING"}}
        assert landed_event(change_of({"id": {"S": "A"}}, {}, image), "id") is None

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"other": {"S": "A"}},
            {"id": {"S": "A"}, "b": {"S": "B"}, "c": {"S": "C"}},
            {"id": {"BOOL": True}},
            {"id": {"N": "A"}},
            {"id": {"B": "?"}},
            {"id": "A"},
        ],
    )
    def test_other_keys_are_malformed(self, keys: dict[str, Any]) -> None:
        image = {"freshq_taskStatus": {"S": "PENDING"}}
        with pytest.raises(ValueError, match=r"record: |is no"):
            landed_event(change_of(keys, {}, image), "id")


def change_of(keys: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return a stream record as Lambda passes it, in JSON."""
    change = {"Keys": keys, "OldImage": before, "NewImage": after, "ApproximateCreationDateTime": 1.0}

    def as_base64(value: bytes) -> str:
        return base64.b64encode(value).decode()

    record = {"eventID": "1", "eventName": "MODIFY", "dynamodb": change}
    found: dict[str, Any] = json.loads(json.dumps(record, default=as_base64))
    return found
