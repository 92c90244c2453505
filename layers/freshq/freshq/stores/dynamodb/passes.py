"""How many worker passes there are at a time, over all processes.

Reserved concurrency does the same on Lambda, but throttled invocations pile up behind it, it is not
to be had in every account, and nobody can ask it whether a pass is under way.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.calls import ConditionFailed, TableCalls, default_client
from freshq.stores.dynamodb.items import milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

PASS_PREFIX: Final = f"{RESERVED_ID_PREFIX}pass#"
# A place whose holder has died is free again after so long; its holder renews it three times as often.
PLACE_SECONDS: Final = 15.0
RENEWALS: Final = 3


class WorkerPasses:
    """The places for worker passes of one queue."""

    def __init__(
        self,
        table: str,
        queue: str,
        places: int,
        client: DynamoDBClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Allow `places` passes at a time.

        Args:
            table: Name of the table.
            queue: Name of the queue.
            places: Passes at a time.
            client: A low-level boto3 client; None for one from the environment.
            clock: Returns the time in seconds since the epoch.
        """
        self._calls = TableCalls(client or default_client(), table)
        self._ids = [f"{PASS_PREFIX}{queue}#{place}" for place in range(places)]
        self._clock = clock

    @contextmanager
    def hold(self, holder: str) -> Iterator[bool]:
        """Hold a place for the time of a `with` block; the block is told whether there was one.

        Args:
            holder: Who takes it. Who holds a place already gets the same one again: a retried
                invocation need not wait for the place of the attempt that died.
        """
        place_id = next((place_id for place_id in self._ids if self._take(place_id, holder)), None)
        if place_id is None:
            yield False
            return
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(place_id, holder, ended), daemon=True)
        renewal.start()
        try:
            yield True
        finally:
            ended.set()
            renewal.join()
            self._leave(place_id, holder)

    def full(self) -> bool:
        """Return whether every place is taken: whoever takes part will look at the queue again."""
        now = self._clock()
        places = self._calls.get_many(self._ids)
        return len([place for place in places if seconds(place["leaseUntil"]) > now]) >= len(self._ids)

    def _take(self, place_id: str, holder: str) -> bool:
        now = self._clock()
        item: Item = {
            "taskId": {"S": place_id},
            "holder": {"S": holder},
            "leaseUntil": milliseconds(now + PLACE_SECONDS),
            "requestToken": {"S": holder},
            "ttl": {"N": str(ceil(now + PLACE_SECONDS))},
        }
        condition = {
            "ConditionExpression": (
                "attribute_not_exists(#taskId) OR #leaseUntil <= :now OR #holder = :holder"
            ),
            "ExpressionAttributeValues": {":now": milliseconds(now), ":holder": {"S": holder}},
        }
        try:
            self._calls.put(item, condition)
        except ConditionFailed:
            return False
        return True

    def _renew(self, place_id: str, holder: str, ended: threading.Event) -> None:
        while not ended.wait(PLACE_SECONDS / RENEWALS):
            try:
                kept = self._take(place_id, holder)
            except StoreError:
                logger.warning("place %s of %s was not renewed", place_id, holder, exc_info=True)
                continue
            if not kept:
                logger.warning("place %s of %s was lost to another pass", place_id, holder)
                return

    def _leave(self, place_id: str, holder: str) -> None:
        condition = {
            "ConditionExpression": "#holder = :holder",
            "ExpressionAttributeValues": {":holder": {"S": holder}},
        }
        try:
            self._calls.delete(place_id, condition)
        except ConditionFailed:
            logger.warning("place %s was not held by %s any more", place_id, holder)
