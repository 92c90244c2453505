"""Writes of several items at once: all of them or none, repeated where repeating helps."""

from __future__ import annotations

import random
from enum import Enum
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError

from freshq.errors import StoreError, Throttled
from freshq.policy.retry import Backoff
from freshq.stores.dynamodb.calls import THROTTLING_CODES, ConditionFailed, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.names import Item

T = TypeVar("T")

# A transaction in progress is over in milliseconds, a throttled partition in seconds.
BACKOFF: Final = Backoff(base_seconds=0.01, cap_seconds=1.0)
TRIES: Final = 12
CANCELLED_CODE: Final = "TransactionCanceledException"
# Another write, or this very one sent before, is under way on one of the items.
CONFLICT_CODES: Final = frozenset(
    {"TransactionConflictException", "TransactionInProgressException", "ReplicatedWriteConflictException"}
)
BUSY_REASONS: Final = frozenset(
    {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
)


class Verdict(Enum):
    """What a cancelled transaction calls for.

    REFUSED: a condition did not hold, and will not if it is sent again. BUSY: the same transaction may
    pass later. WRONG: it can never pass.
    """

    REFUSED = "refused"
    BUSY = "busy"
    WRONG = "wrong"


def classify(reasons: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return what the reasons of a cancellation, one an action, come to."""
    codes = {reason.get("Code", "None") for reason in reasons} - {"None"}
    if codes - BUSY_REASONS - {"ConditionalCheckFailed"}:
        return Verdict.WRONG
    if "ConditionalCheckFailed" in codes:
        return Verdict.REFUSED
    return Verdict.BUSY if codes else Verdict.WRONG


class Transactions:
    """Sends transactions on one table, and other calls that may meet one."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        """Use a client for a table."""
        self._client = client
        self._table = table

    def write(self, actions: Sequence[Item], token: str) -> None:
        """Carry out all actions or none.

        Args:
            actions: Arguments of TransactWriteItems; the first one returns its item if it is refused.
            token: At most 36 characters. Sent again with the same token after a lost reply, the
                transaction is carried out once.

        Raises:
            ConditionFailed: If a condition did not hold, with the item of the first action if it was
                refused.
            Throttled: If it was in the way of others, or throttled, however often it was sent.
            StoreError: If it can never pass, or no answer came.
        """
        self.patiently(lambda: self._write(actions, token))

    def _write(self, actions: Sequence[Any], token: str) -> None:
        try:
            self._client.transact_write_items(TransactItems=actions, ClientRequestToken=token)
        except ClientError as error:
            if error.response["Error"]["Code"] != CANCELLED_CODE:
                raise
            response: Item = dict(error.response)
            reasons = response.get("CancellationReasons", [])
            verdict = classify(reasons)
            if verdict is Verdict.REFUSED:
                raise ConditionFailed(reasons[0].get("Item")) from error
            if verdict is Verdict.BUSY:
                msg = f"table {self._table!r}: transaction cancelled: {_text(reasons)}"
                raise Throttled(msg) from error
            msg = f"table {self._table!r}: transaction cancelled for good: {_text(reasons) or error}"
            raise StoreError(msg) from error

    def patiently(self, send: Callable[[], T]) -> T:
        """Send a call that may be repeated: again after a conflict or throttling, and once if no reply came.

        Raises:
            Throttled: If it was still refused for that reason in the end.
            StoreError: If DynamoDB did not carry it out for another.
        """
        lost_replies = 0
        for attempt in range(1, TRIES + 1):
            try:
                with translated(self._table):
                    try:
                        return send()
                    except (BotoConnectionError, HTTPClientError):
                        lost_replies += 1
                        if lost_replies > 1:
                            raise
                    except ClientError as error:
                        if not _passing(error) or attempt == TRIES:
                            raise
            except Throttled:
                if attempt == TRIES:
                    raise
            sleep(BACKOFF.delay_seconds(attempt, random.random()))  # noqa: S311 - jitter
        msg = f"table {self._table!r}: no answer after {TRIES} tries"
        raise Throttled(msg)


def _passing(error: ClientError) -> bool:
    return error.response["Error"]["Code"] in CONFLICT_CODES | THROTTLING_CODES


def _text(reasons: Sequence[Mapping[str, Any]]) -> str:
    """Return which action failed for what, those that did not left out."""
    return "; ".join(
        f"action {number}: {reason['Code']}" + (f" ({reason['Message']})" if reason.get("Message") else "")
        for number, reason in enumerate(reasons, start=1)
        if reason.get("Code", "None") != "None"
    )
