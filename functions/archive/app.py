"""Delivers the table's change stream to Firehose, for the data pipeline."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import boto3

from freshq.aws.archive import Archive
from freshq.aws.observability import count, logger, metrics, tracer
from freshq.aws.settings import ArchiveSettings

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@cache
def _archive() -> Archive:
    return Archive(boto3.client("firehose"), ArchiveSettings.load().delivery_stream)


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Deliver a batch; answer with the first record that must be sent again."""
    delivery = _archive().deliver(event["Records"])
    count("EventsArchived", delivery.delivered)
    if delivery.failed_from is None:
        logger.info("archived", delivered=delivery.delivered, skipped=delivery.skipped)
        return {"batchItemFailures": []}
    count("ArchiveFailures")
    logger.error("archived partially", delivered=delivery.delivered, error=delivery.error)
    return {"batchItemFailures": [{"itemIdentifier": delivery.failed_from}]}
