"""The table as template.yaml declares it; a test compares the two."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef, WaiterConfigTypeDef

STATUS_INDEX: Final = "status-created-index"
DUE_INDEX: Final = "due-index"
# Beside its keys the status index has this, so that a query passes over tasks stale by their own max age.
STATUS_INDEX_ATTRIBUTE: Final = "deadline"
TTL_ATTRIBUTE: Final = "ttl"
# A waiter polls every second, for 2 minutes at most.
WAITER_CONFIG: Final[WaiterConfigTypeDef] = {"Delay": 1, "MaxAttempts": 120}


def table_definition(table: str) -> CreateTableInputTypeDef:
    """Return the arguments of CreateTable.

    Args:
        table: Name of the table.
    """
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "taskId", "AttributeType": "S"},
            {"AttributeName": "pendingShard", "AttributeType": "S"},
            {"AttributeName": "taskCreated", "AttributeType": "N"},
            {"AttributeName": "dueShard", "AttributeType": "S"},
            {"AttributeName": "dueAt", "AttributeType": "N"},
        ],
        "KeySchema": [{"AttributeName": "taskId", "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": STATUS_INDEX,
                "KeySchema": [
                    {"AttributeName": "pendingShard", "KeyType": "HASH"},
                    {"AttributeName": "taskCreated", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [STATUS_INDEX_ATTRIBUTE]},
            },
            {
                "IndexName": DUE_INDEX,
                "KeySchema": [
                    {"AttributeName": "dueShard", "KeyType": "HASH"},
                    {"AttributeName": "dueAt", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            },
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        "SSESpecification": {"Enabled": True},
    }


def create_table(client: DynamoDBClient, table: str) -> None:
    """Create the table unless it exists; return once it can be used.

    Raises:
        StoreError: If a table of this name exists that is not freshq's; nothing was changed.
    """
    # If the table exists, the remaining steps are safe to repeat.
    with suppress(client.exceptions.ResourceInUseException):
        client.create_table(**table_definition(table))
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig=WAITER_CONFIG)
    _check_owned(client, table)
    ttl = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    if ttl.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        client.update_time_to_live(
            TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        )


def _check_owned(client: DynamoDBClient, table: str) -> None:
    """Check that a table has the key and the indexes of freshq's tables: TTL would delete another's items."""
    found, wanted = client.describe_table(TableName=table)["Table"], table_definition(table)
    indexes = {index.get("IndexName") for index in found.get("GlobalSecondaryIndexes", [])}
    if found.get("KeySchema") != wanted["KeySchema"] or not indexes >= {STATUS_INDEX, DUE_INDEX}:
        msg = f"table {table!r}: it is not freshq's; choose another name. Nothing was changed"
        raise StoreError(msg)
