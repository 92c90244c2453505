"""Stores of resources and their entries: in memory, or on a DynamoDB table."""
