"""The names of freshq's attributes and indexes in a table.

The store uses its own names, and puts a `#` before each name in an expression. Only this module maps them
to the names in the table: the same in a table of freshq's own, prefixed in an application's table.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.table_key import TableKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

# An item or attribute value in the form of the low-level client, such as {"taskId": {"S": "a"}}.
Item: TypeAlias = dict[str, Any]

KEY: Final = "taskId"
# The name under which an item has the application's attributes, as a map.
RECORD: Final = "record"
# Where the key cannot hold it, freshq's own items have their id in this attribute.
OWN_ID: Final = "itemId"
# The application's attribute that orders a table, and the copy of it that the put makes.
ORDER_BY: Final = "orderBy"
POSITION: Final = "position"
ATTACHED_PREFIX: Final = "freshq_"
ATTACHED_INDEX_PREFIX: Final = "freshq-"
# What a task has that no index can list: it is damaged.
MISSING: Final[Item] = {}
_NAME_MARK: Final = re.compile(r"#(\w+)")
_EXPRESSIONS: Final = (
    "KeyConditionExpression",
    "FilterExpression",
    "ConditionExpression",
    "UpdateExpression",
    "ProjectionExpression",
)
_KEYS: Final = ("Key", "ExclusiveStartKey")
OWN_KEY: Final = TableKey.named(KEY)


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one table.

    Attributes:
        key: The table's key, which the task id names.
        prefix: Prefix of freshq's other attributes.
        index_prefix: Prefix of freshq's indexes.
        order_by: The application's attribute that orders the table; empty if time does.
    """

    key: TableKey = OWN_KEY
    prefix: str = ""
    index_prefix: str = ""
    order_by: str = ""

    @classmethod
    def attached(cls, key: TableKey, order_by: str = "") -> Names:
        """Return the names in an attached table with this key, ordered by an attribute or by time."""
        return cls(key, ATTACHED_PREFIX, ATTACHED_INDEX_PREFIX, order_by)

    @property
    def is_attached(self) -> bool:
        """Whether the table is an application's, to whose records freshq only adds attributes."""
        return bool(self.prefix)

    def attribute(self, name: str) -> str:
        """Return the name of an attribute in the table."""
        if name == ORDER_BY and self.order_by:
            return self.order_by
        return self.key.hash.name if name == KEY else self.prefix + name

    def index(self, name: str) -> str:
        """Return the name of an index in the table."""
        return self.index_prefix + name

    def key_to_table(self, key: Mapping[str, Any]) -> Item:
        """Return the key of an item, or of an entry of an index, under the names in the table.

        Raises:
            ValueError: If no key has this id.
        """
        if not self.is_attached:
            return dict(key)
        # An own item that was read has its key as the application's attributes.
        others = {self.attribute(name): value for name, value in key.items() if name not in (KEY, RECORD)}
        return self.key.attributes(key[KEY]["S"]) | others

    def keys_to_table(self, item_ids: Iterable[str]) -> list[Item]:
        """Return the keys of items; an id that no key has names no item, and is left out."""
        keys = []
        for item_id in item_ids:
            try:
                keys.append(self.key_to_table({KEY: {"S": item_id}}))
            except ValueError as error:
                logger.warning("left out: an id that names no item: %s", error)
        return keys

    def to_table(self, item: Mapping[str, Any]) -> Item:
        """Return one of freshq's own items, or a whole task, under the names in the table."""
        own_id = item[KEY]["S"]
        named = {}
        if self.key.has_own_ids and own_id.startswith(RESERVED_ID_PREFIX):
            named = {self.attribute(OWN_ID): item[KEY]}
        return self.key_to_table(item) | named

    def from_table(self, item: Mapping[str, Any]) -> Item:
        """Return an item under freshq's names, with the application's attributes as its record."""
        if not self.is_attached:
            return dict(item)
        start = len(self.prefix)
        own = {name[start:]: value for name, value in item.items() if name.startswith(self.prefix)}
        record = {name: value for name, value in item.items() if not name.startswith(self.prefix)}
        if self.key.hash.name in item:
            own_id = own.pop(OWN_ID, {}).get("S")
            own[KEY] = {"S": self.key.id_of(item, own_id)}
        if self.order_by and "taskStatus" in own:
            own.setdefault(POSITION, MISSING)
        return own | {RECORD: {"M": record}}

    def arguments(self, arguments: Mapping[str, Any]) -> Item:
        """Return the arguments of a call under the names in the table, with ExpressionAttributeNames."""
        renamed = dict(arguments)
        for field in _KEYS:
            if field in renamed:
                renamed[field] = self.key_to_table(renamed[field])
        if "Item" in renamed:
            renamed["Item"] = self.to_table(renamed["Item"])
        if "IndexName" in renamed:
            renamed["IndexName"] = self.index(renamed["IndexName"])
        marked = {
            name for field in _EXPRESSIONS if field in renamed for name in _NAME_MARK.findall(renamed[field])
        }
        if marked:
            renamed["ExpressionAttributeNames"] = {f"#{name}": self.attribute(name) for name in marked}
        return renamed
