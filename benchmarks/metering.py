"""Counts the capacity that the calls of a DynamoDB client consume, by botocore's hooks.

DynamoDB Local reports no capacity for statements of PartiQL. So the writes of a batch are sent one by one,
which counts their units, and counted as one call. AWS's prices make no difference between the two.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from local.faults import AFTER, hooked

from freshq.errors import FreshqError
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.dynamodb.calls import ConditionFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from types_boto3_dynamodb import DynamoDBClient

READS: Final = ("GetItem", "BatchGetItem", "Query", "Scan")
# freshq reads items strongly consistent, and an index cannot be.
STRONG_READS: Final = ("GetItem", "BatchGetItem")
WRITES: Final = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
# The units of an eventually consistent read of up to 4 KB.
LEAST_READ_UNITS: Final = 0.5
LEAST_STRONG_READ_UNITS: Final = 1.0


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

    def ask(self, params: dict[str, Any], **_rest: Any) -> dict[str, Any]:
        """Make DynamoDB report what a call consumes."""
        return params | {"ReturnConsumedCapacity": "INDEXES"}

    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
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
            least = LEAST_STRONG_READ_UNITS if model.name in STRONG_READS else LEAST_READ_UNITS
            self.read_units += max(units, least)
        else:
            self.write_units += units

    def batch(self, writes: Sequence[Any]) -> list[Any]:
        """Send the writes of a batch one by one; count their units and one call."""
        before = self.calls.copy()
        calls = before.copy()
        answers: list[Any] = []
        for write in writes:
            try:
                answers.append(write.alone())
            except FreshqError as error:
                answers.append(error)
                if isinstance(error, ConditionFailed) and write.item is not None:
                    # Ids that are taken: their items are read together, as the answers lack them.
                    calls["BatchGetItem"] = before["BatchGetItem"] + 1
                    self.read_units += LEAST_STRONG_READ_UNITS
        self.calls = calls + Counter({"BatchExecuteStatement": 1})
        return answers


@contextmanager
def metered(client: DynamoDBClient) -> Iterator[Meter]:
    """Count the capacity that a client consumes."""
    meter = Meter()
    with ExitStack() as hooks:
        hooks.enter_context(patch.object(Batches, "_batch", meter.batch))
        for operation in (*READS, *WRITES):
            hooks.enter_context(hooked(client, "provide-client-params", meter.ask, operation))
            hooks.enter_context(hooked(client, AFTER, meter.count, operation))
        yield meter
