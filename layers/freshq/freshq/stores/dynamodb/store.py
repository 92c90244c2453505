"""Assemble the store of tasks on a DynamoDB table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.storable_options import MAX_SHARDS
from freshq.stores.dynamodb.agenda import DynamoAgenda
from freshq.stores.dynamodb.calls import TableCalls, check_table_name, default_client, translated
from freshq.stores.dynamodb.lines import DynamoLines
from freshq.stores.dynamodb.records import DynamoRecords
from freshq.stores.dynamodb.schema import create_table
from freshq.stores.dynamodb.tasks import DynamoTasks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.base import Finding
    from freshq.stores.dynamodb.queries import StatusIndex


class TableStore(DynamoTasks, DynamoLines, DynamoAgenda, DynamoRecords):
    """Tasks as items of a table; the claimable ones in a sparse index by creation time."""

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
        super().__init__(calls, shards, status_index)

    @property
    @override
    def shards(self) -> int:
        return self.keyspace.shards

    @override
    def use_shards(self, shards: int) -> None:
        self.keyspace.shards = shards

    @override
    def caller(self) -> str:
        from freshq.stores.dynamodb.table import identity  # noqa: PLC0415 - functions have no use of it

        return identity(self.calls.client) or super().caller()

    @override
    def erase(self, queue: str, task_ids: Collection[str], group: str | None) -> Iterator[Finding]:
        from freshq.stores.dynamodb.table import copies_of_table  # noqa: PLC0415 - as above

        with translated(self.calls.table):
            yield from copies_of_table(self.calls.client, self.calls.table)

    @override
    def close(self) -> None:
        self.lease_records.close()


class DynamoDBStore(TableStore):
    """Tasks in a table of freshq's own."""

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, *, shards: int | None = None
    ) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of each line and of the due index; None: 1 until the stored number is read.

        Raises:
            ValueError: If the table name or the number of shards is wrong.
        """
        check_table_name(table)
        with translated(table):
            calls = TableCalls(client or default_client(), table)
        super().__init__(calls, 1 if shards is None else shards)
        self.named_shards = shards

    @override
    def of_queue(self, queue: str) -> DynamoDBStore:
        return type(self)(self.calls.table, self.calls.client)

    @override
    def create_table(self) -> None:
        with translated(self.calls.table):
            create_table(self.calls.client, self.calls.table)

    @override
    def examine(self) -> Iterator[Finding]:
        from freshq.stores.dynamodb.table import examine_table  # noqa: PLC0415 - functions have no use of it

        with translated(self.calls.table):
            yield from examine_table(self.calls.client, self.calls.table)
