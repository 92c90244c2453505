"""The index of the claimable tasks: what orders it, and queries of it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq.stores.dynamodb.schema import STATUS_INDEX
from freshq.stores.dynamodb.values import milliseconds, seconds

if TYPE_CHECKING:
    from freshq.stores.dynamodb.names import Item

CREATED_ATTRIBUTE: Final = "taskCreated"
POSITION_INDEX: Final = "status-position-index"


class Entry(NamedTuple):
    """A claimable task in the index.

    Attributes:
        position: What orders it; comparable with those of the other tasks of its table.
        created: Its creation time, in seconds.
        task_id: Its id.
    """

    position: Any
    created: float
    task_id: str


@dataclass(frozen=True, slots=True)
class StatusIndex:
    """How the claimable tasks of a table are indexed.

    Attributes:
        name: Name of the index.
        range_key: The attribute that orders its partitions.
        has_deadlines: Whether the index has the deadlines. One that was attached by keys only has none; there
            the condition of each claim finds what is stale.
    """

    name: str = STATUS_INDEX
    range_key: str = CREATED_ATTRIBUTE
    has_deadlines: bool = True

    @property
    def by_time(self) -> bool:
        """Whether the creation time orders it."""
        return self.range_key == CREATED_ATTRIBUTE

    def query(self, partition: str, relation: str, created: float) -> Item:
        """Return the arguments of a query of the tasks of a partition, by creation time.

        Args:
            partition: The partition.
            relation: Such as ``>``.
            created: The time that theirs is compared with, in seconds.
        """
        key, filtered = "#pendingShard = :shard", {}
        if self.by_time:
            key += f" AND #taskCreated {relation} :created"
        else:
            filtered = {"FilterExpression": f"#taskCreated {relation} :created"}
        return {
            "IndexName": self.name,
            "KeyConditionExpression": key,
            "ExpressionAttributeValues": {":shard": {"S": partition}, ":created": milliseconds(created)},
        } | filtered

    def live(self, created_after: float, deadline_after: float) -> LiveTasks:
        """Return which tasks are live, by their deadlines too if the index has them."""
        return LiveTasks(self, created_after, deadline_after if self.has_deadlines else None)

    def place(self, key: Item) -> Any:  # noqa: ANN401 - a number, a string as bytes, or bytes
        """Return what orders an entry, comparable as DynamoDB compares it."""
        ((attribute_type, value),) = key[self.range_key].items()
        if self.by_time:
            return seconds(key[self.range_key])
        return Decimal(value) if attribute_type == "N" else value.encode() if attribute_type == "S" else value

    def entry(self, item: Item) -> Entry:
        """Return an item of the index as an entry."""
        created = seconds(item[CREATED_ATTRIBUTE])
        return Entry(created if self.by_time else self.place(item), created, item["taskId"]["S"])


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """The tasks of a line that are not stale.

    Attributes:
        index: Where they are.
        created_after: Tasks created at or before this time, in seconds, are past the queue's max age.
        deadline_after: Tasks with a deadline at or before this time are stale; None if that is not asked,
            or the index does not have the deadlines.
    """

    index: StatusIndex
    created_after: float
    deadline_after: float | None = None

    def query(self, partition: str) -> Item:
        """Return the arguments of a query of them in a partition of the index."""
        arguments = self.index.query(partition, ">", self.created_after)
        if self.deadline_after is not None:
            return filtered(arguments, "#deadline > :deadlineAfter", ":deadlineAfter", self.deadline_after)
        return arguments


def filtered(arguments: Item, condition: str, name: str, moment: float) -> Item:
    """Return the arguments of a query, with a condition on a time as one more filter.

    Args:
        arguments: The query.
        condition: The condition.
        name: The value in it.
        moment: The time, in seconds.
    """
    known = arguments.get("FilterExpression")
    return arguments | {
        "FilterExpression": condition if known is None else f"{known} AND {condition}",
        "ExpressionAttributeValues": arguments["ExpressionAttributeValues"] | {name: milliseconds(moment)},
    }
