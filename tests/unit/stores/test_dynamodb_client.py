"""The default client of DynamoDB: timeouts, and the checks before a call."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore import endpoint
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.httpsession import URLLib3Session
from botocore.retries.standard import ExponentialBackoff
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, MatchQueue, Queue, StoreError
from freshq.errors import TableMissing, Unreachable
from freshq.matching.stores.dynamodb import DynamoDBMatchStore
from freshq.model.task import Task, TaskStatus
from freshq.stores.dynamodb.attached.attach import described_key, open_attachment
from freshq.stores.dynamodb.calls import MAX_KEY_BYTES, TableCalls, default_client, translated
from freshq.stores.dynamodb.passes import WorkerPasses
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.dynamodb.table import TableChanges
from tests.support.forking import exit_code, forked
from tests.support.refusals import refused

TOKEN = "t"
NOW = 1_700_000_000.0
HELD = Task(
    "a", "default", TaskStatus.TAKEN, NOW, NOW, NOW + 60, 0, "r", lease_token=TOKEN, lease_until=NOW + 60
)  # fmt: skip


@pytest.mark.parametrize("error", [ReadTimeoutError, ConnectTimeoutError])
@pytest.mark.parametrize(
    "verb",
    [lambda queue: queue.put("work"), lambda queue: queue.complete(Claim(HELD, TOKEN, NOW + 60))],
    ids=["put", "complete"],
)
def test_a_call_that_is_never_answered_ends_within_half_of_the_default_lease(
    monkeypatch: pytest.MonkeyPatch, verb: Callable[[Queue], object], error: Callable[..., Exception]
) -> None:
    attempts: list[object] = []
    waits: list[float] = []

    def unanswered(_session: object, request: Any) -> None:
        attempts.append(request)
        raise error(endpoint_url="https://dynamodb")

    def longest(backoff: Any, context: Any) -> float:
        return float(min(2 ** (context.attempt_number - 1), backoff._max_backoff))

    monkeypatch.setattr(URLLib3Session, "send", unanswered)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", longest)
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(sleep=waits.append))
    client = default_client()
    queue = Queue(DynamoDBStore("Tasks", client), clock=lambda: NOW)
    with pytest.raises(Unreachable):
        verb(queue)
    config: Any = client.meta.config
    longest_seconds = len(attempts) * (config.connect_timeout + config.read_timeout) + sum(waits)
    assert len(attempts) > 1
    assert longest_seconds <= queue.admin.config.lease_seconds / 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoRegionError(), "was not called .* set the region and the credentials"),
        (NoCredentialsError(), "was not called .* set the region and the credentials"),
        (EndpointConnectionError(endpoint_url="https://dynamodb"), "did not answer .* check network"),
    ],
)
def test_what_the_sdk_lacks_is_no_failure_of_dynamodb(error: Exception, said: str) -> None:
    with pytest.raises(Unreachable, match=said), translated("Tasks"):
        raise error


def test_a_table_with_another_key_may_be_attached() -> None:
    message = "The provided key element does not match the schema"
    refused = ClientError({"Error": {"Code": "ValidationException", "Message": message}}, "GetItem")
    with (
        pytest.raises(StoreError, match="key"),
        translated("Tasks"),
    ):
        raise refused


class SentError(Exception):
    """A request was sent."""


def put_nothing(client: Any) -> None:
    client.put_item(TableName="Tasks")


class TestValidation:
    """freshq checks the arguments of its calls itself, and its own client does not check them again."""

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> DynamoDBStore:
        def send(_session: object, _request: object) -> None:
            raise SentError

        monkeypatch.setattr(URLLib3Session, "send", send)
        return DynamoDBStore("Tasks")

    def test_the_default_client_does_not_validate(self, store: DynamoDBStore) -> None:
        with pytest.raises(SentError):
            put_nothing(store.calls.client)

    def test_the_client_of_the_caller_validates_as_before(self, store: DynamoDBStore) -> None:
        client = boto3.client("dynamodb")
        calls = DynamoDBStore("Tasks", client).calls
        assert calls.client is client
        with pytest.raises(ParamValidationError):
            put_nothing(client)
        with pytest.raises(SentError):
            store.calls.get("a")

    @pytest.mark.parametrize(
        "item_id", ["", None, 5, b"a", ["a"], "x" * (MAX_KEY_BYTES + 1), "é" * MAX_KEY_BYTES]
    )
    @pytest.mark.parametrize(
        "call",
        [
            lambda calls, item_id: calls.get(item_id),
            lambda calls, item_id: calls.put({"taskId": {"S": item_id}, "requestToken": {"S": "t"}}),
            lambda calls, item_id: calls.update({"Key": {"taskId": {"S": item_id}}}),
            lambda calls, item_id: calls.delete(item_id),
            lambda calls, item_id: calls.delete_many(["a", item_id]),
        ],
        ids=["get", "put", "update", "delete", "delete_many"],
    )
    def test_an_id_that_no_key_can_have_is_not_sent(
        self, store: DynamoDBStore, call: Callable[[TableCalls, Any], object], item_id: Any
    ) -> None:
        with refused("id"):
            call(store.calls, item_id)

    def test_an_id_that_a_damaged_record_names_is_left_out(self, store: DynamoDBStore) -> None:
        ids: list[Any] = ["", 5, "x" * (MAX_KEY_BYTES + 1)]
        assert store.calls.get_many(ids) == []

    @pytest.mark.parametrize("table", ["", "ab", "a/b/c", "x" * 256, None, 5, b"Tasks"])
    @pytest.mark.parametrize(
        "use",
        [
            DynamoDBStore,
            lambda table: WorkerPasses(table, "default"),
            lambda table: TableChanges(default_client(), table),
            lambda table: described_key(default_client(), table, "id"),
            lambda table: open_attachment(table, None, "id", 1),
            MatchQueue.dynamodb,
        ],
        ids=["store", "passes", "changes", "key", "attachment", "matching"],
    )
    def test_a_name_that_no_table_can_have_is_not_sent(
        self, use: Callable[[Any], object], table: Any
    ) -> None:
        with refused("table"):
            use(table)

    @pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, None, 5])
    def test_a_name_that_no_attribute_can_have_is_not_sent(self, name: Any) -> None:
        with refused("key"):
            open_attachment("Tasks", None, name, 1)


def tasks_call(client: DynamoDBClient) -> Callable[[], object]:
    return partial(TableCalls(client, "none").get, "a")


def match_call(client: DynamoDBClient) -> Callable[[], object]:
    return partial(DynamoDBMatchStore("none", client).get, "a")


@pytest.mark.parametrize("opened", [tasks_call, match_call])
def test_a_forked_child_first_closes_the_connections_of_its_parent(
    dynamodb_local: DynamoDBClient,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[DynamoDBClient], Callable[[], object]],
) -> None:
    """On a shared connection, a process reads the answer to another one."""
    closed: list[str] = []
    other, read = TableCalls(dynamodb_local, "other"), opened(dynamodb_local)
    monkeypatch.setattr(dynamodb_local, "close", lambda: closed.append("closed"))

    def call() -> None:
        with pytest.raises(TableMissing):
            read()
        with pytest.raises(TableMissing):
            other.get("a")

    def child() -> None:
        call()
        call()
        assert closed == ["closed"]
        assert exit_code(forked(grandchild)) == 0

    def grandchild() -> None:
        call()
        assert closed == ["closed"] * 2

    call()
    assert exit_code(forked(child)) == 0
    call()
    assert closed == []
