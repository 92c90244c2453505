"""A queue on a DynamoDB table that already exists."""
