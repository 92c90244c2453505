"""Changes a table in use: one index at a time, safe to repeat and to run concurrently."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError, TableMissing, Throttled, Unreachable
from freshq.stores.dynamodb.calls import REFUSED_CODES, error_code, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

# To fill an index DynamoDB reads the whole table; a large one takes hours.
WAIT_SECONDS: Final = 24 * 3600.0
POLL_SECONDS: Final = 2.0
ACTIVE: Final = "ACTIVE"
# The status of a table whose description could not be read.
UNKNOWN: Final = "UNKNOWN"
# The answers while another change of the table is in progress, or after it made this very change:
# the ValidationException then says that the index exists.
BUSY_CODES: Final = ("ResourceInUseException", "LimitExceededException", "ValidationException")


class TableChanges:
    """Changes one table, waiting until it is ready for each change."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        on_status: Callable[[str, str], None] | None = None,
    ) -> None:
        """Prepare changes.

        Args:
            client: A low-level boto3 client.
            table: Name of the table.
            poll_seconds: Time between polls while a change is in progress.
            on_status: Called at each poll with the resource that is waited for, and its status.
        """
        self._client = client
        self._table = table
        self._poll_seconds = poll_seconds
        self._on_status = on_status or (lambda _what, _status: None)

    def description(self) -> Item:
        """Return the answer of DescribeTable.

        Raises:
            TableMissing: If the table does not exist.
        """
        with translated(self._table):
            return dict(self._client.describe_table(TableName=self._table)["Table"])

    def wait(self) -> Item:
        """Return the description once the table and all its indexes can be used and changed.

        A description that DynamoDB failed to give is asked for again: the change goes on meanwhile.

        Raises:
            TableMissing: If the table does not exist.
            StoreError: If that takes longer than a day, or DynamoDB refuses the caller.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            description = self._answered_description()
            statuses = {self._table: UNKNOWN} if description is None else _statuses(description)
            for name, status in statuses.items():
                self._on_status(name, status)
            if description is not None and set(statuses.values()) == {ACTIVE}:
                return description
            if time.monotonic() > deadline:
                msg = f"table {self._table!r}: not ready after {WAIT_SECONDS / 3600:.0f} h: {statuses}"
                raise StoreError(msg)
            time.sleep(self._poll_seconds)

    def _answered_description(self) -> Item | None:
        """Return the answer of DescribeTable; None if there was none, but may be one later."""
        try:
            return self.description()
        except StoreError as error:
            if not _may_pass(error):
                raise
            logger.warning("still waiting: %s", error)
            return None

    def add_index(self, index: Item, definitions: Sequence[Any]) -> None:
        """Add a global secondary index unless it exists; return once it can be used.

        Args:
            index: As in CreateTable.
            definitions: The attribute definitions of its keys.
        """
        name = index["IndexName"]
        while name not in index_names(description := self.wait()):
            self._on_status(name, "requested")
            known = {entry["AttributeName"]: entry for entry in description["AttributeDefinitions"]}
            known |= {entry["AttributeName"]: entry for entry in definitions}
            change = {
                "AttributeDefinitions": list(known.values()),
                "GlobalSecondaryIndexUpdates": [{"Create": index}],
            }
            self._update(change, lambda: name in index_names(self.description()))
        self.wait()

    def update(self, change: Item) -> None:
        """Make another change of the table, and return once it is done."""
        self.wait()
        self._update(change, lambda: False)
        self.wait()

    def _update(self, change: Item, made_by_another: Callable[[], bool]) -> None:
        """Request a change. If another change is in progress, return so that the caller looks again."""
        try:
            with translated(self._table):
                self._client.update_table(TableName=self._table, **change)
        except TableMissing:
            raise
        except StoreError as error:
            code = error_code(error)
            busy = code in BUSY_CODES[:2] and self.description()["TableStatus"] != ACTIVE
            if not (busy or (code in BUSY_CODES and made_by_another())):
                raise


def _statuses(description: Item) -> dict[str, str]:
    """Return the status of a table and of each of its indexes."""
    return {description["TableName"]: description["TableStatus"]} | {
        index["IndexName"]: index["IndexStatus"] + (", filling" if index.get("Backfilling") else "")
        for index in description.get("GlobalSecondaryIndexes", [])
    }


def _may_pass(error: StoreError) -> bool:
    """Return whether the same call may be answered later, because it was not refused."""
    if isinstance(error, Throttled):
        return True
    return isinstance(error, Unreachable) and error_code(error) not in REFUSED_CODES


def index_names(description: Item) -> set[str]:
    """Return the names of a table's global secondary indexes."""
    return {index["IndexName"] for index in description.get("GlobalSecondaryIndexes", [])}


def is_on_demand(description: Item) -> bool:
    """Return whether a table is billed per request."""
    return bool(description.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST")
