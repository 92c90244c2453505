"""Stores of resources and their entries: in memory, on a DynamoDB table, or in a SQL database."""
