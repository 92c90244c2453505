"""`freshq doctor` names how a table on DynamoDB differs from what freshq needs, and the remedy."""

import copy
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.queue.core import core_of
from freshq.stores.base import Finding, Health
from freshq.stores.dynamodb.attached.attach import (
    Attachment,
    attach_table,
    index_definitions,
    own_definitions,
)
from freshq.stores.dynamodb.attached.store import AttachedDynamoDBStore
from freshq.stores.dynamodb.examining import VIEW
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.schema import TTL_ATTRIBUTE, table_definition
from freshq.stores.dynamodb.store import DynamoDBStore
from tests.support.patience import PATIENCE_SECONDS

ABSENT_IS_SOUND = ("deletion", "backups")
Item = dict[str, Any]


def differences(found: Iterator[Finding]) -> list[tuple[str, str]]:
    """Return the subjects and texts of what is not in order. A table for trials has no backups."""
    return [
        (each.subject, f"{each.health}: {each.text}; {each.action}")
        for each in found
        if each.health is not Health.OK and each.subject not in ABSENT_IS_SOUND
    ]


def index_of(definition: Item, name: str) -> Item:
    found: Item = next(each for each in definition["GlobalSecondaryIndexes"] if each["IndexName"] == name)
    return found


def changed_key(index: str, part: int, attribute: str) -> Callable[[Item], None]:
    """Return a damage: a key part of an index is another attribute of the table."""

    def damage(definition: Item) -> None:
        index_of(definition, index)["KeySchema"][part]["AttributeName"] = attribute

    return damage


def retyped(attribute: str, letter: str) -> Callable[[Item], None]:
    def damage(definition: Item) -> None:
        for each in definition["AttributeDefinitions"]:
            if each["AttributeName"] == attribute:
                each["AttributeType"] = letter

    return damage


def projected(index: str, projection: Item) -> Callable[[Item], None]:
    return lambda definition: index_of(definition, index).update(Projection=projection)


def without_index(index: str) -> Callable[[Item], None]:
    return lambda definition: definition["GlobalSecondaryIndexes"].remove(index_of(definition, index))


def rekeyed(definition: Item) -> None:
    """Name the key as another application does."""
    definition["KeySchema"][0]["AttributeName"] = definition["AttributeDefinitions"][0]["AttributeName"] = (
        "id"
    )


def streamed(view: str | None) -> Callable[[Item], None]:
    specification: Item = {"StreamEnabled": view is not None}
    if view is not None:
        specification["StreamViewType"] = view
    return lambda definition: definition.update(StreamSpecification=specification)


def provisioned(table_units: int, index_units: int) -> Callable[[Item], None]:
    def damage(definition: Item) -> None:
        def units(number: int) -> Item:
            return {"ReadCapacityUnits": number, "WriteCapacityUnits": number}

        definition |= {"BillingMode": "PROVISIONED", "ProvisionedThroughput": units(table_units)}
        for each in definition["GlobalSecondaryIndexes"]:
            each["ProvisionedThroughput"] = units(index_units)

    return damage


@dataclass(frozen=True)
class Damage:
    """A way in which a table is wrong.

    Attributes:
        name: Its name.
        damage: Makes the definition of a table wrong.
        subjects: The subjects of the lines that say so.
        said: Texts that the first line has, among them the remedy.
    """

    name: str
    damage: Callable[[Item], Any]
    subjects: tuple[str, ...]
    said: tuple[str, ...]


def of_table(name: str, damage: Callable[[Item], Any], *said: str) -> Damage:
    """Return a damage of the table's shape, without which freshq does not work."""
    return Damage(name, damage, ("table",), ("wrong", *said))


STATUS, DUE = "status-created-index", "due-index"
ANEW = "delete this index, then make this index as template.yaml declares it"
KEYS_ONLY = {"ProjectionType": "KEYS_ONLY"}
OTHERS = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["payload"]}
RIGHT_STATUS, RIGHT_DUE = "pendingShard (S), taskCreated (N)", "dueShard (S), dueAt (N)"
DAMAGES = (
    Damage("sound", lambda _definition: None, (), ()),
    of_table("no claim index", without_index(STATUS), f"no index {STATUS}", "template.yaml"),
    of_table("no due index", without_index(DUE), f"no index {DUE}", "template.yaml"),
    of_table(
        "wrong hash key",
        changed_key(STATUS, 0, "dueShard"),
        f"{STATUS} of",
        f"has the key dueShard (S), taskCreated (N), not {RIGHT_STATUS}; {ANEW}",
    ),
    of_table(
        "wrong range key",
        changed_key(DUE, 1, "taskCreated"),
        f"{DUE} of",
        f"has the key dueShard (S), taskCreated (N), not {RIGHT_DUE}; {ANEW}",
    ),
    of_table("wrong type", retyped("taskCreated", "S"), f"taskCreated (S), not {RIGHT_STATUS}", ANEW),
    of_table("keys only", projected(STATUS, KEYS_ONLY), STATUS, "lacks the attribute deadline", ANEW),
    of_table("other attributes", projected(STATUS, OTHERS), "lacks the attribute deadline", ANEW),
    of_table("another key", rekeyed, "is id (S), not taskId (S)", "freshq copy"),
    Damage(
        "everything",
        projected(DUE, {"ProjectionType": "ALL"}),
        ("table",),
        ("warning", DUE, "holds all attributes", ANEW),
    ),
    Damage(
        "no stream",
        streamed(None),
        ("stream",),
        ("wrong", "has no stream", f"enable it with the view {VIEW}"),
    ),
    *(
        Damage(
            f"stream of {view}", streamed(view), ("stream",), ("wrong", f"{view}, not {VIEW}", "disable it")
        )
        for view in ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE")
    ),
    Damage(
        "narrow indexes",
        provisioned(10, 2),
        ("capacity", "capacity"),
        ("warning", "2 units a second, its table 10", "bill per request"),
    ),
    Damage("wide indexes", provisioned(10, 10), (), ()),
)


def own_table(client: DynamoDBClient, damage: Callable[[Item], Any]) -> str:
    """Make a table with a damage; return its name."""
    definition: Item = copy.deepcopy(dict(table_definition(f"tasks-{uuid.uuid4().hex}")))
    damage(definition)
    parts = [definition, *definition["GlobalSecondaryIndexes"]]
    used = {key["AttributeName"] for part in parts for key in part["KeySchema"]}
    types = [each for each in definition["AttributeDefinitions"] if each["AttributeName"] in used]
    definition["AttributeDefinitions"] = types
    client.create_table(**definition)
    name: str = definition["TableName"]
    client.update_time_to_live(
        TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
    )
    return name


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damaged_table(client: DynamoDBClient, damage: Damage) -> None:
    name = own_table(client, damage.damage)
    found = differences(DynamoDBStore(name, client).examine())
    assert tuple(subject for subject, _text in found) == damage.subjects
    for said in damage.said:
        assert said in found[0][1]


@pytest.mark.parametrize(
    ("specification", "said"),
    [
        ({"Enabled": True, "AttributeName": "expires"}, "TTL is on the attribute expires"),
        (None, "ended tasks are never deleted"),
    ],
)
def test_ttl_on_another_attribute(client: DynamoDBClient, specification: Any, said: str) -> None:
    definition: Any = table_definition(f"tasks-{uuid.uuid4().hex}")
    client.create_table(**definition)
    name = definition["TableName"]
    if specification is not None:
        client.update_time_to_live(TableName=name, TimeToLiveSpecification=specification)
    ((subject, text),) = differences(DynamoDBStore(name, client).examine())
    assert subject == "ttl"
    assert said in text
    assert "enable TTL on the attribute ttl" in text


@pytest.mark.matrix
class TestAttached:
    @pytest.fixture(
        params=[(KeyPart("id"), KeyPart("at", "N")), (KeyPart("id"), None), (KeyPart("id", "N"), None)],
        ids=["pair", "text", "number"],
    )
    def attachment(self, request: pytest.FixtureRequest) -> Attachment:
        return Attachment(f"records-{uuid.uuid4().hex}", TableKey(*request.param))

    @staticmethod
    def made(client: DynamoDBClient, attachment: Attachment) -> None:
        """Make the application's table, which has no stream, TTL or backups."""
        parts = [part for part in (attachment.key.hash, attachment.key.range) if part is not None]
        kinds: tuple[Any, ...] = ("HASH", "RANGE")
        client.create_table(
            TableName=attachment.table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": part.name, "AttributeType": part.attribute_type}  # type: ignore[typeddict-item]
                for part in parts
            ],
            KeySchema=[
                {"AttributeName": part.name, "KeyType": kind}
                for part, kind in zip(parts, kinds, strict=False)
            ],
        )

    def test_it_needs_only_what_attaching_asks_for(
        self, client: DynamoDBClient, attachment: Attachment
    ) -> None:
        self.made(client, attachment)
        attach_table(client, attachment, poll_seconds=0.01)
        found = [*AttachedDynamoDBStore(attachment, client).examine()]
        assert differences(iter(found)) == []
        assert {each.subject for each in found} == {"table", "rights"}

    def test_an_index_that_is_gone_or_wrong(self, client: DynamoDBClient, attachment: Attachment) -> None:
        self.made(client, attachment)
        attach_table(client, attachment, poll_seconds=0.01)
        store = AttachedDynamoDBStore(attachment, client)
        description: Any = client.describe_table(TableName=attachment.table)["Table"]
        (status, _due) = index_definitions(attachment, description)
        name = status["IndexName"]
        client.update_table(
            TableName=attachment.table, GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": name}}]
        )
        found = differences(store.examine())
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while any("DELETING" in text for _subject, text in found) and time.monotonic() < give_up_at:
            found = differences(store.examine())
        assert f"has no index {name}; attach the table again" in found[0][1]
        keys_only: Any = status | {"Projection": {"ProjectionType": "KEYS_ONLY"}}
        definitions: Any = [*description["AttributeDefinitions"][:1], *own_definitions(attachment)]
        client.update_table(
            TableName=attachment.table,
            AttributeDefinitions=definitions,
            GlobalSecondaryIndexUpdates=[{"Create": keys_only}],
        )
        found = differences(store.examine())
        assert "lacks the attribute" in found[0][1]
        assert "delete this index, then attach the table again" in found[0][1]


PROBES = ("get_item", "batch_get_item", "query", "put_item", "update_item", "delete_item")
ACTIONS = ("GetItem", "BatchGetItem", "Query (status-created-index)", "PutItem", "UpdateItem", "DeleteItem")


def failing(monkeypatch: pytest.MonkeyPatch, client: DynamoDBClient, call: str, code: str) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "no"}}, call)

    def fail(**_arguments: object) -> None:
        raise error

    monkeypatch.setattr(client, call, fail)


@pytest.mark.parametrize(("call", "action"), [*zip(PROBES, ACTIONS, strict=True)])
def test_a_right_that_is_missing(
    account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch, call: str, action: str
) -> None:
    name = own_table(account_client, lambda _definition: None)
    failing(monkeypatch, account_client, call, "AccessDeniedException")
    ((subject, text),) = differences(DynamoDBStore(name, account_client).examine())
    assert subject == "rights"
    assert f"the caller lacks dynamodb:{action}" in text
    assert "docs/iam.md" in text


def test_an_outage_is_no_missing_right(
    account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = own_table(account_client, lambda _definition: None)
    failing(monkeypatch, account_client, "put_item", "ThrottlingException")
    ((subject, text),) = differences(DynamoDBStore(name, account_client).examine())
    assert (subject, text) == ("rights", "unknown: not tried, because a call failed: no; try again")


def test_it_changes_nothing(client: DynamoDBClient) -> None:
    name = own_table(client, lambda _definition: None)
    queue = Queue.dynamodb(name, client)
    queue.put("work", task_id="freshq-doctor")
    before = client.scan(TableName=name)["Items"]
    assert differences(core_of(queue).store.examine()) == []
    assert client.scan(TableName=name)["Items"] == before


FIELDS = (
    *("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingModeSummary"),
    *("ProvisionedThroughput", "TableStatus", "OnDemandThroughput", "IndexStatus"),
    *("Projection", "NonKeyAttributes", "ProjectionType"),
)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("field", FIELDS)
def test_an_answer_that_lacks_a_field_is_no_damage(
    account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch, field: str, *, null: bool
) -> None:
    name = own_table(account_client, lambda _definition: None)
    answer: Any = account_client.describe_table(TableName=name)

    def stripped(value: Any) -> Any:
        if isinstance(value, list):
            return [stripped(each) for each in value]
        if not isinstance(value, dict):
            return value
        kept = {key: stripped(each) for key, each in value.items() if key != field}
        return kept | ({field: None} if null and field in value else {})

    monkeypatch.setattr(account_client, "describe_table", lambda **_given: stripped(answer))
    found = differences(DynamoDBStore(name, account_client).examine())
    if field == "GlobalSecondaryIndexes":  # DynamoDB leaves it out if there are none
        assert {text.split("; ")[0].removeprefix(f"wrong: {name} ") for _subject, text in found} == {
            "has no index due-index",
            "has no index status-created-index",
        }
    else:
        assert found == []
