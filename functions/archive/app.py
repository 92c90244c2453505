"""Delivers the table's change stream to Firehose, for the data pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.aws.archive import Archive, ArchiveSettings
from freshq.aws.environment import DELIVERY_CONFIG, client_of, connect_at_init
from freshq.aws.invocation import Connected, records_of
from freshq.aws.observability import count, fields, logger, observed

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@Connected
def _archive() -> Archive:
    settings = ArchiveSettings.load()
    key = settings.attach_key or None
    client = client_of("firehose", DELIVERY_CONFIG)
    return Archive(client, settings.delivery_stream, key=key, table=settings.table)


connect_at_init(_archive)


@observed
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Deliver a batch; answer with the first record that must be resent.

    Raises:
        ValueError: If the event is not a batch of a DynamoDB stream.
    """
    try:
        delivery = _archive().deliver(
            records_of(event), lambda: context.get_remaining_time_in_millis() / 1000
        )
    except Exception:  # the event source sends the whole batch again
        count("ArchiveFailures")
        raise
    count("EventsArchived", delivery.delivered)
    if delivery.unreadable:
        count("ArchiveFailures")
        logger.error("records could not be read", **fields(error=delivery.unreadable))
    if delivery.failed_from is None:
        logger.info("archived", **fields(delivered=delivery.delivered, skipped=delivery.skipped))
        return {"batchItemFailures": []}
    count("ArchiveFailures")
    logger.error("archived partially", **fields(delivered=delivery.delivered, error=delivery.error))
    return {"batchItemFailures": [{"itemIdentifier": delivery.failed_from}]}
