"""Shared records, each an item of the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.base import SharedRecord
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import new_request_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.names import Item

RECORD_PREFIX: Final = f"{RESERVED_ID_PREFIX}record#"
COUNTS_PREFIX: Final = f"{RESERVED_ID_PREFIX}counts#"
# Prefix of the attributes that hold counts.
COUNT: Final = "count_"


class SharedRecords:
    """Reads and writes the shared records of a table."""

    def __init__(self, calls: TableCalls) -> None:
        """Use a table."""
        self._calls = calls

    def read(self, queue: str, name: str) -> SharedRecord | None:
        """Return a record, strongly consistent; None if there is none."""
        item = self._calls.get(f"{RECORD_PREFIX}{queue}#{name}")
        return (
            None if item is None else SharedRecord(json.loads(item["values"]["S"]), item["requestToken"]["S"])
        )

    def write(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a record if it still has this version; return whether it was written."""
        record = {
            "taskId": {"S": f"{RECORD_PREFIX}{queue}#{name}"},
            "values": {"S": json.dumps(values)},
            "requestToken": {"S": new_request_token()},
        }
        unchanged: Item = {"ConditionExpression": "attribute_not_exists(#taskId)"}
        if version is not None:
            unchanged = {
                "ConditionExpression": "#requestToken = :seen",
                "ExpressionAttributeValues": {":seen": {"S": version}},
            }
        try:
            self._calls.put(record, unchanged)
        except ConditionFailed:
            return False
        return True

    def add(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a record of counts."""
        values: Item = {f":{key}": {"N": str(value)} for key, value in counts.items()}
        values[":requestToken"] = {"S": new_request_token()}
        expression = "SET #requestToken = :requestToken"
        if expires is not None:
            expression += ", #ttl = :ttl"
            values[":ttl"] = {"N": str(expires)}
        self._calls.update(
            {
                "Key": {"taskId": {"S": f"{COUNTS_PREFIX}{queue}#{name}"}},
                "UpdateExpression": expression
                + " ADD "
                + ", ".join(f"#{COUNT}{key} :{key}" for key in counts),
                "ExpressionAttributeValues": values,
            }
        )

    def counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""
        item = self._calls.get(f"{COUNTS_PREFIX}{queue}#{name}") or {}
        return {
            key.removeprefix(COUNT): int(value["N"]) for key, value in item.items() if key.startswith(COUNT)
        }
