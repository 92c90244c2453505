"""Rings for a worker pass: for new tasks, and for a pass that left work behind."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools.utilities.data_classes import DynamoDBStreamEvent, SNSEvent
from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecordEventName

from freshq.aws.observability import count, logger, metrics, tracer
from freshq.aws.settings import DoorbellSettings
from freshq.aws.wakeup import SWITCHED_OFF, Ring, WakeUp, parse_ring

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

# A put or a redrive makes a task in these states claimable.
OVER: Final = ("SUCCESS", "FAILURE", "CANCELLED", "SHED")


@cache
def _wakeup() -> WakeUp:
    settings = DoorbellSettings.load()
    return WakeUp.connect(settings, settings.process_tasks_topic_arn)


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, Any]:
    """Ring, or say why not. Errors are raised, so that the event source retries."""
    ring = _ring_for(event)
    skipped = _reason_to_skip(ring)
    if ring is not None and skipped is None:
        _wakeup().ring(ring)
    count("RingsSkipped" if skipped else "Rings")
    logger.info("no ring" if skipped else "rang", skipped=skipped, hop=ring.hop if ring else None)
    return {"rang": skipped is None, "skipped": skipped}


def _ring_for(event: dict[str, Any]) -> Ring | None:
    """Return the ring for an event; None for a stream batch without new claimable tasks."""
    records = event.get("Records") or [{}]
    source = records[0].get("eventSource") or records[0].get("EventSource")
    if source == "aws:dynamodb":
        is_new = any(_is_new_work(record) for record in DynamoDBStreamEvent(event).records)
        return Ring(reason="insert") if is_new else None
    if source == "aws:sns":
        rings = [parse_ring(record.sns.message) for record in SNSEvent(event).records]
        return max(rings, key=lambda ring: ring.hop)
    msg = f"event: neither a DynamoDB stream nor an SNS event (Records[0] comes from {source!r})"
    raise ValueError(msg)


def _is_new_work(record: DynamoDBRecord) -> bool:
    """Return whether a task became claimable: a new one, or one that was over."""
    change = record.dynamodb
    new = (change.new_image if change else None) or {}
    old = (change.old_image if change else None) or {}
    if record.event_name is DynamoDBRecordEventName.MODIFY:
        begun = old.get("taskStatus") in OVER
    else:
        begun = record.event_name is DynamoDBRecordEventName.INSERT
    return begun and new.get("taskStatus") == "PENDING" and "pendingShard" in new


def _reason_to_skip(ring: Ring | None) -> str | None:
    if ring is None:
        return "no new claimable tasks"
    if ring.reason == "tail_call":  # the calling pass may still have its slot, but claims no more
        return SWITCHED_OFF if _wakeup().switch.stops() else None
    return _wakeup().reason_not_to_ring()
