"""Run on EMR Serverless, and pull events from stacks and queues. Only this room calls boto3."""
