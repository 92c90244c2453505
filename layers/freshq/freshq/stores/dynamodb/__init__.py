"""The stores on DynamoDB tables."""

from freshq.stores.dynamodb.match_store import DynamoDBMatchStore
from freshq.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBMatchStore", "DynamoDBStore"]
