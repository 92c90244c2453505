"""Capacity units and calls of each step in the cycle of a resource of a `MatchQueue`.

Counted on DynamoDB Local. Reads are its ConsumedCapacity. Its figures for transactions are unreliable, so
they are computed by the rule in DynamoDB's documentation: 2 units per action and started KB of the item, the
larger of before and after. Every item here is smaller than 1 KB.

`benchmarks.capacity` writes the figures.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from local.faults import AFTER, hooked

from freshq import MatchQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_dynamodb import DynamoDBClient

LANGUAGES: Final = ("English", "French", "German", "Italian", "Spanish")
UNITS_AN_ACTION: Final = 2
UNIT_BYTES: Final = 1024
# Cost of a strongly consistent read that finds nothing, which DynamoDB Local reports as 0.
LEAST_READ_UNITS: Final = 1.0


@dataclass(eq=False)
class MatchMeter:
    """The cost of the calls of a client.

    Attributes:
        write_units: Write request units.
        read_units: Read request units.
        calls: Calls by operation.
        actions: Number of transaction actions.
        sent: The operation and arguments of every call.
    """

    write_units: float = 0.0
    read_units: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    actions: int = 0
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def ask(self, params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        """Count a call, and have DynamoDB return what it consumes."""
        self.calls[model.name] += 1
        self.sent.append((model.name, params))
        for action in params.get("TransactItems", []):
            ((_, arguments),) = action.items()
            if size_bytes(arguments.get("Item", {})) > UNIT_BYTES:
                msg = f"an item is larger than the {UNIT_BYTES} bytes that the figures assume"
                raise AssertionError(msg)
            self.actions += 1
            self.write_units += UNITS_AN_ACTION
        return params | {"ReturnConsumedCapacity": "TOTAL"}

    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
        """Add the consumption of a call that is not a transaction."""
        if model.name == "TransactWriteItems":
            return
        units = parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)
        if model.name in ("GetItem", "Query"):
            self.read_units += max(units, LEAST_READ_UNITS)
        else:
            self.write_units += units


def size_bytes(value: Any) -> int:
    """Return the approximate size of an item: its names and texts in UTF-8."""
    if isinstance(value, dict):
        return sum(len(name.encode()) + size_bytes(part) for name, part in value.items())
    return sum(map(size_bytes, value)) if isinstance(value, list) else len(str(value).encode())


@contextmanager
def match_metered(client: DynamoDBClient) -> Iterator[MatchMeter]:
    """Measure the calls of a client."""
    meter = MatchMeter()
    with ExitStack() as hooks:
        hooks.enter_context(hooked(client, "provide-client-params", meter.ask))
        hooks.enter_context(hooked(client, AFTER, meter.count))
        yield meter


def cycle(client: DynamoDBClient, languages: int) -> dict[str, MatchMeter]:
    """Return the cost of each step in the cycle of an agent with a number of languages."""
    queue = MatchQueue.dynamodb(f"agents-{uuid.uuid4().hex}", client)
    queue.create_table()
    meters: dict[str, MatchMeter] = {}
    with match_metered(client) as meters["register"]:
        queue.register("Ellen", {"language": set(LANGUAGES[:languages]), "gender": "F"})
    with match_metered(client) as meters["enqueue"]:
        queue.enqueue("Ellen")
    with match_metered(client) as meters["match"]:
        (match,) = queue.match({"language": "English", "gender": "F"})
    with match_metered(client) as meters["extend"]:
        match = queue.extend(match)
    with match_metered(client) as meters["release"]:
        queue.release(match)
    with match_metered(client) as meters["match without a result, with recovery"]:
        queue.match({"language": "English", "gender": "F"})
    with match_metered(client) as meters["match without a result"]:
        queue.match({"language": "English", "gender": "F"})
    with match_metered(client) as meters["wait: joins the line"]:
        queue.wait({"language": "English", "gender": "F"}, "caller")
    with match_metered(client) as meters["wait: asks again in vain"]:
        queue.wait({"language": "English", "gender": "F"}, "caller")
    with match_metered(client) as meters["enqueue, matched to a waiting caller"]:
        queue.enqueue("Ellen")
    match = queue.held("Ellen", getattr(queue.get("Ellen"), "token", ""))
    with match_metered(client) as meters["release of a caller who used wait"]:
        queue.release(match)
    queue.enqueue("Ellen")
    with match_metered(client) as meters["wait: takes a queued resource"]:
        queue.wait({"language": "English", "gender": "F"}, "caller")
    return meters


def matching(client: DynamoDBClient) -> list[dict[str, Any]]:
    """Return the cost of each step, by the number of languages of an agent."""
    return [
        {
            "languages": languages,
            "step": step,
            "write_units": meter.write_units,
            "read_units": meter.read_units,
            "calls": meter.calls.total(),
        }
        for languages in (1, 2, 3)
        for step, meter in cycle(client, languages).items()
    ]
