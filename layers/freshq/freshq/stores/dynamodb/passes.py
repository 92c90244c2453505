"""Bound the worker passes that run at the same time: each holds a slot, an item of the table."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.calls import ConditionFailed, TableCalls, check_table_name, default_client
from freshq.stores.dynamodb.clock import table_clock
from freshq.stores.dynamodb.items import condition, milliseconds, seconds_or

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.schema import Item, Names

PASS_PREFIX: Final = f"{RESERVED_ID_PREFIX}pass#"
# The slot of a pass that died is free again after this time. A live pass renews it RENEWALS times within it.
SLOT_LEASE_SECONDS: Final = 15.0
RENEWALS: Final = 3
# A slot that is held for longer was damaged.
LONGEST_SECONDS: Final = 3600.0
logger = logging.getLogger(__name__)


class WorkerPasses:
    """The pass slots of one queue."""

    def __init__(
        self,
        table: str,
        queue: str,
        client: DynamoDBClient | None = None,
        clock: Callable[[], float] | None = None,
        names: Names | None = None,
    ) -> None:
        """Use the slots of a queue.

        Args:
            table: Name of the table.
            queue: Name of the queue.
            client: A low-level boto3 client; None for one from the environment.
            clock: Returns the time in seconds since the epoch; None for the table's.
            names: The names in an attached table; None for a table of freshq's own.

        Raises:
            ValueError: If the table name is wrong.
        """
        check_table_name(table)
        self._calls = TableCalls(client or default_client(), table, names)
        self._queue = queue
        self._clock = table_clock(self._calls) if clock is None else clock

    @contextmanager
    def slot(self, holder: str, slots: int = 1) -> Iterator[bool]:
        """Hold a slot for a `with` block; yields whether one was free.

        Args:
            holder: Who takes it. The same holder gets its slot again: a retried invocation need not wait for
                the lease of the attempt that died.
            slots: Maximum number of passes at a time.
        """
        slot_id = next((slot_id for slot_id in self._ids(slots) if self._take(slot_id, holder)), None)
        if slot_id is None:
            yield False
            return
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(slot_id, holder, ended), daemon=True)
        try:
            renewal.start()
            yield True
        finally:
            ended.set()
            if renewal.is_alive():
                renewal.join()
            self._leave(slot_id, holder)

    def all_taken(self, slots: int = 1) -> bool:
        """Return whether every slot is taken; then a running pass will check the queue again."""
        return self._taken(slots) >= slots

    def any_taken(self, slots: int = 1) -> bool:
        """Return whether a slot is taken."""
        return self._taken(slots) > 0

    def _taken(self, slots: int) -> int:
        now = self._clock()
        until = [seconds_or(slot.get("leaseUntil"), 0.0) for slot in self._calls.get_many(self._ids(slots))]
        return sum(now < each <= now + LONGEST_SECONDS for each in until)

    def _ids(self, slots: int) -> list[str]:
        return [f"{PASS_PREFIX}{self._queue}#{slot}" for slot in range(slots)]

    def _take(self, slot_id: str, holder: str) -> bool:
        now = self._clock()
        item: Item = {
            "taskId": {"S": slot_id},
            "holder": {"S": holder},
            "leaseUntil": milliseconds(now + SLOT_LEASE_SECONDS),
            "requestToken": {"S": holder},
            "ttl": {"N": str(ceil(now + SLOT_LEASE_SECONDS))},
        }
        free = condition(
            "attribute_not_exists(#taskId) OR #leaseUntil <= :now OR #holder = :holder "
            # Damaged, or written by a clock that is wrong.
            "OR NOT attribute_type(#leaseUntil, :number) OR #leaseUntil > :longest",
            now=milliseconds(now),
            holder={"S": holder},
            number={"S": "N"},
            longest=milliseconds(now + LONGEST_SECONDS),
        )
        try:
            self._calls.put(item, free)
        except ConditionFailed:
            return False
        return True

    def _renew(self, slot_id: str, holder: str, ended: threading.Event) -> None:
        while not ended.wait(SLOT_LEASE_SECONDS / RENEWALS):
            try:
                kept = self._take(slot_id, holder)
            except StoreError:
                logger.warning("pass slot %s: %s could not renew it", slot_id, holder, exc_info=True)
                continue
            if not kept:
                logger.warning("pass slot %s: %s lost it to another pass", slot_id, holder)
                return

    def _leave(self, slot_id: str, holder: str) -> None:
        try:
            self._calls.delete(slot_id, condition("#holder = :holder", holder={"S": holder}))
        except ConditionFailed:
            logger.warning("pass slot %s: no longer held by %s", slot_id, holder)
