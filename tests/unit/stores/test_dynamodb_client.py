"""The default client of DynamoDB: how long a call lasts that nobody answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore import endpoint
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ReadTimeoutError,
)
from botocore.httpsession import URLLib3Session
from botocore.retries.standard import ExponentialBackoff

from freshq import Claim, Queue, StoreError, Unreachable
from freshq.model.task import Task, TaskStatus
from freshq.stores.dynamodb.calls import default_client, translated
from freshq.stores.dynamodb.store import DynamoDBStore

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert longest_seconds <= queue.lease_seconds / 2


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
        pytest.raises(StoreError, match=r"for an attached table, name its hash key: \?key=NAME"),
        translated("Tasks"),
    ):
        raise refused
