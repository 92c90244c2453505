"""Send transactions to DynamoDB, and repeat those that conflict with another."""

from __future__ import annotations

import random
from enum import Enum
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError

from freshq.errors import StoreError, Throttled
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.dynamodb.calls import ConditionFailed, sent_despite_lost_reply, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.schema import Item

T = TypeVar("T")
# A transaction in progress ends within milliseconds, throttling of a partition within seconds.
RETRY: Final = CallRetry(max_tries=12, backoff=Backoff(base_seconds=0.01, cap_seconds=1.0))
CANCELLED_CODE: Final = "TransactionCanceledException"
# Another write of one of the items, or an earlier try of this one, is in progress.
CONFLICT_CODES: Final = frozenset(
    {"TransactionConflictException", "TransactionInProgressException", "ReplicatedWriteConflictException"}
)
BUSY_REASONS: Final = frozenset(
    {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
)


class Cancellation(Enum):
    """Why a transaction was cancelled.

    CONDITION_FAILED: a condition did not hold; a retry cannot help. RETRYABLE: the same transaction may
    succeed later. INVALID: it can never succeed.
    """

    CONDITION_FAILED = "condition failed"
    RETRYABLE = "retryable"
    INVALID = "invalid"


def classify(reasons: Sequence[Mapping[str, Any]]) -> Cancellation:
    """Return what the cancellation reasons, one for each action, amount to."""
    codes = {reason.get("Code", "None") for reason in reasons} - {"None"}
    if codes - BUSY_REASONS - {"ConditionalCheckFailed"}:
        return Cancellation.INVALID
    if "ConditionalCheckFailed" in codes:
        return Cancellation.CONDITION_FAILED
    return Cancellation.RETRYABLE if codes else Cancellation.INVALID


class TransactionCalls:
    """Sends transactions on one table, and other calls that may conflict with one."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client = client
        self._table = table

    def write(self, actions: Sequence[Item], token: str) -> None:
        """Carry out all actions or none.

        Args:
            actions: Arguments of TransactWriteItems; the first one asks for its item if its condition
                fails.
            token: At most 36 characters. A transaction that is sent again with the same token is carried
                out once.

        Raises:
            ConditionFailed: If a condition did not hold, with the item of the first action if it was
                that one's.
            Throttled: If it still conflicted with others, or was throttled, at the last retry.
            StoreError: If it can never succeed, or no answer came.
        """
        self.retried(lambda: self._write(actions, token))

    def _write(self, actions: Sequence[Any], token: str) -> None:
        try:
            self._client.transact_write_items(TransactItems=actions, ClientRequestToken=token)
        except ClientError as error:
            if error.response["Error"]["Code"] != CANCELLED_CODE:
                raise
            response: Item = dict(error.response)
            reasons = response.get("CancellationReasons", [])
            cancellation = classify(reasons)
            if cancellation is Cancellation.CONDITION_FAILED:
                raise ConditionFailed(reasons[0].get("Item")) from error
            if cancellation is Cancellation.RETRYABLE:
                msg = f"table {self._table!r}: transaction cancelled: {_text(reasons)}"
                raise Throttled(msg) from error
            msg = f"table {self._table!r}: transaction cancelled for good: {_text(reasons) or error}"
            raise StoreError(msg) from error

    def retried(self, send: Callable[[], T]) -> T:
        """Send a call that is safe to repeat: again after a conflict or throttling, once after a lost reply.

        Raises:
            Throttled: If it still conflicted or was throttled at the last try.
            StoreError: If DynamoDB did not carry it out for another reason.
        """

        def send_once() -> T:
            with translated(self._table):
                try:
                    return sent_despite_lost_reply(send)
                except ClientError as error:
                    if error.response["Error"]["Code"] not in CONFLICT_CODES:
                        raise
                    msg = f"table {self._table!r}: in conflict with another transaction ({error})"
                    raise Throttled(msg) from error

        return RETRY.run(send_once, Throttled, sleep=sleep, uniform=random.random)


def _text(reasons: Sequence[Mapping[str, Any]]) -> str:
    """Return the actions that failed, each with its reason."""
    return "; ".join(
        f"action {number}: {reason['Code']}" + (f" ({reason['Message']})" if reason.get("Message") else "")
        for number, reason in enumerate(reasons, start=1)
        if reason.get("Code", "None") != "None"
    )
