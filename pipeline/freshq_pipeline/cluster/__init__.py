"""Runs on EMR Serverless and the events of a deployed stack: the only code here that calls boto3."""
