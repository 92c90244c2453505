"""Faults of DynamoDB and of the network, injected by botocore's hooks.

A hook sees every call of a client, including those of a paginator. To keep a call free of faults, use
another client.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.httpsession import URLLib3Session

from freshq.stores.dynamodb.keyspace import create_table
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_dynamodb import DynamoDBClient

BEFORE: Final = "before-call"
AFTER: Final = "after-call"


class Died(BaseException):
    """The process died. Only the test catches this."""


@contextmanager
def hooked(
    client: DynamoDBClient, moment: str, hook: Callable[..., Any], operation: str = ""
) -> Iterator[None]:
    """Run a hook at a moment of every call, or every call of one operation."""
    event = f"{moment}.dynamodb" + (f".{operation}" if operation else "")
    name = uuid.uuid4().hex
    client.meta.events.register_first(event, hook, unique_id=name)
    try:
        yield
    finally:
        client.meta.events.unregister(event, unique_id=name)


@dataclass(eq=False)
class Tally:
    """The operations of the calls seen."""

    operations: list[str] = field(default_factory=list)

    def __call__(self, model: Any, **_rest: Any) -> None:
        self.operations.append(model.name)

    def __len__(self) -> int:
        return len(self.operations)


@contextmanager
def counted(client: DynamoDBClient) -> Iterator[Tally]:
    """Count the calls of a client."""
    tally = Tally()
    with hooked(client, BEFORE, tally):
        yield tally


@contextmanager
def crash(client: DynamoDBClient, number: int) -> Iterator[None]:
    """Kill the process once its call of this number was carried out."""
    seen = 0

    def die(**_rest: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Died

    with hooked(client, AFTER, die):
        yield


@contextmanager
def replies_lost(client: DynamoDBClient, operation: str, times: int = 1) -> Iterator[None]:
    """Break the connection after a call was carried out, past the retries of the SDK."""
    left = times

    def lose(**_rest: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionClosedError(endpoint_url="http://dynamodb")

    with hooked(client, AFTER, lose, operation):
        yield


@contextmanager
def replies_lost_to_the_sdk(client: DynamoDBClient, operation: str, times: int = 1) -> Iterator[Tally]:
    """Break the connection after a request was carried out, so that the SDK repeats it."""
    sent = Tally()
    session = URLLib3Session()

    def lose(request: Any, **_rest: Any) -> None:
        sent.operations.append(operation)
        if len(sent) <= times:
            assert session.send(request).status_code < 500
            raise ConnectionClosedError(endpoint_url=request.url)

    with hooked(client, "before-send", lose, operation):
        yield sent


@contextmanager
def refused(client: DynamoDBClient, operation: str = "", *, code: str, let_pass: int = 0) -> Iterator[None]:
    """Answer calls with an error, except the first few."""
    seen = 0

    def refuse(model: Any, **_rest: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > let_pass:
            raise ClientError({"Error": {"Code": code, "Message": "by the test"}}, model.name)

    with hooked(client, BEFORE, refuse, operation):
        yield


@contextmanager
def failing(client: DynamoDBClient, operation: str, *, code: str, times: int) -> Iterator[None]:
    """Answer the first calls of an operation with an error."""
    left = times

    def fail(model: Any, **_rest: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ClientError({"Error": {"Code": code, "Message": "by the test"}}, model.name)

    with hooked(client, BEFORE, fail, operation):
        yield


@contextmanager
def meanwhile(client: DynamoDBClient, operation: str, act: Callable[[], object]) -> Iterator[None]:
    """Do something once, just before a call is sent."""
    done = False

    def interrupt(**_rest: Any) -> None:
        nonlocal done
        if not done:
            done = True
            act()

    with hooked(client, BEFORE, interrupt, operation):
        yield


@contextmanager
def halved(client: DynamoDBClient) -> Iterator[Tally]:
    """Make batch calls process only the first half of their entries, rounded up."""
    calls = Tally()
    left: dict[str, Any] = {}

    def cut(params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        calls(model)
        ((table, asked),) = params["RequestItems"].items()
        wanted = asked["Keys"] if model.name == "BatchGetItem" else asked
        done, rest = wanted[: (len(wanted) + 1) // 2], wanted[(len(wanted) + 1) // 2 :]
        wrap = (lambda keys: asked | {"Keys": keys}) if model.name == "BatchGetItem" else list
        left.clear()
        left.update({table: wrap(rest)} if rest else {})
        return params | {"RequestItems": {table: wrap(done)}}

    def hand_back(parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
        parsed["UnprocessedKeys" if model.name == "BatchGetItem" else "UnprocessedItems"] = dict(left)

    with ExitStack() as hooks:
        for operation in ("BatchGetItem", "BatchWriteItem"):
            hooks.enter_context(hooked(client, "provide-client-params", cut, operation))
            hooks.enter_context(hooked(client, AFTER, hand_back, operation))
        yield calls


@contextmanager
def one_by_one(client: DynamoDBClient) -> Iterator[None]:
    """Allow no batches of conditional writes, as a role may; their store then sends none any more."""
    with refused(client, "BatchExecuteStatement", code="AccessDeniedException"):
        yield


@contextmanager
def statements_left(
    client: DynamoDBClient, code: str, *, times: int = 1, fitting: int = 1
) -> Iterator[list[int]]:
    """Make batches carry out only their first statements, and answer the others with an error.

    Args:
        client: The client.
        code: The code of the error.
        times: To how many batches this happens.
        fitting: How many statements they carry out.

    Yields:
        The sizes of the batches that were sent.
    """
    sizes: list[int] = []
    left = 0

    def cut(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        nonlocal left
        statements = params["Statements"]
        sizes.append(len(statements))
        left = max(0, len(statements) - fitting) if len(sizes) <= times else 0
        return params | {"Statements": statements[: len(statements) - left]}

    def answer(parsed: dict[str, Any], **_rest: Any) -> None:
        parsed["Responses"] += [{"Error": {"Code": code, "Message": "by the test"}}] * left

    with (
        hooked(client, "provide-client-params", cut, "BatchExecuteStatement"),
        hooked(client, AFTER, answer, "BatchExecuteStatement"),
    ):
        yield sizes


@contextmanager
def lagging_indexes(client: DynamoDBClient, table: str) -> Iterator[Callable[[], None]]:
    """Make the client's index queries see the table as it is now.

    Yields:
        A function that makes the indexes catch up with the table.
    """
    replica = f"{table}-then"
    create_table(client, replica)

    def catch_up() -> None:
        for item in items(client, replica):
            client.delete_item(TableName=replica, Key={"taskId": item["taskId"]})
        for item in items(client, table):
            client.put_item(TableName=replica, Item=item)

    def redirect(params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        return params | {"TableName": replica} if "IndexName" in params else params

    catch_up()
    with hooked(client, "provide-client-params", redirect, "Query"):
        yield catch_up


def items(client: DynamoDBClient, table: str) -> list[dict[str, Any]]:
    """Return every item of a table, the store's own included."""
    pages = client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    found = [dict(item) for page in pages for item in page["Items"]]
    return sorted(found, key=lambda item: str(item["taskId"]))


def client_at(endpoint_url: str, attempts: int = 1) -> DynamoDBClient:
    """Return a new client of a local endpoint, as another process has it."""
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(
            connect_timeout=PATIENCE_SECONDS, retries={"mode": "standard", "total_max_attempts": attempts}
        ),
    )
    return client
