"""An application's table that freshq is attached to."""

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Queue
from freshq.stores.dynamodb.attached.attach import (
    Attachment,
    attach_table,
    index_definitions,
    own_definitions,
)
from freshq.stores.dynamodb.key import TableKey
from freshq.stores.dynamodb.schema import Names
from tests.conftest import Clock

ID = TableKey.named("id")
DATA: dict[str, Any] = {
    "data": {"M": {"items": {"L": [{"M": {"SKU": {"S": "Item-1"}, "is_packed": {"BOOL": True}}}]}}},
    "status": {"S": "an application's own status"},
    "ttl": {"N": "12345678901234567890.5"},
    "price": {"N": "19.99"},
    "count": {"N": "3"},
    "tags": {"SS": ["b", "a"]},
    "sizes": {"NS": ["3", "1.5"]},
    "photo": {"B": b"\x00\xff"},
    "nothing": {"NULL": True},
    "taskStatus": {"S": "not freshq's"},
}


@dataclass
class Shipments:
    """An application's table, attached or not."""

    client: DynamoDBClient
    table: str = field(default_factory=lambda: f"shipments-{uuid.uuid4().hex}")
    key: TableKey = ID
    clock: Clock = field(default_factory=Clock)

    def create(self, *keys: Any, **options: Any) -> None:
        """Make the table, by default with its key."""
        keys = keys or self._keys()
        self.client.create_table(
            TableName=self.table,
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind, _ in keys],
            KeySchema=[{"AttributeName": name, "KeyType": part} for name, _, part in keys],
            **({"BillingMode": "PAY_PER_REQUEST"} | options),
        )

    def _keys(self) -> tuple[Any, ...]:
        parts = [(self.key.hash, "HASH"), *([(self.key.range, "RANGE")] if self.key.range else [])]
        return tuple((part.name, part.attribute_type, role) for part, role in parts)

    def create_attached(self, index_options: Any = (), **how: Any) -> None:
        """Make an attached table directly; attaching takes DynamoDB Local two seconds."""
        attachment = Attachment(self.table, self.key, **how)
        on_demand = {"BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}
        keys: Any = self._keys()
        definitions: Any = [{"AttributeName": name, "AttributeType": kind} for name, kind, _ in keys]
        indexes: Any = [index | dict(index_options) for index in index_definitions(attachment, on_demand)]
        self.client.create_table(
            TableName=self.table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": name, "KeyType": part} for name, _, part in keys],
            AttributeDefinitions=definitions + own_definitions(attachment),
            GlobalSecondaryIndexes=indexes,
        )
        self.attach(**how)

    @property
    def names(self) -> Names:
        """The names that freshq uses in it."""
        return Names.attached(self.key)

    def attach(self, **how: Any) -> None:
        attach_table(self.client, Attachment(self.table, self.key, **how), poll_seconds=0.01)

    def add(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.client.put_item(TableName=self.table, Item=self.key.attributes(task_id) | DATA)

    def change(self, task_id: str, **attributes: dict[str, Any] | None) -> None:
        """Set attributes of a record, as an application does; None to remove one."""
        assigned = [f"#{name} = :{name}" for name, value in attributes.items() if value is not None]
        removed = [f"#{name}" for name, value in attributes.items() if value is None]
        clauses = [f"SET {', '.join(assigned)}"] if assigned else []
        clauses += [f"REMOVE {', '.join(removed)}"] if removed else []
        values = {f":{name}": value for name, value in attributes.items() if value is not None}
        given: Any = {"ExpressionAttributeValues": values} if values else {}
        self.client.update_item(
            TableName=self.table,
            Key=self.key.attributes(task_id),
            UpdateExpression=" ".join(clauses),
            ExpressionAttributeNames={f"#{name}": name for name in attributes},
            **given,
        )

    def queue(self, **options: Any) -> AttachedQueue:
        options = {"clock": self.clock, "rng": random.Random(7), **options}
        return Queue.dynamodb(self.table, self.client, attach=True, key=self.key.hash.name, **options)

    def record(self, task_id: str) -> dict[str, Any]:
        return dict(self.client.get_item(TableName=self.table, Key=self.key.attributes(task_id))["Item"])

    def items(self) -> list[dict[str, Any]]:
        """Return every item of the table, freshq's own included."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.table)
        return [dict(item) for page in pages for item in page["Items"]]

    def own(self, task_id: str) -> dict[str, Any]:
        """Return freshq's attributes of a record."""
        record = self.record(task_id)
        return {name: value for name, value in record.items() if name.startswith("freshq_")}

    def version(self, task_id: str) -> int:
        return int(self.own(task_id).get("freshq_version", {"N": "0"})["N"])

    def assert_untouched(self, *task_ids: str) -> None:
        """Check that the application's data are unchanged."""
        for task_id in task_ids:
            record = self.record(task_id)
            left = {name: value for name, value in record.items() if not name.startswith("freshq_")}
            assert sorted(left.pop("tags")["SS"]) == ["a", "b"]
            assert sorted(left.pop("sizes")["NS"]) == ["1.5", "3"]
            expected = self.key.attributes(task_id) | DATA
            assert left == {name: expected[name] for name in expected if name not in ("tags", "sizes")}
