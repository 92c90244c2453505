"""Calls to one DynamoDB table, with freshq's errors and with writes that are safe to repeat."""

from __future__ import annotations

import logging
import os
import random
import re
import time
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    WaiterError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from freshq.errors import FreshqError, StoreError, TableMissing, Throttled, Unreachable, needs, quoted
from freshq.model.forks import forget_in_child, new_lock
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.dynamodb.schema import EXPRESSIONS_CACHED, KEY, RECORD, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import boto3
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)
_NAME_MARK: Final = re.compile(r"#(\w+)")
EXPRESSIONS: Final = (
    "KeyConditionExpression",
    "FilterExpression",
    "ConditionExpression",
    "UpdateExpression",
    "ProjectionExpression",
)

THROTTLING_CODES: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "LimitExceededException",
    }
)
# The caller was refused: the same call will be refused until someone fixes it.
REFUSED_CODES: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
CONNECTION_CODES: Final = REFUSED_CODES | {"InternalFailure", "InternalServerError", "ServiceUnavailable"}
SDK_ERRORS: Final = (ClientError, BotoCoreError)
# No reply came: the call may have been carried out.
LOST_REPLIES: Final = (BotoConnectionError, HTTPClientError)
# The SDK raises them before it calls DynamoDB.
UNCONFIGURED: Final = (NoCredentialsError, NoRegionError, PartialCredentialsError, ProfileNotFound)
# UpdateItem says "Item size to update has exceeded the maximum allowed size".
_TOO_LARGE: Final = re.compile(r"Item size.* exceeded")
HOW_TO_CONFIGURE: Final = "set the region and the credentials, such as by AWS_REGION and AWS_PROFILE"
OTHER_KEY: Final = (
    "; for an attached table, name its hash key: ?key=NAME in the address, or attach=True, key=NAME"
)
# DynamoDB's rule. A table of another account is named by its ARN.
TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}|arn:\S+:table/\S+")
# DynamoDB's limit of a hash key.
MAX_KEY_BYTES: Final = 2048
# Service quotas of BatchGetItem and BatchWriteItem.
BATCH_GET_KEYS: Final = 100
BATCH_WRITE_ITEMS: Final = 25
# For the keys that a batch call returns unprocessed: the SDK does not retry them.
BATCH_RETRY: Final = CallRetry(max_tries=10, backoff=Backoff(base_seconds=0.05, cap_seconds=2.0))
# For a write that met a transaction, which ends within milliseconds.
CONFLICT_RETRY: Final = CallRetry(max_tries=8, backoff=Backoff(base_seconds=0.01, cap_seconds=0.2))
# Timeouts of the default client. A call that is never answered is sent six times, three by the SDK and three
# more once it gave up, with at most three seconds of backoff each time: 30 s, half of the default lease.
CONNECT_SECONDS: Final = 1
READ_SECONDS: Final = 3
MAX_ATTEMPTS: Final = 3
# freshq checks the arguments of its calls. Validating them again would take a seventh of a batch's time.
CLIENT_CONFIG: Final = Config(
    parameter_validation=False,
    connect_timeout=CONNECT_SECONDS,
    read_timeout=READ_SECONDS,
    retries={"mode": "standard", "total_max_attempts": MAX_ATTEMPTS},
    max_pool_connections=50,
)


class ConditionFailed(FreshqError):
    """The condition of a write did not hold.

    Attributes:
        item: The current item; None if it does not exist.
    """

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


class WriteConflict(Throttled):
    """A transaction of the application was writing the item. The SDK does not send the call again."""


class InvalidUpdate(StoreError):
    """DynamoDB found an update invalid: an attribute of the item does not have the type that it needs."""


# By error code, for what has no message of its own.
ERROR_CLASSES: Final[dict[str, type[StoreError]]] = {
    "TransactionConflictException": WriteConflict,
    "ValidationException": InvalidUpdate,
}


def own_region() -> str | None:
    """Return the region in AWS_REGION, which boto3 does not read; None if it is not set."""
    return os.environ.get("AWS_REGION") or None


def default_client(session: boto3.Session | None = None) -> DynamoDBClient:
    """Return a client whose calls end, answered or not, within half of the default lease.

    Args:
        session: Has the credentials and the region; None: from the environment.

    Raises:
        MissingExtra: If the extra `aws` is not installed.
    """
    with needs("aws"):
        import boto3
    region = own_region() if session is None else None
    client: DynamoDBClient = (session or boto3).client("dynamodb", region, config=CLIENT_CONFIG)
    return client


def check_table_name(table: object) -> None:
    """Check the name of a table.

    Raises:
        ValueError: If DynamoDB does not allow it.
    """
    if not isinstance(table, str) or not TABLE_NAME.fullmatch(table):
        allowed = "3 to 255 of A-Z a-z 0-9 _ . -"
        msg = f"table: must be the name of a DynamoDB table ({allowed}), got {quoted(table)}"
        raise ValueError(msg)


def check_item_id(item_id: object) -> None:
    """Check the id of an item that is about to be read or written.

    Raises:
        ValueError: If no hash key can have this value.
    """
    if not isinstance(item_id, str) or not 0 < len(item_id.encode(errors="replace")) <= MAX_KEY_BYTES:
        msg = f"id: must be a non-empty string of at most {MAX_KEY_BYTES} bytes, got {quoted(item_id)}"
        raise ValueError(msg)


class OwnConnections:
    """Has a forked child open connections of its own: on its parent's it could read an answer to the parent.

    One that is alive is enough for each client.
    """

    def __init__(self, client: DynamoDBClient) -> None:
        """Change nothing until the process forks."""
        self._client = client
        self._lock = new_lock()
        self._are_closed = True
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Close the inherited connections before the first request."""
        self._are_closed = False
        self._client.meta.events.register_first(
            "before-send.dynamodb", self.sending, unique_id="freshq-connections"
        )

    def sending(self, **_event: Any) -> None:
        """Close the inherited connections, once; other threads wait until that is done."""
        with self._lock:
            if not self._are_closed:
                self._client.close()
            self._are_closed = True


class TableCalls:
    """The calls that a store makes to its table, under freshq's own names.

    In an expression every name has a `#` in front.

    Attributes:
        repeats: Changes with each write that was sent more than once and may still have a copy under way.
    """

    def __init__(self, client: DynamoDBClient, table: str, names: Names | None = None) -> None:
        """Use a client for a table.

        Args:
            client: A low-level boto3 client.
            table: Name of the table.
            names: freshq's names in it; None for the default names.
        """
        self.client = client
        self.table = table
        self.names = names or Names()
        self._differ = self.names.differ
        self.repeats = 0
        self._names_in = lru_cache(maxsize=EXPRESSIONS_CACHED)(self._names_of)
        self._connections = OwnConnections(client)

    def put(self, item: Item, condition: Item | None = None) -> None:
        """Write an item.

        Args:
            item: The item, with a requestToken.
            condition: Further arguments of PutItem.

        Raises:
            ConditionFailed: If the condition did not hold, unless an earlier try of this write made the item.
        """
        arguments = {"Item": item, **(condition or {})}
        self._write(self.client.put_item, arguments, item["requestToken"]["S"])

    def update(self, arguments: Item) -> Item | None:
        """Change an item and return the new version.

        Args:
            arguments: Arguments of UpdateItem. They set a requestToken, or may be applied twice.

        Raises:
            ConditionFailed: If the condition did not hold, unless an earlier try of this write made the item.
        """
        values = arguments.get("ExpressionAttributeValues", {})
        token: str | None = values.get(":requestToken", {}).get("S")
        return self._write(self.client.update_item, {**arguments, "ReturnValues": "ALL_NEW"}, token)

    def delete(self, item_id: str, condition: Item | None = None) -> None:
        """Delete an item; a missing one is no error.

        Raises:
            ConditionFailed: If the condition did not hold.
        """
        self._write(self.client.delete_item, {"Key": {KEY: {"S": item_id}}, **(condition or {})})

    def get(self, item_id: str) -> Item | None:
        """Return an item, strongly consistent; None if it does not exist."""
        check_item_id(item_id)
        key = {KEY: {"S": item_id}}
        response = self.send(
            self.client.get_item, {"TableName": self.table, "Key": key, "ConsistentRead": True}
        )
        return self.own(response["Item"]) if "Item" in response else None

    def get_many(self, item_ids: Sequence[str]) -> list[Item]:
        """Return the items that exist, strongly consistent, in no particular order."""
        found: list[Item] = []

        def read(keys: Any) -> Any:
            response = self.client.batch_get_item(
                RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}}
            )
            found.extend(map(self.own, response["Responses"].get(self.table, [])))
            left = response["UnprocessedKeys"].get(self.table)
            return left["Keys"] if left else []

        keys = []
        for item_id in item_ids:
            try:
                keys.append(self._key(item_id))
            except ValueError as error:  # a damaged record may name any id
                logger.warning("left out: an id that names no item: %s", error)
        self._in_batches(keys, BATCH_GET_KEYS, read)
        return found

    def delete_many(self, item_ids: Sequence[str]) -> None:
        """Delete items unconditionally."""

        def write(requests: Any) -> Any:
            response = self.client.batch_write_item(RequestItems={self.table: requests})
            return response["UnprocessedItems"].get(self.table, [])

        deletions = [{"DeleteRequest": {"Key": self._key(item_id)}} for item_id in item_ids]
        self._in_batches(deletions, BATCH_WRITE_ITEMS, write)

    def query(self, arguments: Item) -> Item:
        """Return one page of a Query."""
        page = self.send(self.client.query, {"TableName": self.table, **arguments})
        if self._differ:
            page["Items"] = list(map(self.names.from_table, page.get("Items", [])))
            if "LastEvaluatedKey" in page:
                key = self.names.from_table(page["LastEvaluatedKey"])
                page["LastEvaluatedKey"] = {name: value for name, value in key.items() if name != RECORD}
        return page

    def scan(self, arguments: Item) -> Iterator[Item]:
        """Yield the items of a strongly consistent Scan, page by page."""
        scan: Callable[..., Any] = self.client.scan
        arguments = {"TableName": self.table, "ConsistentRead": True, **arguments}
        while True:
            page = self.send(scan, arguments)
            yield from map(self.own, page["Items"])
            if "LastEvaluatedKey" not in page:
                return
            # This key has the names in the table already.
            scan = partial(self.client.scan, ExclusiveStartKey=page["LastEvaluatedKey"])
            arguments.pop("ExclusiveStartKey", None)

    def _names_of(self, *expressions: str | None) -> Item:
        """Return the argument that names the attributes in the expressions of a call; empty for none."""
        marks = sorted(set(_NAME_MARK.findall(" ".join(filter(None, expressions)))))
        if not marks:
            return {}
        names = map(self.names.attribute, marks) if self._differ else marks
        return {
            "ExpressionAttributeNames": {f"#{mark}": name for mark, name in zip(marks, names, strict=True)}
        }

    def _key(self, item_id: str) -> Item:
        check_item_id(item_id)
        return self.names.key_to_table({KEY: {"S": item_id}})

    def own(self, item: Mapping[str, Any]) -> Item:
        """Return an item under freshq's own names."""
        return self.names.from_table(item) if self._differ else dict(item)

    def _write(self, operation: Callable[..., Any], arguments: Item, token: str | None = None) -> Item | None:
        """Send a conditional write, and again if it met a transaction; return the new version if it has one.

        If the condition did not hold because an earlier try of the write with this token made the item,
        return that.
        """
        check_item_id((arguments["Item"] if "Item" in arguments else arguments["Key"])[KEY]["S"])
        named = {"TableName": self.table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **arguments}
        try:
            try:
                response = self.send(operation, named, is_write=True)
            except WriteConflict:
                again = partial(self.send, operation, named, is_write=True)
                response = CONFLICT_RETRY.run(again, WriteConflict, sleep=time.sleep, uniform=random.random)
        except ConditionFailed as failed:
            if token is None or not made_by(failed.item, token):
                raise
            return failed.item
        changed: Item | None = response.get("Attributes")
        return self.names.from_table(changed) if changed and self._differ else changed

    def send(self, operation: Callable[..., Any], arguments: Item, *, is_write: bool = False) -> Item:
        """Make a call under the names in the table; return the response.

        Args:
            operation: The method of the client.
            arguments: Its arguments, under freshq's own names.
            is_write: Whether to send it once more, immediately, if no reply comes, and to count in `repeats`
                that it was sent more than once. It must be safe to repeat.

        Raises:
            FreshqError: If DynamoDB refused the call, or did not answer.
        """
        names = self._names_in(*map(arguments.get, EXPRESSIONS))
        if self._differ:
            arguments = self.names.arguments(arguments)
        response: Any = {}
        try:
            try:
                response = operation(**arguments, **names)
            except LOST_REPLIES:
                if not is_write:
                    raise
                self.repeats += 1
                response = operation(**arguments, **names)
        except SDK_ERRORS as error:
            response = getattr(error, "response", None) or {}
            raise self._failure(error) from error
        finally:
            # The SDK may have sent it more than once, too.
            if is_write and response.get("ResponseMetadata", {}).get("RetryAttempts"):
                self.repeats += 1
        answer: Item = response
        return answer

    def _failure(self, error: Exception) -> FreshqError:
        """Return freshq's error for one of the SDK's, with the item that made a condition fail."""
        failure = freshq_error(error, self.table)
        if isinstance(failure, ConditionFailed) and failure.item is not None:
            failure.item = self.own(failure.item)
        return failure

    def _in_batches(self, entries: list[Item], size: int, send: Callable[[Any], Any]) -> None:
        """Send entries in batches; `send` returns the entries of a batch that stayed unprocessed."""
        for start in range(0, len(entries), size):
            some = entries[start : start + size]
            with translated(self.table):
                left = BATCH_RETRY.send_all(some, send, sleep=time.sleep, uniform=random.random)
            if left:
                msg = f"table {self.table!r}: {len(left)} keys stayed unprocessed;"
                raise Throttled(msg + " try again or raise its limits")


def made_by(item: Item | None, token: str) -> bool:
    """Return whether the write of this token made an item, or put the task that it holds or replaced."""
    if item is None:
        return False
    return item.get("requestToken") == {"S": token} or token in put_tokens(item)


def put_tokens(item: Item) -> list[str]:
    """Return the tokens of the puts that an item remembers, the latest first."""
    text: str = item.get("putToken", {}).get("S", "")
    return text.split()


def error_code(error: BaseException) -> str | None:
    """Return the code of the DynamoDB error behind an error of freshq; None if it has none."""
    # An error of the connection has a response, which is None.
    response: Item = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code


def is_too_large(message: str) -> bool:
    """Return whether the message of an error says that an item would be too large."""
    return _TOO_LARGE.search(message) is not None


@contextmanager
def translated(table: str) -> Iterator[None]:
    """Turn the errors of the SDK into freshq's."""
    try:
        yield
    except SDK_ERRORS as error:
        raise freshq_error(error, table) from error


def freshq_error(error: Exception, table: str) -> FreshqError:
    """Return freshq's error for one of the SDK's.

    Args:
        error: The error of the SDK.
        table: Name of the table, for the message.
    """
    if isinstance(error, ClientError):
        return _translated_client_error(error, table)
    if isinstance(error, WaiterError):
        return StoreError(f"table {table!r}: not ready in time ({error})")
    if isinstance(error, ParamValidationError):
        return StoreError(f"table {table!r}: not sent, the SDK rejected it: {error}")
    if isinstance(error, UNCONFIGURED):
        return Unreachable(f"table {table!r}: DynamoDB was not called ({error}); {HOW_TO_CONFIGURE}")
    return Unreachable(
        f"table {table!r}: DynamoDB did not answer ({error}); check network, region and credentials"
    )


def _translated_client_error(error: ClientError, table: str) -> FreshqError:
    code = error.response["Error"]["Code"]
    message = error.response["Error"].get("Message", "")
    if code == "ConditionalCheckFailedException":
        response: Item = dict(error.response)
        return ConditionFailed(response.get("Item"))
    if code == "ResourceNotFoundException":
        return TableMissing(
            f"table {table!r}: it or an index of it does not exist; deploy the stack, "
            "or run `freshq table create` or create_table()"
        )
    if code in THROTTLING_CODES:
        return Throttled(
            f"table {table!r}: throttled ({code}: {message}); try again later or raise its limits"
        )
    if code in CONNECTION_CODES:
        return Unreachable(
            f"table {table!r}: DynamoDB refused the call ({code}: {message}); check credentials and clock"
        )
    if code == "ValidationException" and is_too_large(message):
        from freshq.stores.base import TooLarge

        return TooLarge(
            f"table {table!r}: an item has at most 400 KB, freshq's attributes included; "
            "store large data elsewhere, and put a reference to it"
        )
    error_class = ERROR_CLASSES.get(code, StoreError)
    advice = OTHER_KEY if "key element does not match the schema" in message else ""
    return error_class(f"table {table!r}: {code}: {message}{advice}")
