"""The store on DynamoDB tables."""

from freshq.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
