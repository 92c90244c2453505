"""The base of the parts of the store: the table, and the state that several parts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.errors import quoted
from freshq.model.storable_options import MAX_SHARDS
from freshq.stores.base import Store
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.dynamodb.clock import table_clock
from freshq.stores.dynamodb.items import Keyspace
from freshq.stores.dynamodb.leases import LeaseRecords
from freshq.stores.dynamodb.line_records import ControlRecords, LineRecords
from freshq.stores.dynamodb.queries import KnownHeads, Partitions, StatusIndex
from freshq.stores.dynamodb.unfit import StaleItems, UnreadableTasks
from freshq.stores.notifier import Notifier

if TYPE_CHECKING:
    from freshq.stores.dynamodb.calls import TableCalls

# A look for tasks costs 1.5 read units a shard, and each pass of a worker ends with a second of looks.
FIRST_LOOK_SECONDS: Final = 0.5


class DynamoPart(Store):
    """The base of the parts, each of which implements some methods of `Store`.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        partitions: The partitions of its index of the claimable tasks.
        known_heads: Short lines that were just read.
        batches: Writes of several items in one call.
        control: The control records of its queues.
        line_records: The lines of its queues.
        lease_records: The lease records of this process.
        unreadable: Makes dead letters of tasks that cannot be read.
        stale_items: Sheds stale tasks.
    """

    bills_reads = True

    def __init__(self, calls: TableCalls, shards: int, status_index: StatusIndex | None = None) -> None:
        """Use a table.

        Args:
            calls: Calls to it.
            shards: Partitions of each line and of the due index.
            status_index: Its index of the claimable tasks; None for the index of freshq's own tables.

        Raises:
            ValueError: If the number of shards is wrong.
        """
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            msg = f"shards: must be a whole number from 1 to {MAX_SHARDS}, got {quoted(shards)}"
            raise ValueError(msg)
        self.calls = calls
        # Another client may have another account, with a table of the same name.
        self.place = (calls.client, calls.table, calls.names.key_prefix)
        self.notifier = Notifier(
            (calls.client.meta.endpoint_url, calls.table), first_look_seconds=FIRST_LOOK_SECONDS
        )
        self.clock = table_clock(calls)
        self.keyspace = Keyspace(shards, calls.names.is_attached)
        self.partitions = Partitions(calls, self.keyspace, status_index or StatusIndex())
        self.known_heads = KnownHeads()
        self.batches = Batches(calls)
        self.control = ControlRecords(calls)
        self.line_records = LineRecords(self.control, self.partitions)
        self.lease_records = LeaseRecords(calls, self.keyspace)
        self.unreadable = UnreadableTasks(calls, self.keyspace)
        self.stale_items = StaleItems(self.partitions, self.expired)
