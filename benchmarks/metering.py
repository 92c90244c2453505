"""Counts the capacity that the calls of a DynamoDB client consume, by botocore's hooks."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.support.faults import AFTER, hooked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_dynamodb import DynamoDBClient

READS: Final = ("GetItem", "BatchGetItem", "Query", "Scan")
WRITES: Final = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
# The units of an eventually consistent read of up to 4 KB.
LEAST_READ_UNITS: Final = 0.5


@dataclass(eq=False)
class Meter:
    """The capacity that the calls of a client consumed.

    Attributes:
        write_units: Write request units.
        read_units: Read request units.
        calls: Calls of the SDK by operation.
        refused: Writes whose condition failed; included in the other figures.
    """

    write_units: float = 0.0
    read_units: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def ask(self, params: dict[str, Any], **_rest: Any) -> dict[str, Any]:  # noqa: ANN401 - botocore's
        """Make DynamoDB report what a call consumes."""
        return params | {"ReturnConsumedCapacity": "INDEXES"}

    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:  # noqa: ANN401 - botocore's
        """Add up what a call consumed."""
        self.calls[model.name] += 1
        if parsed.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            self.refused += 1
            self.write_units += 1
            return
        consumed = parsed["ConsumedCapacity"]
        parts = consumed if isinstance(consumed, list) else [consumed]
        units = sum(part["CapacityUnits"] for part in parts)
        if model.name in READS:
            # A read that finds nothing is billed as the smallest read; DynamoDB Local reports none.
            self.read_units += max(units, LEAST_READ_UNITS)
        else:
            self.write_units += units


@contextmanager
def metered(client: DynamoDBClient) -> Iterator[Meter]:
    """Count the capacity that a client consumes."""
    meter = Meter()
    with ExitStack() as hooks:
        for operation in (*READS, *WRITES):
            hooks.enter_context(hooked(client, "provide-client-params", meter.ask, operation))
            hooks.enter_context(hooked(client, AFTER, meter.count, operation))
        yield meter
