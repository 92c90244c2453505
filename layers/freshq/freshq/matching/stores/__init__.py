"""Where resources and their queues are kept: in memory, or on a DynamoDB table."""
