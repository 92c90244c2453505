"""The names of freshq's attributes and indexes in a table.

The store uses its own names, and puts a `#` before each name in an expression. Only this module maps them
to the names in the table: the same in a table of freshq's own, prefixed in an application's table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

# An item or attribute value in the form of the low-level client, such as {"taskId": {"S": "a"}}.
Item: TypeAlias = dict[str, Any]

KEY: Final = "taskId"
# The name under which an item has the application's attributes, as a map.
RECORD: Final = "record"
ATTACHED_PREFIX: Final = "freshq_"
ATTACHED_INDEX_PREFIX: Final = "freshq-"
_NAME_MARK: Final = re.compile(r"#(\w+)")
_EXPRESSIONS: Final = (
    "KeyConditionExpression",
    "FilterExpression",
    "ConditionExpression",
    "UpdateExpression",
    "ProjectionExpression",
)
_ITEMS: Final = ("Item", "Key", "ExclusiveStartKey")


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one table.

    Attributes:
        key: The table's hash key, which holds the task id.
        prefix: Prefix of freshq's other attributes.
        index_prefix: Prefix of freshq's indexes.
    """

    key: str = KEY
    prefix: str = ""
    index_prefix: str = ""

    @classmethod
    def attached(cls, key: str) -> Names:
        """Return the names in an attached table whose hash key is `key`."""
        return cls(key, ATTACHED_PREFIX, ATTACHED_INDEX_PREFIX)

    @property
    def is_attached(self) -> bool:
        """Whether the table is an application's, to whose records freshq only adds attributes."""
        return bool(self.prefix)

    def attribute(self, name: str) -> str:
        """Return the name of an attribute in the table."""
        return self.key if name == KEY else self.prefix + name

    def index(self, name: str) -> str:
        """Return the name of an index in the table."""
        return self.index_prefix + name

    def to_table(self, item: Mapping[str, Any]) -> Item:
        """Return an item under the names in the table."""
        return {self.attribute(name): value for name, value in item.items()}

    def from_table(self, item: Mapping[str, Any]) -> Item:
        """Return an item under freshq's names, with the application's attributes as its record."""
        if not self.is_attached:
            return dict(item)
        start = len(self.prefix)
        own = {name[start:]: value for name, value in item.items() if name.startswith(self.prefix)}
        record = {name: value for name, value in item.items() if not name.startswith(self.prefix)}
        if self.key in item:
            own[KEY] = item[self.key]
        return own | {RECORD: {"M": record}}

    def arguments(self, arguments: Mapping[str, Any]) -> Item:
        """Return the arguments of a call under the names in the table, with ExpressionAttributeNames."""
        renamed = dict(arguments)
        for field in _ITEMS:
            if field in renamed:
                renamed[field] = self.to_table(renamed[field])
        if "IndexName" in renamed:
            renamed["IndexName"] = self.index(renamed["IndexName"])
        marked = {
            name for field in _EXPRESSIONS if field in renamed for name in _NAME_MARK.findall(renamed[field])
        }
        if marked:
            renamed["ExpressionAttributeNames"] = {f"#{name}": self.attribute(name) for name in marked}
        return renamed
