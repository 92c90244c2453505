"""Read and write the records of an application's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import AlreadyQueued, TaskNotFound, quoted
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.model.task import LIVE
from freshq.stores.dynamodb.calls import ConditionFailed, translated
from freshq.stores.dynamodb.keyspace import KEY, RECORD, milliseconds, plain_values, typed_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Item

# A record in a queue is deleted by force only.
_NOT_QUEUED: Final = (
    "(attribute_not_exists(#taskStatus) OR NOT (#taskStatus IN (:pending, :taken))"
    " OR (#taskStatus = :pending AND #deadline <= :now))"
)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of an attached table.

    Attributes:
        calls: Calls to the table.
    """

    calls: TableCalls

    def get(self, record_id: str) -> dict[str, Any] | None:
        """Return the attributes of a record as JSON values; None if it does not exist."""
        item = self.calls.get(record_id)
        return None if item is None else plain_values(item[RECORD]["M"])

    def put(self, record: Mapping[str, Any], *, merge: bool) -> str:
        """Write the attributes of a record that differ; return its id. Of two writers the last wins.

        What is the same as JSON stays as it is stored: a set remains one, a number keeps its digits.

        Args:
            record: The attributes, the key among them.
            merge: Whether to leave the attributes that the record has besides.

        Raises:
            ValueError: If an attribute is freshq's, or of a type that DynamoDB does not have, or the key is
                missing or wrong.
        """
        typed = self._typed(record)
        key = self._key_of(typed)
        item_id = self.calls.names.key.id_of(key)
        current = self.calls.get(item_id)
        stored = {} if current is None else current[RECORD]["M"]
        plain = plain_values(stored)
        changes = {
            name: value
            for name, value in typed.items()
            if name not in key and not (name in plain and typed_value(plain[name]) == value)
        }
        removed = [] if merge else [name for name in stored if name not in typed]
        self._update(key, changes, removed)
        return item_id

    def delete(self, record_id: str, queue: str, now: float, *, force: bool) -> None:
        """Delete a record.

        Args:
            record_id: Its id.
            queue: The queue that asks, for the error.
            now: Current time in seconds.
            force: Whether to delete it even if it is in a queue.

        Raises:
            TaskNotFound: If the record does not exist.
            AlreadyQueued: If it is in a queue, and `force` is not set.
        """
        condition: Item = {"ConditionExpression": "attribute_exists(#taskId)"}
        if not force:
            waiting, held = ({"S": status.value} for status in LIVE)
            values = {":pending": waiting, ":taken": held, ":now": milliseconds(now)}
            condition["ConditionExpression"] += f" AND {_NOT_QUEUED}"
            condition["ExpressionAttributeValues"] = values
        try:
            self.calls.delete(record_id, condition)
        except ConditionFailed as failed:
            if failed.item is None:
                raise TaskNotFound(record_id, queue, is_record=True) from None
            item = failed.item
            raise AlreadyQueued(record_id, item["taskQueue"]["S"], item["taskStatus"]["S"]) from None

    def unqueued(self, start_after: str | None) -> Iterator[Item]:
        """Yield the records that were never put, or are READY again, in the order of the table."""
        arguments: Item = {"FilterExpression": "attribute_not_exists(#taskStatus)"}
        if start_after is not None:
            arguments["ExclusiveStartKey"] = {KEY: {"S": start_after}}
        items = self.calls.scan(arguments)
        return (item for item in items if not item[KEY]["S"].startswith(RESERVED_ID_PREFIX))

    def _typed(self, record: Mapping[str, Any]) -> Item:
        """Return the attributes of a record in the form of the low-level client."""
        typed = {}
        for name, value in record.items():
            if not isinstance(name, str) or not name or name.startswith(self.calls.names.prefix):
                msg = f"record: cannot have the attribute {quoted(name)}; a name must be text, and those that"
                msg += f" begin with {self.calls.names.prefix} are freshq's"
                raise ValueError(msg)
            try:
                typed[name] = typed_value(value)
            except (TypeError, ValueError, ArithmeticError) as error:
                msg = f"record: {quoted(name)} has a value that DynamoDB cannot store ({error})"
                raise ValueError(msg) from error
        return typed

    def _key_of(self, typed: Item) -> Item:
        """Return the key attributes of a record."""
        table_key = self.calls.names.key
        parts = [part for part in (table_key.hash, table_key.range) if part is not None]
        for part in parts:
            if part.attribute_type not in typed.get(part.name, {}):
                msg = f"record: must have the table's key {table_key}, got {quoted(sorted(typed))}"
                raise ValueError(msg)
        key = {part.name: typed[part.name] for part in parts}
        table_key.checked_id(table_key.id_of(key), "record")
        return key

    def _update(self, key: Item, changes: Item, removed: list[str]) -> None:
        """Write some attributes under the application's own names, and remove others."""
        names = {f"#n{number}": name for number, name in enumerate([*changes, *removed])}
        places = list(names)
        assigned = ", ".join(f"{place} = :v{number}" for number, place in enumerate(places[: len(changes)]))
        dropped = ", ".join(places[len(changes) :])
        clauses = [f"SET {assigned}"] if assigned else []
        clauses += [f"REMOVE {dropped}"] if dropped else []
        arguments: Item = {"UpdateExpression": " ".join(clauses)} if clauses else {}
        if names:
            arguments["ExpressionAttributeNames"] = names
        if changes:
            values = {f":v{number}": value for number, value in enumerate(changes.values())}
            arguments["ExpressionAttributeValues"] = values
        with translated(self.calls.table):
            self.calls.client.update_item(TableName=self.calls.table, Key=key, **arguments)
