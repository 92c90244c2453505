"""How many worker passes there are at a time, over all processes.

Reserved concurrency does the same on Lambda, but throttled invocations pile up behind it, it is not
to be had in every account, and nobody can ask it whether a pass is under way.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.calls import ConditionFailed, TableCalls, default_client
from freshq.stores.dynamodb.items import Item, milliseconds, seconds

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

PASS_PREFIX: Final = f"{RESERVED_ID_PREFIX}pass#"


class WorkerPasses:
    """The places for worker passes of one queue."""

    def __init__(self, table: str, queue: str, places: int, client: DynamoDBClient | None = None) -> None:
        """Allow `places` passes at a time."""
        self._calls = TableCalls(client or default_client(), table)
        self._ids = [f"{PASS_PREFIX}{queue}#{place}" for place in range(places)]

    def enter(self, holder: str, now: float, until: float) -> bool:
        """Take a place until `until` (seconds); return False if all are taken.

        Args:
            holder: Who takes it; who holds a place already gets the same one again.
            now: Current time in seconds.
            until: When the place is free again, even if nobody leaves it.
        """
        return any(self._take(place_id, holder, now, until) for place_id in self._ids)

    def _take(self, place_id: str, holder: str, now: float, until: float) -> bool:
        item: Item = {
            "taskId": {"S": place_id},
            "holder": {"S": holder},
            "leaseUntil": milliseconds(until),
            "requestToken": {"S": holder},
            "ttl": {"N": str(ceil(until))},
        }
        condition = {
            "ConditionExpression": "attribute_not_exists(taskId) OR leaseUntil <= :now OR holder = :holder",
            "ExpressionAttributeValues": {":now": milliseconds(now), ":holder": {"S": holder}},
        }
        try:
            self._calls.put(item, condition)
        except ConditionFailed:
            return False
        return True

    def leave(self, holder: str) -> None:
        """Give the place back, if it is still held."""
        condition = {
            "ConditionExpression": "holder = :holder",
            "ExpressionAttributeValues": {":holder": {"S": holder}},
        }
        for place_id in self._ids:
            try:
                self._calls.delete(place_id, condition)
            except ConditionFailed:
                continue  # another's, or free: not ours to give back

    def full(self, now: float) -> bool:
        """Return whether every place is taken: whoever takes part will look at the queue again."""
        places = self._calls.get_many(self._ids)
        return len([place for place in places if seconds(place["leaseUntil"]) > now]) >= len(self._ids)
