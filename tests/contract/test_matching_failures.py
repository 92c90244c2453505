"""Lost replies, conflicts, throttling and crashes, injected by botocore's hooks on DynamoDB Local."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError
from local.faults import (
    BEFORE,
    Died,
    client_at,
    counted,
    crash,
    hooked,
    meanwhile,
    refused,
    replies_lost,
    replies_lost_to_the_sdk,
)
from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue, StoreError
from freshq.errors import IllegalTransition, TableMissing, Throttled, Unreachable
from freshq.matching import ResourceStatus
from freshq.matching.stores.dynamodb import RETRY, cancellation
from freshq.stores.dynamodb.calls import ConditionFailed
from tests.support.matching import ARTICLE, Desk, join, names, one

WOMAN = {"gender": "F"}
# The numbers of entries of three of the article's agents.
ENTRIES = {"Christine": 2, "Courtney": 4, "Ellen": 6}


@contextmanager
def cancelled(client: DynamoDBClient, *codes: str, times: int = 1) -> Iterator[list[str]]:
    """Cancel transactions before they are sent; yields the tokens of all."""
    tokens: list[str] = []

    def cancel(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        tokens.append(params["ClientRequestToken"])
        if len(tokens) <= times:
            reasons = [{"Code": code} for code in codes]
            error: Any = {
                "Error": {"Code": "TransactionCanceledException", "Message": "by the test"},
                "CancellationReasons": reasons,
            }
            raise ClientError(error, "TransactWriteItems")
        return params

    with hooked(client, "provide-client-params", cancel, "TransactWriteItems"):
        yield tokens


@pytest.fixture
def client(table_desk: Desk) -> DynamoDBClient:
    """Return a client for this test only, since faults are injected into it."""
    assert table_desk.client is not None
    return client_at(table_desk.client.meta.endpoint_url)


@pytest.fixture
def queue(table_desk: Desk, client: DynamoDBClient) -> MatchQueue:
    """Return a queue whose calls may fail, in which the article's agents wait."""
    table_desk.staffed()
    queue = MatchQueue.dynamodb(table_desk.table, client, clock=table_desk.clock)
    queue.configure()  # has read the options
    return queue


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses of the store in seconds, without pausing."""
    waits: list[float] = []
    monkeypatch.setattr("freshq.matching.stores.dynamodb.sleep", waits.append)
    return waits


def check_whole(table_desk: Desk) -> None:
    """Check that every waiting resource has all its entries, and no other has any."""
    assert table_desk.client is not None
    queue = table_desk.queue()
    pages = table_desk.client.get_paginator("scan").paginate(TableName=table_desk.table)
    items = [item for page in pages for item in page["Items"]]
    for name, entries in ENTRIES.items():
        resource = queue.get(name)
        assert resource is not None
        entries_found = [
            item for item in items if item["pk"]["S"].startswith("line#") and item["resourceId"]["S"] == name
        ]
        assert len(entries_found) == (entries if resource.status is ResourceStatus.QUEUED else 0)


# --- cancelled transactions


@pytest.mark.parametrize(
    ("codes", "error_class"),
    [
        (["None", "ConditionalCheckFailed"], ConditionFailed),
        (["TransactionConflict", "None"], Throttled),
        (["ThrottlingError"], Throttled),
        (["ProvisionedThroughputExceeded", "TransactionConflict"], Throttled),
        (["ConditionalCheckFailed", "TransactionConflict"], ConditionFailed),
        (["ConditionalCheckFailed", "ValidationError"], StoreError),
        (["ItemCollectionSizeLimitExceeded"], StoreError),
        (["SomethingNew", "TransactionConflict"], StoreError),
        (["None"], StoreError),
        ([], StoreError),
    ],
)
def test_cancellation(codes: list[str], error_class: type[Exception]) -> None:
    assert type(cancellation([{"Code": code} for code in codes], "table")) is error_class


def test_a_failed_condition_leads_to_the_next_candidate(table_desk: Desk, queue: MatchQueue) -> None:
    other = table_desk.queue()
    client = queue._store._client  # type: ignore[attr-defined]
    with meanwhile(client, "TransactWriteItems", lambda: one(other, WOMAN)), counted(client) as calls:
        assert names(queue.match(WOMAN)) == ["Courtney"]
    assert calls.operations.count("TransactWriteItems") == 2  # not retried: it can only fail
    assert "GetItem" not in calls.operations
    check_whole(table_desk)


@pytest.mark.parametrize("change", ["withdraw", "withdraw and return"])
def test_a_resource_that_left_meanwhile_is_not_matched(
    table_desk: Desk, queue: MatchQueue, change: str
) -> None:
    """Not even if the resource is queued again: then it has other entries."""

    def act() -> None:
        table_desk.queue().withdraw("Christine")
        if "return" in change:
            table_desk.queue().offer("Christine")

    with meanwhile(queue._store._client, "TransactWriteItems", act):  # type: ignore[attr-defined]
        assert names(queue.match(WOMAN)) == ["Courtney"]
    check_whole(table_desk)


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_what_passes_is_sent_again_with_jitter(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient, no_waiting: list[float], code: str
) -> None:
    with cancelled(client, "None", code, times=6) as tokens:
        assert names(queue.match(WOMAN)) == ["Christine"]
    assert len(tokens) == 7
    assert len(set(tokens)) == 1
    assert len(set(no_waiting)) == 6
    assert all(0 <= wait <= 0.01 * 2**number for number, wait in enumerate(no_waiting))
    check_whole(table_desk)


def test_what_does_not_pass_is_an_error_not_an_empty_line(
    queue: MatchQueue, client: DynamoDBClient, no_waiting: list[float]
) -> None:
    with (
        cancelled(client, "None", "TransactionConflict", times=99),
        pytest.raises(Throttled),
    ):
        queue.match(WOMAN)
    assert len(no_waiting) == RETRY.max_tries - 1


def test_a_wrong_transaction_is_an_error_at_once(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient
) -> None:
    with (
        cancelled(client, "ValidationError", "None", times=99) as tokens,
        pytest.raises(StoreError, match="ValidationError"),
    ):
        queue.match(WOMAN)
    assert len(tokens) == 1
    check_whole(table_desk)


def test_what_was_taken_before_a_failure_is_returned(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient
) -> None:
    with refused(client, "TransactWriteItems", code="InternalServerError", let_pass=1):
        assert names(queue.match(WOMAN, limit=3)) == ["Christine"]
        with pytest.raises(Unreachable):
            queue.match(WOMAN)
    check_whole(table_desk)


@pytest.mark.parametrize("operation", ["Query", "PutItem", "TransactWriteItems", "GetItem"])
@pytest.mark.usefixtures("no_waiting")
def test_throttling_passes(queue: MatchQueue, client: DynamoDBClient, operation: str) -> None:
    left = 3

    def throttle(model: Any, **_rest: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": ""}}, model.name)

    with hooked(client, BEFORE, throttle, operation):
        queue.complete(one(queue, WOMAN))
        queue.offer("Christine")
    assert left == 0


@pytest.mark.usefixtures("no_waiting")
def test_throttling_that_stays_is_an_error(queue: MatchQueue, client: DynamoDBClient) -> None:
    with refused(client, "Query", code="ThrottlingException"):
        for read in (lambda: queue.match(WOMAN), queue.depths, queue.admin.recover):
            with pytest.raises(Throttled):
                read()


# --- lost replies


def test_a_match_whose_reply_was_lost_is_made_once(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient
) -> None:
    with replies_lost(client, "TransactWriteItems"):
        match = one(queue, WOMAN)
    assert match.resource_id == "Christine"
    assert table_desk.queue().waiting() == len(ARTICLE) - 1
    queue.complete(match)
    check_whole(table_desk)


def test_a_match_that_the_sdk_sends_again_is_made_once(table_desk: Desk) -> None:
    table_desk.staffed()
    assert table_desk.client is not None
    client = client_at(table_desk.client.meta.endpoint_url, attempts=3)
    queue = MatchQueue.dynamodb(table_desk.table, client, clock=table_desk.clock)
    with replies_lost_to_the_sdk(client, "TransactWriteItems") as sent:
        assert names(queue.match(WOMAN)) == ["Christine"]
    assert len(sent) == 2
    assert table_desk.queue().waiting() == len(ARTICLE) - 1


def test_a_repeated_match_is_recognized_after_its_request_token_is_forgotten(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient
) -> None:
    """DynamoDB remembers a request token for ten minutes; the resource keeps its token."""
    sent = 0

    def forget(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return params | {"ClientRequestToken": f"{sent:032}"}

    with (
        hooked(client, "provide-client-params", forget, "TransactWriteItems"),
        replies_lost(client, "TransactWriteItems"),
    ):
        assert names(queue.match(WOMAN)) == ["Christine"]
    assert sent == 2
    check_whole(table_desk)


@pytest.mark.parametrize("operation", ["PutItem", "TransactWriteItems", "UpdateItem", "DeleteItem"])
def test_every_verb_survives_a_lost_reply(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient, operation: str
) -> None:
    with replies_lost(client, operation):
        queue.register("Zoe", attributes={"language": "Greek", "age": "30"})
        queue.offer("Zoe")
        queue.release(queue.extend(one(queue, {"age": "30"})))
        queue.complete(one(queue, {"age": "30"}))
        queue.offer("Zoe")
        queue.withdraw("Zoe")
        queue.unregister("Zoe")
    assert queue.get("Zoe") is None
    assert table_desk.queue().waiting() == len(ARTICLE)


def test_no_answer_at_all_is_an_error(queue: MatchQueue, client: DynamoDBClient) -> None:
    with replies_lost(client, "TransactWriteItems", times=9), pytest.raises(Unreachable):
        queue.match(WOMAN)
    with replies_lost(client, "Query", times=9), pytest.raises(Unreachable):
        queue.match(WOMAN)


def test_a_missing_table_is_not_an_empty_queue(client: DynamoDBClient) -> None:
    queue = MatchQueue.dynamodb("NoSuchTable", client)
    for call in (lambda: queue.match({}), queue.depths, lambda: queue.register("a", attributes={"b": "c"})):
        with pytest.raises(TableMissing):
            call()


# --- crashes


@pytest.mark.parametrize("number", [1, 2])
def test_a_caller_that_dies_in_a_match_strands_no_resource(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient, number: int
) -> None:
    with crash(client, number), pytest.raises(Died):
        queue.match({"language": "Spanish", "gender": "F"})
    table_desk.clock.advance(3600)
    after = table_desk.queue()
    assert after.admin.recover() == number - 1
    check_whole(table_desk)
    assert names(after.match(WOMAN, limit=9)) == list(ENTRIES)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_an_offer_that_dies_writes_all_or_nothing(
    table_desk: Desk, queue: MatchQueue, client: DynamoDBClient, number: int
) -> None:
    queue.withdraw("Ellen")
    with crash(client, number), pytest.raises(Died):
        queue.offer("Ellen")
    check_whole(table_desk)
    if number < 4:
        table_desk.queue().offer("Ellen")
    else:
        with pytest.raises(IllegalTransition):
            table_desk.queue().offer("Ellen")


def test_one_of_two_offers_at_once_wins(table_desk: Desk, queue: MatchQueue, client: DynamoDBClient) -> None:
    queue.withdraw("Ellen")
    with (
        meanwhile(client, "TransactWriteItems", lambda: table_desk.queue().offer("Ellen")),
        pytest.raises(IllegalTransition),
    ):
        queue.offer("Ellen")
    check_whole(table_desk)


# --- tables


def test_create_table_may_be_repeated(table_desk: Desk) -> None:
    join(table_desk.queue(), "a", {})
    table_desk.queue().create_table()
    assert table_desk.queue().waiting() == 1


def test_a_table_with_other_keys_is_refused(client: DynamoDBClient) -> None:
    client.create_table(
        TableName="Elsewise",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    with pytest.raises(StoreError, match="keys"):
        MatchQueue.dynamodb("Elsewise", client).create_table()


@pytest.mark.parametrize("table", ["", "a b", "xy", 3])
def test_wrong_table_names(table: Any) -> None:
    with pytest.raises(ValueError, match="table"):
        MatchQueue.dynamodb(table)
