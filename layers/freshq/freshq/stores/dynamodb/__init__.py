"""The store on one DynamoDB table."""

from freshq.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
